//! Each node's own clock over the world's true time.

use quota_core::time::Timestamp;

/// Parts in a clock's speed.
const PPM: i128 = 1_000_000;

/// A monotonic clock that runs `1 + drift/10⁶` times as fast as true time, since its boot.
#[derive(Clone, Copy, Debug)]
pub struct NodeClock {
    drift_ppm: i64,
    origin: i128,
    /// Identifies the boot.
    pub boot: u128,
}

impl NodeClock {
    /// A clock that reads `reading` at true time `now`.
    #[must_use]
    pub fn new(now: u64, reading: u64, drift_ppm: i64, boot: u128) -> Self {
        let run = i128::from(now) * (PPM + i128::from(drift_ppm)) / PPM;
        Self {
            drift_ppm,
            origin: i128::from(reading) - run,
            boot,
        }
    }

    /// What the clock reads at true time `now`.
    #[must_use]
    pub fn read(&self, now: u64) -> Timestamp {
        let run = i128::from(now) * (PPM + i128::from(self.drift_ppm)) / PPM;
        let reading = u64::try_from(self.origin + run);
        Timestamp::from_nanos(reading.expect("a world ends long before its clocks"))
    }

    /// The first moment of true time at which the clock reads at least `local`.
    #[must_use]
    pub fn moment(&self, local: Timestamp) -> u64 {
        let speed = PPM + i128::from(self.drift_ppm);
        let run = (i128::from(local.as_nanos()) - self.origin).max(0);
        u64::try_from((run * PPM + speed - 1) / speed).unwrap_or(u64::MAX)
    }

    /// Stands still for a span of true time, which no clock of the promise's does.
    pub fn stand_still(&mut self, span: u64) {
        self.origin -= i128::from(span) * (PPM + i128::from(self.drift_ppm)) / PPM;
    }

    /// How much faster than true time it runs, in millionths.
    #[must_use]
    pub const fn drift_ppm(&self) -> i64 {
        self.drift_ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_first_that_reads_so() {
        for drift in [-100_000, -7, 0, 13, 100_000] {
            let clock = NodeClock::new(1_000, 77, drift, 1);
            for local in [78_u64, 100, 1_000_003, 999_999_999] {
                let moment = clock.moment(Timestamp::from_nanos(local));
                assert!(clock.read(moment).as_nanos() >= local);
                assert!(clock.read(moment - 1).as_nanos() < local, "{drift} {local}");
            }
        }
    }
}
