//! Answers that say no, and answers that cannot be right.

use quota_core::holder::{Cause, Event, Input};
use quota_core::id::{KeyNumber, MessageNumber, Sequence};
use quota_core::message::{Answer, HELD_MAX, Refusal, Status};
use quota_core::time::Term;

use crate::DONE;
use crate::holder_rig::*;

#[test]
fn refusals_are_told_and_back_off() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    rig.answer(
        number,
        &request,
        None,
        Status::Refused(Refusal::UnknownPolicy),
    );
    let cause = Cause::UnknownPolicy;
    assert_eq!(rig.events(), [Event::Refused { slot: SLOT, cause }]);
    rig.touch(1);
    rig.pass_millis(900);
    assert!(rig.sent().is_empty());
    rig.pass_millis(100);
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(5);
    let busy = Status::Refused(Refusal::Busy { retry_after });
    rig.answer(number, &request, None, busy);
    rig.input(Input::Waiting {
        slot: SLOT,
        cost: tokens(9),
    });
    rig.pass_millis(4900);
    assert!(rig.sent().is_empty());
    rig.pass_millis(100);
    let (number, request) = rig.one();
    assert_eq!(request.least, tokens(9));
    let capacity = tokens(5);
    let dear = Status::Refused(Refusal::CostAboveCapacity { capacity });
    rig.events();
    rig.answer(number, &request, None, dear);
    let cause = Cause::CostAboveCapacity { capacity };
    assert_eq!(rig.events(), [Event::Refused { slot: SLOT, cause }]);
    // The policy changes: nothing is held against the next request.
    rig.input(Input::PolicyChanged {
        slot: SLOT,
        settings: settings(),
    });
    let (_, request) = rig.one();
    assert_eq!(request.least, tokens(9));
}

#[test]
fn a_forgotten_key_is_introduced_again_with_the_same_request() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    rig.answer(number, &request, None, Status::Refused(Refusal::UnknownKey));
    let sent = rig.sent();
    assert_eq!(sent[0].introductions.len(), 1);
    assert_eq!(sent[0].requests[0].sequence, request.sequence);
    assert_ne!(sent[0].requests[0].key, request.key);
    // An authority that never learns is not asked in a tight loop.
    rig.answer(
        sent[0].number,
        &sent[0].requests[0],
        None,
        Status::Refused(Refusal::UnknownKey),
    );
    assert!(rig.sent().is_empty());
}

#[test]
fn hostile_answers_change_nothing_or_are_cut_to_size() {
    let mut rig = Rig::leased(20);
    let (anchor, key) = (MessageNumber::new(2), KeyNumber::new(0));
    let mut say = |anchor, key, sequence, grant, status| {
        let answer = Answer {
            key,
            sequence: Sequence::new(sequence),
            grant,
            status,
        };
        rig.input(Input::Answer { anchor, answer });
        rig.events();
        rig.left()
    };
    let more = Some(grant(1, 99, TEN));
    for unknown in [0, 3, 99, u64::MAX] {
        assert_eq!(say(MessageNumber::new(unknown), key, 1, more, DONE), 20);
    }
    assert_eq!(say(anchor, KeyNumber::new(9), 1, more, DONE), 20);
    for unknown in [0, 2, u64::MAX] {
        assert_eq!(say(anchor, key, unknown, more, DONE), 20);
    }
    // Totals that shrink, a lease id of nobody, no term at all.
    assert_eq!(say(anchor, key, 1, Some(grant(1, 3, TEN)), DONE), 20);
    assert_eq!(say(anchor, key, 1, Some(grant(0, 99, TEN)), DONE), 20);
    assert_eq!(
        say(anchor, key, 1, Some(grant(1, 20, Term::ZERO)), DONE),
        20
    );
    // More than a cell can hold, for longer than any term.
    let absurd = Some(grant(1, u64::MAX, Term::from_nanos(u64::MAX)));
    assert_eq!(say(anchor, key, 1, absurd, DONE), HELD_MAX.get());
    // Hardly anybody has asked: a recall takes the rest, whatever the holder may keep.
    let keep = tokens(u64::MAX);
    assert_eq!(say(anchor, key, 1, None, Status::Recall { keep }), 2);
    // A lease that is over on arrival.
    assert_eq!(say(anchor, key, 1, Some(grant(3, 50, Term::ZERO)), DONE), 0);
    let (_, request) = rig.one();
    assert_eq!((request.spent, request.returned), (tokens(0), tokens(50)));
}
