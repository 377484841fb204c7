//! Locks, crashes and syncs: what takes a second process to see.
//!
//! The other process is this test program, told to run one of the `child_` functions.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quota_core::id::ShardId;
use quota_core::record::ReservationWrite;
use quota_server::store::handle::{HandleOptions, StoreHandle};
use quota_server::store::{Store, StoreError};

use crate::store_support::{bucket, bucket_in, by_shard, put, used, write};
use crate::{ONE, SHARDS, claim_all, open};

/// Tells a copy of this test program that it is a child, and on which directory it works.
const CHILD: &str = "QUOTA_STORE_TEST_CHILD";

#[test]
fn a_directory_in_use_or_of_something_else_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    let store = open(&path).expect("creates");
    let error = open(&path).expect_err("is in use");
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("--data-dir"), "{error}");
    assert!(
        run_child("store_sled::children::child_opens", &path)
            .contains("is in use by another process")
    );
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
        let mut running = child("store_sled::children::child_writes", &path)
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
            "store_sled::children::child_fills_the_disk",
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
        .args([
            "store_sled::children::child_commits_once",
            "--exact",
            "--test-threads=1",
        ])
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
