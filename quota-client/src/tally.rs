//! What each policy decided that is no usual decision, counted by policy.
//!
//! Only exceptions are counted here: what policies in shadow mode found, what kill switches and
//! outages let pass or refused. So the counters of one policy are shared by all threads; under a
//! policy in shadow mode a request costs one more relaxed add.

use std::sync::atomic::{AtomicU64, Ordering};

use quota_core::outcomes::Outcomes;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tallied {
    /// A policy in shadow mode had tokens for the request.
    ShadowAdmitted,
    /// A policy in shadow mode would have refused it.
    ShadowRefused,
    /// A policy in shadow mode could not tell without making the caller wait.
    ShadowUndecided,
    /// A kill switch let it pass.
    SwitchAdmitted,
    /// A kill switch refused it.
    SwitchRefused,
    /// It passed because the policy is open while the authority is out of reach.
    OutageOpen,
    /// It passed because its key is on the policy's list for outages.
    OutageListed,
    /// It was refused because the authority is out of reach.
    OutageRefused,
}

impl Tallied {
    pub(crate) const COUNT: usize = 8;

    const fn index(self) -> usize {
        match self {
            Self::ShadowAdmitted => 0,
            Self::ShadowRefused => 1,
            Self::ShadowUndecided => 2,
            Self::SwitchAdmitted => 3,
            Self::SwitchRefused => 4,
            Self::OutageOpen => 5,
            Self::OutageListed => 6,
            Self::OutageRefused => 7,
        }
    }
}

/// The counters of one policy, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; Tallied::COUNT]);

impl Tally {
    pub(crate) fn add(&self, what: Tallied) {
        self.0[what.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// The totals since the client was made.
    pub(crate) fn outcomes(&self) -> Outcomes {
        let read = |what: Tallied| self.0[what.index()].load(Ordering::Relaxed);
        Outcomes {
            shadow_admitted: read(Tallied::ShadowAdmitted),
            shadow_refused: read(Tallied::ShadowRefused),
            shadow_undecided: read(Tallied::ShadowUndecided),
            switch_admitted: read(Tallied::SwitchAdmitted),
            switch_refused: read(Tallied::SwitchRefused),
            outage_open: read(Tallied::OutageOpen),
            outage_listed: read(Tallied::OutageListed),
            outage_refused: read(Tallied::OutageRefused),
        }
    }
}
