//! While a wish waits for its turn: it is kept, asked after, and what is spent is still told.

use quota_core::holder::Input;
use quota_core::id::{KeyNumber, MessageNumber, Sequence};
use quota_core::message::Status;
use quota_core::time::Term;

use crate::DONE;
use crate::holder_rig::*;

#[test]
fn a_queued_wish_is_not_repeated_until_its_turn_is_overdue() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(1);
    rig.answer(number, &request, None, Status::Queued { retry_after });
    for _ in 0..29 {
        rig.pass_millis(100);
        rig.touch(1);
        assert!(rig.sent().is_empty());
    }
    rig.pass_millis(100);
    let (_, again) = rig.one();
    assert_eq!(again.sequence, request.sequence);
}

/// A lease of ten tokens, and a request for more of it.
fn leased_and_asking() -> (Rig, MessageNumber, quota_core::message::LeaseRequest) {
    let mut rig = Rig::leased(10);
    let cost = tokens(20);
    rig.input(Input::Waiting { slot: SLOT, cost });
    let (number, request) = rig.one();
    assert_eq!((request.want, request.spent), (tokens(10), tokens(0)));
    (rig, number, request)
}

const LATER: Status = Status::Queued {
    retry_after: Term::from_seconds(30),
};

#[test]
fn the_last_token_spent_while_a_wish_flies_is_reported_while_it_is_queued() {
    let (mut rig, number, request) = leased_and_asking();
    while rig.spend(1) {}
    rig.answer(number, &request, Some(grant(1, 10, TEN)), LATER);
    rig.pass_millis(249);
    assert!(rig.sent().is_empty(), "its turn may come soon");
    rig.pass_millis(1);
    let (number, request) = rig.one();
    assert_eq!(request.spent, tokens(10));
    rig.answer(number, &request, Some(grant(1, 10, TEN)), LATER);
    for _ in 0..50 {
        rig.pass_millis(100);
        assert!(rig.sent().is_empty(), "nothing new to say");
    }
}

#[test]
fn what_is_spent_of_a_lease_is_reported_now_and_then_while_a_wish_is_queued() {
    let (mut rig, number, request) = leased_and_asking();
    rig.answer(number, &request, Some(grant(1, 10, TEN)), LATER);
    rig.pass_millis(2500);
    assert!(rig.sent().is_empty());
    assert!(rig.spend(1));
    let mut reports = Vec::new();
    for _ in 0..30 {
        rig.pass_millis(100);
        for message in rig.sent() {
            let request = message.requests[0];
            reports.push(request.spent.get());
            rig.answer(message.number, &request, Some(grant(1, 10, TEN)), LATER);
        }
    }
    assert_eq!(reports, [1]);
}

#[test]
fn a_lease_that_ends_while_a_wish_is_queued_is_given_back_at_once() {
    let (mut rig, number, request) = leased_and_asking();
    rig.answer(number, &request, None, LATER);
    assert!(rig.spend(3));
    let mut last = request;
    while rig.holder.lease(SLOT).expect("leased").live {
        rig.pass_millis(10);
        for message in rig.sent() {
            last = message.requests[0];
            rig.answer(message.number, &last, None, LATER);
        }
    }
    assert_eq!((last.spent, last.returned), (tokens(3), tokens(7)));
    assert_eq!(last.lease, Some(lease(1)));
    rig.pass_millis(1000);
    assert!(rig.sent().is_empty(), "once is enough");
}

#[test]
fn a_repeat_keeps_the_sequence_and_tells_the_counters_of_now() {
    let (mut rig, _, request) = leased_and_asking();
    assert!(rig.spend(4));
    rig.pass_millis(500);
    let (number, again) = rig.one();
    assert_eq!(again.sequence, request.sequence);
    assert_eq!((again.spent, again.want), (tokens(4), request.want));
    rig.answer(number, &again, None, LATER);
    assert!(rig.spend(1));
    rig.input(Input::Disconnected);
    rig.input(Input::Connected);
    let (_, again) = rig.one();
    assert_eq!((again.sequence, again.spent), (request.sequence, tokens(5)));
}

#[test]
fn a_report_without_a_mark_left_is_made_up_for_once_the_deadline_has_risen() {
    let mut rig = Rig::leased(10);
    let keep = tokens(10);
    let mut told = 0;
    // The marks of one deadline are used up by reports within one tick.
    for _ in 0..8 {
        // Enough demand to need all of it.
        rig.cell().refuse(tokens(1_000));
        assert!(rig.spend(1));
        let number = MessageNumber::new(2);
        let request = quota_core::message::LeaseRequest {
            key: KeyNumber::default(),
            sequence: Sequence::new(1),
            ..rig_request()
        };
        rig.answer(number, &request, None, Status::Recall { keep });
        for message in rig.sent() {
            let request = message.requests[0];
            told = request.spent.get();
            rig.answer(message.number, &request, None, DONE);
        }
    }
    assert_eq!(told, 7, "the eighth repeats the seventh");
    let cost = tokens(20);
    rig.input(Input::Waiting { slot: SLOT, cost });
    let (number, request) = rig.one();
    assert_eq!(request.spent, tokens(7));
    while rig.spend(1) {}
    rig.pass_millis(10);
    rig.answer(number, &request, None, LATER);
    rig.pass_millis(250);
    let (number, request) = rig.one();
    assert_eq!(request.spent, tokens(7), "still the old deadline");
    rig.answer(number, &request, Some(grant(1, 10, TEN)), LATER);
    rig.pass_millis(250);
    assert_eq!(rig.one().1.spent, tokens(10));
}

fn rig_request() -> quota_core::message::LeaseRequest {
    quota_core::message::LeaseRequest {
        key: KeyNumber::default(),
        sequence: Sequence::default(),
        lease: None,
        spent: tokens(0),
        returned: tokens(0),
        want: tokens(0),
        least: tokens(0),
        demand: 0,
        release: false,
    }
}

#[test]
fn a_queued_wish_gets_cheaper_when_the_dear_caller_has_left() {
    let mut rig = Rig::ready();
    let (dear, cheap) = (tokens(20), tokens(1));
    rig.input(Input::Waiting {
        slot: SLOT,
        cost: dear,
    });
    let (number, request) = rig.one();
    assert_eq!(request.least, dear);
    rig.answer(number, &request, None, LATER);
    rig.input(Input::WaitOver {
        slot: SLOT,
        cost: dear,
    });
    rig.pass_millis(300);
    assert!(rig.sent().is_empty(), "nobody waits for it");
    rig.input(Input::Waiting {
        slot: SLOT,
        cost: cheap,
    });
    let (number, again) = rig.one();
    assert!(again.sequence > request.sequence);
    assert_eq!(again.least, cheap);
    rig.answer(number, &again, None, LATER);
    rig.pass_millis(1_000);
    assert!(rig.sent().is_empty(), "once is enough");
}

#[test]
fn a_push_that_got_lost_is_asked_after_within_a_term() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(600);
    rig.answer(number, &request, None, Status::Queued { retry_after });
    rig.pass(TEN);
    assert!(rig.sent().is_empty());
    rig.pass(Term::from_seconds(2));
    let (number, again) = rig.one();
    assert_eq!(again.sequence, request.sequence);
    rig.answer(number, &again, Some(grant(1, 3, TEN)), DONE);
    assert_eq!(rig.left(), 3);
}
