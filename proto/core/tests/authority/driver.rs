//! Drives one authority by hand: streams, requests and a store that keeps what was written.

use std::collections::BTreeMap;

use quota_core::authority::{Authority, AuthorityConfig, BucketView, Effect, Input, StreamId};
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Grant, Introduction, LeaseRequest, Status};
use quota_core::policy::{LimitSpec, PolicyHistory, PolicySpec};
use quota_core::record::{HandOver, Reservation};
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;

pub(crate) fn at(millis: u64) -> Timestamp {
    // An origin away from zero, so that nothing rests on the clock starting there.
    Timestamp::from_nanos(7_000_000_000 + millis * 1_000_000)
}

pub(crate) fn tokens(count: u64) -> Tokens {
    Tokens::new(count)
}

pub(crate) fn policy(count: u64, period_ms: u64, burst: u64) -> PolicySpec {
    let limit = LimitSpec::new(count, Term::from_millis(period_ms)).with_burst(burst);
    PolicySpec::new("api", &["who"], limit)
}

pub(crate) fn history(spec: PolicySpec, version: u64) -> PolicyHistory {
    PolicyHistory::create(spec, PolicyVersion::new(version)).expect("a legal policy")
}

pub(crate) fn bucket(who: &str) -> BucketAddress {
    BucketAddress {
        policy: PolicyId {
            namespace: "default".into(),
            name: "api".into(),
        },
        key: Key::from_values(&[who]).expect("a legal key"),
    }
}

pub(crate) const DRIFT: DriftAllowance = DriftAllowance::DEFAULT;

/// One shard with its durable side.
pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) histories: Vec<PolicyHistory>,
    pub(crate) records: BTreeMap<BucketAddress, Reservation>,
    pub(crate) unwritten: Vec<Effect>,
    pub(crate) hold_writes: bool,
    pub(crate) boot: u128,
    pub(crate) epoch: u64,
    pub(crate) tenures: u32,
    pub(crate) answers: Vec<(Incarnation, MessageNumber, Answer)>,
    pub(crate) settled: bool,
    pub(crate) owed: Tokens,
    pub(crate) outstanding: Tokens,
    streams: u64,
}

impl World {
    pub(crate) fn new(spec: PolicySpec) -> Self {
        Self::start(vec![history(spec, 1)])
    }

    pub(crate) fn start(histories: Vec<PolicyHistory>) -> Self {
        let config = config(1, 0, true, 1);
        Self {
            authority: Authority::new(at(0), config, histories.clone(), Vec::new(), None),
            histories,
            records: BTreeMap::new(),
            unwritten: Vec::new(),
            hold_writes: false,
            boot: 1,
            epoch: 1,
            tenures: 1,
            answers: Vec::new(),
            settled: false,
            owed: Tokens::ZERO,
            outstanding: Tokens::ZERO,
            streams: 0,
        }
    }

    /// The process dies without a word and another tenure begins.
    pub(crate) fn crash(&mut self, now: Timestamp) {
        self.take_over(now, None);
        self.tenures += 1;
    }

    pub(crate) fn restart_cleanly(&mut self, stop: Timestamp, start: Timestamp) -> HandOver {
        let rows = self.authority.hand_over(stop);
        self.take_over(start, Some(rows.clone()));
        rows
    }

    fn take_over(&mut self, now: Timestamp, rows: Option<HandOver>) {
        self.epoch += 1;
        self.unwritten.clear();
        self.settled = false;
        let before = if rows.is_some() {
            self.tenures - 1
        } else {
            self.tenures
        };
        let config = config(self.epoch, before, false, self.boot);
        let records = self.records.clone().into_iter().collect();
        self.authority = Authority::new(now, config, self.histories.clone(), records, rows);
    }

    pub(crate) fn connect(&mut self, now: Timestamp, who: u64) -> Client {
        self.streams += 1;
        let client = Client {
            incarnation: Incarnation::new(who),
            stream: StreamId::new(self.streams),
            number: 0,
            sequence: 0,
            keys: BTreeMap::new(),
        };
        let (incarnation, stream) = (client.incarnation, client.stream);
        self.feed(
            now,
            Input::Connect {
                incarnation,
                stream,
            },
        );
        client
    }

    pub(crate) fn feed(&mut self, now: Timestamp, input: Input) {
        let mut effects = Vec::new();
        self.authority.handle(now, input, &mut effects);
        self.carry(now, effects);
    }

    fn carry(&mut self, now: Timestamp, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer {
                    incarnation,
                    anchor,
                    answer,
                    ..
                } => {
                    self.answers.push((incarnation, anchor, answer));
                }
                Effect::Write { .. } if self.hold_writes => self.unwritten.push(effect),
                Effect::Write { .. } => self.write(now, effect),
                Effect::Settle => {
                    self.settled = true;
                    self.tenures = 1;
                }
                Effect::PolicyApplied {
                    outstanding, owed, ..
                } => {
                    self.outstanding = outstanding;
                    self.owed = owed;
                }
            }
        }
    }

    fn write(&mut self, now: Timestamp, effect: Effect) {
        let Effect::Write { write, records } = effect else {
            return;
        };
        for record in records {
            match record.reservation {
                Some(reservation) => self.records.insert(record.bucket, reservation),
                None => self.records.remove(&record.bucket),
            };
        }
        self.feed(now, Input::Written { write });
    }

    pub(crate) fn finish_writes(&mut self, now: Timestamp) {
        self.hold_writes = false;
        for effect in std::mem::take(&mut self.unwritten) {
            self.write(now, effect);
        }
    }

    /// Lets time pass up to `now`, with a tick at every deadline on the way.
    pub(crate) fn pass(&mut self, now: Timestamp) {
        while let Some(due) = self.authority.next_deadline().filter(|due| *due <= now) {
            self.feed(due, Input::Tick);
        }
    }

    pub(crate) fn apply(&mut self, now: Timestamp, history: PolicyHistory) {
        self.histories.retain(|h| h.id() != history.id());
        self.histories.push(history.clone());
        self.feed(
            now,
            Input::ApplyPolicy {
                history: Box::new(history),
            },
        );
    }

    pub(crate) fn inspect(&mut self, now: Timestamp, who: &str) -> BucketView {
        self.authority
            .inspect(now, &bucket(who))
            .expect("the policy exists")
    }

    pub(crate) fn take_answers(&mut self) -> Vec<(Incarnation, MessageNumber, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// The last answer since the last look, as a grant; one before it may have said that the
    /// request waits for its record.
    pub(crate) fn grant(&mut self) -> Grant {
        let answers = self.take_answers();
        assert!(
            matches!(answers.len(), 1 | 2),
            "one decision expected: {answers:?}"
        );
        let (_, _, answer) = answers[answers.len() - 1];
        assert_eq!(answer.status, Status::Done);
        answer.grant.expect("a grant")
    }

    pub(crate) fn status(&mut self) -> Status {
        let answers = self.take_answers();
        let [(_, _, answer)] = answers[..] else {
            panic!("one answer expected: {answers:?}")
        };
        answer.status
    }
}

fn config(epoch: u64, tenures_before: u32, first_tenure: bool, boot: u128) -> AuthorityConfig {
    AuthorityConfig {
        epoch: Epoch::new(epoch),
        tenures_before,
        first_tenure,
        drift: DRIFT,
        boot,
        hash_seed: (1, 2),
        buckets_max: 1000,
    }
}

/// A holder's side of one stream.
pub(crate) struct Client {
    pub(crate) incarnation: Incarnation,
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
    pub(crate) sequence: u64,
    keys: BTreeMap<String, KeyNumber>,
}

/// A request to fill in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ask {
    pub(crate) lease: Option<LeaseId>,
    pub(crate) want: u64,
    pub(crate) least: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) demand: u64,
    pub(crate) release: bool,
}

impl Client {
    pub(crate) fn key(&mut self, world: &mut World, now: Timestamp, who: &str) -> KeyNumber {
        if let Some(number) = self.keys.get(who) {
            return *number;
        }
        let number = KeyNumber::new(u32::try_from(self.keys.len()).unwrap() + 1);
        self.keys.insert(who.into(), number);
        let introduction = Box::new(Introduction {
            number,
            bucket: bucket(who),
        });
        let (incarnation, stream) = (self.incarnation, self.stream);
        world.feed(
            now,
            Input::Introduce {
                incarnation,
                stream,
                introduction,
            },
        );
        number
    }

    pub(crate) fn ask(&mut self, world: &mut World, now: Timestamp, who: &str, ask: Ask) {
        self.sequence += 1;
        self.send(world, now, who, ask, self.sequence);
    }

    pub(crate) fn send(
        &mut self,
        world: &mut World,
        now: Timestamp,
        who: &str,
        ask: Ask,
        sequence: u64,
    ) {
        let key = self.key(world, now, who);
        self.number += 1;
        let request = LeaseRequest {
            key,
            sequence: Sequence::new(sequence),
            lease: ask.lease,
            spent: tokens(ask.spent),
            returned: tokens(ask.returned),
            want: tokens(ask.want),
            least: tokens(ask.least.max(1)),
            demand: ask.demand,
            release: ask.release,
        };
        let number = MessageNumber::new(self.number);
        let (incarnation, stream) = (self.incarnation, self.stream);
        world.feed(
            now,
            Input::Request {
                incarnation,
                stream,
                number,
                request,
            },
        );
    }

    pub(crate) fn anchor(&mut self, world: &mut World, now: Timestamp) {
        self.number += 1;
        let number = MessageNumber::new(self.number);
        let (incarnation, stream) = (self.incarnation, self.stream);
        world.feed(
            now,
            Input::Anchor {
                incarnation,
                stream,
                number,
            },
        );
    }
}

pub(crate) fn want(want: u64) -> Ask {
    Ask {
        want,
        demand: want,
        ..Ask::default()
    }
}
