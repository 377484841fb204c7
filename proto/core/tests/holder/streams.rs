//! Messages late, lost or crossing, and streams that end: anchors, repeats and introductions.

use quota_core::holder::{Cause, Event, Input, Slot};
use quota_core::id::Sequence;
use quota_core::message::{Answer, Status};
use quota_core::time::{Term, Timestamp};

use crate::DONE;
use crate::holder_rig::*;

#[test]
fn a_late_push_is_dated_by_its_anchor_and_not_by_its_arrival() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    let sent = rig.now;
    let queued = Status::Queued {
        retry_after: Term::from_seconds(3),
    };
    rig.answer(number, &request, None, queued);
    let until = rig.now + Term::from_seconds(3);
    let cause = Cause::Exhausted { until };
    assert_eq!(rig.events(), [Event::Refused { slot: SLOT, cause }]);
    assert_eq!(rig.holder.retry_at(SLOT), Some(until));
    rig.pass(Term::from_seconds(3));
    rig.answer(number, &request, Some(grant(1, 5, TEN)), DONE);
    let deadline = rig.holder.lease(SLOT).expect("granted").deadline;
    assert!(deadline <= sent + TEN && (sent + TEN).since(deadline) < Term::from_millis(5));
    assert_eq!(rig.holder.retry_at(SLOT), None);
    // Spendable to the tick before the anchored deadline, and not at it.
    let start = rig.now;
    rig.now = Timestamp::from_nanos(deadline.as_nanos() - 1);
    assert!(rig.now > start && rig.spend(1));
    rig.now = deadline;
    assert!(!rig.spend(1));
}

#[test]
fn anchors_flow_each_second_and_faster_while_a_wish_is_queued() {
    let mut rig = Rig::ready();
    let mut beats = 0;
    for _ in 0..40 {
        rig.pass_millis(100);
        beats += u32::from(rig.holder.poll_transmit(rig.now, &rig.table).is_some());
    }
    assert_eq!(beats, 4);
    let short = quota_core::holder::SlotSettings {
        term: Term::from_millis(400),
        ..settings()
    };
    rig.input(Input::PolicyChanged {
        slot: SLOT,
        settings: short,
    });
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(30);
    rig.answer(number, &request, None, Status::Queued { retry_after });
    let mut beats = 0;
    for _ in 0..10 {
        rig.pass_millis(100);
        let message = rig.holder.poll_transmit(rig.now, &rig.table);
        beats += u32::from(message.is_some_and(|message| message.requests.is_empty()));
    }
    assert_eq!(beats, 10, "every quarter of the term");
    assert!(rig.holder.next_deadline().expect("a heartbeat") <= rig.now + Term::from_millis(100));
}

#[test]
fn a_retry_repeats_the_sequence_and_crossing_replies_grant_once() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (first, request) = rig.one();
    rig.pass_millis(499);
    assert!(rig.sent().is_empty());
    rig.pass_millis(1);
    let (second, again) = rig.one();
    assert_eq!(
        (again.sequence, again.want),
        (request.sequence, request.want)
    );
    assert!(second > first);
    rig.pass_millis(1000);
    let (third, _) = rig.one();
    // The answers to all three arrive, the newest first.
    for anchor in [third, first, second] {
        rig.answer(anchor, &request, Some(grant(1, 4, TEN)), DONE);
    }
    assert_eq!(rig.left(), 4);
    assert!(rig.sent().is_empty());
    let deadline = rig.holder.lease(SLOT).expect("leased").deadline;
    assert!(
        deadline + Term::from_millis(5) > rig.now + TEN,
        "the latest date counts"
    );
    assert_eq!(rig.holder.stats().retries, 2);
}

#[test]
fn a_new_stream_repeats_what_is_unanswered_under_new_numbers() {
    let mut rig = Rig::ready();
    rig.open(Slot::new(1), "b", settings());
    rig.touch(1);
    let (_, request) = rig.one();
    rig.input(Input::Disconnected);
    assert!(rig.holder.poll_transmit(rig.now, &rig.table).is_none());
    rig.pass_millis(700);
    assert!(rig.holder.poll_transmit(rig.now, &rig.table).is_none());
    rig.input(Input::Connected);
    let sent = rig.sent();
    assert_eq!(sent.len(), 1);
    let [introduction] = &sent[0].introductions[..] else {
        panic!("only the bucket that matters is introduced: {sent:?}");
    };
    let again = sent[0].requests[0];
    assert_eq!(introduction.bucket, bucket("a"));
    assert_eq!(introduction.number, again.key);
    assert_eq!(again.sequence, request.sequence);
    assert_ne!(again.key, request.key);
    // An answer of the old stream names a number that is nobody's now.
    rig.answer(sent[0].number, &request, Some(grant(1, 9, TEN)), DONE);
    assert_eq!((rig.left(), rig.holder.stats().answers_dropped), (0, 1));
    rig.answer(sent[0].number, &again, Some(grant(1, 9, TEN)), DONE);
    assert_eq!(rig.left(), 9);
}

#[test]
fn a_lease_outlives_its_stream_and_is_introduced_to_the_next() {
    let mut rig = Rig::leased(20);
    rig.input(Input::Disconnected);
    rig.pass_millis(500);
    assert!(rig.spend(1));
    rig.input(Input::Connected);
    let sent = rig.sent();
    assert_eq!(sent[0].introductions.len(), 1);
    assert!(sent[0].requests.is_empty());
    // A recall reaches it under the new number.
    let answer = Answer {
        key: sent[0].introductions[0].number,
        sequence: Sequence::new(1),
        grant: None,
        status: Status::Recall { keep: tokens(2) },
    };
    let anchor = sent[0].number;
    rig.input(Input::Answer { anchor, answer });
    assert_eq!(rig.left(), 2);
    let (_, report) = rig.one();
    assert_eq!((report.spent, report.returned), (tokens(1), tokens(17)));
    assert!(report.want.is_zero() && !report.release);
}

#[test]
fn another_incarnation_starts_from_nothing() {
    let mut rig = Rig::leased(20);
    let old = rig.one_request_of_renewal();
    let mut next = Rig::ready();
    next.touch(1);
    let (number, _) = next.one();
    // What was said to the life before names a sequence that was never used in this one.
    next.answer(number, &old, Some(grant(1, 20, TEN)), DONE);
    assert_eq!(next.left(), 0);
}
