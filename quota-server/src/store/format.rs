//! The bytes of every record.
//!
//! A record is a version byte, the `bincode` form of its value, and a CRC-32 over tree, key,
//! version and value. The checksum is there because a flipped bit in a reservation would decode
//! to a legal number and grant tokens twice; the key is in it so that a record cannot be mistaken
//! for another's.
//!
//! A server of format version n reads n and n − 1 and writes n. Version 1 is the first. To change
//! a record: copy the shape that it had into a module `v1` here, raise [`VERSION`], convert in
//! [`decode`], and add golden files for the new version beside the old ones, which stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::policy::{PolicyHistory, SwitchMode, SwitchScope};
use quota_core::record::{HandOver, Reservation};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// The format version that is written.
pub const VERSION: u8 = 1;

/// Largest value that is decoded, so that nonsense cannot ask for all memory. A hand-over of a
/// million buckets is about a tenth of it.
const DECODED_BYTES_MAX: usize = 1 << 30;

const CHECKSUM_BYTES: usize = 4;

/// A kind of record: its name is the tree that it is kept in, and part of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// One record under each of a few names: what the store is.
    Meta,
    /// One record per shard: who owns it.
    Claims,
    /// One record per reserved bucket, laid out by shard.
    Reservations,
    /// Slices of the rows of a hand-over, laid out by shard and epoch.
    HandOvers,
    /// One record per policy.
    Policies,
}

impl Tree {
    /// The name on disk.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Claims => "claims",
            Self::Reservations => "reservations",
            Self::HandOvers => "hand_overs",
            Self::Policies => "policies",
        }
    }
}

/// What the store was created as; [`Tree::Meta`], key [`IDENTITY_KEY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRecord {
    /// Random, drawn at creation.
    pub cluster: u128,
    /// The number of shards.
    pub shards: u32,
}

/// The key of the [`IdentityRecord`].
pub const IDENTITY_KEY: &[u8] = b"identity";
/// The key of the number of commits made, a `u64` in [`Tree::Meta`].
pub const COMMITS_KEY: &[u8] = b"commits";
/// The key of the highest revision used, a [`PolicyVersion`] in [`Tree::Meta`].
pub const REVISION_KEY: &[u8] = b"revision";

/// The key of the [`SwitchesRecord`].
pub const SWITCHES_KEY: &[u8] = b"switches";

/// Who owns a shard; [`Tree::Claims`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The epoch of the last claim.
    pub epoch: Epoch,
    /// How many tenures, the last one included, may have live exposure.
    pub tenures: u32,
    /// Set if the last tenure ended by a hand-over that nobody has consumed.
    pub hand_over: Option<HandOverMarker>,
}

/// Says that the rows of a hand-over are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOverMarker {
    /// The epoch that wrote the rows, and ended with them.
    pub epoch: Epoch,
    /// Into how many slices the encoded rows were cut.
    pub parts: u32,
}

/// A policy; [`Tree::Policies`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// The revision of this record.
    pub revision: PolicyVersion,
    /// Its current and former versions.
    pub history: PolicyHistory,
}

/// The kill switches that are set; [`Tree::Meta`], key [`SWITCHES_KEY`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchesRecord {
    /// By scope.
    pub switches: BTreeMap<SwitchScope, SwitchRecord>,
}

/// One kill switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchRecord {
    /// What it does.
    pub mode: SwitchMode,
    /// When it goes back to off by itself: milliseconds since 1970 on the wall clock, the only
    /// one that goes on while no server runs. The ledger does not depend on it.
    pub expires_at: Option<u64>,
    /// Why, as its setter said.
    pub reason: String,
}

/// A bucket's reservation is stored as the core's [`Reservation`]; [`Tree::Reservations`].
pub type ReservationRecord = Reservation;

/// The rows of a hand-over are stored as the core's [`HandOver`], encoded whole and cut into
/// slices of at most this many bytes, each a record of its own. Small slices keep the database's
/// pages far below the size above which it would move them out into files of their own.
pub const PART_BYTES_MAX: usize = 4096;

/// The stored form of `value` under `key`.
#[must_use]
pub fn encode<T: Serialize>(tree: Tree, key: &[u8], value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bincode::serde::encode_into_std_write(value, &mut bytes, config())
        .expect("a record has nothing that bincode cannot encode, and memory does not fail");
    let checksum = checksum(tree, key, &bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// Reads a stored form back. `name` makes the key readable for an error.
///
/// # Errors
/// [`StoreError::UnknownFormat`] and [`StoreError::Corrupt`].
pub fn decode<T: DeserializeOwned>(
    tree: Tree,
    key: &[u8],
    bytes: &[u8],
    name: impl Fn() -> String,
) -> Result<T, StoreError> {
    let corrupt = |what: String| StoreError::Corrupt {
        tree: tree.name(),
        key: name(),
        what,
    };
    let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(corrupt(format!("it is {} bytes long", bytes.len())));
    };
    // The checksum comes first: an unknown version is one that some server wrote, not damage.
    if checksum(tree, key, body) != *stored {
        return Err(corrupt("its checksum does not match".to_owned()));
    }
    let Some((&version, value)) = body.split_first() else {
        return Err(corrupt("it is empty".to_owned()));
    };
    if version != VERSION {
        return Err(StoreError::UnknownFormat {
            tree: tree.name(),
            key: name(),
            found: version,
            known: VERSION,
        });
    }
    let (decoded, used) = bincode::serde::decode_from_slice(value, config())
        .map_err(|error| corrupt(format!("its value cannot be read ({error})")))?;
    if used != value.len() {
        return Err(corrupt(format!(
            "{} bytes follow its value",
            value.len() - used
        )));
    }
    Ok(decoded)
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<DECODED_BYTES_MAX>()
}

fn checksum(tree: Tree, key: &[u8], body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    for part in [tree.name().as_bytes(), key] {
        hasher.update(part);
        hasher.update(&length(part).to_be_bytes());
    }
    hasher.update(body);
    hasher.finalize().to_le_bytes()
}

fn length(part: &[u8]) -> u32 {
    u32::try_from(part.len()).expect("names and keys are a few kilobytes at most")
}

/// The rows of a hand-over, ready to be stored: each slice with its key.
#[must_use]
pub fn hand_over_parts(shard: ShardId, epoch: Epoch, rows: &HandOver) -> Vec<(Vec<u8>, Vec<u8>)> {
    // Whole, under the key of the first slice: its checksum also covers that none is missing.
    let whole = encode(Tree::HandOvers, &part_key(shard, epoch, 0), rows);
    let mut parts = Vec::with_capacity(whole.len().div_ceil(PART_BYTES_MAX));
    for (index, slice) in (0_u32..).zip(whole.chunks(PART_BYTES_MAX)) {
        parts.push((part_key(shard, epoch, index), slice.to_vec()));
    }
    parts
}

/// The rows of a hand-over, from its slices joined in order.
///
/// # Errors
/// [`StoreError::UnknownFormat`] and [`StoreError::Corrupt`].
pub fn hand_over_rows(shard: ShardId, epoch: Epoch, joined: &[u8]) -> Result<HandOver, StoreError> {
    decode(Tree::HandOvers, &part_key(shard, epoch, 0), joined, || {
        format!("of shard {shard}, epoch {epoch}")
    })
}

/// The key of one slice of a hand-over.
#[must_use]
pub fn part_key(shard: ShardId, epoch: Epoch, index: u32) -> Vec<u8> {
    let mut key = shard_key(shard).to_vec();
    key.extend_from_slice(&epoch.get().to_be_bytes());
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// The key of a shard's claim, and the prefix of all that is laid out by shard.
#[must_use]
pub fn shard_key(shard: ShardId) -> [u8; 4] {
    shard.get().to_be_bytes()
}

/// The key of a bucket's reservation.
#[must_use]
pub fn reservation_key(shard: ShardId, bucket: &BucketAddress) -> Vec<u8> {
    let mut key = shard_key(shard).to_vec();
    put_policy_id(&mut key, &bucket.policy);
    key.extend_from_slice(bucket.key.as_bytes());
    key
}

/// The bucket of a reservation's key.
///
/// # Errors
/// [`StoreError::Corrupt`].
pub fn bucket_of(key: &[u8]) -> Result<BucketAddress, StoreError> {
    parse_bucket(key).ok_or_else(|| StoreError::Corrupt {
        tree: Tree::Reservations.name(),
        key: escaped(key),
        what: "its key is not a bucket's address".to_owned(),
    })
}

fn parse_bucket(key: &[u8]) -> Option<BucketAddress> {
    let (_shard, rest) = key.split_first_chunk::<4>()?;
    let (policy, rest) = take_policy_id(rest)?;
    let key = Key::from_canonical(rest).ok()?;
    Some(BucketAddress { policy, key })
}

/// The key of a policy's record.
#[must_use]
pub fn policy_key(id: &PolicyId) -> Vec<u8> {
    let mut key = Vec::new();
    put_policy_id(&mut key, id);
    key
}

/// The policy of a policy record's key.
///
/// # Errors
/// [`StoreError::Corrupt`].
pub fn policy_of(key: &[u8]) -> Result<PolicyId, StoreError> {
    match take_policy_id(key) {
        Some((id, [])) => Ok(id),
        _ => Err(StoreError::Corrupt {
            tree: Tree::Policies.name(),
            key: escaped(key),
            what: "its key is not a policy's identity".to_owned(),
        }),
    }
}

fn put_policy_id(key: &mut Vec<u8>, id: &PolicyId) {
    for part in [id.namespace.as_bytes(), id.name.as_bytes()] {
        key.extend_from_slice(&length(part).to_be_bytes());
        key.extend_from_slice(part);
    }
}

fn take_policy_id(key: &[u8]) -> Option<(PolicyId, &[u8])> {
    let (namespace, rest) = take_text(key)?;
    let (name, rest) = take_text(rest)?;
    Some((PolicyId { namespace, name }, rest))
}

fn take_text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (text, rest) = rest.split_at_checked(length)?;
    Some((String::from_utf8(text.to_vec()).ok()?, rest))
}

/// Any bytes, readable.
#[must_use]
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    write!(text, "{}", bytes.escape_ascii()).expect("writing to a string does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> String {
        "k".to_owned()
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let record = ClaimRecord {
            epoch: Epoch::new(7),
            tenures: 2,
            hand_over: None,
        };
        let bytes = encode(Tree::Claims, b"k", &record);
        assert_eq!(
            decode::<ClaimRecord>(Tree::Claims, b"k", &bytes, name).expect("intact"),
            record
        );
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let error = decode::<ClaimRecord>(Tree::Claims, b"k", &broken, name)
                .expect_err("a flipped bit");
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        }
        for end in 0..bytes.len() {
            assert!(decode::<ClaimRecord>(Tree::Claims, b"k", &bytes[..end], name).is_err());
        }
    }

    #[test]
    fn a_record_under_another_key_or_in_another_tree_is_refused() {
        let bytes = encode(Tree::Claims, b"k", &1_u64);
        assert!(decode::<u64>(Tree::Claims, b"l", &bytes, name).is_err());
        assert!(decode::<u64>(Tree::Meta, b"k", &bytes, name).is_err());
    }

    #[test]
    fn a_newer_version_is_named_and_not_called_damage() {
        let mut bytes = encode(Tree::Claims, b"k", &1_u64);
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        bytes[0] = VERSION + 1;
        let sum = checksum(Tree::Claims, b"k", &bytes);
        bytes.extend_from_slice(&sum);
        let error = decode::<u64>(Tree::Claims, b"k", &bytes, name).expect_err("unknown");
        assert!(matches!(
            error,
            StoreError::UnknownFormat {
                found: 2,
                known: 1,
                ..
            }
        ));
        let said = error.to_string();
        assert!(
            said.contains("record k in claims") && said.contains("newer one"),
            "{said}"
        );
    }

    #[test]
    fn trailing_bytes_under_a_valid_checksum_are_refused() {
        let mut body = vec![VERSION];
        body.extend_from_slice(&[1, 0]);
        let sum = checksum(Tree::Meta, b"k", &body);
        body.extend_from_slice(&sum);
        assert!(decode::<u64>(Tree::Meta, b"k", &body, name).is_err());
    }

    #[test]
    fn keys_of_different_buckets_never_collide() {
        let bucket = |namespace: &str, name: &str, value: &str| BucketAddress {
            policy: PolicyId {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            key: Key::from_values(&[value]).expect("legal"),
        };
        let shard = ShardId::new(3);
        let odd = [
            bucket("a", "bc", "d"),
            bucket("ab", "c", "d"),
            bucket("", "abc", "d"),
            bucket("a", "b", "cd"),
            bucket("a", "b", ""),
        ];
        for one in &odd {
            assert_eq!(
                &bucket_of(&reservation_key(shard, one)).expect("parses"),
                one
            );
            let same = odd
                .iter()
                .filter(|other| reservation_key(shard, other) == reservation_key(shard, one));
            assert_eq!(same.count(), 1);
        }
    }
}
