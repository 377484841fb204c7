//! Bucket addresses: which policy, and which values of its key dimensions.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::id::ShardId;

/// Longest value of one dimension, in bytes.
pub const VALUE_BYTES_MAX: usize = 256;
/// Most dimensions in one key.
pub const DIMENSIONS_MAX: usize = 8;
/// Longest namespace or policy name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// A policy's identity. Its values (limits, settings) are no part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyId {
    /// Groups policies that one team owns.
    pub namespace: String,
    /// Unique within its namespace.
    pub name: String,
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The values of a policy's key dimensions, in the policy's order, in one canonical encoding:
/// each value as a two-byte big-endian length and its bytes, so that no two lists of values share
/// an encoding whatever bytes they contain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "Box<[u8]>")]
pub struct Key(Box<[u8]>);

impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl TryFrom<Box<[u8]>> for Key {
    type Error = KeyError;

    /// Checks the encoding, so that a torn record never becomes a key.
    fn try_from(bytes: Box<[u8]>) -> Result<Self, KeyError> {
        Self::from_canonical(&bytes)
    }
}

/// Why a list of values is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// More than [`DIMENSIONS_MAX`] values.
    TooManyValues {
        /// How many there were.
        count: usize,
    },
    /// A value longer than [`VALUE_BYTES_MAX`] bytes.
    ValueTooLong {
        /// Which value, from zero.
        index: usize,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Bytes that are not a canonical encoding.
    NotCanonical,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyValues { count } => {
                write!(
                    f,
                    "a key has {count} values; at most {DIMENSIONS_MAX} are allowed"
                )
            }
            Self::ValueTooLong { index, bytes } => write!(
                f,
                "value {index} of a key is {bytes} bytes long; at most {VALUE_BYTES_MAX} are \
                 allowed: hash or shorten it"
            ),
            Self::NotCanonical => f.write_str("a key is not in its canonical encoding"),
        }
    }
}

impl core::error::Error for KeyError {}

impl Key {
    /// The key of these values. Any bytes are allowed in a value, and an empty value too.
    ///
    /// # Errors
    /// [`KeyError`] if there are too many values or one is too long.
    pub fn from_values<V: AsRef<[u8]>>(values: &[V]) -> Result<Self, KeyError> {
        if values.len() > DIMENSIONS_MAX {
            return Err(KeyError::TooManyValues {
                count: values.len(),
            });
        }
        let mut bytes = Vec::new();
        for (index, value) in values.iter().enumerate() {
            let value = value.as_ref();
            if value.len() > VALUE_BYTES_MAX {
                return Err(KeyError::ValueTooLong {
                    index,
                    bytes: value.len(),
                });
            }
            let length = u16::try_from(value.len()).expect("checked above");
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(value);
        }
        Ok(Self(bytes.into_boxed_slice()))
    }

    /// Reads a canonical encoding, as received from a peer or a store.
    ///
    /// # Errors
    /// [`KeyError`] if the bytes are not one.
    pub fn from_canonical(bytes: &[u8]) -> Result<Self, KeyError> {
        let mut values = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (length, tail) = rest
                .split_first_chunk::<2>()
                .ok_or(KeyError::NotCanonical)?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (value, tail) = tail
                .split_at_checked(length)
                .ok_or(KeyError::NotCanonical)?;
            values.push(value);
            rest = tail;
        }
        Self::from_values(&values)
    }

    /// The canonical encoding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The values, in order.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        core::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<2>()?;
            let (value, tail) = tail.split_at(usize::from(u16::from_be_bytes(*length)));
            rest = tail;
            Some(value)
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    /// The values joined by `|`, with unprintable bytes escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.values().enumerate() {
            if index > 0 {
                f.write_str("|")?;
            }
            write!(f, "{}", value.escape_ascii())?;
        }
        Ok(())
    }
}

/// A bucket's address: one policy, one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketAddress {
    /// The policy that rules the bucket.
    pub policy: PolicyId,
    /// The values that pick the bucket.
    pub key: Key,
}

impl BucketAddress {
    /// The shard of this bucket among `shards`: SipHash-1-3 with a zero key over namespace, name
    /// and key, each ended by its length. Stable for ever: stores are laid out by it.
    #[must_use]
    pub fn shard(&self, shards: u32) -> ShardId {
        assert!(shards > 0, "a cluster has at least one shard");
        let mut hasher = SipHasher13::new();
        for part in [
            self.policy.namespace.as_bytes(),
            self.policy.name.as_bytes(),
            self.key.as_bytes(),
        ] {
            hasher.write(part);
            let length = u64::try_from(part.len()).expect("a length fits 64 bits");
            hasher.write(&length.to_le_bytes());
        }
        let slot = hasher
            .finish()
            .checked_rem(u64::from(shards))
            .expect("asserted above");
        ShardId::new(u32::try_from(slot).expect("smaller than the shard count"))
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.policy, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn odd_values_survive_and_never_collide() {
        let odd: Vec<Vec<&[u8]>> = vec![
            vec![b"a", b"b"],
            vec![b"a|b"],
            vec![b"a\0b"],
            vec![b"", b"ab"],
            vec![b"ab", b""],
            vec![b"/*%", "\u{e9}".as_bytes()],
            vec![],
            vec![b""],
        ];
        let keys: Vec<Key> = odd
            .iter()
            .map(|v| Key::from_values(v).expect("legal"))
            .collect();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(key.values().collect::<Vec<_>>(), odd[i]);
            assert_eq!(
                &Key::from_canonical(key.as_bytes()).expect("canonical"),
                key
            );
            assert!(keys[..i].iter().all(|other| other != key), "{key} collides");
        }
    }

    #[test]
    fn long_values_and_torn_encodings_are_refused() {
        assert_eq!(
            Key::from_values(&[[0_u8; VALUE_BYTES_MAX + 1]]),
            Err(KeyError::ValueTooLong {
                index: 0,
                bytes: VALUE_BYTES_MAX + 1
            })
        );
        assert_eq!(
            Key::from_values(&[b""; 9]),
            Err(KeyError::TooManyValues { count: 9 })
        );
        assert_eq!(Key::from_canonical(&[0]), Err(KeyError::NotCanonical));
        assert_eq!(
            Key::from_canonical(&[0, 2, b'a']),
            Err(KeyError::NotCanonical)
        );
    }

    #[test]
    fn a_shard_never_moves() {
        let address = |name: &str, value: &str| BucketAddress {
            policy: PolicyId {
                namespace: "default".into(),
                name: name.into(),
            },
            key: Key::from_values(&[value]).expect("legal"),
        };
        assert_eq!(
            address("api", "k1").shard(64),
            address("api", "k1").shard(64)
        );
        let spread: alloc::collections::BTreeSet<_> = (0..1000)
            .map(|i| address("api", &alloc::format!("k{i}")).shard(64))
            .collect();
        assert_eq!(spread.len(), 64);
    }
}
