use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use quota_core::cell::{Rise, Tick};
use quota_core::time::Term;

use super::*;

fn fingerprint(seed: u64) -> Fingerprint {
    // Any well-mixed pair will do; the table does not care where it comes from.
    let mix = |seed: u64| {
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let seed = (seed ^ (seed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        seed ^ (seed >> 32)
    };
    Fingerprint {
        high: mix(seed) | 1,
        low: mix(seed ^ 0xABCD_EF01),
    }
}

fn insert(table: &Table, seed: u64) -> Result<Slot, InsertError> {
    let inserted = table.insert(fingerprint(seed), |_| true)?;
    Ok(inserted.found.slot)
}

#[test]
fn an_entry_is_one_cache_line() {
    assert_eq!(size_of::<Entry>(), 64);
    assert_eq!(align_of::<Entry>(), 64);
}

#[test]
fn a_key_is_found_where_it_was_put_and_gone_once_freed() {
    let table = Table::new(100);
    let slot = insert(&table, 1).expect("there is room");
    assert_eq!(insert(&table, 1), Ok(slot), "a second insertion finds it");
    assert_eq!(
        table.find(fingerprint(1)).map(|found| found.slot),
        Some(slot)
    );
    assert!(table.find_at(slot, fingerprint(1)).is_some());
    assert!(table.find_at(slot, fingerprint(2)).is_none());
    assert!(table.find_at(Slot::new(u32::MAX), fingerprint(1)).is_none());
    assert_eq!(table.len(), 1);
    table.free(slot);
    assert!(table.find(fingerprint(1)).is_none());
    assert_eq!(table.len(), 0);
}

#[test]
fn a_key_that_cannot_be_announced_takes_no_place() {
    let table = Table::new(100);
    let refused = table.insert(fingerprint(1), |_| false).map(|_| ());
    assert_eq!(refused, Err(InsertError::NotAnnounced));
    assert!(table.find(fingerprint(1)).is_none());
    assert_eq!(table.len(), 0);
}

#[test]
fn nearly_all_of_the_keys_promised_fit_at_seventy_one_bytes_each() {
    let keys = 50_000;
    let table = Table::new(keys);
    let bytes = table.entries.len() * size_of::<Entry>();
    assert!(bytes <= keys * 72, "{} bytes per key", bytes / keys);
    let placed = (0..50_000)
        .filter(|seed| insert(&table, *seed).is_ok())
        .count();
    assert!(placed >= keys * 985 / 1000, "{placed} of {keys} keys");
    for seed in 0..50_000 {
        if let Some(found) = table.find(fingerprint(seed)) {
            assert!(found.entry.holds(fingerprint(seed)));
        }
    }
}

#[test]
fn a_full_set_names_an_idle_key_and_never_one_with_tokens_or_a_renewal() {
    let table = Table::new(7);
    let mut slots = Vec::new();
    let mut seed = 0;
    let spare = loop {
        match table.insert(fingerprint(seed), |_| true) {
            Ok(inserted) => {
                let slot = inserted.found.slot;
                slots.push(slot);
                if slots.len() % 2 == 0 {
                    give(table.entry(slot), 5, 100, Rise::Fresh);
                } else if slots.len() > 1 {
                    // Asks for a renewal, which is then under way.
                    assert!(inserted.found.debit(Tokens::ONE).is_err());
                }
            }
            Err(error) => break error,
        }
        seed += 1;
    };
    assert_eq!(slots.len(), 8);
    assert_eq!(
        spare,
        InsertError::Full(Some(slots[0])),
        "only the first is idle"
    );
    table.free(slots[0]);
    assert!(insert(&table, seed).is_ok());
}

#[test]
fn a_debit_through_a_stale_find_never_counts_for_another_key() {
    let table = Table::new(7);
    let slot = insert(&table, 1).expect("there is room");
    give(table.entry(slot), 5, far(), Rise::Fresh);
    let stale = table.find(fingerprint(1)).expect("it is there");
    table.entry(slot).cell().clear(Tick::at(at(far() + 10)));
    table.free(slot);
    // The next key takes the same entry, and the lease in it is live.
    let mut seed = 2;
    while insert(&table, seed).expect("room") != slot {
        seed += 1;
    }
    give(table.entry(slot), 5, far() + 20, Rise::Above);
    assert_eq!(stale.debit(Tokens::ONE), Err(DebitError::Moved));
    let view = table.entry(slot).cell().view();
    assert_eq!(
        view.tokens,
        Tokens::new(5),
        "put back, as it can be told to be its own"
    );
    assert!(
        table
            .find(fingerprint(seed))
            .expect("there")
            .debit(Tokens::ONE)
            .is_ok()
    );
}

fn at(ticks: u64) -> Timestamp {
    Timestamp::ZERO + Term::from_nanos(ticks << 22)
}

/// A tick well ahead of the real clock, which debits are confirmed against.
fn far() -> u64 {
    (clock::now().as_nanos() >> 22) + 50_000
}

fn give(entry: &Entry, tokens: u64, deadline: u64, rise: Rise) {
    let installed = entry
        .cell()
        .install(Tokens::new(tokens), Tick::at(at(deadline)), rise);
    installed.expect("eras are left");
}

/// Spenders race with a driver that grants, closes and reassigns entries all the time. Every other
/// key is granted nothing, ever, so one token spent for it was another key's.
#[test]
fn spenders_never_spend_what_was_granted_to_another_key() {
    const KEYS: u64 = 64;
    const GRANT: u64 = 7;
    // Eight entries for sixty-four keys, so that nearly every grant changes an entry's key.
    let table = Table::new(7);
    let stop = AtomicBool::new(false);
    let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let mut granted = vec![0_u64; usize::try_from(KEYS).expect("small")];
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (table, stop, admitted) = (&table, &stop, &admitted);
            scope.spawn(move || {
                let mut key = thread;
                while !stop.load(Ordering::Relaxed) {
                    key = (key * 5 + thread + 1) % KEYS;
                    let Some(found) = table.find(fingerprint(key)) else {
                        continue;
                    };
                    // Long enough now and then for the entry to change hands in between.
                    if key.is_multiple_of(3) {
                        std::thread::yield_now();
                    }
                    let Ok(debit) = found.debit(Tokens::ONE) else {
                        continue;
                    };
                    if found.confirm(debit, Tick::at(clock::now())).is_ok() {
                        let place = usize::try_from(key).expect("small");
                        admitted[place].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut open: HashMap<u64, Slot> = HashMap::new();
        let mut deadline = far();
        let spent = || {
            admitted
                .iter()
                .map(|key| key.load(Ordering::Relaxed))
                .sum::<u64>()
        };
        for round in 0.. {
            // Long enough for the race to have been run, however the threads are scheduled.
            if round >= 40_000 && spent() >= 1_000 {
                break;
            }
            let key = (round * 29 + round / 7) % KEYS;
            let slot = loop {
                match insert(&table, key) {
                    Ok(slot) => break slot,
                    Err(_) => {
                        // Close any open key but this one.
                        let victim = *open.keys().min().expect("full, so some are open");
                        let slot = open.remove(&victim).expect("just seen");
                        deadline += 1;
                        table.entry(slot).cell().clear(Tick::at(at(deadline)));
                        table.free(slot);
                    }
                }
            };
            open.insert(key, slot);
            if key.is_multiple_of(2) {
                deadline += 1;
                give(table.entry(slot), GRANT, deadline, Rise::Above);
                granted[usize::try_from(key).expect("small")] += GRANT;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (key, granted) in granted.iter().enumerate() {
        let admitted = admitted[key].load(Ordering::Relaxed);
        assert!(admitted <= *granted, "key {key}: {admitted} of {granted}");
    }
}
