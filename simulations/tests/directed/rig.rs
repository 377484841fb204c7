//! Drives an authority by hand: manual time in milliseconds, one policy, keys by name.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use quota_core::authority::{
    Authority, AuthorityConfig, BucketView, Effect, Input, StreamId, WriteId,
};
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key};
use quota_core::message::{Answer, Grant, Introduction, LeaseRequest, Status};
use quota_core::policy::{Durability, LimitSpec, PolicyHistory, PolicySpec};
use quota_core::record::{HandOver, Reservation, ReservationWrite};
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;

pub const BOOT: u128 = 77;
pub const DRIFT: DriftAllowance = DriftAllowance {
    per_mille: 250,
    margin: Term::ZERO,
};

pub fn version(number: u64) -> PolicyVersion {
    PolicyVersion::new(number)
}

/// `burst` tokens, `tokens` a second; a term of one second.
pub fn spec(burst: u64, tokens: u64, durability: Durability) -> PolicySpec {
    let limit = LimitSpec::new(tokens, Term::from_seconds(1)).with_burst(burst);
    let mut spec = PolicySpec::new("p", &["k"], limit);
    spec.durability = durability;
    spec.cost.max = Some(1);
    spec.lease.term_max = Term::from_seconds(1).into();
    spec
}

pub fn created(spec: PolicySpec) -> PolicyHistory {
    PolicyHistory::create(spec, version(1)).expect("legal")
}

pub fn bucket(key: &str) -> BucketAddress {
    BucketAddress {
        policy: spec(1, 1, Durability::Auto).id(),
        key: Key::from_values(&[key]).expect("short"),
    }
}

/// One tenure and what its driver keeps.
pub struct Rig {
    pub authority: Authority,
    pub now: u64,
    pub answers: Vec<(MessageNumber, Answer)>,
    /// Recalls, kept apart: whom, and what it may keep.
    pub recalls: Vec<(Incarnation, Tokens)>,
    pub writes: Vec<(WriteId, Vec<ReservationWrite>)>,
    pub settles: u32,
    message: u64,
    history: PolicyHistory,
}

/// How a tenure begins.
#[derive(Clone, Default)]
pub struct Claim {
    pub epoch: u64,
    pub tenures: u32,
    pub records: Vec<(BucketAddress, Reservation)>,
    pub hand_over: Option<HandOver>,
}

impl Rig {
    pub fn first(spec: PolicySpec) -> Self {
        let claim = Claim {
            epoch: 1,
            ..Claim::default()
        };
        Self::begin(0, claim, created(spec))
    }

    pub fn begin(now: u64, claim: Claim, history: PolicyHistory) -> Self {
        let config = AuthorityConfig {
            epoch: Epoch::new(claim.epoch),
            tenures_before: claim.tenures,
            first_tenure: claim.epoch == 1,
            drift: DRIFT,
            boot: BOOT,
            hash_seed: (1, 2),
            buckets_max: 100,
        };
        let authority = Authority::new(
            millis(now),
            config,
            vec![history.clone()],
            claim.records,
            claim.hand_over,
        );
        Self {
            authority,
            now,
            answers: Vec::new(),
            recalls: Vec::new(),
            writes: Vec::new(),
            settles: 0,
            message: 0,
            history,
        }
    }

    pub fn at(&mut self, now: u64) -> &mut Self {
        assert!(now >= self.now);
        self.now = now;
        self
    }

    pub fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.authority.handle(millis(self.now), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer {
                    incarnation,
                    anchor,
                    answer,
                    ..
                } => match answer.status {
                    Status::Recall { keep } => self.recalls.push((incarnation, keep)),
                    _ => self.answers.push((anchor, answer)),
                },
                Effect::Write { write, records } => self.writes.push((write, records)),
                Effect::Settle => self.settles += 1,
                Effect::PolicyApplied { .. } => {}
            }
        }
    }

    pub fn connect(&mut self, holder: u64, key: &str) {
        let (incarnation, stream) = (Incarnation::new(holder), StreamId::new(holder));
        self.input(Input::Connect {
            incarnation,
            stream,
        });
        self.input(Input::Introduce {
            incarnation,
            stream,
            introduction: Box::new(Introduction {
                number: KeyNumber::new(1),
                bucket: bucket(key),
            }),
        });
    }

    pub fn send(&mut self, holder: u64, number: u64, request: LeaseRequest) {
        self.message = self.message.max(number);
        self.input(Input::Request {
            incarnation: Incarnation::new(holder),
            stream: StreamId::new(holder),
            number: MessageNumber::new(number),
            request,
        });
    }

    /// Asks in a new message, and again if nothing was said; the answer that came at once.
    pub fn ask(&mut self, holder: u64, sequence: u64, lease: Option<LeaseId>, want: u64) -> Answer {
        self.report(holder, sequence, lease, 0, 0, want)
    }

    pub fn report(
        &mut self,
        holder: u64,
        sequence: u64,
        lease: Option<LeaseId>,
        spent: u64,
        returned: u64,
        want: u64,
    ) -> Answer {
        let number = self.message + 1;
        let request = request(sequence, lease, spent, returned, want);
        let before = self.answers.len();
        self.send(holder, number, request);
        if self.answers.len() == before {
            // A short wait is told only to those who ask again.
            self.send(holder, number + 1, request);
        }
        assert!(self.answers.len() > before, "no answer came");
        self.answers[before].1
    }

    /// Makes the write in flight durable; its records.
    pub fn written(&mut self) -> Vec<ReservationWrite> {
        let (write, records) = self.writes.pop().expect("a write is in flight");
        self.input(Input::Written { write });
        records
    }

    pub fn tick(&mut self) {
        self.input(Input::Tick);
    }

    /// Puts another version in force; the history as stored.
    pub fn change(&mut self, next: Option<PolicySpec>, number: u64) -> PolicyHistory {
        let old = &self.history;
        let new = match next {
            None => old.delete(version(number)),
            Some(spec) if old.current().is_some() => old.change(spec, version(number)),
            Some(spec) => old.recreate(spec, version(number)),
        };
        self.history = new.expect("a legal change");
        let history = Box::new(self.history.clone());
        self.input(Input::ApplyPolicy { history });
        self.history.clone()
    }

    pub fn view(&mut self, key: &str) -> BucketView {
        self.authority
            .inspect(millis(self.now), &bucket(key))
            .expect("in force")
    }
}

pub fn request(
    sequence: u64,
    lease: Option<LeaseId>,
    spent: u64,
    returned: u64,
    want: u64,
) -> LeaseRequest {
    LeaseRequest {
        key: KeyNumber::new(1),
        sequence: Sequence::new(sequence),
        lease,
        spent: Tokens::new(spent),
        returned: Tokens::new(returned),
        want: Tokens::new(want),
        least: Tokens::new(want.min(1)),
        demand: 1_000,
        release: false,
    }
}

pub fn millis(now: u64) -> Timestamp {
    Timestamp::from_nanos(now * 1_000_000)
}

pub fn granted(answer: &Answer) -> Grant {
    answer
        .grant
        .unwrap_or_else(|| panic!("nothing was granted: {answer:?}"))
}

pub fn is_queued(answer: &Answer) -> bool {
    matches!(answer.status, Status::Queued { .. })
}
