//! Kill switches: an operator's last word, above what the policies say.
//!
//! A switch decides at the gateways, before any bucket is looked at: a policy that is switched to
//! admit spends nothing, and one that is switched to refuse takes nothing. The ledger goes on as
//! it was. Tokens that are out stay counted as outstanding until their holders return them or
//! their terms end, and refill stops at them as always, so that a switch that is set back finds
//! every bucket within its limit. What passes under a switch is no part of that limit, and is
//! counted apart.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::key::PolicyId;

/// Most kill switches that can be set at a time.
pub const SWITCHES_MAX: usize = 256;

/// Longest reason of a kill switch, in bytes.
pub const SWITCH_REASON_BYTES_MAX: usize = 1_024;

/// What a kill switch does to the policies in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchMode {
    /// They admit everything and charge nothing.
    AdmitAll,
    /// They refuse everything and charge nothing. Keys that are only watched pass as before.
    RefuseAll,
}

impl fmt::Display for SwitchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdmitAll => "admit all",
            Self::RefuseAll => "refuse all",
        })
    }
}

/// Which policies a kill switch is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchScope {
    /// All of them.
    Everything,
    /// Those of one namespace.
    Namespace(String),
    /// One of them.
    Policy(PolicyId),
}

impl SwitchScope {
    /// The namespace that the scope lies in; `None` if it is wider.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Everything => None,
            Self::Namespace(namespace) => Some(namespace),
            Self::Policy(policy) => Some(&policy.namespace),
        }
    }
}

impl fmt::Display for SwitchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("everything"),
            Self::Namespace(namespace) => write!(f, "{namespace}/*"),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}

/// The switch of the narrowest scope that a policy lies in: its own, else its namespace's, else
/// the one of everything. `T` is whatever is kept for a scope.
#[must_use]
pub fn switch_of<'s, T>(
    switches: &'s BTreeMap<SwitchScope, T>,
    policy: &PolicyId,
) -> Option<&'s T> {
    // Three look-ups that copy a name or two: this is done when rules change, never for a request.
    switches
        .get(&SwitchScope::Policy(policy.clone()))
        .or_else(|| switches.get(&SwitchScope::Namespace(policy.namespace.clone())))
        .or_else(|| switches.get(&SwitchScope::Everything))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_switch_decides() {
        let policy = |namespace: &str, name: &str| PolicyId {
            namespace: namespace.into(),
            name: name.into(),
        };
        let mut switches = BTreeMap::new();
        assert_eq!(switch_of(&switches, &policy("shop", "buy")), None);
        switches.insert(SwitchScope::Everything, SwitchMode::AdmitAll);
        switches.insert(SwitchScope::Namespace("shop".into()), SwitchMode::RefuseAll);
        let buy = SwitchScope::Policy(policy("shop", "buy"));
        switches.insert(buy, SwitchMode::AdmitAll);
        let of = |namespace, name| switch_of(&switches, &policy(namespace, name)).copied();
        assert_eq!(of("shop", "buy"), Some(SwitchMode::AdmitAll));
        assert_eq!(of("shop", "look"), Some(SwitchMode::RefuseAll));
        assert_eq!(of("shops", "buy"), Some(SwitchMode::AdmitAll));
    }
}
