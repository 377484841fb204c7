//! The embedded store on a real disk: damage, locks, crashes and syncs.

mod store_support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::policy::{OverrideSpec, PolicyHistory};
use quota_core::record::ReservationWrite;
use quota_server::store::format::{self, Tree};
use quota_server::store::handle::{HandleOptions, StoreHandle};
use quota_server::store::sled::{SledOptions, SledStore};
use quota_server::store::{PolicyWrite, Store, StoreError};
use store_support::{bucket, bucket_in, by_shard, history, put, rows, used, write};

const SHARDS: u32 = 4;
const ONE: ShardId = ShardId::new(1);

/// Tells a copy of this test program that it is a child, and on which directory it works.
const CHILD: &str = "QUOTA_STORE_TEST_CHILD";

fn open(path: &Path) -> Result<SledStore, StoreError> {
    SledStore::open(&SledOptions {
        shards: Some(SHARDS),
        ..SledOptions::new(path)
    })
}

fn claim_all(store: &mut SledStore) -> BTreeMap<ShardId, Epoch> {
    (0..SHARDS)
        .map(ShardId::new)
        .map(|shard| (shard, store.claim(shard).expect("claims").epoch))
        .collect()
}

/// Changes the database below a closed store.
fn tamper(path: &Path, change: impl FnOnce(&sled::Db)) {
    let database = sled::open(path.join("sled")).expect("opens");
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
        let bytes = format::encode(Tree::Reservations, &key, &store_support::reservation(1));
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

#[test]
fn a_directory_in_use_or_of_something_else_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    let store = open(&path).expect("creates");
    let error = open(&path).expect_err("is in use");
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("--data-dir"), "{error}");
    assert!(run_child("child_opens", &path).contains("is in use by another process"));
    drop(store);
    open(&path).expect("is free again");

    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).expect("creates");
    fs::create_dir(foreign.join("lost+found")).expect("creates");
    open(&foreign).expect("a fresh file system is empty");
    let foreign = directory.path().join("other");
    fs::create_dir(&foreign).expect("creates");
    fs::write(foreign.join("notes.txt"), "mine").expect("writes");
    let error = open(&foreign).expect_err("is someone else's");
    assert!(error.to_string().contains("notes.txt"), "{error}");
}

/// Runs one of the `child_` functions below in a process of its own and returns what it says.
fn run_child(name: &str, path: &Path) -> String {
    let output = child(name, path).output().expect("runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn child(name: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Not a test by itself: what [`a_directory_in_use_or_of_something_else_is_refused`] starts.
#[test]
fn child_opens() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    if let Err(error) = open(Path::new(&path)) {
        println!("{error}");
    }
}

const STEADY: u64 = 40;
const FRESH: u64 = 60;

/// Not a test by itself: writes batches until it is killed, and tells after each that it was
/// acknowledged.
#[test]
fn child_writes() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let mut store = open(Path::new(&path)).expect("opens");
    let epochs = claim_all(&mut store);
    let first = used(&mut store, bucket("steady-0").shard(SHARDS))
        .get(&bucket("steady-0"))
        .map_or(1, |last| last + 1);
    for (number, batch) in (1..).zip(first..) {
        let mut records: Vec<ReservationWrite> = (0..STEADY)
            .map(|n| put(&bucket(&format!("steady-{n}")), batch))
            .collect();
        records.extend((0..FRESH).map(|n| put(&bucket(&format!("fresh-{batch}-{n}")), batch)));
        for outcome in store.write(&by_shard(SHARDS, &epochs, number, records)) {
            outcome.expect("owns it");
        }
        println!("acknowledged {batch}");
        std::io::stdout().flush().expect("says so");
    }
}

#[test]
fn kill_nine_keeps_every_acknowledged_batch_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    let seed = quota_server::random::number();
    println!("seed {seed}");
    let mut acknowledged = 0;
    for round in 0..5_u32 {
        let enough = 1 + (seed >> (round * 8)) % 60;
        let mut running = child("child_writes", &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(running.stdout.take().expect("piped")).lines();
        let mut seen = 0;
        while seen < enough {
            let line = lines
                .next()
                .expect("runs until it is killed")
                .expect("reads");
            // The first line may follow the test runner's own words.
            if let Some((_, batch)) = line.rsplit_once("acknowledged ") {
                acknowledged = batch.parse().expect("a number");
                seen += 1;
            }
        }
        running.kill().expect("kills");
        // What it still said before it died counts as well.
        for line in lines.map_while(Result::ok) {
            if let Some((_, batch)) = line.rsplit_once("acknowledged ") {
                acknowledged = batch.parse().expect("a number");
            }
        }
        running.wait().expect("ends");
        check_batches(&path, acknowledged);
    }
}

fn check_batches(path: &Path, acknowledged: u64) {
    let mut store = open(path).expect("opens after a kill");
    for shard in (0..SHARDS).map(ShardId::new) {
        let found = used(&mut store, shard);
        let here = |name: String| Some(bucket(&name)).filter(|b| b.shard(SHARDS) == shard);
        let steady: Vec<u64> = (0..STEADY)
            .filter_map(|n| here(format!("steady-{n}")))
            .map(|bucket| *found.get(&bucket).expect("was acknowledged"))
            .collect();
        assert!(
            steady.iter().all(|&used| used == steady[0]),
            "a torn batch: {steady:?}"
        );
        assert!(
            (acknowledged..=acknowledged + 1).contains(&steady[0]),
            "{} is found where {acknowledged} was acknowledged",
            steady[0]
        );
        for batch in 1..=acknowledged + 1 {
            let fresh: Vec<_> = (0..FRESH)
                .filter_map(|n| here(format!("fresh-{batch}-{n}")))
                .map(|bucket| found.contains_key(&bucket))
                .collect();
            let whole = batch <= steady[0];
            assert!(
                fresh.iter().all(|&there| there == whole),
                "batch {batch} of {acknowledged} acknowledged ones is torn or lost"
            );
        }
    }
}

/// Records of one batch of [`child_fills_the_disk`].
const FILLING: usize = 400;

/// Not a test by itself: writes through a handle, on a disk that is too small, until that fails.
#[test]
fn child_fills_the_disk() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let store = open(Path::new(&path)).expect("opens");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let options = HandleOptions {
            stuck_after: Duration::from_secs(5),
            ..HandleOptions::default()
        };
        let (handle, _thread) = StoreHandle::spawn(Box::new(store), options).expect("a thread");
        let epoch = handle.claim(ONE).await.expect("claims").epoch;
        let mut fresh = (0..)
            .map(|n| bucket(&format!("k{n}")))
            .filter(|bucket| bucket.shard(SHARDS) == ONE);
        for number in 1.. {
            let records = fresh
                .by_ref()
                .take(FILLING)
                .map(|bucket| put(&bucket, number))
                .collect();
            if let Err(error) = handle.write(write(ONE, epoch, number, records)).await {
                println!("refused {error}");
                break;
            }
            println!("acknowledged {number}");
        }
        let again = handle.claim(ONE).await.expect_err("the store has stopped");
        println!("afterwards {again}");
    });
    // A database that waits for its own dead threads would keep this process for ever.
    std::process::exit(0);
}

#[test]
fn a_full_disk_is_an_error_at_once_and_for_good_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    open(&path).expect("creates");
    // A limit on the size of files stands in for the end of the disk.
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 6000; exec \"$@\"", "sh"])
        .arg(program)
        .args([
            "child_fills_the_disk",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD, &path)
        .stderr(Stdio::null())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let after = |word: &str| {
        said.lines()
            .rev()
            .find_map(|line| line.split_once(word).map(|it| it.1))
    };
    let acknowledged: u64 = after("acknowledged ")
        .expect(&said)
        .parse()
        .expect("a number");
    assert!(
        after("refused ")
            .expect(&said)
            .contains("unknown whether shard 1 was written"),
        "{said}"
    );
    assert!(
        after("afterwards ")
            .expect(&said)
            .contains("the store has stopped"),
        "{said}"
    );

    let mut store = open(&path).expect("opens where there is room");
    let mut batches: BTreeMap<u64, usize> = BTreeMap::new();
    for number in used(&mut store, ONE).into_values() {
        *batches.entry(number).or_default() += 1;
    }
    assert!(
        batches.values().all(|&count| count == FILLING),
        "a torn batch: {batches:?}"
    );
    let whole = u64::try_from(batches.len()).expect("small");
    assert!(
        (acknowledged..=acknowledged + 1).contains(&whole),
        "{whole} of {acknowledged}"
    );
}

#[test]
fn policies_that_outgrow_a_page_survive() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut store = open(directory.path()).expect("creates");
    let mut stored = Vec::new();
    for policy in 10..22 {
        let revision = store.next_revision().expect("reads");
        let history = large_history(&format!("api-{policy}"), revision);
        let write = PolicyWrite {
            expected: None,
            revision,
            history: history.clone(),
        };
        store.put_policy(&write).expect("is new");
        stored.push(history);
    }
    drop(store);
    let blobs = directory.path().join("sled").join("blobs");
    assert!(
        fs::read_dir(blobs).expect("lists").count() > 0,
        "the page lies in a file of its own"
    );
    let mut store = open(directory.path()).expect("opens");
    let policies = store.policies().expect("reads");
    let found: Vec<_> = policies.into_iter().map(|policy| policy.history).collect();
    assert_eq!(found, stored);
}

/// A policy of about 50 kB.
fn large_history(name: &str, version: PolicyVersion) -> PolicyHistory {
    let small = history(name, 10, version);
    let mut spec = small.current().expect("is in force").spec().clone();
    let limit = spec.limit;
    spec.overrides = (0..230)
        .map(|n| OverrideSpec {
            key: vec![format!("{n:0>200}")],
            limit,
        })
        .collect();
    PolicyHistory::create(spec, version).expect("legal")
}

/// Not a test by itself: commits one batch between two marks that can be told in a trace.
#[test]
fn child_commits_once() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let mut store = open(Path::new(&path)).expect("opens");
    let epoch = store.claim(ONE).expect("claims").epoch;
    let records = vec![put(&bucket_in(ONE, SHARDS, 0), 5)];
    let mark = |name: &str| drop(fs::metadata(name));
    mark("/trace-begins");
    assert!(store.write(&[write(ONE, epoch, 1, records)])[0].is_ok());
    mark("/trace-ends");
}

#[test]
fn a_commit_reaches_the_disk_before_it_is_acknowledged() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: there is no strace here");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    open(&path).expect("creates");
    let trace = directory.path().join("trace");
    let program = std::env::current_exe().expect("this program");
    let status = Command::new("strace")
        .args(["-f", "-y", "-o"])
        .arg(&trace)
        .args(["-e", "trace=%file,fsync,fdatasync,sync_file_range,pwrite64"])
        .arg(program)
        .args(["child_commits_once", "--exact", "--test-threads=1"])
        .env(CHILD, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("runs");
    let text = fs::read_to_string(&trace).expect("reads");
    if !status.success() && !text.contains("trace-begins") {
        println!("skipped: strace may not trace here");
        return;
    }
    let (_, from) = text.split_once("/trace-begins").expect("begins");
    let (commit, _) = from.split_once("/trace-ends").expect("ends");
    let line = |what: &dyn Fn(&str) -> bool| commit.lines().position(what);
    let database =
        |call: &'static str| move |line: &str| line.contains(call) && line.contains("/sled/db>");
    let written = line(&database("pwrite64(")).expect("the log is written");
    let synced = commit
        .lines()
        .enumerate()
        .filter(|(_, line)| database("fdatasync(")(line))
        .map(|(index, _)| index)
        .last()
        .expect("the log is synced, and not only sent on its way");
    let noted = line(&|line: &str| line.contains("pwrite64(") && line.contains("commits.mark"))
        .expect("the commit is noted");
    assert!(written < synced && synced < noted, "{commit}");
}

#[test]
fn many_reservations_load_whole() {
    const COUNT: u32 = 200_000;
    const BATCH: u32 = 10_000;
    let directory = tempfile::tempdir().expect("a directory");
    let mut store = open(directory.path()).expect("creates");
    let epochs = claim_all(&mut store);
    let mut numbers = 1..;
    for start in (0..COUNT).step_by(usize::try_from(BATCH).expect("small")) {
        let records = (start..start + BATCH)
            .map(|n| put(&bucket(&format!("tenant-{n:08}")), u64::from(n)))
            .collect();
        let number = numbers.next().expect("endless");
        for outcome in store.write(&by_shard(SHARDS, &epochs, number, records)) {
            outcome.expect("owns it");
        }
    }
    drop(store);
    let mut store = open(directory.path()).expect("opens");
    let mut found = 0;
    for shard in (0..SHARDS).map(ShardId::new) {
        for (bucket, reservation) in store.load(shard).expect("loads") {
            let expected = format!("default/api:tenant-{:08}", reservation.used.get());
            assert_eq!(bucket.to_string(), expected);
            found += 1;
        }
    }
    assert_eq!(found, COUNT);
}
