//! A holder machine with its cells and a clock in hand.
#![allow(dead_code, missing_docs, unreachable_pub)]

use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{
    Cells, Event, Holder, HolderConfig, HolderMessage, Input, Slot, SlotSettings,
};
use quota_core::id::{Epoch, Incarnation, LeaseId, MessageNumber, PolicyVersion};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Grant, LeaseRequest, Status};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

pub struct Table(pub Vec<LeaseCell>);

impl Cells for Table {
    fn cell(&self, slot: Slot) -> &LeaseCell {
        &self.0[slot.index() as usize]
    }
}

pub struct Rig {
    pub holder: Holder,
    pub table: Table,
    pub now: Timestamp,
}

pub const SLOT: Slot = Slot::new(0);

pub fn tokens(count: u64) -> Tokens {
    Tokens::new(count)
}

pub fn settings() -> SlotSettings {
    SlotSettings {
        horizon: Term::from_millis(500),
        term: Term::from_seconds(10),
        idle_return: Term::from_seconds(2),
        warm_floor: Tokens::ZERO,
        cost_max: tokens(100),
    }
}

pub fn bucket(name: &str) -> BucketAddress {
    BucketAddress {
        policy: PolicyId {
            namespace: "default".into(),
            name: "api".into(),
        },
        key: Key::from_values(&[name]).expect("a legal key"),
    }
}

pub fn lease(counter: u64) -> LeaseId {
    LeaseId {
        epoch: Epoch::new(1),
        counter,
    }
}

pub fn grant(counter: u64, granted: u64, term: Term) -> Grant {
    Grant {
        lease: lease(counter),
        granted: tokens(granted),
        term,
        headroom: Term::ZERO,
        version: PolicyVersion::new(7),
    }
}

pub const TEN: Term = Term::from_seconds(10);

impl Rig {
    pub fn new(slots: u32) -> Self {
        let config = HolderConfig {
            incarnation: Incarnation::new(5),
            slots_max: slots,
        };
        Self {
            holder: Holder::new(config),
            table: Table((0..slots).map(|_| LeaseCell::new()).collect()),
            now: Timestamp::ZERO + Term::from_seconds(1000),
        }
    }

    /// Connected, one open slot, the first heartbeat sent.
    pub fn ready() -> Self {
        let mut rig = Self::new(4);
        rig.input(Input::Connected);
        rig.open(SLOT, "a", settings());
        assert!(rig.sent().is_empty());
        rig
    }

    /// As `ready`, with a lease of `count` tokens for ten seconds.
    pub fn leased(count: u64) -> Self {
        let mut rig = Self::ready();
        rig.touch(1);
        let (number, request) = rig.one();
        rig.answer(number, &request, Some(grant(1, count, TEN)), Status::Done);
        rig.events();
        rig
    }

    pub fn input(&mut self, input: Input) {
        self.holder.handle(self.now, input, &self.table);
    }

    pub fn open(&mut self, slot: Slot, name: &str, settings: SlotSettings) {
        let bucket = bucket(name);
        self.input(Input::Open {
            slot,
            bucket,
            settings,
        });
    }

    pub fn cell(&self) -> &LeaseCell {
        self.table.cell(SLOT)
    }

    pub fn left(&self) -> u64 {
        self.cell().view().tokens.get()
    }

    /// Spends from the first slot and reports a renewal as a driver does.
    pub fn spend(&mut self, cost: u64) -> bool {
        let now = Tick::at(self.now);
        let outcome = self.cell().spend(tokens(cost), || now);
        let (admitted, renew) = match outcome {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } | Spend::Ended { renew } => {
                self.cell().refuse(tokens(cost));
                (false, renew)
            }
        };
        if renew {
            self.input(Input::Touched { slot: SLOT });
        }
        admitted
    }

    /// A first touch, or one of an exhausted cell.
    pub fn touch(&mut self, cost: u64) {
        assert!(!self.spend(cost), "the cell was expected to be short");
    }

    pub fn pass(&mut self, span: Term) {
        self.now += span;
        self.input(Input::Tick);
    }

    pub fn pass_millis(&mut self, millis: u64) {
        self.pass(Term::from_millis(millis));
    }

    /// Messages with items that are sent now.
    pub fn sent(&mut self) -> Vec<HolderMessage> {
        let mut all = Vec::new();
        while let Some(message) = self.holder.poll_transmit(self.now, &self.table) {
            if !(message.requests.is_empty() && message.introductions.is_empty()) {
                all.push(message);
            }
        }
        all
    }

    /// The one request that is sent now.
    pub fn one(&mut self) -> (MessageNumber, LeaseRequest) {
        let sent = self.sent();
        let [message] = &sent[..] else {
            panic!("one message, not {sent:?}");
        };
        let [request] = message.requests[..] else {
            panic!("one request, not {:?}", message.requests);
        };
        (message.number, request)
    }

    pub fn answer(
        &mut self,
        anchor: MessageNumber,
        request: &LeaseRequest,
        grant: Option<Grant>,
        status: Status,
    ) {
        let answer = Answer {
            key: request.key,
            sequence: request.sequence,
            grant,
            status,
        };
        self.input(Input::Answer { anchor, answer });
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.holder.poll_event()).collect()
    }

    /// The request of the renewal that emptying the cell brings about.
    pub fn one_request_of_renewal(&mut self) -> LeaseRequest {
        while self.spend(1) {}
        self.one().1
    }
}
