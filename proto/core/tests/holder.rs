//! The holder machine against a scripted authority: one story per test.
#![cfg(not(loom))]
#![allow(missing_docs)]

mod holder_rig;

use holder_rig::*;
use quota_core::holder::{Cause, Event, Input, Slot};
use quota_core::id::{KeyNumber, MessageNumber, Sequence};
use quota_core::message::{Answer, HELD_MAX, Refusal, Status};
use quota_core::time::{Term, Timestamp};

const DONE: Status = Status::Done;

#[test]
fn a_first_touch_asks_for_little_and_a_hot_key_for_more_each_time() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    assert_eq!(request.lease, None);
    assert!((1..=4).contains(&request.want.get()), "{request:?}");
    assert!(request.least.get() == 1 && request.demand >= 1);
    let mut granted = request.want.get();
    rig.answer(number, &request, Some(grant(1, granted, TEN)), DONE);
    assert!(matches!(rig.events()[..], [Event::Wake { .. }]));
    let (mut spent, mut last, mut most) = (0, request.want.get(), 0);
    for _ in 0..400 {
        rig.pass_millis(5);
        for _ in 0..5 {
            spent += u64::from(rig.spend(1));
        }
        for message in rig.sent() {
            let request = message.requests[0];
            assert!(request.want.get() <= (2 * last).max(4), "at most twofold");
            assert!(request.spent.get() <= spent);
            assert_eq!(request.lease, Some(lease(1)));
            last = request.want.get();
            most = most.max(last);
            granted += last;
            rig.answer(message.number, &request, Some(grant(1, granted, TEN)), DONE);
        }
    }
    // A thousand a second over half a second, and two deviations.
    assert!(most > 200, "the wish grows: {most}");
    assert!(granted - spent <= 545, "held {}", granted - spent);
    assert!(spent > 1_900, "hardly anyone is refused: {spent}");
}

#[test]
fn a_wish_stays_below_the_target_and_stops_there() {
    let mut rig = Rig::leased(50);
    // Cold: one spender a second is far from the renewal remainder.
    rig.pass_millis(1000);
    assert!(rig.spend(1));
    assert!(rig.sent().is_empty());
}

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
    rig.pass_millis(249);
    assert!(rig.sent().is_empty());
    rig.pass_millis(1);
    let (second, again) = rig.one();
    assert_eq!(
        (again.sequence, again.want),
        (request.sequence, request.want)
    );
    assert!(second > first);
    rig.pass_millis(500);
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
        status: Status::Recall { keep: tokens(5) },
    };
    let anchor = sent[0].number;
    rig.input(Input::Answer { anchor, answer });
    assert_eq!(rig.left(), 5);
    let (_, report) = rig.one();
    assert_eq!((report.spent, report.returned), (tokens(1), tokens(14)));
    assert!(report.want.is_zero() && !report.release);
}

#[test]
fn an_ended_lease_goes_back_whole_and_a_late_extension_adds_only_what_is_new() {
    let mut rig = Rig::leased(20);
    assert!(rig.spend(3));
    rig.input(Input::Disconnected);
    rig.pass(TEN);
    assert_eq!(rig.left(), 0);
    let view = rig.holder.lease(SLOT).expect("its totals are kept");
    assert_eq!((view.returned, view.live), (tokens(17), false));
    rig.input(Input::Connected);
    rig.touch(1);
    let (number, request) = rig.one();
    // The authority has the lease still, and extends it.
    assert_eq!(request.lease, Some(lease(1)));
    assert_eq!((request.spent, request.returned), (tokens(3), tokens(17)));
    rig.answer(number, &request, Some(grant(1, 22, TEN)), DONE);
    assert_eq!(rig.left(), 2);
    assert!(rig.spend(2) && !rig.spend(1));
}

#[test]
fn an_idle_lease_is_released_with_final_counters() {
    let mut rig = Rig::leased(20);
    assert!(rig.spend(2));
    // The first look sees the spending, the next sees none.
    rig.pass(Term::from_seconds(2));
    assert!(rig.sent().is_empty());
    rig.pass(Term::from_seconds(2));
    let (number, request) = rig.one();
    assert_eq!(rig.left(), 0);
    assert!(request.release);
    assert_eq!((request.spent, request.returned), (tokens(2), tokens(18)));
    rig.answer(number, &request, None, DONE);
    assert_eq!(rig.holder.lease(SLOT), None);
    // A late echo of the released lease brings nothing back.
    rig.answer(number, &request, Some(grant(1, 20, TEN)), DONE);
    assert_eq!(rig.left(), 0);
    rig.touch(1);
    let (number, request) = rig.one();
    assert_eq!(request.lease, None);
    // A shorter term than that of the released lease is no obstacle.
    rig.answer(
        number,
        &request,
        Some(grant(2, 3, Term::from_millis(500))),
        DONE,
    );
    assert!(rig.spend(1));
}

#[test]
fn tokens_that_cross_a_release_are_given_back_too() {
    let mut rig = Rig::leased(20);
    rig.pass(Term::from_seconds(2));
    let (number, release) = rig.one();
    assert!(release.release);
    // Decided before the release arrived.
    rig.answer(
        number,
        &release,
        Some(grant(1, 25, TEN)),
        Status::Recall { keep: tokens(0) },
    );
    assert_eq!(rig.left(), 0, "the lease's counters were called final");
    rig.answer(number, &release, None, DONE);
    let (_, again) = rig.one();
    assert!(again.release);
    assert_eq!((again.spent, again.returned), (tokens(0), tokens(25)));
}

#[test]
fn an_idle_holder_keeps_its_warm_floor_until_the_lease_ends() {
    let mut rig = Rig::new(4);
    rig.input(Input::Connected);
    let warm = quota_core::holder::SlotSettings {
        warm_floor: tokens(3),
        ..settings()
    };
    rig.open(SLOT, "a", warm);
    rig.touch(1);
    let (number, request) = rig.one();
    rig.answer(number, &request, Some(grant(1, 20, TEN)), DONE);
    rig.pass(Term::from_seconds(2));
    let (number, request) = rig.one();
    assert_eq!((rig.left(), request.returned), (3, tokens(17)));
    assert!(!request.release && request.want.is_zero());
    rig.answer(number, &request, Some(grant(1, 20, TEN)), DONE);
    let mut quiet = 0;
    while rig.sent().is_empty() {
        rig.pass_millis(500);
        quiet += 1;
        assert!(quiet < 30, "it ends");
    }
    assert!(quiet >= 19, "no renewals while idle: {quiet}");
    assert_eq!(rig.left(), 0);
}

#[test]
fn a_burst_is_reported_even_if_nobody_comes_back() {
    let mut rig = Rig::leased(4);
    for _ in 0..4 {
        assert!(rig.spend(1));
    }
    let (number, request) = rig.one();
    assert!(request.spent.get() >= 1);
    rig.answer(number, &request, Some(grant(1, 8, TEN)), DONE);
    rig.pass(Term::from_seconds(2));
    rig.pass(Term::from_seconds(2));
    let (_, last) = rig.one();
    assert!(last.release);
    assert_eq!((last.spent, last.returned), (tokens(4), tokens(4)));
}

#[test]
fn a_steady_trickle_renews_the_term_before_it_ends() {
    let mut rig = Rig::leased(50);
    let mut renewals = 0;
    for _ in 0..40 {
        rig.pass_millis(500);
        assert!(rig.spend(1), "the lease never lapses");
        for message in rig.sent() {
            renewals += 1;
            let request = message.requests[0];
            rig.answer(message.number, &request, Some(grant(1, 50, TEN)), DONE);
        }
    }
    assert!((3..=8).contains(&renewals), "{renewals} renewals in 20 s");
}

#[test]
fn waiting_callers_set_the_wish_and_its_least() {
    let mut rig = Rig::ready();
    for cost in [3, 30, 7] {
        rig.input(Input::Waiting {
            slot: SLOT,
            cost: tokens(cost),
        });
    }
    let (number, request) = rig.one();
    assert!(request.want >= request.least);
    assert!(request.want.get() >= 3, "{request:?}");
    rig.answer(number, &request, Some(grant(1, 10, TEN)), DONE);
    assert!(matches!(rig.events()[..], [Event::Wake { slot: SLOT, .. }]));
    let (number, request) = rig.one();
    assert_eq!(request.want, tokens(30), "all who wait, less what is held");
    assert_eq!(request.least, tokens(20), "the dearest, less what is held");
    rig.answer(number, &request, Some(grant(1, 40, TEN)), DONE);
    for cost in [3, 30, 7] {
        assert!(rig.spend(cost));
        rig.input(Input::WaitOver {
            slot: SLOT,
            cost: tokens(cost),
        });
    }
    // Counted when they began to wait, and not again when they spent.
    assert!((39..=41).contains(&rig.holder.demand(SLOT)));
}

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
    rig.pass_millis(250);
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
fn closing_returns_everything_and_frees_the_slot_when_it_is_known() {
    let mut rig = Rig::leased(20);
    assert!(rig.spend(2));
    rig.input(Input::Close { slot: SLOT });
    assert_eq!(rig.left(), 0, "out of reach before it is reported");
    assert!(rig.events().is_empty());
    let (number, request) = rig.one();
    assert!(request.release);
    assert_eq!((request.spent, request.returned), (tokens(2), tokens(18)));
    rig.answer(number, &request, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }]);
    assert_eq!(rig.holder.open_slots(), 0);
    // The slot serves another bucket; nothing of the first is believed any more.
    rig.open(SLOT, "b", settings());
    rig.answer(number, &request, Some(grant(1, 99, TEN)), DONE);
    assert_eq!(rig.left(), 0);
    rig.touch(1);
    let (_, other) = rig.one();
    assert!(other.sequence > request.sequence && other.key != request.key);
}

#[test]
fn closing_waits_for_the_answer_in_flight_and_gives_it_back() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    rig.input(Input::Close { slot: SLOT });
    assert!(rig.sent().is_empty() && rig.events().is_empty());
    rig.answer(number, &request, Some(grant(1, 4, TEN)), DONE);
    assert_eq!(rig.left(), 0);
    let (number, release) = rig.one();
    assert_eq!((release.spent, release.returned), (tokens(0), tokens(4)));
    assert!(release.release);
    rig.answer(number, &release, None, DONE);
    assert_eq!(rig.events().last(), Some(&Event::Closed { slot: SLOT }));
}

#[test]
fn closing_withdraws_a_queued_wish() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(60);
    rig.answer(number, &request, None, Status::Queued { retry_after });
    rig.input(Input::Close { slot: SLOT });
    rig.events();
    let (number, withdraw) = rig.one();
    assert!(withdraw.release && withdraw.want.is_zero() && withdraw.sequence > request.sequence);
    rig.answer(number, &withdraw, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }]);
}

#[test]
fn without_a_stream_closing_ends_with_the_lease() {
    let mut rig = Rig::leased(20);
    rig.open(Slot::new(1), "b", settings());
    rig.input(Input::Disconnected);
    rig.input(Input::Shutdown);
    let closed = Event::Closed { slot: Slot::new(1) };
    assert_eq!(
        rig.events(),
        [closed],
        "a slot without lease has nothing to return"
    );
    assert_eq!(rig.left(), 0);
    rig.pass(TEN);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }, Event::Drained]);
}

#[test]
fn a_shutdown_returns_everything() {
    let mut rig = Rig::leased(20);
    rig.input(Input::Shutdown);
    let (number, request) = rig.one();
    assert_eq!(request.returned, tokens(20));
    rig.answer(number, &request, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }, Event::Drained]);
}

#[test]
fn another_lease_replaces_the_old_and_an_old_echo_changes_nothing() {
    let mut rig = Rig::leased(20);
    assert!(rig.spend(2));
    for _ in 0..18 {
        rig.spend(1);
    }
    let (number, request) = rig.one();
    // The authority failed over: it knows nothing of lease 1.
    rig.answer(number, &request, Some(grant(2, 6, TEN)), DONE);
    assert_eq!(rig.left(), 6);
    let view = rig.holder.lease(SLOT).expect("leased");
    assert_eq!(
        (view.id, view.granted, view.returned),
        (lease(2), tokens(6), tokens(0))
    );
    rig.answer(number, &request, Some(grant(1, 500, TEN)), DONE);
    assert_eq!(rig.left(), 6);
    assert!(rig.spend(5));
    rig.pass_millis(10);
    rig.touch(3);
    let (_, request) = rig.one();
    assert_eq!((request.lease, request.spent), (Some(lease(2)), tokens(5)));
}

#[test]
fn ever_shorter_terms_run_out_of_eras_and_recover() {
    let mut rig = Rig::leased(20);
    let mut held = 0;
    for counter in 2..12 {
        rig.input(Input::Waiting {
            slot: SLOT,
            cost: tokens(90),
        });
        let sent = rig.sent();
        let Some(request) = sent.first().and_then(|m| m.requests.first()) else {
            break;
        };
        // Each lease ends before all earlier ones.
        let shorter = Term::from_millis(10_000 - 500 * counter);
        rig.answer(
            sent[0].number,
            request,
            Some(grant(counter, 5, shorter)),
            DONE,
        );
        rig.input(Input::WaitOver {
            slot: SLOT,
            cost: tokens(90),
        });
        held += u64::from(rig.left() == 5);
    }
    assert_eq!(held, 7, "one era for each");
    assert_eq!(rig.left(), 0, "what cannot be told apart is not spent");
    let (_, release) = rig.one();
    assert_eq!((release.returned, release.spent), (tokens(5), tokens(0)));
    rig.pass(TEN);
    rig.input(Input::Connected);
    rig.input(Input::Waiting {
        slot: SLOT,
        cost: tokens(1),
    });
    let sent = rig.sent();
    let request = sent[0].requests[0];
    rig.answer(sent[0].number, &request, None, DONE);
    rig.pass(TEN);
    let (number, request) = rig.one();
    rig.answer(number, &request, Some(grant(40, 5, TEN)), DONE);
    assert_eq!(rig.left(), 5);
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
    let keep = tokens(u64::MAX);
    assert_eq!(
        say(anchor, key, 1, None, Status::Recall { keep }),
        HELD_MAX.get()
    );
    // A lease that is over on arrival.
    assert_eq!(say(anchor, key, 1, Some(grant(3, 50, Term::ZERO)), DONE), 0);
    let (_, request) = rig.one();
    assert_eq!((request.spent, request.returned), (tokens(0), tokens(50)));
}

#[test]
fn first_touches_of_many_keys_travel_together_in_bounded_messages() {
    let mut rig = Rig::new(2_500);
    rig.input(Input::Connected);
    for index in 0..2_500 {
        let slot = Slot::new(index);
        rig.open(slot, &index.to_string(), settings());
        rig.input(Input::Waiting {
            slot,
            cost: tokens(1),
        });
    }
    let sizes: Vec<_> = rig.sent().iter().map(|m| m.requests.len()).collect();
    assert_eq!(sizes, [1000, 1000, 500]);
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
