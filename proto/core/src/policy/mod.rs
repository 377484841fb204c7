//! The rules that buckets follow.

use serde::{Deserialize, Serialize};

/// Which of a policy's limits a key falls under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LimitClass {
    /// The policy's own limit.
    Default,
    /// The limit of a plan.
    Plan(alloc::string::String),
    /// The limit of one key.
    Override(crate::key::Key),
}
