//! The policies of a round and the load on each: more than it allows, with pauses in which buckets
//! fill up, since a full bucket just before a crash is what a wrong server doubles.

use std::collections::BTreeMap;

use quota_core::id::PolicyVersion;
use quota_core::key::Key;
use quota_core::policy::{Condition, Durability, LeaseSpec, LimitSpec, Policy, PolicySpec};
use quota_core::time::Term;
use simulations::oracle::IdealLimit;
use simulations::random::Random;

use crate::load::Plan;

/// One load, and the policies that each of its requests is charged to.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) plan: Plan,
    pub(super) policies: &'static [&'static str],
    /// Whether its limit refills, so that requests are admitted again sooner or later.
    pub(super) refills: bool,
}

/// How leases are timed in a round. Terms are short, so that leases end, ghosts pass and shards
/// settle several times between its faults, and sometimes longer than all of it.
pub(super) fn lease(random: &mut Random) -> LeaseSpec {
    let term = random.pick(&[300, 600, 1200, 2500]);
    LeaseSpec {
        share_per_mille: random.pick(&[500, 800, 800, 1000]),
        horizon: Term::from_millis(random.pick(&[50, 200, 500])).into(),
        term_max: Term::from_millis(term).into(),
        idle_return: Term::from_millis(random.pick(&[50, 200, 2000])).into(),
        warm_floor: 0,
    }
}

/// The policies: small and volatile, by API key, by tenant, both at once, and two kept durably,
/// one that hardly refills and one that does.
pub(super) fn policies(lease: LeaseSpec) -> Vec<PolicySpec> {
    let second = Term::from_seconds(1);
    let day = Term::from_seconds(24 * 60 * 60);
    let policy = |name, route: &str, key: &[&str], limit, durability| PolicySpec {
        conditions: BTreeMap::from([("route".into(), Condition::Literal(route.into()))]),
        durability,
        lease,
        ..PolicySpec::new(name, key, limit)
    };
    let per = LimitSpec::new;
    let (volatile, reserved) = (Durability::Volatile, Durability::Reserved);
    vec![
        policy(
            "hot",
            "/hot",
            &[],
            per(100, second).with_burst(60),
            volatile,
        ),
        policy(
            "tenant",
            "/pair",
            &["tenant"],
            per(60, second).with_burst(40),
            volatile,
        ),
        policy(
            "each",
            "/pair",
            &["api_key"],
            per(6, second).with_burst(6),
            volatile,
        ),
        policy(
            "small",
            "/small",
            &["api_key"],
            per(2, second).with_burst(3),
            volatile,
        ),
        policy(
            "daily",
            "/daily",
            &["tenant"],
            per(100, day).with_burst(100),
            reserved,
        ),
        policy(
            "steady",
            "/steady",
            &[],
            per(3000, Term::from_seconds(60)).with_burst(150),
            reserved,
        ),
    ]
}

/// The load on each gateway.
pub(super) fn traffic() -> Vec<Traffic> {
    let load = |path: &str, tenant: &str, api_key: &str, keys, rate, policies| Traffic {
        plan: Plan {
            path: path.into(),
            tenant: tenant.into(),
            api_key: api_key.into(),
            keys,
            rate,
        },
        policies,
        refills: path != "/daily",
    };
    vec![
        load("/hot", "any", "any", 1, 80, &["hot"]),
        // Here the tenant's limit binds, there the keys', and who is refused by one must get its
        // tokens of the other back.
        load("/pair", "wide", "wide-#", 100, 50, &["tenant", "each"]),
        load("/pair", "narrow", "narrow-#", 5, 25, &["tenant", "each"]),
        load("/small", "any", "small-#", 10, 25, &["small"]),
        load("/daily", "daily-#", "any", 3, 30, &["daily"]),
        load("/steady", "any", "any", 1, 50, &["steady"]),
    ]
}

/// What each policy promises.
///
/// # Errors
/// If a policy is not legal.
pub(super) fn limits(policies: &[PolicySpec]) -> anyhow::Result<Vec<(String, IdealLimit)>> {
    let limits = policies.iter().map(|spec| {
        let policy = Policy::parse(spec.clone(), PolicyVersion::new(1))?;
        let key = Key::from_values(&vec!["any"; spec.key.len()])?;
        Ok((spec.name.clone(), policy.limit_for(&key).into()))
    });
    limits.collect()
}
