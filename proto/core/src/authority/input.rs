//! What goes into an authority and what comes out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::id::{Incarnation, MessageNumber, PolicyVersion};
use crate::key::PolicyId;
use crate::message::{Answer, Introduction, LeaseRequest};
use crate::policy::PolicyHistory;
use crate::record::ReservationWrite;
use crate::tokens::Tokens;

/// One connection of a holder to this node. The driver numbers them and never reuses a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// Wraps a raw number.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A write of reservations, numbered by the authority that asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub(super) u64);

/// One event for an authority.
#[derive(Clone, Debug)]
pub enum Input {
    /// A holder opened a stream. A newer stream of the same incarnation replaces the older one.
    Connect {
        /// Who.
        incarnation: Incarnation,
        /// Its stream.
        stream: StreamId,
    },
    /// A stream ended. What its holder waited for is dropped; what it holds stays.
    Disconnect {
        /// Who.
        incarnation: Incarnation,
        /// Its stream.
        stream: StreamId,
    },
    /// A message of a holder arrived, whatever else it carries.
    Anchor {
        /// Who.
        incarnation: Incarnation,
        /// Its stream.
        stream: StreamId,
        /// The message's number.
        number: MessageNumber,
    },
    /// A holder gave a bucket a number in its stream.
    Introduce {
        /// Who.
        incarnation: Incarnation,
        /// Its stream.
        stream: StreamId,
        /// The number and the bucket.
        introduction: Box<Introduction>,
    },
    /// A holder reports and asks.
    Request {
        /// Who.
        incarnation: Incarnation,
        /// Its stream.
        stream: StreamId,
        /// The number of the message that carried it.
        number: MessageNumber,
        /// The report and the wish.
        request: LeaseRequest,
    },
    /// A write that this authority asked for is durable.
    Written {
        /// Which.
        write: WriteId,
    },
    /// A policy was stored: created, changed, deleted, or cleared of former
    /// versions.
    ApplyPolicy {
        /// The policy with every former version that may still have tokens out.
        history: Box<PolicyHistory>,
    },
    /// A deleted policy is forgotten: its former versions are over.
    ForgetPolicy {
        /// Which.
        id: PolicyId,
    },
    /// Nothing but time passed.
    Tick,
}

/// One thing that the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send an answer to a holder. Answers of several effects may share one message, which then
    /// carries the smallest of their anchors: an older anchor only ends terms earlier.
    Answer {
        /// To whom.
        incarnation: Incarnation,
        /// On which stream; drop the answer if it is gone.
        stream: StreamId,
        /// The highest message number received from that incarnation when this was decided.
        anchor: MessageNumber,
        /// The answer.
        answer: Answer,
    },
    /// Write these records in one atomic, durable step, then feed back [`Input::Written`]. There
    /// is never more than one write in flight. If the write fails or its outcome is unknown, drop
    /// this authority and claim the shard again.
    Write {
        /// Which.
        write: WriteId,
        /// The records.
        records: Vec<ReservationWrite>,
    },
    /// Mark the shard as settled: the exposure of every earlier tenure is over. Until the mark is
    /// durable a successor counts it once more, which is safe.
    Settle,
    /// A policy is in force in this shard: every later grant follows it.
    PolicyApplied {
        /// Which.
        id: PolicyId,
        /// The version now in force; `None` after a deletion.
        version: Option<PolicyVersion>,
        /// Tokens out under earlier versions at that moment.
        outstanding: Tokens,
        /// Tokens that the buckets owe after a lowering; nothing is granted until they are paid.
        owed: Tokens,
    },
}
