//! What can happen, and the order in which it does.

use quota_core::authority::{StreamId, WriteId};
use quota_core::holder::{HolderMessage, Slot};
use quota_core::id::{Epoch, Incarnation, LeaseId, MessageNumber, PolicyVersion};
use quota_core::message::Answer;
use quota_core::record::ReservationWrite;
use quota_core::time::Timestamp;

use super::policies;
use crate::network::Way;
use crate::store::Claim;

#[derive(Clone, Debug)]
pub(super) enum UpMessage {
    Connect,
    Message(HolderMessage),
    Disconnect,
}

#[derive(Clone, Debug)]
pub(super) enum DownMessage {
    Accepted,
    Answers(MessageNumber, Vec<Answer>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    Acknowledged,
    UnknownApplied,
    UnknownLost,
    Failed,
}

#[derive(Debug)]
pub(super) enum Event {
    Up {
        node: usize,
        client: usize,
        incarnation: Incarnation,
        stream: StreamId,
        message: UpMessage,
    },
    Down {
        client: usize,
        life: u64,
        stream: StreamId,
        message: DownMessage,
    },
    ServerTick {
        life: u64,
    },
    ServerStart {
        life: u64,
    },
    ServerLoaded {
        life: u64,
        claim: Box<Claim>,
        until: Option<Timestamp>,
    },
    /// The node's own timer for its tenure.
    KeepAliveDue {
        life: u64,
    },
    /// A keep-alive reaches the store.
    KeepAlive {
        life: u64,
        epoch: Epoch,
        until: Timestamp,
    },
    /// The store's answer to it reaches the node.
    KeptAlive {
        life: u64,
        until: Timestamp,
    },
    /// Answers that were decided before the node stalled leave it.
    Unstall {
        life: u64,
        client: usize,
        stream: StreamId,
        message: DownMessage,
    },
    /// The node and the store hear each other again.
    StoreMended {
        node: usize,
    },
    KillStarting,
    LiarTurn,
    LiarEnd {
        lease: LeaseId,
    },
    Write {
        life: u64,
        epoch: Epoch,
        write: WriteId,
        records: Vec<ReservationWrite>,
        fate: WriteFate,
    },
    WriteEnded {
        life: u64,
        write: WriteId,
        acknowledged: bool,
    },
    Settle {
        life: u64,
        epoch: Epoch,
    },
    ClientTick {
        client: usize,
        life: u64,
    },
    ClientStart {
        client: usize,
        life: u64,
    },
    Arrive {
        client: usize,
        bucket: usize,
    },
    /// Only in a sabotaged world.
    SpendLate {
        client: usize,
        life: u64,
        read: u64,
    },
    Drain {
        client: usize,
        life: u64,
        slot: Slot,
    },
    GiveUp {
        client: usize,
        life: u64,
    },
    RollBack {
        client: usize,
        life: u64,
    },
    Connect {
        client: usize,
        life: u64,
    },
    ConnectTimeout {
        client: usize,
        life: u64,
        stream: StreamId,
    },
    StreamBroken {
        client: usize,
        life: u64,
        stream: StreamId,
    },
    Mend {
        client: usize,
        way: Way,
    },
    Fault,
    ServerKill,
    PolicyStep {
        policy: usize,
        step: policies::Step,
    },
    PolicyTold {
        policy: usize,
        /// `None`: the authority.
        client: Option<usize>,
        life: u64,
    },
    PolicyClear {
        policy: usize,
        version: PolicyVersion,
        life: u64,
    },
    Stand {
        client: usize,
        life: u64,
        bucket: usize,
    },
    Heal,
    Measure,
    End,
}

#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
