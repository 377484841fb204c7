//! Rules 1 to 6: anchors, retries, drift, ticks, the order of settling.

use quota_core::authority::{Input, StreamId};
use quota_core::id::{Incarnation, MessageNumber};
use quota_core::message::Status;
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::VOLATILE;
use crate::rig::{Rig, granted, is_queued, request, spec};

/// Rule 1: anchors.
#[test]
fn a_push_names_the_newest_message_received_not_the_one_it_answers() {
    let mut rig = Rig::first(spec(10, 5, VOLATILE));
    rig.connect(1, "a");
    let mut lease = None;
    let mut spent = 0;
    for sequence in 1..20 {
        let answer = rig.report(1, sequence, lease, spent, 0, 10);
        if is_queued(&answer) {
            break;
        }
        let grant = granted(&answer);
        (lease, spent) = (Some(grant.lease), grant.granted.get());
    }
    let (incarnation, stream) = (Incarnation::new(1), StreamId::new(1));
    rig.at(100).input(Input::Anchor {
        incarnation,
        stream,
        number: MessageNumber::new(90),
    });
    rig.answers.clear();
    while rig.answers.is_empty() {
        let due = rig.authority.next_deadline().expect("a queue is timed");
        let due = due.as_nanos().div_ceil(1_000_000);
        assert!(due < 5_000, "no push came");
        rig.at(due).tick();
    }
    let (anchor, answer) = rig.answers[0];
    assert_eq!(
        (anchor, answer.status),
        (MessageNumber::new(90), Status::Done)
    );
}

/// Rule 1: nothing is decided on a stream that is not the holder's.
#[test]
fn a_message_of_an_older_stream_is_ignored() {
    let mut rig = Rig::first(spec(10, 1, VOLATILE));
    rig.connect(1, "a");
    rig.input(Input::Connect {
        incarnation: Incarnation::new(1),
        stream: StreamId::new(9),
    });
    rig.send(1, 1, request(1, None, 0, 0, 1));
    assert!(rig.answers.is_empty());
    assert_eq!(rig.view("a").outstanding, Tokens::ZERO);
}

/// Rule 2: a retry never grants twice, and counts the term anew.
#[test]
fn a_retry_gets_the_same_totals_and_a_later_end() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let first = granted(&rig.ask(1, 1, None, 5));
    rig.at(900);
    let second = granted(&rig.ask(1, 1, None, 5));
    assert_eq!((first.lease, first.granted), (second.lease, second.granted));
    rig.at(900 + 1_249);
    assert_eq!(rig.view("a").outstanding, first.granted);
    rig.at(900 + 1_250);
    assert_eq!(rig.view("a").outstanding, Tokens::ZERO);
}

/// Rules 3 and 4: the authority counts a term for a quarter longer.
#[test]
fn a_lease_is_not_reclaimed_before_its_stretched_term() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 5));
    assert_eq!(grant.term, Term::from_seconds(1));
    rig.at(1_249);
    assert_eq!(rig.view("a").outstanding, grant.granted);
}

/// Rule 5: lazy settlement gives the same as prompt settlement.
#[test]
fn refill_before_a_reclaim_is_capped_by_what_was_out() {
    let run = |looks: &[u64]| {
        let mut rig = Rig::first(spec(10, 10, VOLATILE));
        rig.connect(1, "a");
        rig.ask(1, 1, None, 4);
        for look in looks {
            rig.at(*look);
            rig.view("a");
        }
        rig.at(1_300);
        rig.view("a").available
    };
    let lazy = run(&[]);
    assert_eq!(lazy, run(&[100, 600, 1_249, 1_250, 1_251]));
    assert!(
        lazy < 10,
        "the reclaimed tokens are gone: only 50 ms of refill came after"
    );
}

/// Rule 6 is the driver's; the core's part is that one reading serves a whole batch.
#[test]
fn two_events_at_one_instant_refill_once() {
    let mut rig = Rig::first(spec(10, 10, VOLATILE));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 4);
    rig.at(100);
    let before = rig.view("a").available;
    assert_eq!(rig.view("a").available, before);
}

/// Rule 2: a late copy of what was decided long ago is no new request.
#[test]
fn a_late_copy_of_an_older_request_gets_nothing() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let first = granted(&rig.ask(1, 1, None, 5));
    granted(&rig.ask(1, 2, Some(first.lease), 5));
    let out = rig.view("a").outstanding;
    rig.send(1, 1, request(1, None, 0, 0, 5));
    assert_eq!(rig.view("a").outstanding, out);
}

/// Rule 5: tokens in a holder's hands count against the burst.
#[test]
fn a_bucket_does_not_refill_for_what_is_out() {
    let mut rig = Rig::first(spec(10, 10, VOLATILE));
    rig.connect(1, "a");
    let out = granted(&rig.ask(1, 1, None, 4)).granted;
    rig.at(1_000);
    assert_eq!(rig.view("a").available, 10 - i128::from(out.get()));
}

/// Rule 5: unreported means spent.
#[test]
fn an_unreported_lease_is_not_refunded() {
    let mut rig = Rig::first(spec(10, 1, VOLATILE));
    rig.connect(1, "a");
    assert_eq!(granted(&rig.ask(1, 1, None, 4)).granted, Tokens::new(4));
    rig.at(1_250);
    let view = rig.view("a");
    assert_eq!((view.available, view.outstanding), (6, Tokens::ZERO));
}

/// Rule 5: what was out until a report came stopped the refill until then.
#[test]
fn a_report_is_merged_after_the_refill_before_it() {
    let mut rig = Rig::first(spec(10, 10, VOLATILE));
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 4));
    rig.at(400);
    rig.report(1, 2, Some(grant.lease), 4, 0, 0);
    assert_eq!(rig.view("a").available, 6);
}

/// Rule 5: a bucket that stands full is owed no part of a token.
#[test]
fn a_full_bucket_keeps_no_fraction() {
    let mut rig = Rig::first(spec(10, 10, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 1)).lease;
    rig.report(1, 2, Some(lease), 1, 0, 0);
    rig.at(190);
    rig.ask(1, 3, Some(lease), 1);
    rig.report(1, 4, Some(lease), 2, 0, 0);
    rig.at(280);
    assert_eq!(rig.view("a").available, 9, "90 ms at a token each 100 ms");
}
