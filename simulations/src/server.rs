//! The authorities' nodes: the driver around the shipped state machine.
//!
//! # Who owns the shard
//!
//! Two kinds of ownership are modelled, one in each seed.
//!
//! *By lock*, as the embedded store has it: there is one node, and a claim is possible only once
//! the process before has ended. That process may have decided things that are still on their way.
//!
//! *By tenure*, as a shared store has it: there are two nodes, the store hands the shard to another
//! one once the owner has not been heard for a stretched tenure, and the owner is paused, cut off or
//! slow while that happens. It counts its tenure from when it *sent* the keep-alive, and looks at
//! the one clock reading of a batch, taken after the batch came in, before it decides anything. What
//! was decided may be sent late.
//!
//! Either way the driver does what the shipped one does: one clock reading for a batch; a write that
//! failed, was fenced or has an unknown outcome ends the tenure, and so do a fenced settling and a
//! wall clock that jumped ahead; a new claim follows.

use std::collections::BTreeMap;

use quota_core::authority::{Authority, StreamId};
use quota_core::id::{Epoch, Incarnation, PolicyVersion};
use quota_core::key::PolicyId;
use quota_core::time::Timestamp;

use crate::clock::NodeClock;

/// One tenure of the shard.
#[derive(Debug)]
pub struct Tenure {
    /// The machine.
    pub authority: Authority,
    /// Its epoch.
    pub epoch: Epoch,
    /// The node's clock must be before this when it decides anything; `None` if the shard is owned
    /// by lock.
    pub until: Option<Timestamp>,
    /// The revision of each policy that it was last told.
    pub applied: BTreeMap<PolicyId, PolicyVersion>,
    /// Streams that are up, with their holders.
    pub streams: BTreeMap<StreamId, (usize, Incarnation)>,
    /// Tokens out when the tenure began, by policy.
    pub resumed: BTreeMap<PolicyId, u64>,
    /// True until the shard is settled.
    pub unsettled: bool,
    /// A write is under way.
    pub writing: bool,
}

/// One node.
#[derive(Debug)]
pub struct Server {
    /// Its clock.
    pub clock: NodeClock,
    /// What it does now; `None` while it is down, starting or standing by.
    pub tenure: Option<Tenure>,
    /// True between its claim and the beginning of its tenure.
    pub starting: bool,
    /// Identifies what it does now among everything that any node ever did, so that events of an
    /// earlier life are known as such.
    pub life: u64,
    /// It handles nothing before this moment.
    pub paused_until: u64,
    /// What it decides is sent, and what it writes begins, no sooner than at this moment.
    pub stalled_until: u64,
    /// Nothing passes between it and the store before this moment.
    pub cut_until: u64,
    /// Its wall clock has jumped ahead since it last looked.
    pub jumped: bool,
    /// When its next tick is scheduled.
    pub tick_at: Option<u64>,
    /// Crash at the next grant.
    pub crash_after_grant: bool,
}

impl Server {
    /// A node that does nothing yet.
    #[must_use]
    pub const fn new(clock: NodeClock, life: u64) -> Self {
        Self {
            clock,
            tenure: None,
            starting: false,
            life,
            paused_until: 0,
            stalled_until: 0,
            cut_until: 0,
            jumped: false,
            tick_at: None,
            crash_after_grant: false,
        }
    }
}
