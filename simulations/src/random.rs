//! The one source of chance: a seed decides everything.
//!
//! PCG XSL RR 128/64 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
//! Algorithms for Random Number Generation", 2014) from the crate `oorandom`, whose output is the
//! same on every machine.

/// A seeded generator.
#[derive(Debug)]
pub struct Random(oorandom::Rand64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(oorandom::Rand64::new(u128::from(seed)))
    }

    /// Another generator of the same seed.
    #[must_use]
    pub fn salted(seed: u64, salt: u64) -> Self {
        Self(oorandom::Rand64::new(
            u128::from(salt) << 64 | u128::from(seed),
        ))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.rand_u64()
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.rand_range(0..bound)
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = u64::try_from(choices.len()).expect("a slice's length fits 64 bits");
        choices[usize::try_from(self.below(count)).expect("below a slice's length")]
    }

    /// A span around `mean`: mostly up to twice as much, now and then up to eight times.
    pub fn around(&mut self, mean: u64) -> u64 {
        let most = if self.chance(60) { 8 * mean } else { 2 * mean };
        self.between(0, most)
    }
}
