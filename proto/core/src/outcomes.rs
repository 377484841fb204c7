//! What gateways decided that is no usual decision, by policy: what policies in shadow mode found,
//! and what kill switches and outages let pass or refused.
//!
//! Counts of requests. None of them is part of the ledger.

/// Counts of one policy. All of them only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Requests for which a policy in shadow mode had tokens.
    pub shadow_admitted: u64,
    /// Requests that a policy in shadow mode would have refused.
    pub shadow_refused: u64,
    /// Requests about which a policy in shadow mode could not tell without making the caller wait:
    /// for a first lease, or for an authority that is out of reach or overloaded.
    pub shadow_undecided: u64,
    /// Requests that a kill switch let pass.
    pub switch_admitted: u64,
    /// Requests that a kill switch refused.
    pub switch_refused: u64,
    /// Requests that passed because the policy is open while the authority is out of reach.
    pub outage_open: u64,
    /// Requests that passed because their key is on the policy's list for outages.
    pub outage_listed: u64,
    /// Requests refused because the authority was out of reach.
    pub outage_refused: u64,
}

impl Outcomes {
    /// What was counted since these were `earlier`. Nothing that went back counts.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The larger of both, count by count.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, |one, other| one.max(other))
    }

    /// Each count with its name, as metrics and reports show it.
    #[must_use]
    pub const fn named(self) -> [(&'static str, u64); 8] {
        [
            ("shadow_admitted", self.shadow_admitted),
            ("shadow_refused", self.shadow_refused),
            ("shadow_undecided", self.shadow_undecided),
            ("switch_admitted", self.switch_admitted),
            ("switch_refused", self.switch_refused),
            ("outage_open", self.outage_open),
            ("outage_listed", self.outage_listed),
            ("outage_refused", self.outage_refused),
        ]
    }

    /// Requests counted, of all kinds together.
    #[must_use]
    pub fn requests(self) -> u64 {
        let counts = self.named().into_iter();
        counts.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// True if nothing was counted.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            shadow_admitted: combine(self.shadow_admitted, other.shadow_admitted),
            shadow_refused: combine(self.shadow_refused, other.shadow_refused),
            shadow_undecided: combine(self.shadow_undecided, other.shadow_undecided),
            switch_admitted: combine(self.switch_admitted, other.switch_admitted),
            switch_refused: combine(self.switch_refused, other.switch_refused),
            outage_open: combine(self.outage_open, other.outage_open),
            outage_listed: combine(self.outage_listed, other.outage_listed),
            outage_refused: combine(self.outage_refused, other.outage_refused),
        }
    }
}
