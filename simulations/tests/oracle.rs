//! The ideal bucket is every window: brute force over all pairs of admissions agrees with it.

use proptest::prelude::*;
use quota_core::rate::Rate;
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use simulations::admission_log::{Admission, check_log};
use simulations::oracle::{IdealBucket, IdealLimit, Violation};

fn limit(capacity: u64, tokens: u64, nanos: u64) -> IdealLimit {
    IdealLimit {
        capacity: Tokens::new(capacity),
        rate: Rate::new(Tokens::new(tokens), Term::from_nanos(nanos)).expect("legal"),
    }
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// The largest `sum − rate · window − capacity` over all windows, in parts; positive is too much.
fn max_window(limit: IdealLimit, log: &[(u64, u64)]) -> i128 {
    let (numerator, denominator) = (limit.rate.numerator(), limit.rate.denominator());
    let mut worst = i128::MIN;
    for (i, (from, _)) in log.iter().enumerate() {
        let mut sum = 0_i128;
        for (to, cost) in &log[i..] {
            sum += i128::from(*cost);
            let allowed = i128::from(limit.capacity.get()) * i128::from(denominator)
                + i128::from(to - from) * i128::from(numerator);
            worst = worst.max(sum * i128::from(denominator) - allowed);
        }
    }
    worst
}

fn logs() -> impl Strategy<Value = (IdealLimit, Vec<(u64, u64)>)> {
    let limits = (1_u64..12, 1_u64..9, 1_u64..40).prop_map(|(b, r, p)| limit(b, r, p));
    let steps = prop::collection::vec((0_u64..30, 1_u64..5), 1..40);
    (limits, steps).prop_map(|(limit, steps)| {
        let mut now = 0;
        let log = steps.into_iter().map(|(gap, cost)| {
            now += gap;
            (now, cost)
        });
        (limit, log.collect())
    })
}

proptest! {
    #[test]
    fn the_ideal_bucket_is_every_window((limit, log) in logs()) {
        let mut bucket = IdealBucket::new(limit);
        let mut ideal = Ok(());
        for (nanos, cost) in &log {
            ideal = ideal.and(bucket.admit(at(*nanos), Tokens::new(*cost)));
        }
        prop_assert_eq!(ideal.is_ok(), max_window(limit, &log) <= 0);
        let mut exact: Vec<Admission> = log
            .iter()
            .map(|(n, c)| Admission { earliest: at(*n), latest: at(*n), cost: Tokens::new(*c) })
            .collect();
        prop_assert_eq!(check_log(limit, &mut exact).is_ok(), ideal.is_ok());
    }

    /// A log that keeps the limit is never blamed, however vaguely its instants are known.
    #[test]
    fn a_vague_log_of_a_clean_run_is_clean(
        (limit, log) in logs(),
        blur in prop::collection::vec((0_u64..50, 0_u64..50), 40),
    ) {
        let mut bucket = IdealBucket::new(limit);
        let mut vague = Vec::new();
        for ((nanos, cost), (before, after)) in log.iter().zip(blur) {
            let fits = bucket.level(at(*nanos)).expect("in order") >= i128::from(*cost);
            if fits {
                bucket.admit(at(*nanos), Tokens::new(*cost)).expect("it fits");
                vague.push(Admission {
                    earliest: at(nanos.saturating_sub(before)),
                    latest: at(nanos + after),
                    cost: Tokens::new(*cost),
                });
            }
        }
        let verdict = check_log(limit, &mut vague);
        prop_assert!(verdict.is_ok(), "{verdict:?}");
    }

    /// Whole tokens at single instants: if every choice of instants breaks the limit by more than
    /// splitting can hide, it is found. Checked against all choices for short logs.
    #[test]
    fn a_vague_log_is_blamed_only_if_no_choice_of_instants_is_clean(
        capacity in 1_u64..4,
        period in 1_u64..8,
        log in prop::collection::vec((0_u64..12, 0_u64..4), 1..6),
    ) {
        let limit = limit(capacity, 1, period);
        let mut vague: Vec<Admission> = log
            .iter()
            .map(|(from, width)| Admission { earliest: at(*from), latest: at(from + width), cost: Tokens::ONE })
            .collect();
        let some_choice_is_clean = choices(&log).into_iter().any(|mut instants| {
            instants.sort_unstable();
            let exact: Vec<(u64, u64)> = instants.into_iter().map(|n| (n, 1)).collect();
            max_window(limit, &exact) <= 0
        });
        prop_assert!(check_log(limit, &mut vague).is_ok() || !some_choice_is_clean);
    }
}

fn choices(log: &[(u64, u64)]) -> Vec<Vec<u64>> {
    log.iter().fold(vec![vec![]], |prefixes, (from, width)| {
        let longer = |prefix: &Vec<u64>| {
            let prefix = prefix.clone();
            (*from..=from + width).map(move |n| [prefix.clone(), vec![n]].concat())
        };
        prefixes.iter().flat_map(longer).collect()
    })
}

#[test]
fn one_token_too_many_is_found_and_said() {
    let mut bucket = IdealBucket::new(limit(10, 1, 1_000));
    bucket.admit(at(5), Tokens::new(10)).expect("the burst");
    let violation = bucket
        .admit(at(1_004), Tokens::ONE)
        .expect_err("a nanosecond early");
    assert!(
        matches!(
            violation,
            Violation::Exceeded {
                excess: Tokens::ONE,
                ..
            }
        ),
        "{violation}"
    );
    let mut bucket = IdealBucket::new(limit(10, 1, 1_000));
    bucket.admit(at(5), Tokens::new(10)).expect("the burst");
    bucket.admit(at(1_005), Tokens::ONE).expect("just refilled");
}

#[test]
fn an_unsorted_feed_is_an_error_not_a_verdict() {
    let mut bucket = IdealBucket::new(limit(10, 1, 1_000));
    bucket.admit(at(5), Tokens::ONE).expect("room");
    assert_eq!(
        bucket.admit(at(4), Tokens::ONE),
        Err(Violation::OutOfOrder {
            at: at(4),
            reached: at(5)
        })
    );
}

#[test]
fn a_long_interval_may_use_more_than_one_burst_of_refill() {
    let mut log = [Admission {
        earliest: at(0),
        latest: at(50),
        cost: Tokens::new(60),
    }];
    assert!(check_log(limit(10, 1, 1), &mut log).is_ok());
    log[0].cost = Tokens::new(61);
    assert!(check_log(limit(10, 1, 1), &mut log).is_err());
}

#[test]
fn toggling_a_limit_gains_nothing() {
    let (high, low) = (limit(100, 1, 1_000_000), limit(20, 1, 1_000_000));
    let mut bucket = IdealBucket::new(high);
    bucket.admit(at(0), Tokens::new(100)).expect("the burst");
    for _ in 0..5 {
        bucket
            .change(at(0), low, Term::from_nanos(10))
            .expect("in order");
        bucket
            .change(at(0), high, Term::from_nanos(10))
            .expect("in order");
    }
    bucket
        .admit(at(0), Tokens::ONE)
        .expect_err("nothing was refilled");
}

#[test]
fn what_was_out_before_a_lowering_may_be_spent_for_one_term() {
    let (high, low) = (limit(100, 1, 1), limit(10, 1, 1));
    let fresh = || {
        let mut bucket = IdealBucket::new(high);
        bucket
            .change(at(0), low, Term::from_nanos(500))
            .expect("in order");
        bucket
    };
    fresh()
        .admit(at(400), Tokens::new(100))
        .expect("out before the lowering");
    fresh()
        .admit(at(400), Tokens::new(101))
        .expect_err("more than ever was out");
    fresh()
        .admit(at(500 + 90), Tokens::new(10))
        .expect("the new limit");
    fresh()
        .admit(at(500 + 90), Tokens::new(11))
        .expect_err("the allowance is over");
}
