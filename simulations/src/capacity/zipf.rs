//! Zipf's law with exponent 1: of `n` keys the k-th is drawn with a weight of 1/k.

use crate::random::Random;

/// Weights are whole multiples of 2⁻⁴⁰: the last of a million keys still has a million of them.
const ONE: u64 = 1 << 40;

/// Draws keys. Eight bytes for each; a draw is a binary search.
#[derive(Debug)]
pub struct Zipf {
    /// Sums of the weights up to and with each key.
    sums: Vec<u64>,
}

impl Zipf {
    /// For so many keys, at least one.
    #[must_use]
    pub fn new(keys: u32) -> Self {
        let mut sum = 0;
        let sums = (1..=u64::from(keys)).map(|rank| {
            sum += ONE / rank;
            sum
        });
        Self {
            sums: sums.collect(),
        }
    }

    /// A key; the most frequent one is 0.
    ///
    /// # Panics
    /// Never: there is at least one key.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let all = *self.sums.last().expect("there is a key");
        let weight = random.below(all);
        let place = self.sums.partition_point(|sum| *sum <= weight);
        u32::try_from(place).expect("as many as keys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_asked_for_as_often_as_the_harmonic_number_says() {
        let zipf = Zipf::new(1_000_000);
        let mut random = Random::new(1);
        let draws: Vec<u32> = (0..200_000).map(|_| zipf.draw(&mut random)).collect();
        let count = |key| draws.iter().filter(|drawn| **drawn == key).count();
        // One in 14.393, which is the sum of 1/k up to a million.
        assert!((13_500..14_300).contains(&count(0)), "{}", count(0));
        assert!((1_250..1_530).contains(&count(9)), "{}", count(9));
        assert!(draws.iter().all(|key| *key < 1_000_000));
    }
}
