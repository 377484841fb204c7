//! What a run was worth, in figures.

use serde::Serialize;

use super::limiter::{Footprint, Traffic};

/// The figures of a run. Fractions are of one.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Requests that arrived.
    pub requests: u64,
    /// Tokens that the limiter admitted.
    pub admitted: u64,
    /// Tokens that the un-split ideal bucket admits.
    pub ideal: u64,
    /// What was admitted of what the ideal bucket admits; above one, the limit was passed.
    pub utilisation: f64,
    /// Of all requests, those that were refused though the ideal bucket admits them, less those that
    /// were admitted in their place: under overload it matters how many are refused, not which.
    pub false_refusals: f64,
    /// Tokens beyond `capacity + rate × window`, over the worst window and key.
    pub overshoot: u64,
    /// Everything that was sent.
    pub traffic: Traffic,
    /// Messages per second and gateway, both directions together.
    pub messages: f64,
    /// Messages per thousand requests.
    pub messages_per_1000: f64,
    /// Mentions of a key per thousand requests.
    pub items_per_1000: f64,
    /// Bytes per thousand requests.
    pub bytes_per_1000: f64,
    /// Jain's index over what the gateways were admitted after the first second.
    pub jain: f64,
    /// How far the gateway that is furthest off is from its max–min fair share of what all were
    /// admitted, given what each was asked for, as a part of that share.
    pub unfairness: f64,
    /// Stranded: tokens that lie with gateways or in shares, as a share of the capacity of the keys
    /// that were asked for. The mean over time.
    pub stranded_mean: f64,
    /// The same, 99th percentile.
    pub stranded_p99: f64,
    /// Harmful stranding: tokens that were refused while as many lay where nobody who was refused
    /// could spend them, as a share of the capacity; the mean over time.
    pub stranded_harmful: f64,
    /// Of the admitted requests, those that had to wait.
    pub waited: f64,
    /// How long half of the admitted requests waited at most, in ms.
    pub wait_p50: f64,
    /// The same for 99 %, in ms.
    pub wait_p99: f64,
    /// The most that was remembered.
    pub footprint: Footprint,
    /// Tokens admitted by gateway, after the first second.
    pub by_gateway: Vec<u64>,
}

/// One moment of a run; amounts are tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// The end of the span, in nanoseconds.
    pub at: u64,
    /// Asked for since the moment before.
    pub asked: u64,
    /// Admitted meanwhile.
    pub admitted: u64,
    /// What the ideal bucket admits of it.
    pub ideal: u64,
    /// What lies with gateways or in shares.
    pub held: u64,
    /// Of the first key: what whoever decides could still give; `None` if nobody decides.
    pub available: Option<i64>,
    /// Of the first key: given, and not known to be spent or back.
    pub outstanding: u64,
}

/// Shares out `sum` by progressive filling: nobody gets more than was asked for, and nobody who gets
/// less than that gets less than anybody else.
#[must_use]
pub fn max_min(asked: &[u64], sum: u64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_unstable_by_key(|place| asked[*place]);
    let mut shares = vec![0.0; asked.len()];
    let (mut left, mut claimants) = (sum as f64, asked.len() as f64);
    for place in order {
        let share = (left / claimants).min(asked[place] as f64);
        shares[place] = share;
        left -= share;
        claimants -= 1.0;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_min_gives_small_askers_all_and_the_rest_equal_parts() {
        assert_eq!(max_min(&[10, 2, 30], 24), [10.0, 2.0, 12.0]);
        assert_eq!(max_min(&[10, 10], 6), [3.0, 3.0]);
        assert_eq!(max_min(&[1, 1], 6), [1.0, 1.0]);
    }
}
