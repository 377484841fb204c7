//! Keyed fingerprints that stand for buckets in the table.
//!
//! A fingerprint is SipHash-1-3 with 128 bits of output under a key drawn at start: with fewer
//! bits, or without a key, a caller who chooses key values could find two that collide, and spend
//! a neighbour's tokens.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::names::PolicyNumber;

/// Encodings up to this length are hashed in one go from the stack; longer ones piece by piece,
/// with the same result.
const INLINE_BYTES: usize = 128;

/// A bucket's fingerprint; never zero, which marks a free entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// The secret key of one client's fingerprints.
#[derive(Clone)]
pub(crate) struct FingerprintKey(u64, u64);

impl FingerprintKey {
    pub(crate) const fn new(key: (u64, u64)) -> Self {
        Self(key.0, key.1)
    }

    /// The fingerprint of one policy's bucket for these values, over the policy's number and each
    /// value with its length in front, so that no two lists of values look alike. `values` are at
    /// most 256 bytes each. Allocates nothing.
    #[inline]
    pub(crate) fn of<'v>(
        &self,
        policy: PolicyNumber,
        values: impl Iterator<Item = &'v [u8]> + Clone,
    ) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        let mut buffer = [0_u8; INLINE_BYTES];
        let (mut filled, mut whole) = (4, true);
        buffer[..4].copy_from_slice(&policy.get().to_le_bytes());
        for value in values {
            let length = length(value).to_le_bytes();
            if filled + 2 + value.len() > INLINE_BYTES {
                hasher.write(&buffer[..filled]);
                (filled, whole) = (0, false);
            }
            if 2 + value.len() > INLINE_BYTES {
                hasher.write(&length);
                hasher.write(value);
                continue;
            }
            buffer[filled..filled + 2].copy_from_slice(&length);
            buffer[filled + 2..filled + 2 + value.len()].copy_from_slice(value);
            filled += 2 + value.len();
        }
        // Does not go through the hasher's buffer where nothing was written before.
        let hash = if whole {
            hasher.hash(&buffer[..filled])
        } else {
            hasher.write(&buffer[..filled]);
            hasher.finish128()
        };
        Fingerprint {
            high: hash.h1 | u64::from(hash.h1 == 0),
            low: hash.h2,
        }
    }
}

impl std::fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FingerprintKey(secret)")
    }
}

fn length(value: &[u8]) -> u16 {
    u16::try_from(value.len()).expect("values are checked against their longest length before")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use quota_core::key::PolicyId;

    use super::*;
    use crate::names::Names;

    fn policies() -> (PolicyNumber, PolicyNumber) {
        let names = Names::default();
        let number = |name: &str| {
            let id = PolicyId {
                namespace: "default".into(),
                name: name.into(),
            };
            names.number(&id)
        };
        (number("a"), number("b"))
    }

    #[test]
    fn values_of_every_length_have_fingerprints_of_their_own() {
        let (a, b) = policies();
        let key = FingerprintKey::new((1, 2));
        let mut seen = HashSet::new();
        for length in 0..=256 {
            let value = vec![b'x'; length];
            for values in [
                vec![&value[..]],
                vec![&value[..], b""],
                vec![b"", &value[..]],
            ] {
                assert!(seen.insert(key.of(a, values.iter().copied())), "{length}");
                assert!(seen.insert(key.of(b, values.iter().copied())), "{length}");
                if length == 0 {
                    break;
                }
            }
        }
    }

    #[test]
    fn piecewise_hashing_equals_hashing_at_once() {
        let (a, _) = policies();
        let key = FingerprintKey::new((3, 4));
        let long = [b'y'; 200];
        let values: [&[u8]; 4] = [b"short", &long, b"", &long[..100]];
        let mut whole = a.get().to_le_bytes().to_vec();
        for value in values {
            whole.extend_from_slice(&length(value).to_le_bytes());
            whole.extend_from_slice(value);
        }
        let mut hasher = SipHasher13::new_with_keys(3, 4);
        hasher.write(&whole);
        let hash = hasher.finish128();
        let fingerprint = key.of(a, values.into_iter());
        assert_eq!((fingerprint.high, fingerprint.low), (hash.h1, hash.h2));
    }

    #[test]
    fn another_key_gives_other_fingerprints() {
        let (a, _) = policies();
        let one = FingerprintKey::new((1, 2)).of(a, [&b"k"[..]].into_iter());
        let two = FingerprintKey::new((1, 3)).of(a, [&b"k"[..]].into_iter());
        assert_ne!(one, two);
    }
}
