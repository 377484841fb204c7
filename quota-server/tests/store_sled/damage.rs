//! Damage below a closed store: what was changed, cut off or taken away is refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use quota_core::id::{Epoch, ShardId};
use quota_core::record::ReservationWrite;
use quota_server::store::format::{self, Tree};
use quota_server::store::{PolicyWrite, Store, StoreError};

use crate::store_support::{bucket, bucket_in, by_shard, history, put, reservation, rows, write};
use crate::{ONE, SHARDS, claim_all, open};

/// Changes the database below a closed store.
fn tamper(path: &Path, change: impl FnOnce(&sled::Db)) {
    // The store's own tasks, or a child process just being started, may hold its lock a moment
    // longer.
    let database = (0..200)
        .find_map(|_| {
            let opened = sled::open(path.join("sled")).ok();
            if opened.is_none() {
                std::thread::park_timeout(std::time::Duration::from_millis(25));
            }
            opened
        })
        .expect("opens");
    change(&database);
    database.flush().expect("flushes");
}

fn tree(database: &sled::Db, tree: Tree) -> sled::Tree {
    database.open_tree(tree.name()).expect("opens")
}

/// A store with one claimed shard, one reservation, one policy and a pending hand-over of another shard.
fn furnished(path: &Path) {
    let mut store = open(path).expect("creates");
    let epoch = store.claim(ONE).expect("claims").epoch;
    let records = vec![put(&bucket_in(ONE, SHARDS, 0), 5)];
    assert!(store.write(&[write(ONE, epoch, 1, records)])[0].is_ok());
    let two = ShardId::new(2);
    let epoch = store.claim(two).expect("claims").epoch;
    store.hand_over(two, epoch, &rows(1)).expect("hands over");
    let revision = store.next_revision().expect("reads");
    let write = PolicyWrite {
        expected: None,
        revision,
        history: history("api", 10, revision),
    };
    store.put_policy(&write).expect("is new");
}

fn assert_corrupt(error: &StoreError, tree: &str) {
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(&format!("in {tree} is corrupt")), "{said}");
    assert!(said.contains("keep a copy of the data directory"), "{said}");
}

#[test]
fn a_damaged_record_of_every_kind_is_refused_by_name() {
    let kinds = [
        Tree::Meta,
        Tree::Claims,
        Tree::Reservations,
        Tree::HandOvers,
        Tree::Policies,
    ];
    for kind in kinds {
        for cut in [false, true] {
            let directory = tempfile::tempdir().expect("a directory");
            furnished(directory.path());
            tamper(directory.path(), |database| {
                for row in tree(database, kind).iter() {
                    let (key, value) = row.expect("reads");
                    let mut bytes = value.to_vec();
                    if cut {
                        bytes.truncate(bytes.len() / 2);
                    } else {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 4;
                    }
                    tree(database, kind).insert(key, bytes).expect("writes");
                }
            });
            let error = match open(directory.path()) {
                Err(error) => error,
                Ok(mut store) => {
                    let refused = match kind {
                        Tree::Claims => store.claim(ONE).map(|_| ()),
                        Tree::Reservations => store.load(ONE).map(|_| ()),
                        Tree::Policies => store.policies().map(|_| ()),
                        _ => store.claim(ShardId::new(2)).map(|_| ()),
                    };
                    refused.expect_err("damage was accepted")
                }
            };
            assert_corrupt(&error, kind.name());
        }
    }
}

#[test]
fn a_missing_slice_of_a_hand_over_is_refused_and_nothing_is_consumed() {
    let directory = tempfile::tempdir().expect("a directory");
    furnished(directory.path());
    let two = ShardId::new(2);
    let key = format::part_key(two, Epoch::new(1), 3);
    let mut slice = None;
    tamper(directory.path(), |database| {
        slice = tree(database, Tree::HandOvers)
            .remove(&key)
            .expect("removes");
    });
    let slice = slice.expect("the rows fill more than three slices");
    let mut store = open(directory.path()).expect("opens");
    assert_corrupt(
        &store.claim(two).expect_err("a slice is missing"),
        "hand_overs",
    );
    drop(store);
    tamper(directory.path(), |database| {
        tree(database, Tree::HandOvers)
            .insert(&key, slice)
            .expect("writes");
    });
    let claim = open(directory.path())
        .expect("opens")
        .claim(two)
        .expect("claims");
    assert_eq!(claim.hand_over, Some(rows(1)));
}

#[test]
fn a_reservation_in_the_wrong_shard_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    furnished(directory.path());
    let stray = bucket_in(ShardId::new(3), SHARDS, 0);
    let key = format::reservation_key(ONE, &stray);
    tamper(directory.path(), |database| {
        let bytes = format::encode(Tree::Reservations, &key, &reservation(1));
        tree(database, Tree::Reservations)
            .insert(&key, bytes)
            .expect("writes");
    });
    let error = open(directory.path())
        .expect("opens")
        .load(ONE)
        .expect_err("strays");
    assert_corrupt(&error, "reservations");
}

#[test]
fn a_log_that_lost_acknowledged_commits_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let mut store = open(path).expect("creates");
    let epochs = claim_all(&mut store);
    let mut write_some = |number: u64| {
        let records: Vec<ReservationWrite> = (0..200)
            .map(|n| put(&bucket(&format!("k{n}")), number))
            .collect();
        for outcome in store.write(&by_shard(SHARDS, &epochs, number, records)) {
            outcome.expect("owns it");
        }
    };
    write_some(1);
    let database = path.join("sled").join("db");
    let early = fs::read(&database).expect("reads");
    for number in 2..=20 {
        write_some(number);
    }
    drop(store);
    open(path).expect("intact");

    // The file as it was after the first batch: what is left when a damaged message ends the log.
    for snapshot in fs::read_dir(path.join("sled")).expect("lists") {
        let snapshot = snapshot.expect("lists").path();
        if snapshot.to_string_lossy().contains("snap.") {
            fs::remove_file(snapshot).expect("removes");
        }
    }
    fs::write(&database, early).expect("writes");
    match open(path) {
        Err(StoreError::LostCommits {
            acknowledged,
            found,
            ..
        }) => {
            assert!(found < acknowledged, "{found} {acknowledged}");
        }
        other => panic!("an old log gave {:?}", other.map(|store| store.identity())),
    }

    fs::remove_dir_all(path.join("sled")).expect("removes");
    assert!(matches!(
        open(path),
        Err(StoreError::LostCommits { found: 0, .. })
    ));
    assert!(!path.join("sled").exists(), "a refusal creates nothing");
}

#[test]
fn a_database_without_its_mark_is_refused_with_advice_that_keeps_it() {
    let directory = tempfile::tempdir().expect("a directory");
    furnished(directory.path());
    fs::remove_file(directory.path().join("commits.mark")).expect("removes");
    let error = open(directory.path()).expect_err("nothing tells whether it is complete");
    assert!(matches!(error, StoreError::MissingMark { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("without commits.mark"), "{said}");
    assert!(said.contains("keep a copy of the data directory"), "{said}");
    assert!(directory.path().join("sled").join("db").exists());
}

#[test]
fn a_damaged_slot_of_the_mark_is_repaired_only_if_the_database_is_newer_than_the_other() {
    // Slot 0 holds even commits, slot 1 odd ones.
    for (slot, newest) in [(0, true), (1, true), (0, false), (1, false)] {
        let directory = tempfile::tempdir().expect("a directory");
        furnished(directory.path());
        let path = directory.path().join("commits.mark");
        let mut mark = fs::read(&path).expect("reads");
        let commit = |slot: usize| mark[slot * 4096 + 4];
        let is_newest = commit(slot) > commit(1 - slot);
        mark[slot * 4096 + 6] ^= 1;
        fs::write(&path, &mark).expect("writes");
        if is_newest != newest {
            continue;
        }
        if newest {
            // As by a crash while it was written: the database has that commit.
            drop(open(directory.path()).expect("nothing is missing"));
            mark = fs::read(&path).expect("reads");
            let slots = [&mark[..16], &mark[4096..4112]];
            assert_eq!(
                slots[0], slots[1],
                "both slots are whole and tell the last commit"
            );
        } else {
            let error = open(directory.path()).expect_err("a newer commit may be missing");
            assert_corrupt(&error, "file");
            assert!(error.to_string().contains("commits.mark"), "{error}");
        }
    }
}

#[test]
fn a_creation_that_ended_early_is_begun_again() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("commits.mark.new"), b"QC").expect("writes");
    drop(open(directory.path()).expect("creates"));
    drop(open(directory.path()).expect("opens"));
    assert!(!directory.path().join("commits.mark.new").exists());
}

#[test]
fn a_flipped_bit_anywhere_in_the_file_is_refused_or_harmless() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let mut store = open(path).expect("creates");
    let epochs = claim_all(&mut store);
    let buckets: Vec<_> = (0..100).map(|n| bucket(&format!("k{n}"))).collect();
    for number in 1..=30 {
        let records = buckets.iter().map(|bucket| put(bucket, number)).collect();
        for outcome in store.write(&by_shard(SHARDS, &epochs, number, records)) {
            outcome.expect("owns it");
        }
    }
    drop(store);
    let database = path.join("sled").join("db");
    let intact = fs::read(&database).expect("reads");
    let end = intact
        .iter()
        .rposition(|&byte| byte != 0)
        .expect("not empty")
        + 1;
    let whole = tempfile::tempdir().expect("a directory");
    copy_directory(path, whole.path());
    open(whole.path()).expect("an intact copy opens");
    let (mut refused, mut harmless) = (0, 0);
    let rounds = 40;
    for round in 0..rounds {
        let copy = tempfile::tempdir().expect("a directory");
        copy_directory(path, copy.path());
        let mut broken = intact.clone();
        let at = end * round / rounds;
        broken[at] ^= 1 << (round % 8);
        fs::write(copy.path().join("sled").join("db"), &broken).expect("writes");
        let outcome = open(copy.path()).and_then(|mut store| {
            let mut found = BTreeMap::new();
            for shard in (0..SHARDS).map(ShardId::new) {
                store.claim(shard)?;
                found.extend(store.load(shard)?);
            }
            Ok(found)
        });
        match outcome {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            Ok(found) => {
                for bucket in &buckets {
                    let used = found.get(bucket).map(|found| found.used.get());
                    assert_eq!(
                        used,
                        Some(30),
                        "a bit at {at} of {end} rolled {bucket} back"
                    );
                }
                harmless += 1;
            }
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 0, "no damage was noticed");
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("creates");
    for entry in fs::read_dir(from).expect("lists") {
        let entry = entry.expect("lists");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}
