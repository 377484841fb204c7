//! Logs of real processes, judged by the ideal bucket.
//!
//! A process knows the instant of an admission only as the interval between two clock readings.
//! Whatever is reported here as a violation is one, wherever in their intervals the admissions
//! really happened.

use std::collections::BTreeMap;

use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

use crate::oracle::{IdealBucket, IdealLimit, Violation, parts, whole_up};

/// One admission of a real process, whose instant is known only to lie in an interval: for
/// example between the clock readings before and after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// It did not happen before.
    pub earliest: Timestamp,
    /// It did not happen after.
    pub latest: Timestamp,
    /// What it cost.
    pub cost: Tokens,
}

/// What a clean log showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Admissions.
    pub admissions: u64,
    /// Tokens admitted.
    pub admitted: Tokens,
    /// From the first admission to the last.
    pub span: Term,
    /// Tokens that the limit would have allowed over that span.
    pub allowed: Tokens,
    /// The lowest whole level of the ideal bucket, had each admission happened as late as it can.
    pub lowest: i128,
}

/// Judges a log of admissions against a limit that did not change. Sorts the log.
///
/// Each admission is placed within its interval where that is best for the system, and may even be
/// split over it: a cost is served at its latest moment, except that refill for which the full
/// bucket has no room goes to pending costs, the earliest end first. Waiting never loses tokens
/// that way, so if any choice of instants keeps the limit, this one does, and a violation that is
/// reported is a real one. With `earliest == latest` throughout, the verdict is exact.
///
/// # Errors
/// [`Violation`] if no assignment of instants keeps the limit.
pub fn check_log(
    limit: impl Into<IdealLimit>,
    log: &mut [Admission],
) -> Result<Summary, Violation> {
    let limit = limit.into();
    log.sort_unstable_by_key(|a| (a.earliest, a.latest));
    if let Some(bad) = log.iter().find(|a| a.latest < a.earliest) {
        return Err(Violation::EmptyInterval {
            earliest: bad.earliest,
            latest: bad.latest,
        });
    }
    place(limit, log)?;
    let mut ends: Vec<(Timestamp, Tokens)> = log.iter().map(|a| (a.latest, a.cost)).collect();
    ends.sort_unstable();
    let mut late = IdealBucket::new(limit);
    for (at, cost) in &ends {
        // Only the lowest level is of interest: as late as possible is not always possible.
        let _ = late.admit(*at, *cost);
    }
    let first = log.first().map_or(Timestamp::ZERO, |a| a.earliest);
    let last = ends.last().map_or(Timestamp::ZERO, |(at, _)| *at);
    let span = last.since(first);
    Ok(Summary {
        admissions: u64::try_from(log.len()).unwrap_or(u64::MAX),
        admitted: log.iter().map(|a| a.cost).sum(),
        span,
        allowed: limit.capacity + limit.rate.tokens_in(span),
        lowest: late.lowest(),
    })
}

/// Places the admissions as well as can be. `log` is sorted by earliest moment.
fn place(limit: IdealLimit, log: &[Admission]) -> Result<(), Violation> {
    let full = parts(limit.capacity, limit.rate);
    let numerator = i128::from(limit.rate.numerator());
    let (mut level, mut at) = (full, Timestamp::ZERO);
    // What is left of each cost that has begun, by its end.
    let mut pending: BTreeMap<(Timestamp, usize), i128> = BTreeMap::new();
    let (mut next, mut begun) = (0, Tokens::ZERO);
    loop {
        let beginning = log.get(next).map(|a| a.earliest);
        let end = pending.keys().next().map(|(latest, _)| *latest);
        let Some(now) = beginning.into_iter().chain(end).min() else {
            return Ok(());
        };
        level += i128::from(now.since(at).as_nanos()) * numerator;
        at = now;
        let overflow = (level - full).max(0);
        level -= overflow;
        serve(overflow, &mut pending);
        while let Some(admission) = log.get(next).filter(|a| a.earliest == now) {
            let cost = parts(admission.cost, limit.rate);
            pending.insert((admission.latest, next), cost);
            begun += admission.cost;
            next += 1;
        }
        while let Some(ending) = pending.first_entry().filter(|e| e.key().0 == now) {
            let ((latest, index), rest) = ending.remove_entry();
            level -= rest;
            if level < 0 {
                return Err(Violation::Exceeded {
                    at: latest,
                    cost: log[index].cost,
                    excess: whole_up(-level, limit.rate),
                    admitted: begun.less(log[index].cost),
                });
            }
        }
    }
}

/// Gives refill that the full bucket has no room for to pending costs, the earliest end first.
fn serve(mut overflow: i128, pending: &mut BTreeMap<(Timestamp, usize), i128>) {
    while let Some(mut first) = pending.first_entry() {
        let served = (*first.get()).min(overflow);
        overflow -= served;
        *first.get_mut() -= served;
        if *first.get() > 0 {
            return;
        }
        first.remove();
    }
}
