//! One authority with holders that keep count, driven event by event.

use std::collections::BTreeMap;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId};
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Introduction, LeaseRequest, Refusal, Status};
use quota_core::policy::{Limit, Policy, PolicyHistory, PolicySpec};
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;

/// `millis` after a history began, on a clock that did not start then.
pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(9_000_000_000) + Term::from_millis(millis)
}

/// Numbers that follow from a seed (SplitMix64, Steele, Lea and Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(u64::try_from(length).expect("fits"))).expect("fits")
    }
}

/// What a holder holds of the bucket that it asked about last.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    lease: Option<LeaseId>,
    granted: Tokens,
    spent: Tokens,
    pub(crate) deadline: Timestamp,
}

impl Held {
    pub(crate) fn rest(&self) -> Tokens {
        self.granted.less(self.spent)
    }
}

struct Holder {
    incarnation: Incarnation,
    stream: StreamId,
    number: u64,
    sent: Vec<Timestamp>,
    sequence: u64,
    introduced: u32,
    numbers: BTreeMap<BucketAddress, KeyNumber>,
    held: BTreeMap<KeyNumber, Held>,
    last: KeyNumber,
}

pub(crate) struct Shard {
    pub(crate) authority: Authority,
    policies: BTreeMap<PolicyId, Policy>,
    holders: Vec<Holder>,
}

fn id(name: &str) -> PolicyId {
    PolicyId {
        namespace: "default".into(),
        name: name.into(),
    }
}

impl Shard {
    pub(crate) fn new(specs: Vec<PolicySpec>) -> Self {
        let config = AuthorityConfig {
            epoch: Epoch::new(1),
            tenures_before: 0,
            first_tenure: true,
            drift: DriftAllowance::DEFAULT,
            boot: 1,
            hash_seed: (5, 6),
            buckets_max: 1_000_000,
        };
        let version = PolicyVersion::new(1);
        let parsed = specs.iter().map(|spec| {
            let policy = Policy::parse(spec.clone(), version).expect("a legal policy");
            (policy.id().clone(), policy)
        });
        let policies = parsed.collect();
        let histories = specs
            .into_iter()
            .map(|spec| PolicyHistory::create(spec, version));
        let histories = histories
            .map(|history| history.expect("a legal policy"))
            .collect();
        let authority = Authority::new(at(0), config, histories, Vec::new(), None);
        Self {
            authority,
            policies,
            holders: Vec::new(),
        }
    }

    pub(crate) fn limit(&self, policy: &str) -> Limit {
        let key = Key::from_values(&["any"]).expect("a legal key");
        *self.policies[&id(policy)].limit_for(&key)
    }

    /// Adds a holder with a stream and returns its place.
    pub(crate) fn connect(&mut self) -> usize {
        let place = self.holders.len();
        let number = u64::try_from(place).expect("fits") + 1;
        let (incarnation, stream) = (Incarnation::new(number), StreamId::new(number));
        self.holders.push(Holder {
            incarnation,
            stream,
            number: 0,
            sent: Vec::new(),
            sequence: 0,
            introduced: 0,
            numbers: BTreeMap::new(),
            held: BTreeMap::new(),
            last: KeyNumber::new(0),
        });
        self.feed(
            at(0),
            Input::Connect {
                incarnation,
                stream,
            },
        );
        place
    }

    /// What a holder holds of the bucket that it asked about last.
    pub(crate) fn holder(&self, holder: usize) -> Held {
        let holder = &self.holders[holder];
        holder.held.get(&holder.last).copied().unwrap_or_default()
    }

    pub(crate) fn pass(&mut self, now: Timestamp) {
        while let Some(due) = self.authority.next_deadline().filter(|due| *due <= now) {
            self.feed(due, Input::Tick);
        }
    }

    pub(crate) fn feed(&mut self, now: Timestamp, input: Input) -> Vec<Status> {
        let mut effects = Vec::new();
        self.authority.handle(now, input, &mut effects);
        let answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Answer {
                incarnation,
                anchor,
                answer,
                ..
            } => Some((incarnation, anchor, answer)),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        for (incarnation, anchor, answer) in &answers {
            self.install(*incarnation, *anchor, answer);
        }
        answers
            .into_iter()
            .map(|(_, _, answer)| answer.status)
            .collect()
    }

    fn install(&mut self, incarnation: Incarnation, anchor: MessageNumber, answer: &Answer) {
        let place = usize::try_from(incarnation.get() - 1).expect("fits");
        let holder = &mut self.holders[place];
        if answer.status == Status::Refused(Refusal::UnknownKey) {
            holder.numbers.retain(|_, number| *number != answer.key);
        }
        let Some(grant) = answer.grant else { return };
        let sent = holder.sent[usize::try_from(anchor.get() - 1).expect("fits")];
        let held = holder.held.entry(answer.key).or_default();
        if held.lease != Some(grant.lease) {
            *held = Held {
                lease: Some(grant.lease),
                ..Held::default()
            };
        }
        held.granted = held.granted.max(grant.granted);
        held.deadline = held.deadline.max(sent + grant.term);
    }

    /// Spends what a holder still may of the bucket that it asked about last.
    pub(crate) fn spend_all(&mut self, now: Timestamp, holder: usize) -> Tokens {
        let holder = &mut self.holders[holder];
        match holder
            .held
            .get_mut(&holder.last)
            .filter(|held| held.deadline > now)
        {
            Some(held) => {
                let rest = held.rest();
                held.spent += rest;
                rest
            }
            None => Tokens::ZERO,
        }
    }

    /// Reports and asks; introduces the bucket if need be.
    pub(crate) fn ask(
        &mut self,
        now: Timestamp,
        holder: usize,
        policy: &str,
        key: &str,
        want: u64,
        least: u64,
    ) -> Vec<Status> {
        let statuses = self.send(now, holder, policy, key, (want, least), false);
        // A number stands for nothing once its bucket was forgotten: introduce it again.
        if statuses.contains(&Status::Refused(Refusal::UnknownKey)) {
            return self.send(now, holder, policy, key, (want, least), false);
        }
        statuses
    }

    /// Ends a lease with final counters.
    pub(crate) fn release(&mut self, now: Timestamp, holder: usize, policy: &str, key: &str) {
        self.send(now, holder, policy, key, (0, 1), true);
    }

    fn send(
        &mut self,
        now: Timestamp,
        place: usize,
        policy: &str,
        key: &str,
        (want, least): (u64, u64),
        release: bool,
    ) -> Vec<Status> {
        let key = Key::from_values(&[key]).expect("a legal key");
        let bucket = BucketAddress {
            policy: id(policy),
            key,
        };
        let holder = &mut self.holders[place];
        let (incarnation, stream) = (holder.incarnation, holder.stream);
        let known = holder.numbers.get(&bucket).copied();
        let number = known.unwrap_or_else(|| {
            holder.introduced += 1;
            KeyNumber::new(holder.introduced)
        });
        holder.numbers.insert(bucket.clone(), number);
        holder.last = number;
        let held = *holder.held.entry(number).or_default();
        holder.number += 1;
        holder.sent.push(now);
        holder.sequence += 1;
        let message = MessageNumber::new(holder.number);
        let request = LeaseRequest {
            key: number,
            sequence: Sequence::new(holder.sequence),
            lease: held.lease,
            spent: held.spent,
            returned: Tokens::ZERO,
            want: Tokens::new(want),
            least: Tokens::new(least),
            demand: want,
            release,
        };
        if release {
            holder.held.remove(&number);
        }
        if known.is_none() {
            let introduction = Box::new(Introduction { number, bucket });
            self.feed(
                now,
                Input::Introduce {
                    incarnation,
                    stream,
                    introduction,
                },
            );
        }
        self.feed(
            now,
            Input::Request {
                incarnation,
                stream,
                number: message,
                request,
            },
        )
    }

    /// Asks for one token and spends it at once; an ask that would have to wait is withdrawn.
    pub(crate) fn take_one(
        &mut self,
        now: Timestamp,
        holder: usize,
        policy: &str,
        key: &str,
    ) -> bool {
        self.ask(now, holder, policy, key, 1, 1);
        let taken = !self.spend_all(now, holder).is_zero();
        // Reports what was spent, and that nothing is wished for any more.
        self.ask(now, holder, policy, key, 0, 1);
        taken
    }
}
