//! Long and random histories of one authority, judged from outside: what stories are too short for.

mod shard;

use quota_core::authority::Input;
use quota_core::message::HELD_MAX;
use quota_core::policy::{Durability, LimitSpec, PolicySpec};
use quota_core::time::Term;
use shard::{Random, Shard, at};
use simulations::oracle::IdealBucket;

/// A volatile policy of which everything may be out at once.
fn policy(name: &str, tokens: u64, period: Term, burst: u64) -> PolicySpec {
    let limit = LimitSpec::new(tokens, period).with_burst(burst);
    let mut spec = PolicySpec::new(name, &["who"], limit);
    spec.durability = Durability::Volatile;
    spec.lease.share_per_mille = 1000;
    spec
}

#[test]
fn fifty_holders_with_the_largest_leases_stay_within_the_limit() {
    for seed in 0..10 {
        let mut random = Random::new(seed);
        let mut shard = Shard::new(vec![policy("api", 1_000, Term::from_seconds(1), 1_000)]);
        let mut ideal = IdealBucket::new(&shard.limit("api"));
        let holders: Vec<usize> = (0..50).map(|_| shard.connect()).collect();
        for millis in (0..30_000).step_by(5) {
            let now = at(millis);
            shard.pass(now);
            // Whoever is about to lose its lease spends it to the last token, as late as it can.
            for holder in &holders {
                let held = shard.holder(*holder);
                let ends = held.deadline.since(now) <= Term::from_millis(5);
                if (ends && random.below(4) > 0) || random.below(40) == 0 {
                    let rest = shard.spend_all(now, *holder);
                    let admitted = ideal.admit(now, rest);
                    assert!(admitted.is_ok(), "seed {seed} at {millis} ms: {admitted:?}");
                }
            }
            let asker = holders[random.index(holders.len())];
            shard.ask(now, asker, "api", "k", HELD_MAX.get(), 1);
        }
        let allowed = 1_000 * 31;
        let admitted = ideal.admitted().get();
        assert!(
            admitted > allowed / 2,
            "seed {seed}: only {admitted} of {allowed} were used"
        );
    }
}

#[test]
fn a_limit_of_one_admits_one_whoever_asks() {
    let mut shard = Shard::new(vec![policy("api", 1, Term::from_seconds(60), 1)]);
    let holders: Vec<usize> = (0..12).map(|_| shard.connect()).collect();
    for holder in &holders {
        shard.ask(at(0), *holder, "api", "k", 1, 1);
    }
    let held = |shard: &Shard| -> u64 {
        holders
            .iter()
            .map(|holder| shard.holder(*holder).rest().get())
            .sum()
    };
    assert_eq!(held(&shard), 1);
    shard.pass(at(59_000));
    assert_eq!(held(&shard), 1);
}

#[test]
fn a_looser_limit_never_refuses_what_a_tighter_one_admits() {
    let second = Term::from_seconds(1);
    let pairs = [
        ((5, 5), (5, 6)),
        ((5, 5), (6, 5)),
        ((7, 3), (11, 13)),
        ((1, 1), (1_000, 1)),
    ];
    for (seed, ((tokens, burst), (more, larger))) in (0..).zip(pairs) {
        let mut random = Random::new(seed);
        let tight = policy("tight", tokens, second, burst);
        let loose = policy("loose", more, second, larger);
        let mut shard = Shard::new(vec![tight, loose]);
        let holder = shard.connect();
        let (mut millis, mut both) = (0, 0);
        for _ in 0..5_000 {
            millis += random.below(400);
            let now = at(millis);
            // The same history: the loose limit is asked for what the tight one has admitted.
            if shard.take_one(now, holder, "tight", "k") {
                both += 1;
                let admitted = shard.take_one(now, holder, "loose", "k");
                assert!(
                    admitted,
                    "{more}/1s burst {larger} refuses at {millis} ms, seed {seed}"
                );
            }
        }
        assert!(both > 100, "the tight limit was used");
    }
}

#[test]
fn sweeping_changes_no_decision() {
    for seed in 0..3 {
        let mut random = Random::new(seed);
        let specs = vec![policy("api", 1, Term::from_seconds(8), 1)];
        let (mut swept, mut unswept) = (Shard::new(specs.clone()), Shard::new(specs));
        let holders: Vec<usize> = (0..4)
            .map(|_| {
                unswept.connect();
                swept.connect()
            })
            .collect();
        let mut millis = 0;
        for step in 0..20_000 {
            millis += random.below(12);
            let now = at(millis);
            swept.pass(now);
            let holder = holders[random.index(holders.len())];
            let key = format!("k{}", random.below(2_000));
            let released = random.below(2) == 0;
            let decisions = [&mut swept, &mut unswept].map(|shard| {
                let taken = shard.take_one(now, holder, "api", &key);
                if released {
                    shard.release(now, holder, "api", &key);
                }
                taken
            });
            assert_eq!(
                decisions[0], decisions[1],
                "seed {seed}, step {step}, key {key}"
            );
        }
        assert!(swept.authority.stats().buckets_forgotten > 100);
        assert_eq!(unswept.authority.stats().buckets_forgotten, 0);
    }
}

#[test]
fn cold_keys_do_not_stay() {
    let refill = 5_000;
    let mut shard = Shard::new(vec![policy("api", 1, Term::from_millis(refill), 1)]);
    let holder = shard.connect();
    let (keys, mut most) = (60_000, 0);
    for key in 0..keys {
        let now = at(key / 2);
        shard.pass(now);
        shard.take_one(now, holder, "api", &format!("k{key}"));
        shard.release(now, holder, "api", &format!("k{key}"));
        most = most.max(shard.authority.stats().buckets);
    }
    // Each is there until it is full again and the sweep has come by, which takes ten seconds.
    let active = 2 * (refill + 11_000);
    assert!(
        most <= active,
        "{most} buckets at a time, {active} could be active"
    );
    shard.pass(at(keys / 2 + refill + 11_000));
    assert_eq!(shard.authority.stats().buckets, 0);
    assert_eq!(shard.authority.stats().buckets_forgotten, keys);
}

#[test]
fn an_hour_on_a_holder_s_clock_changes_nothing() {
    // Holders send no times at all: there is no input in which one could be wrong. What is left is
    // the authority's own clock, whose origin means nothing.
    let run = |origin: Term| -> Vec<u64> {
        let mut shard = Shard::new(vec![policy("api", 10, Term::from_seconds(1), 10)]);
        let holder = shard.connect();
        let mut random = Random::new(1);
        let mut millis = 0;
        let steps = (0..500).map(|_| {
            millis += random.below(300);
            let now = at(millis) + origin;
            shard.feed(now, Input::Tick);
            u64::from(shard.take_one(now, holder, "api", "k"))
        });
        steps.collect()
    };
    assert_eq!(run(Term::ZERO), run(Term::from_seconds(3_600)));
}
