//! Rules 18 to 21: limits that change while tokens are out.

use quota_core::authority::Input;
use quota_core::policy::{LimitSpec, OverrideSpec, PolicyHistory, PolicySpec};
use quota_core::record::{Reservation, Stamp};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::rig::{self, Claim, Rig, granted, spec};
use crate::{RESERVED, VOLATILE};

/// Rule 18: five toggles of 100 and 20 mint nothing.
#[test]
fn toggling_a_limit_mints_nothing() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    // Spent, not out: a clamp to what is not out would look right.
    let grant = granted(&rig.ask(1, 1, None, 40));
    rig.report(1, 2, Some(grant.lease), grant.granted.get(), 0, 0);
    let level = rig.view("a").available;
    for turn in 0..5 {
        rig.change(Some(spec(20, 1, VOLATILE)), 2 + 2 * turn);
        assert_eq!(rig.view("a").available, level - 80);
        rig.change(Some(spec(100, 1, VOLATILE)), 3 + 2 * turn);
    }
    assert_eq!(rig.view("a").available, level);
}

/// Rule 20: a restart after a lowering owes the largest capacity that was in force.
#[test]
fn lowering_before_and_raising_after_a_crash_mints_nothing() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let lowered = rig.change(Some(spec(20, 1, VOLATILE)), 2);
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let mut next = Rig::begin(0, claim, lowered);
    assert_eq!(next.view("a").available, -80);
    next.change(Some(spec(100, 1, VOLATILE)), 3);
    assert!(next.view("a").available <= 0);
}

/// Rule 20, for a key that had its own limit in a former version only.
#[test]
fn an_override_that_is_gone_still_counts_at_a_restart() {
    let mut rich = spec(10, 1, VOLATILE);
    rich.overrides.push(OverrideSpec {
        key: vec!["a".into()],
        limit: LimitSpec::new(1, Term::from_seconds(1)).with_burst(100),
    });
    let mut rig = Rig::first(rich.clone());
    let poor = rig.change(Some(spec(10, 1, VOLATILE)), 2);
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let mut next = Rig::begin(0, claim, poor);
    assert_eq!(next.view("a").available, -90);
    next.change(Some(rich), 3);
    assert!(next.view("a").available <= 0);
}

/// Rule 21: a bucket does not refill faster while its policy is deleted, because an older version
/// was faster; not even if the shard is taken over meanwhile.
#[test]
fn a_deleted_policy_refills_at_the_rate_that_it_had_last() {
    let mut rig = Rig::first(spec(200, 100, RESERVED));
    let slow = spec(100, 1, RESERVED);
    rig.change(Some(slow.clone()), 2);
    let deleted = rig.change(None, 3);
    let used_up = Reservation {
        version: rig::version(2),
        used: Tokens::new(100),
        exposure: Tokens::ZERO,
        stamp: Stamp {
            boot: rig::BOOT,
            at: rig::millis(0),
        },
    };
    let records = vec![(rig::bucket("a"), used_up)];
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        records,
        ..Claim::default()
    };
    let mut next = Rig::begin(0, claim, deleted);
    next.at(5_000).change(Some(slow), 4);
    let available = next.view("a").available;
    assert!(
        available <= 5,
        "{available} tokens after 5 s at one a second"
    );
}

/// Rule 21, in one tenure: the limit of a key whose override was deleted with its policy.
#[test]
fn a_key_keeps_its_own_limit_while_its_policy_is_deleted() {
    let mut special = spec(100, 100, RESERVED);
    special.overrides.push(OverrideSpec {
        key: vec!["a".into()],
        limit: LimitSpec::new(1, Term::from_seconds(1)).with_burst(10),
    });
    let mut rig = Rig::first(spec(100, 100, RESERVED));
    rig.change(Some(special.clone()), 2);
    rig.connect(1, "a");
    rig.ask(1, 1, None, 8);
    rig.written();
    let grant = granted(&rig.answers.last().expect("pushed").1);
    rig.report(1, 2, Some(grant.lease), grant.granted.get(), 0, 0);
    let before = rig.view("a").available;
    rig.change(None, 3);
    rig.at(900).change(Some(special), 4);
    let after = rig.view("a").available;
    assert!(
        after <= before,
        "from {before} to {after} in 0.9 s at one token a second"
    );
}

/// Rule 18: what was decided later stays.
#[test]
fn an_older_version_never_replaces_a_newer_one() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let late = rig.change(Some(spec(20, 1, VOLATILE)), 2);
    rig.change(Some(spec(90, 1, VOLATILE)), 3);
    let history = Box::new(late);
    rig.input(Input::ApplyPolicy { history });
    assert_eq!(rig.view("a").capacity, Tokens::new(90));
}

fn with_term(mut spec: PolicySpec, seconds: u64) -> PolicySpec {
    spec.lease.term_max = Term::from_seconds(seconds).into();
    spec
}

fn ghost_at(now: u64, history: PolicyHistory) -> Tokens {
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    Rig::begin(0, claim, history).at(now).view("a").ghost
}

/// Rule 20: the largest capacity and the longest term, of whichever version.
#[test]
fn a_ghost_covers_every_former_version() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let lowered = rig.change(Some(spec(20, 1, VOLATILE)), 2);
    assert!(ghost_at(0, lowered) >= Tokens::new(80));

    let mut rig = Rig::first(with_term(spec(50, 1, VOLATILE), 10));
    let shortened = rig.change(Some(with_term(spec(100, 1, VOLATILE), 1)), 2);
    assert!(ghost_at(12_499, shortened.clone()) >= Tokens::new(40));
    assert_eq!(ghost_at(12_500, shortened), Tokens::ZERO);
}

/// Rule 20: leases of a former version, and then the tokens used under it.
#[test]
fn former_versions_are_kept_until_they_are_over() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let lowered = rig.change(Some(spec(20, 1, VOLATILE)), 2);
    let term_and_refill = Term::from_millis(1_250) + Term::from_seconds(100);
    assert!(lowered.clearable_after(rig::DRIFT) >= term_and_refill);
}

/// Rule 21: deleting a policy and creating it again is no way around it.
#[test]
fn a_recreated_bucket_is_as_it_was() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 40));
    rig.report(1, 2, Some(grant.lease), grant.granted.get(), 0, 0);
    let before = rig.view("a").available;
    rig.change(None, 2);
    rig.change(Some(spec(100, 1, VOLATILE)), 3);
    assert_eq!(rig.view("a").available, before);
}

/// Rule 21: not even across a crash.
#[test]
fn a_deletion_is_remembered_across_a_take_over() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let deleted = rig.change(None, 2);
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let mut next = Rig::begin(0, claim, deleted);
    next.change(Some(spec(100, 1, VOLATILE)), 3);
    let view = next.view("a");
    assert_eq!((view.available, view.ghost), (0, Tokens::new(80)));
}
