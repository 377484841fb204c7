//! Letting time pass. The tests wait for conditions; a campaign of faults at random moments is
//! made of moments, so it lets time pass here, and only here. No verdict rests on how long.

use std::time::Duration;

use simulations::random::Random;
use tokio::time::{Instant, sleep_until};

/// Returns after `time`.
pub(super) async fn pass(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// A span from `least` to `most` milliseconds, in microseconds, so that moments fall between the
/// ticks of any timer.
pub(super) fn millis(random: &mut Random, least: u64, most: u64) -> Duration {
    Duration::from_micros(random.between(least * 1000, most * 1000))
}
