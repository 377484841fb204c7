//! Counts of durations in bounded memory: exact below 64 ns, then within one part in 64.

/// Steps in each doubling.
const STEPS: u64 = 64;

/// A histogram of nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    /// Counts `nanos` so many times.
    pub fn add(&mut self, nanos: u64, times: u64) {
        let place = place(nanos);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += times;
        self.total += times;
    }

    /// What a share of `per_mille` of all counted durations does not exceed, in nanoseconds; zero
    /// if nothing was counted.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(0, value)
    }
}

fn place(nanos: u64) -> usize {
    let doublings = u64::from(nanos.max(1).ilog2()).saturating_sub(5);
    let step = nanos >> doublings.saturating_sub(1).min(63);
    let place = if doublings <= 1 {
        nanos.min(2 * STEPS - 1)
    } else {
        (doublings - 1) * STEPS + step
    };
    usize::try_from(place).expect("a few thousand")
}

/// The least duration that is counted at a place.
fn value(place: usize) -> u64 {
    let place = u64::try_from(place).expect("few");
    if place < 2 * STEPS {
        return place;
    }
    let doublings = place / STEPS;
    (place % STEPS + STEPS) << (doublings - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_found_again_within_a_part_in_64() {
        for nanos in [
            0,
            1,
            63,
            64,
            100,
            127,
            128,
            1_000,
            999_999,
            5_000_000,
            1 << 40,
        ] {
            let mut one = Histogram::default();
            one.add(nanos, 3);
            let found = one.quantile(990);
            assert!(
                found <= nanos && nanos - found <= nanos / 64,
                "{nanos}: {found}"
            );
        }
    }

    #[test]
    fn quantiles_are_ranks() {
        let mut all = Histogram::default();
        for nanos in 1..=100 {
            all.add(nanos, 1);
        }
        assert_eq!(all.quantile(500), 50);
        assert_eq!(all.quantile(990), 99);
        assert_eq!(Histogram::default().quantile(990), 0);
    }
}
