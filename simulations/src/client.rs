//! A holder's node: the shipped machine and cells, and the callers that spend.

use quota_core::authority::StreamId;
use quota_core::cell::{LeaseCell, Receipt};
use quota_core::holder::{Cells, Holder, HolderConfig, Slot};
use quota_core::id::{Incarnation, KeyNumber, MessageNumber, Sequence};
use quota_core::tokens::Tokens;

use crate::clock::NodeClock;
use crate::shape::Caller;

/// The table of cells; they never move.
#[derive(Debug)]
pub struct Table(Vec<LeaseCell>);

impl Table {
    /// A table of empty cells.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| LeaseCell::new()).collect())
    }
}

impl Cells for Table {
    fn cell(&self, slot: Slot) -> &LeaseCell {
        &self.0[usize::try_from(slot.index()).expect("a small table")]
    }
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing.
    Free,
    /// A bucket, by its place in the world.
    Bucket(usize),
    /// It was given up and is not closed yet.
    Closing(usize),
}

/// A caller that waits for tokens.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The bucket.
    pub bucket: usize,
    /// The slot in which the wait was announced.
    pub slot: Slot,
    /// What it wants to spend.
    pub cost: Tokens,
    /// When it began to wait, in true time.
    pub since: u64,
    /// When it gives up, in true time.
    pub until: u64,
}

/// How far a client's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No stream.
    Down,
    /// Asked for one.
    Connecting(StreamId),
    /// A stream is up.
    Up(StreamId),
}

/// The node.
#[derive(Debug)]
pub struct Client {
    /// Its clock; keeps running across restarts of the process.
    pub clock: NodeClock,
    /// The machine.
    pub holder: Holder,
    /// The cells.
    pub table: Table,
    /// What each slot is used for.
    pub uses: Vec<Use>,
    /// Its stream.
    pub link: Link,
    /// The node that its stream goes to.
    pub node: usize,
    /// What it sent last for each key number of its stream: the sequence number, and the first and
    /// the last message that carried it.
    pub sent: Vec<(KeyNumber, Sequence, [MessageNumber; 2])>,
    /// Counts its lives.
    pub life: u64,
    /// False between a crash and the restart.
    pub alive: bool,
    /// Gives everything back and starts no new work.
    pub draining: bool,
    /// It handles nothing before this moment.
    pub paused_until: u64,
    /// When its next tick is scheduled.
    pub tick_at: Option<u64>,
    /// Waiting callers, in order.
    pub waiters: Vec<Waiter>,
    /// Roll-backs to be made later.
    pub receipts: Vec<(Slot, Receipt)>,
    /// How callers come, by bucket.
    pub callers: Vec<Caller>,
    /// The newest message that it sent.
    pub newest: MessageNumber,
    /// The machine's count of dropped answers and retries that coverage has seen.
    pub seen: (u64, u64),
}

impl Client {
    /// Starts a new life of the process.
    pub fn restart(&mut self, incarnation: u64, slots: usize) {
        self.holder = machine(incarnation, slots);
        self.table = Table::new(slots);
        self.uses = vec![Use::Free; slots];
        self.link = Link::Down;
        self.alive = true;
        self.draining = false;
        self.tick_at = None;
        self.waiters.clear();
        self.receipts.clear();
        self.newest = MessageNumber::default();
        self.sent.clear();
        self.seen = (0, 0);
    }

    /// The slot that serves a bucket.
    #[must_use]
    pub fn slot_of(&self, bucket: usize) -> Option<Slot> {
        let place = self.uses.iter().position(|u| *u == Use::Bucket(bucket))?;
        Some(Slot::new(u32::try_from(place).expect("a small table")))
    }
}

/// A fresh holder machine.
#[must_use]
pub fn machine(incarnation: u64, slots: usize) -> Holder {
    Holder::new(HolderConfig {
        incarnation: Incarnation::new(incarnation),
        slots_max: u32::try_from(slots).expect("a small table"),
    })
}
