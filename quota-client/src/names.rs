//! Policy names for the life of the client.
//!
//! A decision names its policy without copying or counting references, so names are kept in place
//! for as long as the client lives and stand for a number that is never reused. Memory grows with
//! the policies ever seen by name, not with their versions: about 350 bytes each.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use quota_core::key::PolicyId;

use crate::tally::Tally;

/// Names in the first chunk; every further chunk is twice as long as the one before.
const FIRST_CHUNK: usize = 64;
/// Enough for every 32-bit number.
const CHUNKS: usize = 27;

/// A policy's number within one client. Stands for its name across versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PolicyNumber(u32);

impl PolicyNumber {
    pub(crate) const fn get(self) -> u32 {
        self.0
    }
}

type Chunk = Box<[OnceLock<Named>]>;

#[derive(Debug)]
struct Named {
    id: PolicyId,
    tally: Tally,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    chunks: [OnceLock<Chunk>; CHUNKS],
    numbers: Mutex<HashMap<PolicyId, PolicyNumber>>,
}

impl Names {
    /// The number of a name, given at its first mention.
    pub(crate) fn number(&self, id: &PolicyId) -> PolicyNumber {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.get(id) {
            return *number;
        }
        let number = u32::try_from(numbers.len()).expect("memory ends before 2^32 names");
        let (chunk, place) = locate(number);
        let chunk = self.chunks[chunk].get_or_init(|| {
            let names = (0..FIRST_CHUNK << chunk).map(|_| OnceLock::new());
            names.collect()
        });
        chunk[place].get_or_init(|| Named {
            id: id.clone(),
            tally: Tally::default(),
        });
        numbers.insert(id.clone(), PolicyNumber(number));
        PolicyNumber(number)
    }

    /// The name of a number.
    #[inline]
    pub(crate) fn name(&self, number: PolicyNumber) -> &PolicyId {
        &self.named(number).id
    }

    /// What the policy of a number decided that is counted by policy.
    pub(crate) fn tally(&self, number: PolicyNumber) -> &Tally {
        &self.named(number).tally
    }

    /// Every policy ever named, with its tally.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = (&PolicyId, &Tally)> {
        let chunks = self.chunks.iter().map_while(OnceLock::get);
        let named = chunks.flat_map(|chunk| chunk.iter().map_while(OnceLock::get));
        named.map(|named| (&named.id, &named.tally))
    }

    #[inline]
    fn named(&self, number: PolicyNumber) -> &Named {
        let (chunk, place) = locate(number.0);
        self.chunks[chunk]
            .get()
            .and_then(|names| names[place].get())
            .expect("a number is given out only after its name is in place")
    }
}

#[inline]
fn locate(number: u32) -> (usize, usize) {
    let shifted = usize::try_from(number).expect("32 bits fit a usize") + FIRST_CHUNK;
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    let chunk = usize::try_from(chunk).expect("a logarithm is small");
    (chunk, shifted - (FIRST_CHUNK << chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers_and_places() {
        let names = Names::default();
        let ids: Vec<PolicyId> = (0..1_000)
            .map(|i| PolicyId {
                namespace: "default".into(),
                name: format!("p{i}"),
            })
            .collect();
        let first = names.number(&ids[0]);
        let address = std::ptr::from_ref(names.name(first));
        let numbers: Vec<_> = ids.iter().map(|id| names.number(id)).collect();
        for (id, number) in ids.iter().zip(numbers) {
            assert_eq!(names.number(id), number);
            assert_eq!(names.name(number), id);
        }
        assert_eq!(address, std::ptr::from_ref(names.name(first)));
    }

    #[test]
    fn places_cover_every_chunk_exactly() {
        assert_eq!(locate(0), (0, 0));
        assert_eq!(locate(63), (0, 63));
        assert_eq!(locate(64), (1, 0));
        assert_eq!(locate(191), (1, 127));
        assert_eq!(locate(192), (2, 0));
    }
}
