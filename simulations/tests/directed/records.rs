//! Rules 15 and 16: booking ahead, and handing over.

use quota_core::record::{Reservation, Stamp};
use quota_core::tokens::Tokens;

use crate::rig::{self, Claim, Rig, granted, is_queued, spec};
use crate::{RESERVED, VOLATILE};

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

/// Rule 15: the rest of the old block may be granted under the new record, so that counts it too.
#[test]
fn without_a_further_record_no_more_is_granted_than_the_last_one_booked() {
    let mut rig = Rig::first(spec(1_600, 1, RESERVED));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 3);
    rig.written();
    let (mut lease, mut record) = (None, None);
    for sequence in 2..150 {
        let grants = rig.answers.iter().rev();
        lease = { grants }
            .find_map(|(_, a)| a.grant)
            .map_or(lease, |g| Some(g.lease));
        rig.ask(1, sequence, lease, 3);
        if record.is_none() && !rig.writes.is_empty() {
            record = rig.written()[0].reservation;
        }
    }
    let (record, out) = (record.expect("a second record"), rig.view("a").outstanding);
    assert_eq!(out, record.exposure, "all that was booked, and no more");
}

/// Rule 15: whatever was granted since a record, a crash gives nothing back.
#[test]
fn a_crash_never_gives_a_block_back() {
    let mut rig = Rig::first(spec(160, 1, RESERVED));
    rig.connect(1, "a");
    rig.ask(1, 1, None, 3);
    let mut record = rig.written()[0].reservation.expect("a record");
    for sequence in 2..40 {
        let grants = rig.answers.iter().rev();
        let last = { grants }.find_map(|(_, answer)| answer.grant);
        let last = last.expect("the first block was granted from");
        rig.report(1, sequence, Some(last.lease), last.granted.get(), 0, 3);
        let recovered = 160 - i128::from(record.used.max(record.exposure).get());
        let available = rig.view("a").available;
        assert!(
            recovered <= available,
            "{available} are there, but {record:?} would say {recovered}"
        );
        if !rig.writes.is_empty() {
            record = rig.written()[0].reservation.expect("a record");
        }
    }
}

fn recovered(rate: u64) -> Rig {
    let record = Reservation {
        version: rig::version(1),
        used: Tokens::new(60),
        exposure: Tokens::new(40),
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
    Rig::begin(0, claim, rig::created(spec(160, rate, RESERVED)))
}

/// Rule 15: the exposure of a record is everything that may be live.
#[test]
fn a_record_counts_the_ghost_as_exposed() {
    let mut rig = recovered(1);
    rig.connect(1, "a");
    rig.ask(1, 1, None, 3);
    let record = rig.written()[0].reservation.expect("a record");
    assert!(record.exposure > Tokens::new(40), "{record:?}");
}

/// Rule 15: what was out at a crash stops the refill until it cannot be spent any more.
#[test]
fn the_exposure_of_a_record_counts_until_its_term_is_over() {
    let mut rig = recovered(1_000);
    rig.at(1_249);
    let view = rig.view("a");
    assert_eq!((view.available, view.ghost), (120, Tokens::new(40)));
    rig.at(1_300);
    assert_eq!(rig.view("a").available, 160);
}

/// What an owner whose clock reads `now` makes of a bucket with five tokens out that was handed
/// over, 750 ms before their end, by one whose clock read 10.5 s.
fn handed_over_to(now: u64) -> Rig {
    let claim = Claim {
        epoch: 1,
        ..Claim::default()
    };
    let history = rig::created(spec(100, 1, VOLATILE));
    let mut rig = Rig::begin(10_000, claim, history.clone());
    rig.connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 30));
    rig.report(1, 2, Some(grant.lease), grant.granted.get() - 5, 0, 0);
    rig.at(10_500);
    let mut rows = rig.authority.hand_over(rig::millis(10_500));
    let stamp = rows.stamp.as_mut().expect("rows are stamped");
    stamp.boot = rig::BOOT + 1;
    let claim = Claim {
        epoch: 2,
        tenures: 1,
        hand_over: Some(rows),
        ..Claim::default()
    };
    Rig::begin(now, claim, history)
}

/// Rule 16: the clocks of two machines have nothing to do with each other.
#[test]
fn a_remaining_term_counts_from_when_the_row_is_read() {
    for now in [100, 50_000] {
        let mut rig = handed_over_to(now);
        rig.at(now + 749);
        assert_eq!(rig.view("a").outstanding, Tokens::new(5), "at {now} ms");
        rig.at(now + 750);
        assert_eq!(rig.view("a").outstanding, Tokens::ZERO, "at {now} ms");
    }
}

/// Rules 14 and 16: nor has the time between them.
#[test]
fn a_hand_over_to_another_machine_refills_from_its_reading() {
    let at_once = handed_over_to(10_500).view("a").available;
    assert_eq!(handed_over_to(50_000).view("a").available, at_once);
}
