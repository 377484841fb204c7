//! One directed schedule for each rule of the ledger: the shortest story that goes wrong at once
//! if the rule is broken.

mod rig;

use quota_core::authority::{Input, StreamId};
use quota_core::id::{Incarnation, MessageNumber};
use quota_core::message::Status;
use quota_core::policy::{Durability, LimitSpec, OverrideSpec};
use quota_core::record::{Reservation, Stamp};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use rig::{Claim, Rig, granted, is_queued, request, spec};

const VOLATILE: Durability = Durability::Volatile;
const RESERVED: Durability = Durability::Reserved;

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
    let history = rig::created(spec(100, 10, VOLATILE));
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        ..Claim::default()
    };
    let mut rig = Rig::begin(0, claim, history);
    rig.at(3_000).connect(1, "a");
    // 20 free under the ghost of 80: full at 2 s if the ghost had not ended at 1.25 s.
    assert_eq!(rig.view("a").available, 30);
}

/// Rule 14: refill is certain only on the same boot.
#[test]
fn a_record_of_another_boot_is_not_refilled_for_the_downtime() {
    let mut rig = Rig::first(spec(100, 10, RESERVED));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 1);
    let record = rig.written()[0].reservation.expect("a record");
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

/// Rules 7 of the design and 15: nothing is granted that is not booked, one write at a time.
#[test]
fn a_reserved_grant_waits_for_its_record() {
    let mut rig = Rig::first(spec(100, 1, RESERVED));
    rig.connect(1, "a");
    rig.connect(2, "b");
    assert!(is_queued(&rig.ask(1, 1, None, 5)));
    assert!(is_queued(&rig.ask(2, 1, None, 5)));
    assert_eq!(
        rig.writes.len(),
        1,
        "the second record waits for the first write"
    );
    rig.answers.clear();
    rig.written();
    assert_eq!(rig.answers.len(), 1);
    assert!(
        granted(&rig.answers[0].1).granted <= Tokens::new(6),
        "one block of a sixteenth"
    );
}

/// Rule 15: a record made while a block is open covers the rest of that block too.
#[test]
fn gross_grants_after_a_crash_never_exceed_what_was_booked() {
    let mut rig = Rig::first(spec(160, 1, RESERVED));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 3);
    let mut record = rig.written()[0].reservation.expect("a record");
    let mut lease = None;
    for sequence in 2..30 {
        if let Some((_, answer)) = rig.answers.iter().rev().find(|(_, a)| a.grant.is_some()) {
            lease = Some(granted(answer).lease);
        }
        rig.ask(1, sequence, lease, 3);
        let out = rig.view("a").outstanding;
        assert!(
            out <= record.exposure,
            "{out} out, but the record says {record:?}"
        );
        if !rig.writes.is_empty() {
            record = rig.written()[0].reservation.expect("a record");
        }
    }
}

/// Rule 16: a hand-over is exact: levels, leases, sequence numbers, anchors.
#[test]
fn a_handed_over_lease_goes_on_and_its_retry_grants_nothing() {
    let history = rig::created(spec(100, 1, VOLATILE));
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 7, None, 5));
    rig.at(500);
    let before = rig.view("a");
    let rows = rig.authority.hand_over(rig::millis(500));
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        hand_over: Some(rows),
        ..Claim::default()
    };
    let mut next = Rig::begin(500, claim, history);
    let after = next.view("a");
    assert_eq!(
        (before.available, before.outstanding),
        (after.available, after.outstanding)
    );
    next.connect(1, "a");
    let again = granted(&next.ask(1, 7, None, 5));
    assert_eq!((again.lease, again.granted), (grant.lease, grant.granted));
}

/// Rule 18: five toggles of 100 and 20 mint nothing.
#[test]
fn toggling_a_limit_mints_nothing() {
    let mut rig = Rig::first(spec(100, 1, VOLATILE));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 40);
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

/// Rule 25: a cost above the cap but within the capacity is served; a cap is at least one.
#[test]
fn a_bucket_of_one_token_serves_and_a_dear_request_is_served_whole() {
    let mut tiny = spec(1, 1, VOLATILE);
    tiny.lease.share_per_mille = 1;
    let mut rig = Rig::first(tiny);
    rig.connect(1, "a");
    assert_eq!(granted(&rig.ask(1, 1, None, 1)).granted, Tokens::ONE);

    let mut dear = spec(10, 1, VOLATILE);
    dear.cost.max = Some(10);
    let mut rig = Rig::first(dear);
    rig.connect(1, "a");
    let mut wish = request(1, None, 0, 0, 10);
    wish.least = Tokens::new(10);
    rig.send(1, 1, wish);
    assert_eq!(granted(&rig.answers[0].1).granted, Tokens::new(10));
}

/// Bounded memory: what a holder waited for goes with its stream.
#[test]
fn a_holder_that_comes_and_goes_leaves_nothing_waiting() {
    let mut rig = Rig::first(spec(1, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 1)).lease;
    assert!(
        is_queued(&rig.ask(1, 2, Some(lease), 1)),
        "the front of the queue"
    );
    for holder in 2..500 {
        rig.connect(holder, "a");
        rig.ask(holder, 1, None, 1);
        let (incarnation, stream) = (Incarnation::new(holder), StreamId::new(holder));
        rig.input(Input::Disconnect {
            incarnation,
            stream,
        });
    }
    let waiting = rig.authority.stats().waiting;
    assert_eq!(waiting, 1, "requests of holders that are gone wait on");
}
