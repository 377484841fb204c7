//! The rules that buckets follow: how they are written, what they mean, and what earlier versions
//! of them may still have out.
//!
//! A [`PolicySpec`] is what people write and stores keep; [`Policy::parse`] turns it into a
//! [`Policy`], which is always valid. A [`PolicyHistory`] is a policy with those of its earlier
//! versions whose grants may still be live. A [`PolicySet`] finds the policies that match a
//! request.
//!
//! Nothing here knows buckets, leases or the clock.

mod change;
mod check;
mod condition;
mod duration;
mod error;
mod history;
mod lease;
mod limit;
mod matching;
#[expect(
    clippy::module_inception,
    reason = "one concept per file, and this one is the policy"
)]
mod policy;
mod spec;
mod stored;
mod switch;

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::key::Key;

pub use change::ChangeError;
pub use check::{ENTRY_BYTES, LIMITS_MAX, SPEC_BYTES_MAX};
pub use condition::Condition;
pub use duration::{Period, Span, SpanError};
pub use error::PolicyError;
pub use history::{Exposure, FORMER_MAX, PolicyHistory};
pub use lease::{LeaseSettings, TERM_MAX, live_cap};
pub use limit::{
    CAPACITY_MAX, CostTooHigh, Limit, PERIOD_MAX, RATE_MAX, RATE_TOKENS_MAX, REFILL_MAX,
};
pub use matching::{
    DimensionsError, Match, Matches, POLICIES_MAX, PolicySet, PolicySetError,
    REQUEST_DIMENSIONS_MAX,
};
pub use policy::{PLAN_DIMENSION, Policy};
pub use spec::{
    Action, CostSpec, Durability, FirstTouch, Kind, LeaseSpec, LimitSpec, OnOutage, OverrideSpec,
    PolicySpec,
};
pub use switch::{SWITCH_REASON_BYTES_MAX, SWITCHES_MAX, SwitchMode, SwitchScope, switch_of};

/// Which of a policy's limits a key falls under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LimitClass {
    /// The policy's own limit.
    Default,
    /// The limit of a plan.
    Plan(String),
    /// The limit of one key.
    Override(Key),
}
