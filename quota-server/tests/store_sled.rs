//! The embedded store on a real disk: damage, locks, crashes, syncs and sizes.

mod store_sled {
    mod children;
    mod damage;
}
mod store_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::policy::{OverrideSpec, PolicyHistory};
use quota_server::store::sled::{SledOptions, SledStore};
use quota_server::store::{PolicyWrite, Store, StoreError};
use store_support::{bucket, by_shard, history, put};

const SHARDS: u32 = 4;
const ONE: ShardId = ShardId::new(1);

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
