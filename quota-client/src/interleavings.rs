//! Every interleaving of small programs on the lock-free parts. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p quota-client --lib`.
//!
//! The lease cell has its models in the core. Waiters, names and signals to the driver use locks
//! and channels of the standard library, and the rules in force are swapped by `arc-swap`.

use loom::sync::Arc;
use loom::thread;
use quota_core::cell::{Rise, Tick};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::known::{Known, Usual};
use crate::seats::{SEATS, Seats};
use crate::stripes::Stripes;
use crate::table::{DebitError, Table};

fn usual(generation: u64) -> Usual {
    Usual {
        fingerprint: Fingerprint {
            high: generation,
            low: generation,
        },
        cost_max: Tokens::new(generation),
    }
}

/// Fails without either fence of the sequence lock, and if a writer does not take back the
/// generation first.
#[test]
fn what_is_known_is_of_one_writer() {
    loom::model(|| {
        let known = Arc::new(Known::new());
        known.note(1, usual(1));
        let writer = {
            let known = known.clone();
            thread::spawn(move || known.note(2, usual(2)))
        };
        for generation in [1, 2] {
            if let Some(read) = known.under(generation) {
                assert_eq!(read, usual(generation));
            }
        }
        writer.join().expect("no panic");
        assert_eq!(known.under(2), Some(usual(2)));
    });
}

#[test]
fn of_two_writers_the_newer_stands() {
    loom::model(|| {
        let known = Arc::new(Known::new());
        let writer = {
            let known = known.clone();
            thread::spawn(move || known.note(2, usual(2)))
        };
        known.note(1, usual(1));
        writer.join().expect("no panic");
        assert_eq!(known.under(2), Some(usual(2)));
        assert_eq!(known.under(1), None);
    });
}

/// Fails if taking a seat does not acquire, or freeing one does not release: then a successor
/// counts on from an old value.
#[test]
fn a_seat_that_changes_hands_loses_no_count() {
    loom::model(|| {
        let shared = Arc::new((Seats::default(), Stripes::<1>::default()));
        let count = |shared: &(Seats, Stripes<1>)| {
            let (seats, stripes) = shared;
            let seat = seats.take();
            stripes.add((seat < SEATS).then_some(seat), 0, 1);
            seats.free(seat);
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || count(&shared))
        };
        count(&shared);
        other.join().expect("no panic");
        assert_eq!(shared.1.total(0), 2);
    });
}

/// Two keys that are looked for at the same places.
const ONE: Fingerprint = Fingerprint { high: 8, low: 16 };
const OTHER: Fingerprint = Fingerprint { high: 24, low: 32 };

/// A deadline that no run of a model reaches.
fn far() -> Tick {
    Tick::at(clock::now() + Term::from_seconds(60))
}

/// A table in which one key holds a token.
fn table() -> Arc<Table> {
    let table = Table::new(1);
    let inserted = table.insert(ONE, |_| true).expect("there is room");
    let cell = inserted.found.entry.cell();
    cell.install(Tokens::ONE, far(), Rise::Fresh)
        .expect("a new cell has eras left");
    Arc::new(table)
}

/// Gives the entry to the other key with two tokens, as the driver does once the holder machine
/// has closed the slot. Returns what the first key had left.
fn hand_over(table: &Table) -> Tokens {
    let found = table.find(ONE).expect("it is there");
    let deadline = far();
    let rest = found.entry.cell().clear(deadline);
    table.free(found.slot);
    let inserted = table.insert(OTHER, |_| true).expect("there is room");
    assert_eq!(inserted.found.slot, found.slot, "the same entry");
    let cell = inserted.found.entry.cell();
    cell.install(Tokens::new(2), deadline, Rise::Within)
        .expect("a second era is left");
    rest
}

/// Every interleaving with up to two preemptions: the table's programs are too long for all.
fn explore(program: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(program);
}

/// Fails if a debit does not look at the generation again.
#[test]
fn a_key_never_spends_what_was_granted_to_its_successor() {
    explore(|| {
        let table = table();
        let reader = {
            let table = table.clone();
            thread::spawn(move || match table.find(ONE) {
                Some(found) => match found.debit(Tokens::ONE) {
                    Ok(_) => 1,
                    Err(DebitError::Exhausted(_) | DebitError::Moved) => 0,
                },
                None => 0,
            })
        };
        let rest = hand_over(&table).get();
        let spent = reader.join().expect("no panic");
        assert!(spent + rest <= 1, "one token was there, which may be lost");
        let left = table.find(OTHER).expect("it is there").entry.cell().view();
        assert_eq!(left.tokens, Tokens::new(2), "what was taken was put back");
    });
}

/// The halves of two keys that follow each other in an entry are no third key. Fails if finding
/// and debiting do not compare generations.
#[test]
fn a_key_made_of_two_others_is_never_served() {
    let mixed = Fingerprint {
        high: ONE.high,
        low: OTHER.low,
    };
    explore(move || {
        let table = table();
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                let found = table.find(mixed);
                found
                    .is_some_and(|found| found.debit(Tokens::ONE).is_ok() || found.is_still_there())
            })
        };
        hand_over(&table);
        assert!(!reader.join().expect("no panic"));
    });
}

#[test]
fn a_key_that_two_callers_insert_has_one_place() {
    explore(|| {
        let table = Arc::new(Table::new(1));
        let insert = |table: &Table| {
            let mut announced = 0;
            let inserted = table.insert(ONE, |_| {
                announced += 1;
                true
            });
            (inserted.expect("there is room").found.slot, announced)
        };
        let other = {
            let table = table.clone();
            thread::spawn(move || insert(&table))
        };
        let mine = insert(&table);
        let other = other.join().expect("no panic");
        assert_eq!(mine.0, other.0);
        assert_eq!(mine.1 + other.1, 1, "the driver is told once");
        assert_eq!(table.len(), 1);
    });
}
