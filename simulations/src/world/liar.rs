//! Somebody who speaks the protocol and lies: a broken or hostile client with an incarnation of its
//! own.
//!
//! It claims to have spent or returned more than it was granted, returns what it never had, reports
//! on other holders' leases, asks for 2⁶⁴ − 1 tokens, takes back what it has just said, comes back
//! under its old incarnation with numbers that start anew, gives a key number two meanings, and
//! replays old messages word by word. As a flood it names far more keys than the authority has room
//! for.
//!
//! # What the promise says about it
//!
//! A liar can spend without asking at all, so its actual spending is nobody's promise. What the
//! authority must keep is that a liar hurts only itself: everybody else's admissions *and all that
//! the liar was granted* stay within the ideal bucket, when each of its tokens counts as spent at
//! the latest moment at which an honest holder that sent the same messages could have spent it. So a
//! token counts as spent
//!
//! - when the authority merges a report that says so (an honest holder had spent it before);
//! - otherwise when the authority takes back what its lease left unreported: nothing that arrives
//!   later can still return it;
//! - if the authority that granted it is gone, when the term ends that an honest holder would count
//!   from when it first sent the echoed message;
//! - never, if it was returned: an honest holder had put it out of its reach.
//!
//! The account is kept from the messages alone; the authority's view of each lease is checked
//! against it. It is assumed that incarnations are secret: who knows another holder's can speak in
//! its name, which authentication has to prevent.

use std::collections::{BTreeMap, VecDeque};

use quota_core::authority::{Input, StreamId};
use quota_core::holder::{HolderMessage, Slot};
use quota_core::id::{Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, Sequence};
use quota_core::key::{BucketAddress, Key};
use quota_core::message::{Answer, Introduction, LeaseRequest};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use super::invariants::LIAR_COUNTERS;
use super::{Event, Sabotage, UpMessage, World};
use crate::coverage::Sometimes;
use crate::random::Random;
use crate::shape::MILLI;

/// The liar's place among the holders.
pub(super) const LIAR: usize = usize::MAX;
/// Key numbers from here on are those of a flood.
const FLOOD: u32 = 1_000;
/// Messages that it keeps to replay.
const KEPT: usize = 8;

/// A lease of the liar, as the messages tell of it.
#[derive(Clone, Copy, Debug)]
struct Held {
    bucket: usize,
    granted: Tokens,
    /// What has been counted as spent, and as returned.
    spent: Tokens,
    returned: Tokens,
    /// The highest totals that it ever claimed.
    claimed: (Tokens, Tokens),
    /// What the message that is being handled claims, and whether it gives the lease up.
    claims: Option<(Tokens, Tokens, bool)>,
    /// What had been granted when that message came.
    granted_then: Tokens,
    /// In true time: when the authority takes back the rest.
    reclaim: u64,
    /// In true time: when an honest holder has stopped spending.
    deadline: u64,
    /// The present owner knows it.
    known: bool,
}

impl Held {
    fn rest(&self) -> Tokens {
        self.granted.less(self.spent.plus(self.returned))
    }
}

/// The liar.
#[derive(Debug, Default)]
pub(super) struct Liar {
    until: u64,
    floods_until: u64,
    scheduled: bool,
    incarnation: Incarnation,
    stream: Option<(usize, StreamId)>,
    number: u64,
    sequence: u64,
    latest_arrival: u64,
    leases: BTreeMap<LeaseId, Held>,
    first_sent: BTreeMap<(Incarnation, MessageNumber), u64>,
    old: VecDeque<HolderMessage>,
    /// A message of it is being handled.
    accounted: bool,
    flooded: u32,
    flooded_at: u64,
}

impl Liar {
    /// Its tokens of a bucket that an honest holder in its place could still spend.
    pub(super) fn in_hand(&self, bucket: usize) -> u64 {
        let leases = self.leases.values().filter(|held| held.bucket == bucket);
        leases.map(|held| held.rest().get()).sum()
    }

    pub(super) const fn has_flooded(&self) -> bool {
        self.flooded > 0
    }

    pub(super) const fn flooded_at(&self) -> u64 {
        self.flooded_at
    }
}

impl World {
    /// The liar speaks for a while.
    pub(super) fn incite(&mut self, flood: bool) {
        let length = self.shape.term + self.random.below(self.shape.term * 2);
        self.liar.until = self.time + length;
        if flood {
            self.liar.floods_until = self.time + length;
        }
        if !self.liar.scheduled {
            self.liar.scheduled = true;
            self.after(1, Event::LiarTurn);
        }
    }

    pub(super) fn liar_turn(&mut self) {
        if self.healed || self.time > self.liar.until {
            self.liar.scheduled = false;
            return;
        }
        let next = 1 + self.random.around(self.shape.term / 16);
        self.after(next, Event::LiarTurn);
        let Some(node) = self.owner() else { return };
        let Some((node, stream)) = self.liar_stream(node) else {
            return;
        };
        if self.random.chance(150) && !self.liar.old.is_empty() {
            let place = self.random.below(self.liar.old.len() as u64);
            let message = self.liar.old[usize::try_from(place).expect("few")].clone();
            self.hit(Sometimes::LiarReplayed);
            return self.liar_says(node, stream, UpMessage::Message(message));
        }
        let message = self.draw_lies();
        self.liar_says(node, stream, UpMessage::Message(message));
    }

    /// Its stream to the owner, opened anew if the owner does not know it.
    fn liar_stream(&mut self, node: usize) -> Option<(usize, StreamId)> {
        let tenure = self.servers[node].tenure.as_ref()?;
        let open = self.liar.stream.filter(|(of, stream)| {
            *of == node && (tenure.streams.contains_key(stream) || self.random_is_patient())
        });
        if open.is_some() && !self.random.chance(30) {
            return open;
        }
        match self.random.below(3) {
            // Another life, honestly said.
            0 => {
                self.liar.incarnation = Incarnation::new(self.random.bits());
                (self.liar.number, self.liar.sequence) = (0, 0);
                self.liar.old.clear();
            }
            // Another life under the old name.
            1 => {
                self.hit(Sometimes::LiarSameId);
                (self.liar.number, self.liar.sequence) = (0, 0);
            }
            _ => {}
        }
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        self.liar.stream = Some((node, stream));
        self.liar_says(node, stream, UpMessage::Connect);
        self.liar.stream
    }

    /// A stream that was just opened is not known yet.
    const fn random_is_patient(&self) -> bool {
        self.liar.latest_arrival >= self.time
    }

    /// Sends something; what it sends arrives in order.
    fn liar_says(&mut self, node: usize, stream: StreamId, message: UpMessage) {
        let incarnation = self.liar.incarnation;
        if let UpMessage::Message(sent) = &message {
            let first = (incarnation, sent.number);
            self.liar.first_sent.entry(first).or_insert(self.time);
            let now = self.time;
            self.trace.say(now, || format!("liar: {sent:?}"));
        }
        let delay = 1 + self.random.around(self.shape.network.delay);
        let at = (self.time + delay).max(self.liar.latest_arrival + 1);
        self.liar.latest_arrival = at;
        self.at(
            at,
            Event::Up {
                node,
                client: LIAR,
                incarnation,
                stream,
                message,
            },
        );
    }

    fn draw_lies(&mut self) -> HolderMessage {
        self.liar.number = match self.random.below(20) {
            0 => self.liar.number,
            1 => self.liar.number + 1_000,
            _ => self.liar.number + 1,
        };
        let number = match self.random.below(60) {
            0 => MessageNumber::default(),
            1 => MessageNumber::new(self.random.bits() >> 30),
            _ => MessageNumber::new(self.liar.number),
        };
        let mut introductions: Vec<Introduction> = (0..self.buckets.len())
            .map(|bucket| Introduction {
                number: number_of(bucket),
                bucket: self.buckets[bucket].address.clone(),
            })
            .collect();
        let mut requests = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let bucket = usize::try_from(self.random.below(self.buckets.len() as u64));
            let lie = self.draw_request(bucket.expect("few"));
            if requests
                .iter()
                .all(|other: &LeaseRequest| other.lease.is_none() || other.lease != lie.lease)
            {
                requests.push(lie);
            }
        }
        if self.time <= self.liar.floods_until {
            self.draw_flood(&mut introductions, &mut requests);
        }
        let message = HolderMessage {
            number,
            introductions,
            requests,
        };
        if self.liar.old.len() == KEPT {
            self.liar.old.pop_front();
        }
        self.liar.old.push_back(message.clone());
        message
    }

    fn draw_flood(&mut self, introductions: &mut Vec<Introduction>, out: &mut Vec<LeaseRequest>) {
        for _ in 0..self.random.between(4, 12) {
            self.liar.flooded += 1;
            self.liar.flooded_at = self.time;
            let name = format!("f{}", self.liar.flooded % 300);
            let like = usize::try_from(self.random.below(self.buckets.len() as u64));
            let like = &self.buckets[like.expect("few")].address;
            let number = KeyNumber::new(FLOOD + self.liar.flooded);
            introductions.push(Introduction {
                number,
                bucket: BucketAddress {
                    policy: like.policy.clone(),
                    key: Key::from_values(&[&name]).expect("short"),
                },
            });
            self.liar.sequence += 1;
            out.push(LeaseRequest {
                key: number,
                sequence: Sequence::new(self.liar.sequence),
                lease: None,
                spent: Tokens::ZERO,
                returned: Tokens::ZERO,
                want: Tokens::new(self.random.below(2)),
                least: Tokens::ONE,
                demand: 0,
                release: false,
            });
        }
    }

    fn draw_request(&mut self, bucket: usize) -> LeaseRequest {
        self.liar.sequence = match self.random.below(10) {
            0 => self.liar.sequence.saturating_sub(1),
            1 => self.liar.sequence,
            _ => self.liar.sequence + 1,
        };
        let lease = self.draw_lease(bucket);
        let granted = lease.and_then(|id| self.liar.leases.get(&id));
        let granted = granted.map_or(5, |held| held.granted.get());
        let lie = |random: &mut Random| {
            let some = random.below(granted + 1);
            Tokens::new(random.pick(&[0, 0, some, some, granted, granted + 1, u64::MAX]))
        };
        let (spent, returned) = (lie(&mut self.random), lie(&mut self.random));
        let want = self.random.pick(&[0, 1, 1, 3, 20, 1_000, u64::MAX]);
        LeaseRequest {
            key: number_of(bucket),
            sequence: Sequence::new(self.liar.sequence),
            lease,
            spent,
            returned,
            want: Tokens::new(want),
            least: Tokens::new(self.random.pick(&[0, 1, 1, want, u64::MAX])),
            demand: self.random.pick(&[0, 1, 50, u64::MAX]),
            release: self.random.chance(60),
        }
    }

    /// A lease of its own, mostly; one of another bucket, of another holder, or none at all.
    fn draw_lease(&mut self, bucket: usize) -> Option<LeaseId> {
        let any = self.random.chance(100);
        let own = self.liar.leases.iter();
        let own: Vec<LeaseId> = own
            .filter(|(_, held)| any || held.bucket == bucket)
            .map(|(id, _)| *id)
            .collect();
        match self.random.below(10) {
            0 => None,
            1 => Some(LeaseId {
                epoch: Epoch::new(self.random.below(4)),
                counter: self.random.below(50),
            }),
            2 | 3 => {
                let holder = self.random.below(self.clients.len() as u64);
                let holder = &self.clients[usize::try_from(holder).expect("few")];
                let slot = holder.slot_of(bucket).unwrap_or(Slot::new(0));
                let lease = holder.holder.lease(slot).map(|lease| lease.id);
                self.coverage
                    .hit_if(lease.is_some(), Sometimes::LiedAboutOthers);
                lease
            }
            _ if own.is_empty() => None,
            _ => Some(self.random.pick(&own)),
        }
    }

    // --- the account ---------------------------------------------------------------------------

    /// A message of the liar is about to be handled.
    pub(super) fn liar_claims(&mut self, inputs: &[Input]) {
        self.liar.accounted = true;
        for input in inputs {
            let Input::Request { request, .. } = input else {
                continue;
            };
            let Some(held) = request.lease.and_then(|id| self.liar.leases.get_mut(&id)) else {
                continue;
            };
            if request.key != number_of(held.bucket) {
                continue;
            }
            let lied = request.spent.max(request.returned) > held.granted;
            self.coverage.hit_if(lied, Sometimes::LiedAboveGranted);
            held.granted_then = held.granted;
            held.claims = Some((request.spent, request.returned, request.release));
            held.claimed.0 = held.claimed.0.max(request.spent);
            held.claimed.1 = held.claimed.1.max(request.returned);
        }
    }

    /// The authority has decided something for the liar, whether it learns of it or not.
    pub(super) fn liar_answered(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        anchor: MessageNumber,
        answers: &[Answer],
    ) {
        let sent = self.liar.first_sent.get(&(incarnation, anchor)).copied();
        for answer in answers {
            let Some(grant) = answer.grant else { continue };
            let key = usize::try_from(answer.key.get()).expect("small");
            let Some(bucket) = key.checked_sub(1).filter(|b| *b < self.buckets.len()) else {
                continue;
            };
            let Some(sent) = sent else {
                let text = format!("{answer:?} echoes {anchor:?}, which was never sent");
                return self.fail(LIAR_COUNTERS, text);
            };
            let clock = self.servers[node].clock;
            let reclaim = clock.read(self.time) + self.shape.drift.stretch(grant.term);
            // A holder's clock may be slow.
            let slow = 1_000_000 - u64::try_from(self.shape.drift_ppm).expect("not negative");
            let deadline = sent + grant.term.scale_up(1_000_000, slow).as_nanos();
            let held = self.liar.leases.entry(grant.lease).or_insert(Held {
                bucket,
                granted: Tokens::ZERO,
                spent: Tokens::ZERO,
                returned: Tokens::ZERO,
                claimed: (Tokens::ZERO, Tokens::ZERO),
                claims: None,
                granted_then: Tokens::ZERO,
                reclaim: 0,
                deadline: 0,
                known: true,
            });
            let fresh = held.reclaim == 0;
            held.granted = held.granted.max(grant.granted);
            held.deadline = held.deadline.max(deadline);
            if grant.term > Term::ZERO {
                held.reclaim = held.reclaim.max(clock.moment(reclaim));
            }
            let (lease, at) = (grant.lease, held.reclaim);
            self.coverage
                .hit_if(!grant.granted.is_zero(), Sometimes::LiarGranted);
            if fresh {
                self.at(at, Event::LiarEnd { lease });
            }
        }
    }

    /// A batch of the liar was handled: what it brought about is entered.
    pub(super) fn liar_account(&mut self) {
        if !std::mem::take(&mut self.liar.accounted) {
            return;
        }
        let leases: Vec<LeaseId> = self.liar.leases.keys().copied().collect();
        for lease in leases {
            let held = self.liar.leases[&lease];
            if held.known && self.owner().is_some() {
                self.liar_look(lease);
            } else if held.known && held.claims.is_some() {
                self.liar_merge(lease, held);
            }
        }
        for held in self.liar.leases.values_mut() {
            held.claims = None;
        }
    }

    /// Compares the account of a lease with the owner's, and enters what was reported or is over.
    fn liar_look(&mut self, lease: LeaseId) {
        let held = self.liar.leases[&lease];
        let Some((now, view)) = self.look(held.bucket) else {
            return;
        };
        let Some(seen) = view.leases.iter().find(|l| l.lease == lease) else {
            return self.liar_lost(lease, held);
        };
        let sound = seen.granted == held.granted
            && seen.spent >= held.spent
            && seen.returned >= held.returned
            && seen.spent <= held.claimed.0
            && seen.returned <= held.claimed.1
            && seen.spent.plus(seen.returned) <= seen.granted;
        if !sound {
            return self.fail(LIAR_COUNTERS, format!("{held:?}, but {seen:?}"));
        }
        let (spent, returned) = (
            seen.spent.less(held.spent),
            seen.returned.less(held.returned),
        );
        let node = self.owner().expect("it was looked at");
        let reclaim = self.servers[node].clock.moment(now + seen.reclaim_in);
        let entry = self.liar.leases.get_mut(&lease).expect("looked up above");
        (entry.spent, entry.returned) = (seen.spent, seen.returned);
        entry.reclaim = reclaim;
        self.liar_used(held.bucket, spent, returned);
    }

    /// The owner died of the batch in which it merged a report, so that nobody can be asked: merged
    /// by the rule, by maximum and clamped to what was granted. What was returned may have been
    /// granted again in the same batch.
    fn liar_merge(&mut self, lease: LeaseId, held: Held) {
        let Some((spent, returned, release)) = held.claims else {
            return;
        };
        let granted = held.granted_then;
        let spent = spent.max(held.spent).min(granted.less(held.returned));
        let returned = returned.max(held.returned).min(granted.less(spent));
        if release {
            self.liar.leases.remove(&lease);
            let rest = held.granted.less(returned).less(held.spent);
            return self.liar_used(held.bucket, rest, returned.less(held.returned));
        }
        let entry = self.liar.leases.get_mut(&lease).expect("looked up above");
        (entry.spent, entry.returned) = (spent, returned);
        let (spent, returned) = (spent.less(held.spent), returned.less(held.returned));
        self.liar_used(held.bucket, spent, returned);
    }

    /// The owner has closed a lease: it ended, or the liar gave it up.
    fn liar_lost(&mut self, lease: LeaseId, held: Held) {
        self.liar.leases.remove(&lease);
        let released = held.claims.filter(|(_, _, release)| *release);
        if self.time < held.reclaim && released.is_none() {
            let text = format!("{lease:?} ended before its time: {held:?}");
            return self.fail(LIAR_COUNTERS, text);
        }
        let (spent, returned, _) = released.unwrap_or_default();
        // Merged by maximum, clamped to what was granted.
        let spent = spent.max(held.spent).min(held.granted.less(held.returned));
        let returned = returned.max(held.returned).min(held.granted.less(spent));
        let rest = held.granted.less(returned).less(held.spent);
        self.coverage.hit_if(
            !rest.is_zero() && released.is_none(),
            Sometimes::LiarHoarded,
        );
        self.liar_used(held.bucket, rest, returned.less(held.returned));
    }

    fn liar_used(&mut self, bucket: usize, spent: Tokens, returned: Tokens) {
        self.coverage
            .hit_if(!returned.is_zero(), Sometimes::LiarReturned);
        if !spent.is_zero() {
            self.admit(bucket, spent);
        }
        if self.sabotage == Sabotage::LiarSpendsReturns && !returned.is_zero() {
            self.admit(bucket, returned);
        }
    }

    /// A lease of the liar may be over.
    pub(super) fn liar_end(&mut self, lease: LeaseId) {
        let Some(held) = self.liar.leases.get(&lease).copied() else {
            return;
        };
        let end = if held.known {
            held.reclaim
        } else {
            held.deadline
        };
        if end > self.time {
            return self.at(end, Event::LiarEnd { lease });
        }
        if !held.known {
            self.liar.leases.remove(&lease);
            return self.liar_used(held.bucket, held.rest(), Tokens::ZERO);
        }
        // Between two tenures nothing is reclaimed: the next owner's beginning decides.
        if self.owner().is_some() {
            self.liar_look(lease);
            if let Some(held) = self.liar.leases.get(&lease) {
                self.at(
                    held.reclaim.max(self.time + MILLI),
                    Event::LiarEnd { lease },
                );
            }
        }
    }

    /// Another tenure has begun: after an exact hand-over it knows the leases of the one before.
    pub(super) fn liar_taken_over(&mut self) {
        let leases: Vec<LeaseId> = self.liar.leases.keys().copied().collect();
        for lease in leases {
            let held = self.liar.leases[&lease];
            let view = self.look(held.bucket).map(|(_, view)| view);
            let knows = |l: &quota_core::authority::LeaseView| l.lease == lease;
            let known = held.known && view.is_some_and(|view| view.leases.iter().any(knows));
            if known {
                self.liar_look(lease);
            }
            let entry = self.liar.leases.get_mut(&lease).expect("looked up above");
            entry.known = known;
            self.after(0, Event::LiarEnd { lease });
        }
    }

    /// The liar falls silent for good.
    pub(super) fn silence_liar(&mut self) {
        self.liar.until = 0;
        if let Some((node, stream)) = self.liar.stream.take() {
            self.liar_says(node, stream, UpMessage::Disconnect);
        }
    }
}

fn number_of(bucket: usize) -> KeyNumber {
    KeyNumber::new(u32::try_from(bucket).expect("few") + 1)
}
