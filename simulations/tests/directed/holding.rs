//! Rules 1, 4, 7, 8 and 10 at the holder: how long a grant lasts, and what it adds.

use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{Cells, Holder, HolderConfig, Input, Slot, SlotSettings};
use quota_core::id::{Epoch, Incarnation, LeaseId, MessageNumber, PolicyVersion};
use quota_core::message::{Answer, Grant, LeaseRequest, Status};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

use crate::rig::bucket;

const SLOT: Slot = Slot::new(0);
const SECOND: Term = Term::from_seconds(1);

struct Table(LeaseCell);

impl Cells for Table {
    fn cell(&self, _: Slot) -> &LeaseCell {
        &self.0
    }
}

/// A connected holder with one open slot.
pub(crate) struct Holding {
    holder: Holder,
    table: Table,
    now: Timestamp,
}

impl Holding {
    pub(crate) fn ready() -> Self {
        let config = HolderConfig {
            incarnation: Incarnation::new(5),
            slots_max: 1,
        };
        let mut holding = Self {
            holder: Holder::new(config),
            table: Table(LeaseCell::new()),
            now: Timestamp::ZERO + Term::from_seconds(1_000),
        };
        holding.input(Input::Connected);
        holding.input(Input::Open {
            slot: SLOT,
            bucket: bucket("a"),
            settings: SlotSettings {
                horizon: Term::from_millis(500),
                term: SECOND,
                idle_return: Term::from_seconds(10),
                warm_floor: Tokens::ZERO,
                cost_max: Tokens::ONE,
            },
        });
        holding
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.holder.handle(self.now, input, &self.table);
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        self.now += Term::from_millis(millis);
        self.input(Input::Tick);
    }

    pub(crate) fn spend(&mut self) -> bool {
        let now = Tick::at(self.now);
        let outcome = self.table.0.spend(Tokens::ONE, || now);
        if !matches!(outcome, Spend::Admitted { .. }) {
            self.table.0.refuse(Tokens::ONE);
        }
        let (Spend::Admitted { renew, .. } | Spend::Exhausted { renew } | Spend::Ended { renew }) =
            outcome;
        if renew {
            self.input(Input::Touched { slot: SLOT });
        }
        matches!(outcome, Spend::Admitted { .. })
    }

    /// The next message, and the request in it.
    pub(crate) fn sent(&mut self) -> (MessageNumber, LeaseRequest) {
        let message = self.holder.poll_transmit(self.now, &self.table);
        let message = message.expect("it has something to say");
        (message.number, message.requests[0])
    }

    /// Asks for tokens: message and request.
    pub(crate) fn ask(&mut self) -> (MessageNumber, LeaseRequest) {
        while self.spend() {}
        self.sent()
    }

    fn answer(
        &mut self,
        (anchor, request): (MessageNumber, LeaseRequest),
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

    pub(crate) fn granted(
        &mut self,
        asked: (MessageNumber, LeaseRequest),
        counter: u64,
        granted: u64,
    ) {
        let lease = LeaseId {
            epoch: Epoch::new(1),
            counter,
        };
        let grant = Grant {
            lease,
            granted: Tokens::new(granted),
            term: SECOND,
            headroom: Term::ZERO,
            version: PolicyVersion::new(1),
        };
        self.answer(asked, Some(grant), Status::Done);
    }

    pub(crate) fn left(&self) -> u64 {
        self.table.0.view().tokens.get()
    }

    /// When the cell stops spending.
    fn deadline(&self) -> Timestamp {
        let deadline = self.table.0.view().deadline;
        let deadline = deadline.timestamp_ahead_of(self.now);
        deadline.expect("the lease is live")
    }
}

/// Rule 1: the term begins when the anchor was sent, however slow the reply and whatever was sent
/// meanwhile.
#[test]
fn a_slow_reply_is_dated_by_its_anchor() {
    let mut holding = Holding::ready();
    let asked_at = holding.now;
    let asked = holding.ask();
    holding.pass(600);
    let retry = holding.sent();
    assert_eq!(retry.1.sequence, asked.1.sequence);
    holding.granted(asked, 1, 5);
    assert_eq!(holding.left(), 5);
    assert!(holding.deadline() <= asked_at + SECOND);
}

/// Rule 1: so does the term of a push.
#[test]
fn a_late_push_is_dated_by_its_anchor() {
    let mut holding = Holding::ready();
    let asked_at = holding.now;
    let asked = holding.ask();
    let retry_after = SECOND;
    holding.answer(asked, None, Status::Queued { retry_after });
    holding.pass(700);
    holding.granted(asked, 1, 5);
    assert_eq!(holding.left(), 5);
    assert!(holding.deadline() <= asked_at + SECOND);
}

/// Rule 1: what cannot be dated is not believed.
#[test]
fn a_grant_with_an_unknown_anchor_is_dropped() {
    let mut holding = Holding::ready();
    let (_, request) = holding.ask();
    for unknown in [0, 2, 99] {
        holding.granted((MessageNumber::new(unknown), request), 1, 5);
        assert_eq!(holding.left(), 0, "{unknown}");
    }
}

/// Rule 4: deadlines round down.
#[test]
fn a_deadline_is_rounded_down_to_a_tick() {
    let mut holding = Holding::ready();
    holding.pass(1);
    let asked_at = holding.now;
    let asked = holding.ask();
    holding.granted(asked, 1, 5);
    let (deadline, end) = (holding.deadline(), asked_at + SECOND);
    assert!(deadline <= end && end.since(deadline) < Term::from_millis(5));
}

/// Rule 7: granted totals are totals.
#[test]
fn a_repeated_answer_brings_nothing() {
    let mut holding = Holding::ready();
    let asked = holding.ask();
    holding.granted(asked, 1, 5);
    assert!(holding.spend());
    holding.granted(asked, 1, 5);
    assert_eq!(holding.left(), 4);
}

/// Rule 7: a lease that was replaced is over for good.
#[test]
fn a_late_answer_about_an_earlier_lease_is_dropped() {
    let mut holding = Holding::ready();
    let asked = holding.ask();
    holding.granted(asked, 1, 5);
    let again = holding.ask();
    holding.granted(again, 2, 3);
    holding.granted(asked, 1, 5);
    assert_eq!(holding.left(), 3);
}

/// Rule 8: tokens merge only within one lease.
#[test]
fn a_new_lease_gives_up_the_old_rest() {
    let mut holding = Holding::ready();
    let asked = holding.ask();
    holding.granted(asked, 1, 5);
    holding.granted(asked, 2, 3);
    assert_eq!(holding.left(), 3);
}

/// Rule 10: a return counts because the tokens are out of reach already.
#[test]
fn a_lease_that_is_given_back_cannot_be_spent() {
    let mut holding = Holding::ready();
    let asked = holding.ask();
    holding.granted(asked, 1, 5);
    holding.input(Input::Close { slot: SLOT });
    let (_, release) = holding.sent();
    assert_eq!(release.returned, Tokens::new(5));
    assert!(!holding.spend());
}
