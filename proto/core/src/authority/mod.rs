//! The authority of one shard: it owns the shard's buckets and decides every grant.
//!
//! One event in, effects out; time is an argument. It owns the ledgers, the leases, the waiting
//! requests, the policies in force and what must be durable before it may be granted. It knows no
//! socket, no store and no other shard.
//!
//! - `ledger`: one bucket's tokens and their conservation
//! - `lease`, `holders`: who holds what
//! - `sizing`, `queue`, `serve`, `recall`: how much, who next, and from whom
//! - `reserve`, `write`: booking tokens durably before they are granted
//! - `policies`, `change`: versions, and what an unseen bucket is
//! - `restart`: take-over and hand-over
//! - `sweep`: forgetting buckets that nothing distinguishes from new ones
//! - `view`, `top`, `preview`: what an operator can see

mod bucket;
mod change;
mod holders;
mod input;
mod lease;
mod ledger;
mod policies;
mod preview;
mod queue;
mod recall;
mod reserve;
mod restart;
mod serve;
mod sizing;
mod sweep;
mod top;
mod view;
mod write;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

pub use self::input::{Effect, Input, StreamId, WriteId};
pub use self::top::{Holding, Slice, TopBucket, TopOrder, TopQuery};
pub use self::view::{BucketView, LeaseView, PolicyStats, Stats, Waits};

use self::bucket::{Bucket, Buckets, Scarce};
use self::holders::{Holders, Numbered};
use self::lease::{Lease, Leases};
use self::policies::Policies;
use self::reserve::{Reserve, Writes};
use self::sweep::Sweep;
use self::top::Busiest;
use crate::id::{Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, Sequence};
use crate::key::{BucketAddress, Key};
use crate::message::{Answer, Grant, Introduction, LeaseRequest, Refusal, Status};
use crate::policy::Limit;
use crate::time::{DriftAllowance, Term, Timestamp};
use crate::tokens::Tokens;

/// What an authority is told when it takes a shard over.
#[derive(Clone, Copy, Debug)]
pub struct AuthorityConfig {
    /// This tenure; leases that it opens carry it.
    pub epoch: Epoch,
    /// Tenures before this one whose exposure may still be live, as the claim counted them.
    pub tenures_before: u32,
    /// True if nobody ever owned the shard.
    pub first_tenure: bool,
    /// How much longer than the holder the authority counts a term.
    pub drift: DriftAllowance,
    /// Identifies the boot whose clock the timestamps are read from.
    pub boot: u128,
    /// Secret seed of the table of keys, so that nobody can craft keys that collide.
    pub hash_seed: (u64, u64),
    /// Most buckets in memory; a request for a further one is answered busy.
    pub buckets_max: u32,
}

/// The state machine of one shard.
#[derive(Debug)]
pub struct Authority {
    config: AuthorityConfig,
    policies: Policies,
    holders: Holders,
    buckets: Buckets,
    /// When which bucket's queue can be served.
    timetable: BTreeSet<(Timestamp, u32)>,
    writes: Writes,
    last_lease: u64,
    /// When the exposure of earlier tenures is over; `None` once that is marked or asked for.
    settle_at: Option<Timestamp>,
    sweep: Sweep,
    stats: Stats,
    waiting: u64,
    busiest: Busiest,
}

/// How long a holder is told to wait when the shard is full.
const BUSY_RETRY: Term = Term::from_seconds(1);

impl Authority {
    /// Handles one event at `now`. Timestamps never go back between calls.
    ///
    /// Cost: constant in the number of buckets, but for [`Input::ApplyPolicy`], which visits them
    /// all, and [`Input::Tick`], which visits those that are due.
    pub fn handle(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Connect {
                incarnation,
                stream,
            } => {
                if self.holders.is_newest(incarnation, stream) {
                    self.drop_wishes(now, incarnation, effects);
                    self.holders.connect(incarnation, stream);
                }
            }
            Input::Disconnect {
                incarnation,
                stream,
            } => {
                if self.holders.on_stream(incarnation, stream).is_some() {
                    self.drop_wishes(now, incarnation, effects);
                }
                self.holders.disconnect(incarnation, stream);
            }
            Input::Anchor {
                incarnation,
                stream,
                number,
            } => {
                if let Some(holder) = self.heard(now, incarnation, stream, number) {
                    self.serve_passed_over(now, holder, effects);
                }
            }
            Input::Introduce {
                incarnation,
                stream,
                introduction,
            } => {
                self.introduce(now, incarnation, stream, *introduction);
            }
            Input::Request {
                incarnation,
                stream,
                number,
                request,
            } => {
                if let Some(holder) = self.heard(now, incarnation, stream, number) {
                    self.request(now, holder, &request, effects);
                    self.serve_passed_over(now, holder, effects);
                }
            }
            Input::Written { write } => self.written(now, write, effects),
            Input::ApplyPolicy { history } => self.apply_policy(now, *history, effects),
            Input::ForgetPolicy { id } => self.policies.retire(&id),
            Input::Tick => self.tick(now, effects),
        }
        self.flush_writes(now, effects);
    }

    /// When [`Input::Tick`] is due next, if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let due = self.timetable.first().map(|(due, _)| *due);
        let sweep = self.sweep.next(self.buckets.len());
        [due, sweep, self.settle_at].into_iter().flatten().min()
    }

    /// Takes back everything that a holder waits for on its present stream: nobody could be told.
    /// Costs a look at each bucket that the stream has named.
    fn drop_wishes(&mut self, now: Timestamp, incarnation: Incarnation, effects: &mut Vec<Effect>) {
        let Some(holder) = self.holders.find(incarnation) else {
            return;
        };
        let mut waiting: Vec<u32> = self
            .holders
            .get(holder)
            .numbered()
            .filter(|known| self.buckets.is_live(known.slot, known.generation))
            .map(|known| known.slot)
            .filter(|slot| self.buckets.get(*slot).waiter(incarnation).is_some())
            .collect();
        waiting.sort_unstable();
        for slot in waiting {
            self.forget_wish(slot, incarnation);
            self.settle(slot, now);
            self.serve(now, slot, effects);
            self.check(slot);
        }
    }

    /// Takes note of a message and returns the holder's slot; `None` if the stream is not, or no
    /// longer, the incarnation's.
    fn heard(
        &mut self,
        now: Timestamp,
        incarnation: Incarnation,
        stream: StreamId,
        number: MessageNumber,
    ) -> Option<u32> {
        if number.get() == 0 {
            return None;
        }
        let slot = self.holders.on_stream(incarnation, stream)?;
        let holder = self.holders.get_mut(slot);
        if number > holder.anchor {
            holder.anchor = number;
            holder.heard_at = now;
        }
        Some(slot)
    }

    fn introduce(
        &mut self,
        now: Timestamp,
        incarnation: Incarnation,
        stream: StreamId,
        introduction: Introduction,
    ) {
        let Some(holder) = self.holders.on_stream(incarnation, stream) else {
            return;
        };
        let meaning = self.enter(now, introduction.bucket);
        let meaning = meaning.map(|slot| Numbered {
            slot,
            generation: self.buckets.generation(slot),
        });
        self.holders
            .get_mut(holder)
            .introduce(introduction.number, meaning);
    }

    /// The slot of a bucket, made if this tenure has not seen it.
    fn enter(&mut self, now: Timestamp, bucket: BucketAddress) -> Result<u32, Refusal> {
        let policy = self
            .policies
            .find(&bucket.policy)
            .ok_or(Refusal::UnknownPolicy)?;
        if let Some(slot) = self.buckets.find(policy, &bucket.key) {
            return Ok(slot);
        }
        let dimensions = self.policies.get(policy).policy.dimensions().len();
        if bucket.key.values().count() != dimensions {
            return Err(Refusal::KeyMismatch {
                dimensions: u32::try_from(dimensions).unwrap_or(u32::MAX),
            });
        }
        if self.buckets.len() >= usize::try_from(self.config.buckets_max).unwrap_or(usize::MAX) {
            return Err(Refusal::Busy {
                retry_after: BUSY_RETRY,
            });
        }
        Ok(self.make_bucket(now, policy, bucket.key))
    }

    fn make_bucket(&mut self, now: Timestamp, policy: u32, key: Key) -> u32 {
        let slot = self.policies.get_mut(policy);
        let class = slot.class_of(&key);
        let ledger = slot.unseen(class, now);
        let reserve = slot
            .class(class)
            .limit
            .is_reserved()
            .then(Box::<Reserve>::default);
        self.stats.buckets_made = self.stats.buckets_made.saturating_add(1);
        self.sweep.wake(now);
        self.policies.bucket_made(policy);
        self.buckets.insert(Bucket {
            ledger,
            leases: Leases::default(),
            policy,
            class,
            due: Timestamp::MAX,
            scarce: Scarce::default(),
            queue: None,
            reserve,
            key,
        })
    }

    fn request(
        &mut self,
        now: Timestamp,
        holder: u32,
        request: &LeaseRequest,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.requests = self.stats.requests.saturating_add(1);
        let slot = match self.holders.get(holder).number(request.key) {
            Ok(known) if self.buckets.is_live(known.slot, known.generation) => known.slot,
            Err(Some(refusal)) => {
                // Said once: whoever asks again is told to introduce the bucket anew, and may find
                // room, or the policy, by then.
                self.holders.get_mut(holder).forget_refusal(request.key);
                return self.refuse(holder, request, refusal, effects);
            }
            Ok(_) | Err(None) => {
                return self.refuse(holder, request, Refusal::UnknownKey, effects);
            }
        };
        self.note_message(now, slot);
        self.settle(slot, now);
        self.report(slot, holder, request);
        let incarnation = self.holders.get(holder).incarnation;
        let bucket = self.buckets.get(slot);
        let last = self.last_sequence(bucket, holder, incarnation);
        if request.sequence < last {
            // A late copy of something decided long ago: its report was merged, no more.
        } else if request.sequence == last {
            self.retry(now, slot, holder, request, effects);
        } else if request.want.is_zero() {
            self.extend(now, slot, holder, request, effects);
        } else {
            let before = effects.len();
            self.ask(now, slot, holder, request, effects);
            self.note_decision(slot, request, effects.get(before..));
        }
        // The report may have made room for those who wait.
        self.serve(now, slot, effects);
        self.check(slot);
    }

    /// The highest sequence number of this incarnation that was decided or waits.
    fn last_sequence(&self, bucket: &Bucket, holder: u32, incarnation: Incarnation) -> Sequence {
        let leases = bucket
            .leases
            .as_slice()
            .iter()
            .filter(|l| l.holder == holder);
        let decided = leases.map(|l| l.sequence).max().unwrap_or_default();
        decided.max(
            bucket
                .waiter(incarnation)
                .map_or(Sequence::default(), |w| w.sequence),
        )
    }

    /// Brings a bucket to `now`. Leases that ended are reclaimed: unreported means spent.
    fn settle(&mut self, slot: u32, now: Timestamp) {
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get_mut(bucket.policy);
        let limit =
            &policy.classes[usize::try_from(bucket.class).expect("32 bits fit a usize")].limit;
        let holders = &mut self.holders;
        let reclaimed = bucket
            .ledger
            .settle(now, limit, &mut bucket.leases, &mut |holder| {
                holders.lease_ended(holder);
            });
        policy.stats.reclaimed = policy.stats.reclaimed.saturating_add(reclaimed.get());
    }

    fn limit_of(&self, slot: u32) -> &Limit {
        let bucket = self.buckets.get(slot);
        &self.policies.get(bucket.policy).class(bucket.class).limit
    }

    /// Merges a report into the lease that it names. Counters of a lease that is closed, unknown
    /// or somebody else's are ignored.
    fn report(&mut self, slot: u32, holder: u32, request: &LeaseRequest) {
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get_mut(bucket.policy);
        let limit =
            &policy.classes[usize::try_from(bucket.class).expect("32 bits fit a usize")].limit;
        let leases = bucket.leases.as_mut_slice();
        let named = |l: &Lease| Some(l.id) == request.lease && l.holder == holder;
        let Some(place) = leases.iter().position(named) else {
            return;
        };
        let lease = &mut leases[place];
        let (spent, returned) = lease.merge(request.spent, request.returned);
        lease.set_demand(saturate(request.demand));
        lease.number = request.key;
        bucket.ledger.report(spent, returned, limit);
        policy.stats.spent = policy.stats.spent.saturating_add(spent.get());
        policy.stats.returned = policy.stats.returned.saturating_add(returned.get());
        if request.release {
            let rest = bucket.leases.remove(place).held();
            bucket.ledger.report(rest, Tokens::ZERO, limit);
            policy.stats.reclaimed = policy.stats.reclaimed.saturating_add(rest.get());
            self.holders.lease_ended(holder);
        }
    }

    /// Answers a repeated request with what was decided for it.
    fn retry(
        &mut self,
        now: Timestamp,
        slot: u32,
        holder: u32,
        request: &LeaseRequest,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.retries = self.stats.retries.saturating_add(1);
        let incarnation = self.holders.get(holder).incarnation;
        let bucket = self.buckets.get(slot);
        if bucket
            .waiter(incarnation)
            .is_some_and(|w| w.sequence == request.sequence)
        {
            return self.enqueue(now, slot, holder, request, effects);
        }
        let decided = |l: &Lease| l.holder == holder && l.sequence == request.sequence;
        let lease = bucket
            .leases
            .as_slice()
            .iter()
            .find(|l| decided(l))
            .map(|l| l.id);
        let grant = lease.and_then(|lease| self.date(now, slot, lease));
        self.answer(
            holder,
            request.key,
            request.sequence,
            grant,
            Status::Done,
            effects,
        );
    }

    /// Answers a report that asks for nothing: the lease that it names goes on for another term.
    fn extend(
        &mut self,
        now: Timestamp,
        slot: u32,
        holder: u32,
        request: &LeaseRequest,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = self.holders.get(holder).incarnation;
        self.forget_wish(slot, incarnation);
        let leases = self.buckets.get_mut(slot).leases.as_mut_slice().iter_mut();
        let named = |l: &&mut Lease| Some(l.id) == request.lease && l.holder == holder;
        let lease = { leases }.find(named).map(|lease| {
            lease.sequence = request.sequence;
            lease.id
        });
        let grant = lease.and_then(|lease| self.date(now, slot, lease));
        self.answer(
            holder,
            request.key,
            request.sequence,
            grant,
            Status::Done,
            effects,
        );
    }

    /// Takes back a request that still waits: a newer one of the same holder replaces it.
    fn forget_wish(&mut self, slot: u32, incarnation: Incarnation) {
        let bucket = self.buckets.get_mut(slot);
        if let Some(queue) = bucket.queue.as_mut() {
            let before = queue.len();
            queue.remove(incarnation);
            let gone = before.saturating_sub(queue.len());
            self.waiting = self
                .waiting
                .saturating_sub(u64::try_from(gone).unwrap_or(u64::MAX));
        }
    }

    /// Counts a lease's term anew from now and says what its holder may now count on. A lease of
    /// an earlier policy version keeps its totals but gets no longer term.
    fn date(&mut self, now: Timestamp, slot: u32, lease: LeaseId) -> Option<Grant> {
        let drift = self.config.drift;
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get(bucket.policy);
        let full_term = policy.settings().term_max();
        let limit = &policy.class(bucket.class).limit;
        let headroom = if bucket.scarce.holds(now) {
            sizing::headroom(&bucket.ledger, limit, full_term)
        } else {
            Term::ZERO
        };
        let lease = bucket
            .leases
            .as_mut_slice()
            .iter_mut()
            .find(|l| l.id == lease)?;
        let term = if lease.is_current() {
            full_term
        } else {
            Term::ZERO
        };
        if lease.is_current() {
            lease.reclaim_at = lease.reclaim_at.max(now + drift.stretch(term));
        }
        let grant = Grant {
            lease: lease.id,
            granted: lease.granted(),
            term,
            headroom,
            version: lease.version,
        };
        bucket.leases.dated();
        Some(grant)
    }

    fn refuse(
        &mut self,
        holder: u32,
        request: &LeaseRequest,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        let status = Status::Refused(refusal);
        self.answer(holder, request.key, request.sequence, None, status, effects);
    }

    fn answer(
        &self,
        holder: u32,
        key: KeyNumber,
        sequence: Sequence,
        grant: Option<Grant>,
        status: Status,
        effects: &mut Vec<Effect>,
    ) {
        let holder = self.holders.get(holder);
        // Without a stream or an anchor there is nobody to tell, and nothing to date a term by.
        let Some(stream) = holder.stream else { return };
        assert!(
            holder.anchor.get() > 0,
            "nothing is decided for a holder that was never heard"
        );
        effects.push(Effect::Answer {
            incarnation: holder.incarnation,
            stream,
            anchor: holder.anchor,
            answer: Answer {
                key,
                sequence,
                grant,
                status,
            },
        });
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some((due, slot)) = self.timetable.first().copied() {
            if due > now {
                break;
            }
            self.timetable.pop_first();
            self.buckets.get_mut(slot).due = Timestamp::MAX;
            self.settle(slot, now);
            self.serve(now, slot, effects);
            self.check(slot);
        }
        if self.settle_at.is_some_and(|at| at <= now) {
            self.settle_at = None;
            effects.push(Effect::Settle);
        }
        self.sweep(now);
    }

    /// Panics unless the invariants of the bucket that was touched hold.
    fn check(&self, slot: u32) {
        let bucket = self.buckets.get(slot);
        let class = self.policies.get(bucket.policy).class(bucket.class);
        bucket.ledger.check(&class.limit, &bucket.leases);
        assert_eq!(
            class.limit.is_reserved(),
            bucket.reserve.is_some(),
            "reserved buckets keep records"
        );
    }
}

fn saturate(demand: u64) -> u32 {
    u32::try_from(demand).unwrap_or(u32::MAX)
}
