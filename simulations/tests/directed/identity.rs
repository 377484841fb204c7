//! Rules 7 to 11: whose lease, which version, what a report may say.

use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::VOLATILE;
use crate::rig::{Rig, granted, request, spec};

/// Rule 7: counters of a closed or foreign lease are ignored, lies are clamped.
#[test]
fn lying_and_foreign_counters_change_nothing() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    rig.connect(2, "a");
    let lease = granted(&rig.ask(1, 1, None, 5)).lease;
    let level = rig.view("a").available;
    rig.report(2, 1, Some(lease), 0, 5, 0);
    assert_eq!(
        rig.view("a").available,
        level,
        "another holder returned them"
    );
    rig.report(1, 2, Some(lease), u64::MAX, u64::MAX, 0);
    assert_eq!(rig.view("a").available, level, "spent wins over returned");
    assert_eq!(rig.view("a").outstanding, Tokens::ZERO);
}

/// Rule 7: a restarted holder is another incarnation and re-attaches to nothing.
#[test]
fn a_new_incarnation_does_not_get_the_old_lease() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let old = granted(&rig.ask(1, 1, None, 5));
    rig.connect(2, "a");
    let new = granted(&rig.ask(2, 1, Some(old.lease), 5));
    assert_ne!(new.lease, old.lease);
    assert_eq!(rig.view("a").outstanding, old.granted.plus(new.granted));
}

/// Rule 8: a grant that does not fit the named lease opens another.
#[test]
fn an_ended_lease_is_not_extended() {
    let mut rig = Rig::first(spec(100, 10, VOLATILE));
    rig.connect(1, "a");
    let old = granted(&rig.ask(1, 1, None, 5)).lease;
    rig.at(1_250);
    let new = granted(&rig.ask(1, 2, Some(old), 5));
    assert_ne!(new.lease, old);
    assert!(new.granted <= Tokens::new(5), "totals begin anew");
}

/// Rule 9: a lease is not extended under another version.
#[test]
fn a_renewal_after_a_change_opens_a_new_lease() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let old = granted(&rig.ask(1, 1, None, 5)).lease;
    rig.change(Some(spec(90, 1, VOLATILE)), 2);
    let report = granted(&rig.report(1, 2, Some(old), 1, 0, 0));
    assert_eq!(
        (report.lease, report.term),
        (old, Term::ZERO),
        "no longer term either"
    );
    let new = granted(&rig.report(1, 3, Some(old), 1, 0, 5));
    assert_ne!(new.lease, old);
}

/// Rule 10: what was reported spent cannot be returned later.
#[test]
fn a_return_of_what_was_reported_spent_is_void() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 5));
    rig.report(1, 2, Some(grant.lease), grant.granted.get(), 0, 0);
    let level = rig.view("a").available;
    rig.report(1, 3, Some(grant.lease), 0, grant.granted.get(), 0);
    assert_eq!(rig.view("a").available, level);
}

/// Rule 11: a second introduction under one number is void.
#[test]
fn a_key_number_is_never_reused_within_a_stream() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    rig.connect(1, "b");
    rig.ask(1, 1, None, 5);
    assert!(!rig.view("a").outstanding.is_zero());
    assert!(rig.view("b").outstanding.is_zero());
}

/// Rule 7: totals are merged by maximum, so a repeated report counts once.
#[test]
fn a_repeated_report_counts_once() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = Some(granted(&rig.ask(1, 1, None, 5)).lease);
    for sequence in 2..4 {
        rig.report(1, sequence, lease, 2, 1, 0);
    }
    let view = rig.view("a");
    assert_eq!((view.available, view.outstanding), (96, Tokens::new(2)));
}

/// Rule 7: what comes back after the reclaim was counted as spent, and stays so.
#[test]
fn a_return_for_a_closed_lease_is_ignored() {
    let mut rig = Rig::first(spec(10, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 4)).lease;
    rig.at(1_250);
    rig.report(1, 2, Some(lease), 0, 4, 0);
    assert_eq!(rig.view("a").available, 6);
}

/// Rules 5 and 7: a lease that its holder ends is no better than one that runs out.
#[test]
fn the_unaccounted_rest_of_a_released_lease_is_gone() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 5)).lease;
    let before = rig.view("a").available;
    let mut release = request(2, Some(lease), 1, 1, 0);
    release.release = true;
    rig.send(1, 50, release);
    let view = rig.view("a");
    assert_eq!(
        (view.available, view.outstanding),
        (before + 1, Tokens::ZERO)
    );
}
