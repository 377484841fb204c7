//! What goes into the holder machine and what comes out.

use alloc::vec::Vec;

use crate::cell::LeaseCell;
use crate::id::{Incarnation, LeaseId, MessageNumber, PolicyVersion};
use crate::key::BucketAddress;
use crate::message::{Answer, Introduction, LeaseRequest};
use crate::policy::{LeaseSettings, Limit};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// A place in the driver's table: one bucket and its cell. Small numbers, since the machine keeps
/// an array of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The slot at `index` of the driver's table.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// The driver's table, as far as the machine needs it. A slot's cell is the same from
/// [`Input::Open`] until [`Event::Closed`], and only this machine installs into it.
pub trait Cells {
    /// The cell of an open slot.
    fn cell(&self, slot: Slot) -> &LeaseCell;
}

/// What a machine is made with.
#[derive(Clone, Copy, Debug)]
pub struct HolderConfig {
    /// This life of this client: random, drawn anew at each start.
    pub incarnation: Incarnation,
    /// Slot indices are below this; the machine's memory is bounded by it.
    pub slots_max: u32,
}

/// How one bucket's lease is kept: the policy's lease settings, as they apply to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSettings {
    /// How much demand a grant should cover; see [`LeaseSettings::horizon_for`].
    pub horizon: Term,
    /// The term to expect before a grant has named one.
    pub term: Term,
    /// Without demand for this long, tokens go back.
    pub idle_return: Term,
    /// What an idle holder keeps.
    pub warm_floor: Tokens,
    /// The dearest single request that the policy allows.
    pub cost_max: Tokens,
}

impl SlotSettings {
    /// The settings of a policy as they apply to one of its limits.
    #[must_use]
    pub fn for_limit(limit: &Limit, lease: &LeaseSettings) -> Self {
        Self {
            horizon: lease.horizon_for(limit),
            term: lease.term_max(),
            idle_return: lease.idle_return(),
            warm_floor: lease.warm_floor(),
            cost_max: limit.cost_max(),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A new stream is up. Everything still unanswered goes out again.
    Connected,
    /// The stream is gone. Leases stay spendable until their deadlines.
    Disconnected,
    /// Keep a lease for this bucket in this slot from now on. Nothing is asked for until the slot
    /// is touched. The slot must not be open.
    Open {
        /// The slot; free, or closed as reported by [`Event::Closed`].
        slot: Slot,
        /// The bucket.
        bucket: BucketAddress,
        /// How to keep it.
        settings: SlotSettings,
    },
    /// Give everything back, release the lease and forget the slot. [`Event::Closed`] follows when
    /// the slot may be used again; at the latest when the lease has ended. Ignored for slots that
    /// are not open.
    Close {
        /// The slot.
        slot: Slot,
    },
    /// A spender's outcome said `renew`. Ignored for slots that are not open.
    Touched {
        /// The slot.
        slot: Slot,
    },
    /// A caller that found too few tokens waits for them. It counts as demand from now on; count
    /// it with [`LeaseCell::refuse`] if and only if its wait ends without tokens.
    Waiting {
        /// The slot.
        slot: Slot,
        /// What it wants to spend.
        cost: Tokens,
    },
    /// A caller announced by [`Input::Waiting`] waits no longer: it was served or gave up.
    WaitOver {
        /// The slot.
        slot: Slot,
        /// The cost as announced.
        cost: Tokens,
    },
    /// The authority said something in the present stream.
    Answer {
        /// The newest anchor that the authority had received, echoed with the answers.
        anchor: MessageNumber,
        /// The answer.
        answer: Answer,
    },
    /// The slot's policy was changed: new settings, and every earlier refusal is void. Ignored for
    /// slots that are not open.
    PolicyChanged {
        /// The slot.
        slot: Slot,
        /// How to keep it from now on.
        settings: SlotSettings,
    },
    /// Close every slot; [`Event::Drained`] follows the last [`Event::Closed`].
    Shutdown,
    /// Time has passed: [`crate::holder::Holder::next_deadline`] is due.
    Tick,
}

/// A message to the authority. One without items is a heartbeat: its number is the news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderMessage {
    /// This message's number; the send time is the `now` that it was polled with.
    pub number: MessageNumber,
    /// Buckets mentioned for the first time in this stream, before they are used.
    pub introductions: Vec<Introduction>,
    /// Reports and wishes.
    pub requests: Vec<LeaseRequest>,
}

/// Something that the driver should tell its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Tokens arrived: callers that wait on this slot may try again.
    Wake {
        /// The slot.
        slot: Slot,
        /// The policy version that the lease belongs to.
        version: PolicyVersion,
    },
    /// The authority has no tokens for this slot now, or never will.
    Refused {
        /// The slot.
        slot: Slot,
        /// Why.
        cause: Cause,
    },
    /// The slot is forgotten; its cell is empty and may serve another bucket.
    Closed {
        /// The slot.
        slot: Slot,
    },
    /// The stream has used up its key numbers: open another one.
    Reconnect,
    /// Every slot is closed after [`Input::Shutdown`].
    Drained,
}

/// Why the authority gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The quota is exhausted. The wish waits at the authority; tokens may come before `until`.
    Exhausted {
        /// When its turn comes at the latest if nobody else asks for more.
        until: Timestamp,
    },
    /// The authority has no such policy, or one with other key dimensions: wait for the next
    /// policy set.
    UnknownPolicy,
    /// No single request may cost this much.
    CostAboveCapacity {
        /// The most that the bucket can grant at once.
        capacity: Tokens,
    },
    /// The authority is overloaded; the machine asks again by itself.
    Busy {
        /// When.
        until: Timestamp,
    },
}

/// A lease as the machine accounts for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The lease.
    pub id: LeaseId,
    /// The policy version that it belongs to.
    pub version: PolicyVersion,
    /// Running total granted.
    pub granted: Tokens,
    /// Running total returned.
    pub returned: Tokens,
    /// Running total reported spent.
    pub reported: Tokens,
    /// Until when its tokens may be spent.
    pub deadline: Timestamp,
    /// True while its tokens are in the cell.
    pub live: bool,
}

/// Counts since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HolderStats {
    /// Requests made.
    pub requests: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Tokens that became spendable.
    pub granted: Tokens,
    /// Answers dropped for an unknown anchor, key or sequence.
    pub answers_dropped: u64,
}
