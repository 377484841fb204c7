//! The handle over a store in memory that can be made slow, faulty, panicking or stuck.

use std::sync::mpsc as blocking;

use quota_core::key::Key;
use quota_core::record::{ReservationWrite, Stamp};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use super::*;
use crate::store::memory::{Fault, MemoryDisk, MemoryStore};

const SHARDS: u32 = 8;

fn options() -> HandleOptions {
    HandleOptions::default()
}

fn handle(disk: &MemoryDisk, options: HandleOptions) -> (StoreHandle, StoreThread) {
    let store = MemoryStore::open(disk, None).expect("opens");
    StoreHandle::spawn(Box::new(store), options).expect("a thread")
}

/// A write of one record that belongs to the shard.
fn write(shard: ShardId, epoch: Epoch, number: u64) -> ShardWrite {
    let bucket = (0..)
        .map(|n| BucketAddress {
            policy: PolicyId {
                namespace: "default".to_owned(),
                name: "api".to_owned(),
            },
            key: Key::from_values(&[format!("k{n}")]).expect("legal"),
        })
        .find(|bucket| bucket.shard(SHARDS) == shard)
        .expect("there are infinitely many");
    let reservation = Reservation {
        version: PolicyVersion::new(1),
        used: Tokens::new(number),
        exposure: Tokens::ZERO,
        stamp: Stamp {
            boot: 0,
            at: Timestamp::ZERO,
        },
    };
    ShardWrite {
        shard,
        epoch,
        number,
        records: vec![ReservationWrite {
            bucket,
            reservation: Some(reservation),
        }],
    }
}

async fn claim_all(handle: &StoreHandle) -> Vec<Claim> {
    let mut claims = Vec::new();
    for shard in 0..SHARDS {
        claims.push(handle.claim(ShardId::new(shard)).await.expect("claims"));
    }
    claims
}

/// Keeps the store's thread busy until the sender is dropped.
fn hold(handle: &StoreHandle) -> (blocking::Sender<()>, tokio::task::JoinHandle<()>) {
    let (release, held) = blocking::channel::<()>();
    let handle = handle.clone();
    let task = tokio::spawn(async move {
        let wait = move |_: &mut dyn Store| {
            // It ends when the sender is dropped, which is not an error here.
            let _ = held.recv();
            Ok(())
        };
        // Whether the holder is called stuck is what some tests are about.
        let _ = handle.read(wait).await;
    });
    (release, task)
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn writes_that_wait_together_share_one_commit() {
    let disk = MemoryDisk::new(SHARDS);
    let (handle, _thread) = handle(&disk, options());
    let claims = claim_all(&handle).await;
    let (release, holder) = hold(&handle);
    until(|| {
        handle.jobs.capacity() == options().queue
            && handle.shared.progress.load(Ordering::Relaxed) % 2 == 1
    })
    .await;
    let waiting: Vec<_> = claims
        .iter()
        .map(|claim| {
            let (handle, write) = (handle.clone(), write(claim.shard, claim.epoch, 1));
            tokio::spawn(async move { handle.write(write).await })
        })
        .collect();
    let all = usize::try_from(SHARDS).expect("small");
    until(|| handle.jobs.capacity() == options().queue - all).await;
    drop(release);
    holder.await.expect("ends");
    for write in waiting {
        write.await.expect("ends").expect("is written");
    }
    assert_eq!(disk.writes(), 1, "eight shards, one commit");
    assert_eq!(handle.counters().groups.load(Ordering::Relaxed), 1);
    assert_eq!(
        handle.counters().batches.load(Ordering::Relaxed),
        u64::from(SHARDS)
    );
}

#[tokio::test]
async fn faults_are_told_for_what_they_are() {
    let disk = MemoryDisk::new(SHARDS);
    let (handle, _thread) = handle(&disk, options());
    let shard = ShardId::new(3);
    for (fault, written) in [
        (Fault::Failed, false),
        (Fault::UnknownLost, false),
        (Fault::UnknownWritten, true),
    ] {
        let epoch = handle.claim(shard).await.expect("claims").epoch;
        let before = disk.writes();
        disk.inject(fault);
        let outcome = handle.write(write(shard, epoch, 1)).await;
        let named = matches!(outcome, Err(WriteError::Failed { .. }));
        assert_eq!(named, fault == Fault::Failed, "{outcome:?}");
        assert_eq!(disk.writes() > before, written);
        let next = handle.write(write(shard, epoch, 2)).await;
        assert!(
            matches!(next, Err(WriteError::OutOfOrder { expected: None, .. })),
            "nothing follows a write that did not succeed: {next:?}"
        );
    }
    assert_eq!(handle.stopped(), None, "the store itself is fine");
}

#[tokio::test]
async fn a_panic_of_the_store_is_an_error_for_everyone_and_no_hang() {
    let disk = MemoryDisk::new(SHARDS);
    let (handle, thread) = handle(&disk, options());
    let claim = handle.claim(ShardId::new(0)).await.expect("claims");
    disk.inject(Fault::Panic);
    let outcome = handle.write(write(claim.shard, claim.epoch, 1)).await;
    assert!(
        matches!(outcome, Err(WriteError::Unknown { .. })),
        "{outcome:?}"
    );
    let outcome = handle.write(write(claim.shard, claim.epoch, 1)).await;
    assert!(
        matches!(outcome, Err(WriteError::Failed { .. })),
        "{outcome:?}"
    );
    let error = handle.load(claim.shard).await.expect_err("is stopped");
    assert!(error.to_string().contains("restart the server"), "{error}");
    thread
        .closed(Duration::from_secs(60))
        .await
        .expect("has ended");
}

#[tokio::test]
async fn a_store_that_hangs_is_given_up_and_nobody_waits_with_it() {
    let disk = MemoryDisk::new(SHARDS);
    let patience = HandleOptions {
        queue: 2,
        stuck_after: Duration::from_millis(50),
        ..options()
    };
    let (handle, thread) = handle(&disk, patience);
    let claim = handle.claim(ShardId::new(0)).await.expect("claims");
    let (release, holder) = hold(&handle);
    // More than there is room for: some never reach the queue.
    let waiting: Vec<_> = (1..=4)
        .map(|number| {
            let (handle, write) = (handle.clone(), write(claim.shard, claim.epoch, number));
            tokio::spawn(async move { handle.write(write).await })
        })
        .collect();
    holder.await.expect("is told");
    for write in waiting {
        let outcome = write.await.expect("is told");
        assert!(
            matches!(
                outcome,
                Err(WriteError::Unknown { .. } | WriteError::Failed { .. })
            ),
            "{outcome:?}"
        );
    }
    assert!(
        handle
            .stopped()
            .expect("is given up")
            .contains("no progress")
    );
    drop(release);
    drop(handle);
    thread
        .closed(Duration::from_secs(60))
        .await
        .expect("ends once it can");
}

#[tokio::test]
async fn the_thread_ends_with_the_last_handle() {
    let disk = MemoryDisk::new(SHARDS);
    let (handle, thread) = handle(&disk, options());
    let other = handle.clone();
    drop(handle);
    other.claim(ShardId::new(0)).await.expect("still served");
    drop(other);
    thread.closed(Duration::from_secs(60)).await.expect("ends");
}
