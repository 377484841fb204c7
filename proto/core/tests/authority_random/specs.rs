//! Which buckets there are, and what policies may say of them.

use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::policy::{CostSpec, Durability, LeaseSpec, LimitSpec, OverrideSpec, PolicySpec};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use super::dice::Dice;

/// The largest capacity of any version, stored or in force, and a booked block beyond it.
pub(crate) const CAPACITY_MOST: Tokens = Tokens::new(130);

/// The buckets: two of one plan, one of another; the second has an override now and then.
pub(crate) const KEYS: [[&str; 2]; 3] = [["free", "a"], ["free", "b"], ["gold", "c"]];

pub(crate) fn id() -> PolicyId {
    PolicyId {
        namespace: "default".into(),
        name: "api".into(),
    }
}

pub(crate) fn address(key: usize) -> BucketAddress {
    BucketAddress {
        policy: id(),
        key: Key::from_values(&KEYS[key]).unwrap(),
    }
}

pub(crate) fn spec(dice: &mut Dice, storm: bool) -> PolicySpec {
    let mut spec = PolicySpec::new("api", &["plan", "who"], limit_spec(dice, storm));
    if dice.chance(30) {
        spec.plans.insert("gold".into(), limit_spec(dice, storm));
    }
    if dice.chance(30) {
        spec.overrides.push(OverrideSpec {
            key: KEYS[1].map(String::from).to_vec(),
            limit: limit_spec(dice, storm),
        });
    }
    spec.durability = dice.pick(&[Durability::Reserved, Durability::Volatile]);
    spec.lease = LeaseSpec {
        share_per_mille: dice.pick(&[1000, 800, 800, 500, 300]),
        horizon: Term::from_millis(100).into(),
        term_max: Term::from_millis(if storm {
            dice.pick(&[1_000, 5_000, 5_000])
        } else {
            dice.pick(&[100, 300, 1_000, 1_000, 2_000])
        })
        .into(),
        ..LeaseSpec::default()
    };
    if dice.chance(20) {
        spec.cost = CostSpec {
            max: Some(dice.pick(&[1, 3, 10, 50])),
            ..CostSpec::default()
        };
    }
    spec
}

fn limit_spec(dice: &mut Dice, storm: bool) -> LimitSpec {
    if storm {
        let burst = dice.pick(&[5, 20, 50, 100]);
        let (count, period) = dice.pick(&[(1, 1_000), (10, 100), (100, 1_000), (100, 1_000)]);
        return LimitSpec::new(count, Term::from_millis(period)).with_burst(burst);
    }
    let burst = dice.pick(&[1, 2, 3, 5, 10, 10, 20, 50, 100]);
    let (count, period) = dice.pick(&[
        (1, 3_600_000),
        (1, 1_000),
        (10, 1_000),
        (100, 1_000),
        (7, 300),
        (3, 7_000),
    ]);
    LimitSpec::new(count, Term::from_millis(period)).with_burst(burst)
}
