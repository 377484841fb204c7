//! The authority's node: the driver around the shipped state machine.

use std::collections::BTreeMap;

use quota_core::authority::{Authority, StreamId};
use quota_core::id::{Epoch, Incarnation, PolicyVersion};
use quota_core::key::PolicyId;

use crate::clock::NodeClock;

/// One tenure of the shard.
#[derive(Debug)]
pub struct Tenure {
    /// The machine.
    pub authority: Authority,
    /// Its epoch.
    pub epoch: Epoch,
    /// The revision of each policy that it was last told.
    pub applied: BTreeMap<PolicyId, PolicyVersion>,
    /// Streams that are up, with their holders.
    pub streams: BTreeMap<StreamId, (usize, Incarnation)>,
    /// True until the shard is settled.
    pub unsettled: bool,
    /// A write is under way.
    pub writing: bool,
}

/// The node.
#[derive(Debug)]
pub struct Server {
    /// Its clock.
    pub clock: NodeClock,
    /// What it does now; `None` while it is down or starting.
    pub tenure: Option<Tenure>,
    /// Counts starts and stops, so that events of an earlier life are known as such.
    pub life: u64,
    /// It handles nothing before this moment.
    pub paused_until: u64,
    /// When its next tick is scheduled.
    pub tick_at: Option<u64>,
    /// Crash at the next grant.
    pub crash_after_grant: bool,
    /// Tenures in a row that ended before the shard had settled.
    pub unsettled_crashes: u64,
    /// The last tenure ended by a hand-over.
    pub handed_over: bool,
}
