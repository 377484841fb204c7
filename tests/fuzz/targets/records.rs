//! Any bytes as each record of a store: what is read is written back as the same value, in no more
//! bytes, and read again; and a key is written back as the very bytes that it was read from.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::Key;
use quota_core::record::HandOver;
use quota_fuzz::format::{self, Tree, VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;

const KEY: &[u8] = b"k";

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 9 {
        0 => drop(record::<format::IdentityRecord>(bytes)),
        1 => drop(record::<u64>(bytes)),
        2 => drop(record::<PolicyVersion>(bytes)),
        3 => drop(record::<format::ClaimRecord>(bytes)),
        4 => drop(record::<format::ReservationRecord>(bytes)),
        5 => drop(record::<format::PolicyRecord>(bytes)),
        6 => hand_over(bytes),
        7 => keys(bytes),
        _ => as_it_stands(bytes),
    }
});

/// `value` in the envelope of a record, with the checksum that no fuzzer would guess.
fn sealed(tree: Tree, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut hasher = crc32fast::Hasher::new();
    for part in [tree.name().as_bytes(), key] {
        let length = u32::try_from(part.len()).expect("short");
        hasher.update(part);
        hasher.update(&length.to_be_bytes());
    }
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(value);
    hasher.update(&bytes);
    bytes.extend_from_slice(&hasher.finalize().to_le_bytes());
    bytes
}

/// `value` as a record. A number may be read from more bytes than it needs, so what is written may
/// be shorter than what was read, but never longer.
fn record<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &[u8]) -> Option<T> {
    let stored = sealed(Tree::Meta, KEY, value);
    let record = format::decode::<T>(Tree::Meta, KEY, &stored, String::new).ok()?;
    let written = format::encode(Tree::Meta, KEY, &record);
    assert!(written.len() <= stored.len());
    let longer = sealed(Tree::Meta, KEY, &[value, &[0]].concat());
    let longer = format::decode::<T>(Tree::Meta, KEY, &longer, String::new);
    assert!(longer.is_err(), "nothing may follow a value");
    let again = format::decode::<T>(Tree::Meta, KEY, &written, String::new);
    let again = again.expect("what was written is read");
    assert_eq!(again, record);
    assert_eq!(format::encode(Tree::Meta, KEY, &again), written);
    Some(record)
}

fn hand_over(value: &[u8]) {
    let Some(rows) = record::<HandOver>(value) else {
        return;
    };
    for row in &rows.buckets {
        let key = &row.bucket.key;
        assert_eq!(Key::from_canonical(key.as_bytes()).as_ref(), Ok(key));
    }
    let (shard, epoch) = (ShardId::new(1), Epoch::new(1));
    let parts = format::hand_over_parts(shard, epoch, &rows);
    assert!(
        parts
            .iter()
            .all(|(_, part)| part.len() <= format::PART_BYTES_MAX)
    );
    let mut joined: Vec<u8> = Vec::new();
    for (_, part) in &parts {
        // A part that is missing at the end is missed.
        assert!(format::hand_over_rows(shard, epoch, &joined).is_err());
        joined.extend_from_slice(part);
    }
    let read = format::hand_over_rows(shard, epoch, &joined);
    assert_eq!(read.expect("what was written is read"), rows);
}

fn keys(bytes: &[u8]) {
    if let Ok(bucket) = format::bucket_of(bytes) {
        let shard = bytes.first_chunk::<4>().expect("it begins with the shard");
        let shard = ShardId::new(u32::from_be_bytes(*shard));
        assert_eq!(format::reservation_key(shard, &bucket), bytes);
    }
    if let Ok(policy) = format::policy_of(bytes) {
        assert_eq!(format::policy_key(&policy), bytes);
    }
}

/// Without a checksum that matches there is hardly anything to accept, and nothing may panic.
fn as_it_stands(bytes: &[u8]) {
    let read = format::decode::<u64>(Tree::Meta, KEY, bytes, String::new);
    if let Ok(number) = read {
        let written = format::encode(Tree::Meta, KEY, &number);
        assert!(written.len() <= bytes.len());
    }
}
