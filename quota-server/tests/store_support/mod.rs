//! What the store tests share: buckets, records and writes.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::policy::{LimitSpec, PolicyHistory, PolicySpec};
use quota_core::record::{HandOver, Reservation, ReservationWrite, Stamp};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use quota_server::store::{ShardWrite, Store};

pub(crate) fn policy_id(name: &str) -> PolicyId {
    PolicyId {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// The first history of a policy of this name, limited to `tokens` a second for each tenant.
pub(crate) fn history(name: &str, tokens: u64, version: PolicyVersion) -> PolicyHistory {
    let limit = LimitSpec::new(tokens, Term::from_seconds(1));
    let mut spec = PolicySpec::new(name, &["tenant"], limit);
    // Stored forms are pinned: they must not follow a default.
    spec.lease.horizon = Term::from_millis(500).into();
    PolicyHistory::create(spec, version).expect("legal")
}

pub(crate) fn bucket(value: &str) -> BucketAddress {
    BucketAddress {
        policy: policy_id("api"),
        key: Key::from_values(&[value]).expect("legal"),
    }
}

/// The first bucket, by number, that lies in the shard.
pub(crate) fn bucket_in(shard: ShardId, shards: u32, nth: usize) -> BucketAddress {
    (0..)
        .map(|number| bucket(&format!("k{number}")))
        .filter(|bucket| bucket.shard(shards) == shard)
        .nth(nth)
        .expect("there are infinitely many")
}

pub(crate) fn reservation(used: u64) -> Reservation {
    Reservation {
        version: PolicyVersion::new(3),
        used: Tokens::new(used),
        exposure: Tokens::new(used / 2),
        stamp: Stamp {
            boot: u128::MAX - 7,
            at: Timestamp::from_nanos(123_456_789_000),
        },
    }
}

pub(crate) fn put(bucket: &BucketAddress, used: u64) -> ReservationWrite {
    ReservationWrite {
        bucket: bucket.clone(),
        reservation: Some(reservation(used)),
    }
}

pub(crate) fn removal(bucket: &BucketAddress) -> ReservationWrite {
    ReservationWrite {
        bucket: bucket.clone(),
        reservation: None,
    }
}

pub(crate) fn write(
    shard: ShardId,
    epoch: Epoch,
    number: u64,
    records: Vec<ReservationWrite>,
) -> ShardWrite {
    ShardWrite {
        shard,
        epoch,
        number,
        records,
    }
}

/// Puts records of any buckets into one write for each shard.
pub(crate) fn by_shard(
    shards: u32,
    epochs: &BTreeMap<ShardId, Epoch>,
    number: u64,
    records: Vec<ReservationWrite>,
) -> Vec<ShardWrite> {
    let mut writes: BTreeMap<ShardId, ShardWrite> = BTreeMap::new();
    for record in records {
        let shard = record.bucket.shard(shards);
        writes
            .entry(shard)
            .or_insert_with(|| write(shard, epochs[&shard], number, Vec::new()))
            .records
            .push(record);
    }
    writes.into_values().collect()
}

/// All reservations of a shard as bucket and used amount.
pub(crate) fn used(store: &mut dyn Store, shard: ShardId) -> BTreeMap<BucketAddress, u64> {
    let rows = store.load(shard).expect("loads");
    let count = rows.len();
    let map: BTreeMap<_, _> = rows
        .into_iter()
        .map(|(bucket, reservation)| (bucket, reservation.used.get()))
        .collect();
    assert_eq!(map.len(), count, "a bucket is loaded twice");
    map
}

/// Rows of a hand-over that are larger than one slice.
pub(crate) fn rows(seed: u64) -> HandOver {
    HandOver {
        stamp: Some(Stamp {
            boot: 1,
            at: Timestamp::from_nanos(seed),
        }),
        buckets: Vec::new(),
        unseen: Vec::new(),
        anchors: (0..5000)
            .map(|n| {
                (
                    quota_core::id::Incarnation::new(u64::MAX - n - seed),
                    quota_core::id::MessageNumber::new(n + 1),
                )
            })
            .collect(),
    }
}
