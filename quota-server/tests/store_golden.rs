//! The bytes of every kind of record, pinned.
//!
//! A failure here means that stores written before the change cannot be read after it. Then the
//! format version has to go up, and the files of the old version stay (see
//! `quota_server::store::format`). Files of a new record kind are written by running this test
//! once with `QUOTA_GOLDEN=write`.

mod store_support;

use std::fs;
use std::path::PathBuf;

use quota_core::id::{
    Epoch, Incarnation, LeaseId, MessageNumber, PolicyVersion, Sequence, ShardId,
};
use quota_core::policy::{LimitClass, PolicyHistory, SwitchMode, SwitchScope};
use quota_core::rate::Rate;
use quota_core::record::{BucketRow, HandOver, LeaseRow, LevelRow, Reservation, Stamp, UnseenRow};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use quota_server::store::format::{
    self, ClaimRecord, HandOverMarker, IdentityRecord, PolicyRecord, SwitchRecord, SwitchesRecord,
    Tree, VERSION,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use store_support::{bucket, history, policy_id, reservation};

/// Compares the stored form of a record with its file, and reads the file back.
fn pin<T>(name: &str, tree: Tree, key: &[u8], record: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("v{VERSION}_{name}.hex"));
    let bytes = format::encode(tree, key, record);
    let text = format!("key {}\nrecord {}\n", hex(key), hex(&bytes));
    if std::env::var("QUOTA_GOLDEN").as_deref() == Ok("write") && !path.exists() {
        fs::write(&path, &text).expect("writes");
    }
    let golden =
        fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is missing", path.display()));
    assert_eq!(golden, text, "the stored form of {name} has changed");
    let (_, stored) = golden.trim_end().rsplit_once(' ').expect("written above");
    let read: T = format::decode(tree, key, &unhex(stored), || name.to_owned()).expect("reads");
    assert_eq!(&read, record);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("hexadecimal");
            u8::from_str_radix(pair, 16).expect("hexadecimal")
        })
        .collect()
}

#[test]
fn the_stored_form_of_every_record_is_pinned() {
    let shard = ShardId::new(5);
    let identity = IdentityRecord {
        cluster: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
        shards: 64,
    };
    pin("identity", Tree::Meta, format::IDENTITY_KEY, &identity);
    pin("commits", Tree::Meta, format::COMMITS_KEY, &70_000_u64);
    let revision = PolicyVersion::new(300);
    pin("revision", Tree::Meta, format::REVISION_KEY, &revision);
    let switch = |mode, expires_at, reason: &str| SwitchRecord {
        mode,
        expires_at,
        reason: reason.to_owned(),
    };
    let namespace = SwitchScope::Namespace("shop".to_owned());
    let switches = [
        (
            SwitchScope::Everything,
            switch(SwitchMode::AdmitAll, None, ""),
        ),
        (
            namespace,
            switch(SwitchMode::RefuseAll, Some(1_800_000_000_000), "drill"),
        ),
        (
            SwitchScope::Policy(policy_id("api")),
            switch(SwitchMode::AdmitAll, None, "limit set too low"),
        ),
    ];
    let switches = SwitchesRecord {
        switches: switches.into(),
    };
    pin("switches", Tree::Meta, format::SWITCHES_KEY, &switches);
    let claim = ClaimRecord {
        epoch: Epoch::new(9),
        tenures: 2,
        hand_over: None,
    };
    pin("claim", Tree::Claims, &format::shard_key(shard), &claim);
    let released = ClaimRecord {
        hand_over: Some(HandOverMarker {
            epoch: Epoch::new(9),
            parts: 3,
        }),
        ..claim
    };
    pin(
        "claim_released",
        Tree::Claims,
        &format::shard_key(shard),
        &released,
    );
    let key = format::reservation_key(shard, &bucket("tenant-1"));
    pin::<Reservation>(
        "reservation",
        Tree::Reservations,
        &key,
        &reservation(1_000_000),
    );
    let key = format::part_key(shard, Epoch::new(9), 0);
    pin("hand_over", Tree::HandOvers, &key, &hand_over());
    let key = format::policy_key(&policy_id("api"));
    let record = |revision, history| PolicyRecord { revision, history };
    let first = history("api", 100, PolicyVersion::new(3));
    pin(
        "policy",
        Tree::Policies,
        &key,
        &record(PolicyVersion::new(3), first.clone()),
    );
    let deleted: PolicyHistory = first.delete(PolicyVersion::new(4)).expect("was there");
    pin(
        "policy_deleted",
        Tree::Policies,
        &key,
        &record(PolicyVersion::new(4), deleted),
    );
}

fn hand_over() -> HandOver {
    let rate = Rate::new(Tokens::new(100), Term::from_seconds(60)).expect("legal");
    let level = LevelRow {
        version: PolicyVersion::new(3),
        used_parts: -7,
        rate,
        ghost: Tokens::new(8),
        ghost_term: Term::from_millis(1500),
    };
    let lease = LeaseRow {
        incarnation: Incarnation::new(77),
        lease: LeaseId {
            epoch: Epoch::new(9),
            counter: 4,
        },
        version: PolicyVersion::new(3),
        sequence: Sequence::new(12),
        granted: Tokens::new(50),
        spent: Tokens::new(20),
        returned: Tokens::new(5),
        remaining: Term::from_seconds(9),
    };
    let unseen = |class| UnseenRow {
        policy: policy_id("api"),
        class,
        level,
    };
    HandOver {
        stamp: Some(Stamp {
            boot: 1,
            at: Timestamp::from_nanos(2),
        }),
        buckets: vec![BucketRow {
            bucket: bucket("tenant-1"),
            level,
            leases: vec![lease],
        }],
        unseen: vec![
            unseen(LimitClass::Default),
            unseen(LimitClass::Plan("gold".to_owned())),
            unseen(LimitClass::Override(bucket("tenant-2").key)),
        ],
        anchors: vec![(Incarnation::new(77), MessageNumber::new(31))],
    }
}
