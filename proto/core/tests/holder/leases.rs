//! The life of a lease: kept by use, given back when idle or ended, replaced by another.

use quota_core::holder::Input;
use quota_core::message::Status;
use quota_core::time::Term;

use crate::DONE;
use crate::holder_rig::*;

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
