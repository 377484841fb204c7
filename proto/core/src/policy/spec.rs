//! A policy as it is written and kept: in TOML by people, in JSON by the admin API, and in binary
//! by the store and the wire.
//!
//! Nothing here is validated beyond its shape; [`super::Policy::parse`] does that, and only what
//! it accepts ever rules a bucket. The derived forms are plain structs and enums without tricks
//! that need a self-describing format, so one definition serves all formats.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::duration::{Period, Span};
use crate::key::PolicyId;
use crate::time::Term;

/// A policy as it is written.
///
/// ```toml
/// name = "search"
/// match = { route = "/search", tenant = { prefix = "t-" } }
/// key = ["tenant", "route"]
/// limit = { tokens = 10, period = "1s" }
/// ```
///
/// `name`, `key` and `limit` must be given; everything else has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// Unique within the namespace: 1 to 128 ASCII letters, digits, `-`, `_` or `.`, beginning
    /// with a letter or digit.
    pub name: String,
    /// Groups policies that one team owns; written like a name. Default `default`.
    #[serde(default = "namespace_default")]
    pub namespace: String,
    /// Which requests the policy applies to: all conditions must hold. Default: all requests
    /// that have the key's dimensions.
    #[serde(default, rename = "match")]
    pub conditions: BTreeMap<String, Condition>,
    /// The dimensions whose values pick the bucket, at most 8. An empty list means one bucket
    /// for everyone.
    pub key: Vec<String>,
    /// How the limit counts. Default `token-bucket`.
    #[serde(default)]
    pub kind: Kind,
    /// The limit of keys that no plan or override speaks of.
    pub limit: LimitSpec,
    /// Limits by the value of the dimension `plan`, which must then be in `key`.
    #[serde(default)]
    pub plans: BTreeMap<String, LimitSpec>,
    /// Limits of single keys; they win over plans.
    #[serde(default)]
    pub overrides: Vec<OverrideSpec>,
    /// What a request costs.
    #[serde(default)]
    pub cost: CostSpec,
    /// What a gateway does with a request beyond the limit. Default `reject`.
    #[serde(default)]
    pub action: Action,
    /// What a gateway does while no authority is in reach and its lease is used up. Default
    /// `closed`.
    #[serde(default)]
    pub on_outage: OnOutage,
    /// Keys (values in the order of `key`) that are admitted during an outage all the same;
    /// only with `on_outage = "closed"`. Default none.
    #[serde(default)]
    pub outage_allow_list: Vec<Vec<String>>,
    /// What happens to the first request for a key at a gateway, before it holds a lease.
    /// Default `wait`.
    #[serde(default)]
    pub first_touch: FirstTouch,
    /// Whether the state of buckets outlives a crash of the authority. Default `auto`.
    #[serde(default)]
    pub durability: Durability,
    /// Decide and count, but never refuse. Default `false`.
    #[serde(default)]
    pub shadow: bool,
    /// With `shadow = true`: the percentage of keys, 1 to 100, that are only watched; the others
    /// are refused as usual. Default 100.
    #[serde(default)]
    pub shadow_percent: Option<u32>,
    /// Policies that match a request are checked in ascending order, then by namespace and name.
    /// Default 0.
    #[serde(default)]
    pub order: i32,
    /// The kill switch: the policy stays stored but applies to no request. Default `false`.
    #[serde(default)]
    pub disabled: bool,
    /// For calendar windows: the windows begin at this distance from UTC, in minutes, -720 to
    /// 840. Default 0.
    #[serde(default)]
    pub utc_offset_minutes: i32,
    /// How leases are sized and timed.
    #[serde(default)]
    pub lease: LeaseSpec,
}

impl PolicySpec {
    /// A spec with a name, key dimensions and a limit, and the defaults for all else.
    #[must_use]
    pub fn new(name: &str, key: &[&str], limit: LimitSpec) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace_default(),
            conditions: BTreeMap::new(),
            key: key.iter().map(|&dimension| dimension.to_owned()).collect(),
            kind: Kind::default(),
            limit,
            plans: BTreeMap::new(),
            overrides: Vec::new(),
            cost: CostSpec::default(),
            action: Action::default(),
            on_outage: OnOutage::default(),
            outage_allow_list: Vec::new(),
            first_touch: FirstTouch::default(),
            durability: Durability::default(),
            shadow: false,
            shadow_percent: None,
            order: 0,
            disabled: false,
            utc_offset_minutes: 0,
            lease: LeaseSpec::default(),
        }
    }

    /// The identity that the spec names. Two specs with one identity are versions of one policy,
    /// whatever their values.
    #[must_use]
    pub fn id(&self) -> PolicyId {
        PolicyId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

fn namespace_default() -> String {
    "default".to_owned()
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `burst` tokens at most, refilled by `tokens` per `period`. At most
    /// `burst + tokens / period · w` are spent in any window of length `w`. GCRA (`gcra`) is the
    /// same limit by another name.
    #[default]
    #[serde(alias = "gcra")]
    TokenBucket,
    /// At most `tokens` in any window of `period`.
    SlidingWindow,
    /// At most `tokens` in each minute, hour, day or calendar month.
    CalendarWindow,
    /// At most `tokens` in flight at once; nothing is refilled, permits come back.
    Concurrency,
}

/// A limit, in one of two spellings:
///
/// - `{ tokens = 100, period = "60s", burst = 20 }`, where `burst` defaults to `tokens`;
/// - `{ emission_interval = "600ms", burst = 20 }`, as GCRA puts it: one token per interval, and
///   `burst` defaults to 1. Token buckets only.
///
/// A concurrency limit is `{ tokens = 100 }`, without a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSpec {
    /// Tokens per period, 1 to 2⁵⁵.
    pub tokens: Option<u64>,
    /// A span from 1 ms to 366 days, or `month`.
    pub period: Option<Period>,
    /// Capacity of a token bucket: the most that can be spent at one moment, 1 to 2⁴⁰.
    pub burst: Option<u64>,
    /// The span in which one token is refilled, 1 ns to 366 days.
    pub emission_interval: Option<Span>,
}

impl LimitSpec {
    /// `tokens` per `period`, with a burst of as many.
    #[must_use]
    pub fn new(tokens: u64, period: Term) -> Self {
        Self {
            tokens: Some(tokens),
            period: Some(period.into()),
            ..Self::default()
        }
    }

    /// One token per `interval`, and `burst` at once: the spelling of GCRA.
    #[must_use]
    pub fn gcra(interval: Term, burst: u64) -> Self {
        Self {
            emission_interval: Some(interval.into()),
            burst: Some(burst),
            ..Self::default()
        }
    }

    /// The same with a capacity of `burst`.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self {
            burst: Some(burst),
            ..self
        }
    }
}

/// The limit of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideSpec {
    /// One value for each dimension of the policy's `key`, in that order.
    pub key: Vec<String>,
    /// The limit of that key.
    pub limit: LimitSpec,
}

/// What a request costs, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostSpec {
    /// What a request costs that does not say. Default 1.
    pub default: u64,
    /// The dearest request; anything above is refused for good, not for a while. At most the
    /// capacity and 2²⁰. Default: what one authority may have out at a time
    /// (`lease.share_per_mille` of the capacity), at least 1. A limit whose capacity is smaller
    /// uses its capacity.
    pub max: Option<u64>,
}

impl Default for CostSpec {
    fn default() -> Self {
        Self {
            default: 1,
            max: None,
        }
    }
}

/// What a gateway does with a request beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Refuse it at once.
    #[default]
    Reject,
    /// Hold it until tokens come, for this long at most (1 ms to 60 s), then refuse it. Written
    /// `{ defer = "200ms" }`.
    Defer(Span),
}

/// What a gateway does while no authority is in reach and its lease is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnOutage {
    /// Refuse, except for the keys of the allow list. Nothing exceeds the limit but they, and
    /// they are counted apart.
    #[default]
    Closed,
    /// Admit everything, counted apart. The limit does not hold meanwhile.
    Open,
    /// Admit up to this holder's share of the limit, which the authority handed out in advance.
    Local,
}

/// What happens to a request that finds no lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstTouch {
    /// It waits one round trip where the caller can wait, and is refused with its own reason
    /// where not. Exact.
    #[default]
    Wait,
    /// It is refused with its own reason. Exact.
    Deny,
    /// One request per holder and key is admitted, reported and charged. The bound grows by at
    /// most one request per holder in a longest term, counted apart.
    Admit,
}

/// Whether the state of buckets outlives a crash of the authority. The limit holds either way: a
/// volatile bucket starts empty after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Reserved if a limit takes more than 60 s to refill completely, volatile otherwise.
    #[default]
    Auto,
    /// Tokens are booked durably before they are granted; a crash loses at most a block.
    Reserved,
    /// Nothing is written; a crash costs at most one burst, which refills as usual.
    Volatile,
}

/// How leases are sized and timed. Changes take effect at the next grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseSpec {
    /// The share of the capacity that may be out at a time, in thousandths, 1 to 1000. The rest
    /// stays available at once after a crash. Default 800.
    pub share_per_mille: u32,
    /// The span of demand that a grant should cover, 10 ms to 60 s. Default 375 ms.
    pub horizon: Span,
    /// The longest term of a lease, 100 ms to 300 s. What a crashed gateway held is lost for this
    /// long, and a fail-over counts old exposure for this long; shorter terms cost more messages.
    /// Default 10 s.
    pub term_max: Span,
    /// A holder without demand for this long returns what it holds, 10 ms to 300 s. Default 2 s.
    pub idle_return: Span,
    /// Tokens that an idle holder keeps, at most the smallest capacity and 2²⁸ - 1. Default 0.
    pub warm_floor: u64,
}

impl Default for LeaseSpec {
    fn default() -> Self {
        Self {
            share_per_mille: 800,
            horizon: Term::from_millis(375).into(),
            term_max: Term::from_seconds(10).into(),
            idle_return: Term::from_seconds(2).into(),
            warm_floor: 0,
        }
    }
}
