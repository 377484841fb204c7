//! Rules 12 to 14: what a new owner must reckon with.

use quota_core::record::{Reservation, Stamp};
use quota_core::tokens::Tokens;

use crate::rig::{self, Claim, Rig, granted, request, spec};
use crate::{RESERVED, VOLATILE};

/// Rule 12: two crashes within a term: both exposures count.
#[test]
fn a_second_crash_within_a_term_counts_both_exposures() {
    let history = rig::created(spec(100, 1_000, VOLATILE));
    let claim = Claim {
        epoch: 3,
        tenures: 2,
        ..Claim::default()
    };
    let mut rig = Rig::begin(0, claim, history);
    let view = rig.view("a");
    assert_eq!(
        (view.available, view.ghost),
        (0, Tokens::new(96)),
        "1 − 0.2² of 100"
    );
    rig.at(1_249);
    assert_eq!(rig.view("a").available, 4);
    rig.at(1_250).tick();
    assert_eq!(rig.settles, 1);
    rig.at(1_350);
    assert_eq!(rig.view("a").available, 100);
}

/// Rule 13: unseen after a take-over is empty, whenever it is first seen.
#[test]
fn a_bucket_first_seen_late_is_what_prompt_replay_makes_of_it() {
    let history = rig::created(spec(100, 100, VOLATILE));
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let mut rig = Rig::begin(0, claim, history);
    rig.at(1_500).connect(1, "a");
    // The 20 that the ghost leaves free, and what came in the quarter second since its end.
    assert_eq!(rig.view("a").available, 45);
}

/// Rule 14: refill is certain only on the same boot.
#[test]
fn a_record_of_another_boot_is_not_refilled_for_the_downtime() {
    let mut rig = Rig::first(spec(100, 10, RESERVED));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 1);
    let mut record = rig.written()[0].reservation.expect("a record");
    record.used = Tokens::new(50);
    let recovered = |boot| {
        let mut record = record;
        record.stamp.boot = boot;
        let records = vec![(rig::bucket("a"), record)];
        let claim = Claim {
            epoch: 2,
            tenures: 1,
            records,
            ..Claim::default()
        };
        let mut next = Rig::begin(10_000, claim, rig::created(spec(100, 10, RESERVED)));
        next.view("a").available
    };
    let used = i128::from(record.used.get());
    assert_eq!(recovered(rig::BOOT + 1), 100 - used);
    assert_eq!(
        recovered(rig::BOOT),
        100 - i128::from(record.exposure.get())
    );
}

fn taken_over(burst: u64, tokens: u64) -> Rig {
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    Rig::begin(0, claim, rig::created(spec(burst, tokens, VOLATILE)))
}

/// Rule 12: until the longest term has passed, a further claim must count this take-over.
#[test]
fn a_shard_is_settled_only_after_the_longest_term() {
    let mut rig = taken_over(100, 1);
    for now in [0, 1_000, 1_249] {
        rig.at(now).tick();
        assert_eq!(rig.settles, 0, "at {now} ms");
    }
    rig.at(1_250).tick();
    assert_eq!(rig.settles, 1);
}

/// Rules 3 and 12: a ghost counts as long as the slowest holder may spend.
#[test]
fn a_ghost_counts_for_the_stretched_term() {
    let mut rig = taken_over(100, 1);
    rig.at(1_249);
    assert_eq!(rig.view("a").ghost, Tokens::new(80));
    rig.at(1_250);
    assert_eq!(rig.view("a").ghost, Tokens::ZERO);
}

/// All that a crowd of holders gets at once.
fn granted_to_a_crowd(rig: &mut Rig) -> Tokens {
    for holder in 1..20 {
        rig.connect(holder, "a");
        rig.ask(holder, 1, None, 10);
    }
    rig.view("a").outstanding
}

/// Rule 12: an owner keeps a share of what the ghosts before it left free.
#[test]
fn the_cap_of_live_grants_leaves_out_the_ghost() {
    let mut rig = taken_over(100, 1_000);
    rig.at(100);
    assert_eq!(rig.view("a").available, 20);
    let out = granted_to_a_crowd(&mut rig);
    assert!(
        out > Tokens::ZERO && out <= Tokens::new(16),
        "{out} out of 80 per cent of 20"
    );
}

/// Rule 12: a successor reckons with a share of the capacity, so no more may be out.
#[test]
fn live_grants_stay_under_the_cap() {
    let mut rig = Rig::first(spec(10, 1, VOLATILE));
    let out = granted_to_a_crowd(&mut rig);
    assert!(out > Tokens::ZERO && out <= Tokens::new(8), "{out} of 10");
}

/// Rule 13: a missing record says nothing about a time when none were kept.
#[test]
fn no_record_means_new_only_if_all_versions_kept_records() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    let history = rig.change(Some(spec(100, 1, RESERVED)), 2);
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let view = Rig::begin(0, claim, history).view("a");
    assert_eq!((view.available, view.ghost), (0, Tokens::new(80)));
}

/// Rule 13: forgetting a bucket changes no decision.
#[test]
fn a_bucket_is_not_forgotten_before_it_is_full() {
    let mut rig = Rig::first(spec(10, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 4)).lease;
    let mut release = request(2, Some(lease), 4, 0, 0);
    release.release = true;
    rig.send(1, 50, release);
    for now in [1_000, 2_000, 3_000] {
        rig.at(now).tick();
        let seen = rig.view("a");
        assert_eq!(seen.available, 6 + i128::from(now / 1_000));
    }
}

/// Rule 14: the time before a change was refilled at the rate before it.
#[test]
fn a_record_of_an_earlier_version_is_not_refilled_at_the_new_rate() {
    let mut rig = Rig::first(spec(100, 1, RESERVED));
    let history = rig.change(Some(spec(100, 50, RESERVED)), 2);
    let record = Reservation {
        version: rig::version(1),
        used: Tokens::new(100),
        exposure: Tokens::ZERO,
        stamp: Stamp {
            boot: rig::BOOT,
            at: rig::millis(0),
        },
    };
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        records: vec![(rig::bucket("a"), record)],
        ..Claim::default()
    };
    assert_eq!(Rig::begin(2_000, claim, history).view("a").available, 0);
}

/// Rule 14: a crash costs at most a block and a sixty-fourth of the capacity.
#[test]
fn a_record_is_refreshed_while_its_bucket_refills() {
    let mut rig = Rig::first(spec(6_400, 10, RESERVED));
    rig.connect(1, "a");
    let (mut lease, mut spent, mut record) = (None, 0, None);
    for sequence in 1..40 {
        rig.report(1, sequence, lease, spent, 0, 100);
        while !rig.writes.is_empty() {
            record = rig.written()[0].reservation;
        }
        let grants = rig.answers.iter().rev();
        if let Some(grant) = { grants }.find_map(|(_, answer)| answer.grant) {
            (lease, spent) = (Some(grant.lease), grant.granted.get());
        }
    }
    let mut release = request(90, lease, spent, 0, 0);
    release.release = true;
    rig.send(1, 900, release);
    let used = 6_400 - rig.view("a").available;
    assert!(used > 1_000, "only {used} tokens were used");
    for second in 1..60 {
        rig.at(second * 1_000).tick();
        while !rig.writes.is_empty() {
            record = rig.written()[0].reservation;
        }
    }
    let recorded = i128::from(record.expect("it is not full").used.get());
    let used = 6_400 - rig.view("a").available;
    assert!(
        recorded <= used + 100 + 10,
        "{used} are used and {recorded} recorded"
    );
}
