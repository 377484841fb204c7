//! One limit: how much, how fast, and how much at once.

use alloc::format;
use core::fmt;

use super::duration::{Period, Span};
use super::error::PolicyError;
use super::lease::{LeaseSettings, in_range};
use super::spec::{CostSpec, Durability, Kind, LimitSpec};
use crate::message::COST_MAX;
use crate::rate::Rate;
use crate::time::Term;
use crate::tokens::Tokens;

/// Largest capacity: with the rates below, every level fits 128 bits with room to spare.
pub const CAPACITY_MAX: Tokens = Tokens::new(1 << 40);
/// Most tokens per period: keeps a rate's numerator within 56 bits.
pub const RATE_TOKENS_MAX: u64 = 1 << 55;
/// Fastest refill, in tokens per second.
pub const RATE_MAX: u64 = 1_000_000_000_000;
const PERIOD_MIN: Term = Term::from_millis(1);
/// Longest period, a leap year; keeps a rate's denominator within 56 bits.
pub const PERIOD_MAX: Term = Term::from_seconds(366 * 86_400);
/// Longest complete refill: a hundred years, so that spans which build on it never saturate.
pub const REFILL_MAX: Term = Term::from_seconds(100 * 366 * 86_400);
/// A limit that refills completely within this is volatile unless the policy says otherwise:
/// restarting it empty costs no more than that.
const VOLATILE_REFILL_MAX: Term = Term::from_seconds(60);
/// What a calendar month counts as where only a rate can be told.
const MONTH_NOMINAL: Term = Term::from_seconds(31 * 86_400);
/// The windows of the calendar that have a fixed length.
const CALENDAR_WINDOWS: [Term; 3] = [
    Term::from_seconds(60),
    Term::from_seconds(3_600),
    Term::from_seconds(86_400),
];

/// One limit of a policy, valid by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    capacity: Tokens,
    rate: Rate,
    cost_max: Tokens,
    cost_floor: Tokens,
    reserved: bool,
}

/// A request that costs more than its limit can ever grant at once. Waiting does not help: it is
/// never to be answered with a time to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTooHigh {
    /// What the request costs.
    pub cost: Tokens,
    /// The most that one request may cost here.
    pub cost_max: Tokens,
    /// The limit's capacity.
    pub capacity: Tokens,
}

impl fmt::Display for CostTooHigh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a cost of {} can never be admitted: at most {} per request are, of a capacity of {}; \
             split the request, or raise `cost.max` or the burst",
            self.cost, self.cost_max, self.capacity
        )
    }
}

impl core::error::Error for CostTooHigh {}

/// The parts of a policy that bear on each of its limits.
pub(super) struct LimitContext<'a> {
    pub(super) kind: Kind,
    pub(super) durability: Durability,
    pub(super) cost: &'a CostSpec,
    pub(super) lease: &'a LeaseSettings,
}

impl Limit {
    /// Most tokens available and outstanding together; for windows the limit itself.
    #[must_use]
    pub const fn capacity(&self) -> Tokens {
        self.capacity
    }

    /// The refill. A sliding or calendar window does not refill: here it is the limit over the
    /// window (31 days for a month). For concurrency it is the limit over the longest term: how
    /// fast the permits of dead holders come back.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The dearest request, 1 to the capacity.
    #[must_use]
    pub const fn cost_max(&self) -> Tokens {
        self.cost_max
    }

    /// What one dear request is owed of the cap on live grants: the dearest request if the share
    /// of the whole capacity does not cover it, one token otherwise. A request that the share
    /// covers waits until ghosts are over rather than lift the cap while they stand; otherwise
    /// each take-over within a term could put out all that is left, and the next would stall.
    #[must_use]
    pub const fn cost_floor(&self) -> Tokens {
        self.cost_floor
    }

    /// True if tokens are booked durably before they are granted.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.reserved
    }

    /// How long an empty bucket takes to be full, rounded up; at most 100 years.
    #[must_use]
    pub fn refill_time(&self) -> Term {
        self.rate.time_for(self.capacity)
    }

    /// Checks a request's cost.
    ///
    /// # Errors
    /// [`CostTooHigh`], a permanent refusal.
    pub fn check_cost(&self, cost: Tokens) -> Result<(), CostTooHigh> {
        if cost <= self.cost_max {
            return Ok(());
        }
        Err(CostTooHigh {
            cost,
            cost_max: self.cost_max,
            capacity: self.capacity,
        })
    }

    /// # Errors
    /// [`PolicyError`] with fields under `path` for anything that is out of range or does not fit
    /// the kind.
    pub(super) fn parse(
        spec: &LimitSpec,
        path: &str,
        context: &LimitContext<'_>,
    ) -> Result<Self, PolicyError> {
        let (capacity, rate) = match context.kind {
            Kind::TokenBucket => token_bucket(spec, path)?,
            Kind::SlidingWindow | Kind::CalendarWindow => window(spec, path, context.kind)?,
            Kind::Concurrency => concurrency(spec, path, context.lease)?,
        };
        let refill = rate.time_for(capacity);
        if refill > REFILL_MAX {
            return Err(PolicyError::new(
                format!("{path}.burst"),
                capacity,
                "at this rate it would take more than 100 years to refill: lower the burst or \
                 raise the rate",
            ));
        }
        let reserved = match context.durability {
            Durability::Reserved => true,
            Durability::Volatile => false,
            Durability::Auto => context.kind != Kind::Concurrency && refill > VOLATILE_REFILL_MAX,
        };
        let cost_max = cost_max(capacity, context);
        let share = capacity.scale_down(context.lease.share_per_mille(), 1000);
        Ok(Self {
            capacity,
            rate,
            cost_max,
            cost_floor: if cost_max > share {
                cost_max
            } else {
                Tokens::ONE
            },
            reserved,
        })
    }
}

fn cost_max(capacity: Tokens, context: &LimitContext<'_>) -> Tokens {
    let wanted = match context.cost.max {
        Some(max) => Tokens::new(max),
        None => capacity.scale_down(context.lease.share_per_mille(), 1000),
    };
    wanted.max(Tokens::ONE).min(capacity).min(COST_MAX)
}

fn token_bucket(spec: &LimitSpec, path: &str) -> Result<(Tokens, Rate), PolicyError> {
    if let Some(interval) = spec.emission_interval {
        for (field, present) in [
            ("tokens", spec.tokens.is_some()),
            ("period", spec.period.is_some()),
        ] {
            if present {
                return Err(PolicyError::new(
                    format!("{path}.{field}"),
                    "given beside `emission_interval`",
                    "write either `tokens` and `period`, or `emission_interval`",
                ));
            }
        }
        let field = format!("{path}.emission_interval");
        let interval = in_range(&field, interval, Term::from_nanos(1), PERIOD_MAX)?;
        let capacity = in_capacity(&format!("{path}.burst"), spec.burst.unwrap_or(1))?;
        let rate = Rate::new(Tokens::ONE, interval).expect("an interval in range is not zero");
        return Ok((capacity, rate));
    }
    let tokens = tokens(spec, path)?;
    let period = match period(spec, path)? {
        Period::Span(span) => in_range(&format!("{path}.period"), span, PERIOD_MIN, PERIOD_MAX)?,
        Period::Month => {
            return Err(PolicyError::new(
                format!("{path}.period"),
                "a calendar month",
                "a token bucket needs a fixed span such as \"30d\"; only calendar windows know \
                 months",
            ));
        }
    };
    let rate = rate(tokens, period, path)?;
    let capacity = in_capacity(&format!("{path}.burst"), spec.burst.unwrap_or(tokens))?;
    Ok((capacity, rate))
}

fn window(spec: &LimitSpec, path: &str, kind: Kind) -> Result<(Tokens, Rate), PolicyError> {
    refuse_burst_and_interval(spec, path, "a window")?;
    let tokens = tokens(spec, path)?;
    let field = format!("{path}.period");
    let period = period(spec, path)?;
    let span = match (kind, period) {
        (Kind::CalendarWindow, Period::Month) => MONTH_NOMINAL,
        (Kind::CalendarWindow, Period::Span(span)) if CALENDAR_WINDOWS.contains(&span.term()) => {
            span.term()
        }
        (Kind::CalendarWindow, Period::Span(span)) => {
            return Err(PolicyError::new(
                field,
                span,
                "a calendar window is \"1m\", \"1h\", \"1d\" or \"month\"",
            ));
        }
        (_, Period::Span(span)) => in_range(&field, span, PERIOD_MIN, PERIOD_MAX)?,
        (_, Period::Month) => {
            return Err(PolicyError::new(
                field,
                "a calendar month",
                "a sliding window needs a fixed span such as \"30d\"; only calendar windows know \
                 months",
            ));
        }
    };
    let capacity = in_capacity(&format!("{path}.tokens"), tokens)?;
    Ok((capacity, rate(tokens, span, path)?))
}

fn concurrency(
    spec: &LimitSpec,
    path: &str,
    lease: &LeaseSettings,
) -> Result<(Tokens, Rate), PolicyError> {
    refuse_burst_and_interval(spec, path, "a concurrency limit")?;
    if let Some(period) = spec.period {
        return Err(PolicyError::new(
            format!("{path}.period"),
            period,
            "a concurrency limit has no period: it counts what is in flight",
        ));
    }
    let tokens = tokens(spec, path)?;
    let capacity = in_capacity(&format!("{path}.tokens"), tokens)?;
    let rate = Rate::new(capacity, lease.term_max()).expect("neither is zero");
    Ok((capacity, rate))
}

fn refuse_burst_and_interval(spec: &LimitSpec, path: &str, what: &str) -> Result<(), PolicyError> {
    if let Some(interval) = spec.emission_interval {
        return Err(PolicyError::new(
            format!("{path}.emission_interval"),
            interval,
            format!("{what} takes none; only token buckets do"),
        ));
    }
    match spec.burst {
        Some(burst) if spec.tokens != Some(burst) => Err(PolicyError::new(
            format!("{path}.burst"),
            burst,
            format!("{what} has no burst of its own: leave it out"),
        )),
        _ => Ok(()),
    }
}

fn tokens(spec: &LimitSpec, path: &str) -> Result<u64, PolicyError> {
    let allowed = "it must be 1 to 36028797018963968 (2^55)";
    match spec.tokens {
        Some(tokens) if (1..=RATE_TOKENS_MAX).contains(&tokens) => Ok(tokens),
        Some(tokens) => Err(PolicyError::new(format!("{path}.tokens"), tokens, allowed)),
        None => Err(PolicyError::new(
            format!("{path}.tokens"),
            "missing",
            allowed,
        )),
    }
}

fn period(spec: &LimitSpec, path: &str) -> Result<Period, PolicyError> {
    spec.period.ok_or_else(|| {
        PolicyError::new(
            format!("{path}.period"),
            "missing",
            "say in what span the tokens may be spent, such as \"60s\"",
        )
    })
}

fn rate(tokens: u64, period: Term, path: &str) -> Result<Rate, PolicyError> {
    let rate = Rate::new(Tokens::new(tokens), period).expect("both were checked");
    let per_second = rate.tokens_in(Term::from_seconds(1));
    let fastest = Rate::new(Tokens::new(RATE_MAX), Term::from_seconds(1)).expect("not zero");
    if fastest.at_least(rate) {
        return Ok(rate);
    }
    Err(PolicyError::new(
        format!("{path}.tokens"),
        format!("{tokens} per {}, {per_second} a second", Span::new(period)),
        format!("at most {RATE_MAX} tokens a second are served"),
    ))
}

fn in_capacity(field: &str, tokens: u64) -> Result<Tokens, PolicyError> {
    if (1..=CAPACITY_MAX.get()).contains(&tokens) {
        return Ok(Tokens::new(tokens));
    }
    Err(PolicyError::new(
        field,
        tokens,
        format!("a capacity must be 1 to {CAPACITY_MAX} (2^40); set `burst` if it defaulted"),
    ))
}
