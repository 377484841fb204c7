//! What callers and the driver share.
//!
//! Callers read and spend; the driver installs and frees. What callers have to tell the driver
//! goes through one bounded queue, so that a key is always announced before anyone touches it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use arc_swap::ArcSwap;
use quota_core::holder::{Slot, SlotSettings};
use quota_core::key::BucketAddress;
use quota_core::time::Timestamp;
use tokio::sync::Notify;

use crate::config::Config;
use crate::fingerprint::{Fingerprint, FingerprintKey};
use crate::names::{Names, PolicyNumber};
use crate::rules::Rules;
use crate::stats::{Counter, Counters, Stats};
use crate::table::Table;
use crate::waiters::Waiters;

/// Signals that the queue to the driver holds. Each slot sends at most one renewal until its next
/// grant, so only a burst over more keys than this overflows it; then the driver looks through
/// the table instead.
const SIGNALS_MAX: usize = 1 << 14;

/// Clients made by this process.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// What a caller tells the driver.
#[derive(Debug)]
pub(crate) enum Signal {
    /// A key has a slot now.
    Open(Box<Opening>),
    /// A spender was told to ask for a renewal.
    Touched(Slot),
    /// An idle key is to make room.
    Close(Slot),
}

/// A key's first touch.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) slot: Slot,
    pub(crate) policy: PolicyNumber,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) bucket: BucketAddress,
    pub(crate) settings: SlotSettings,
}

/// How the client stands with the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not connected, and the present attempt has not failed yet.
    Connecting,
    /// Connected.
    Up,
    /// Not connected, and the last attempt failed. Attempts go on for ever.
    Down,
}

impl Link {
    const fn code(self) -> u8 {
        match self {
            Self::Connecting => 0,
            Self::Up => 1,
            Self::Down => 2,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Up,
            2 => Self::Down,
            _ => Self::Connecting,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) key: FingerprintKey,
    pub(crate) names: Names,
    pub(crate) table: Table,
    pub(crate) waiters: Waiters,
    pub(crate) counters: Counters,
    /// Wakes the driver.
    pub(crate) wake: Notify,
    /// Wakes callers that wait for policies, for room in the table, or for the link.
    pub(crate) changed: Notify,
    standing: Standing,
    rules: ArcSwap<Rules>,
    signals: SyncSender<Signal>,
    overflowed: AtomicBool,
    heard_at: AtomicU64,
    /// Tells this client from every other of the process.
    number: u64,
}

/// What every decision reads and hardly anything writes: on cache lines of its own, since what
/// the driver writes at each message would otherwise cost every caller a miss.
#[repr(align(128))]
#[derive(Debug)]
struct Standing {
    /// Counts the changes of the rules, of which the closing is one: what was worked out under
    /// another generation no longer holds.
    generation: AtomicU64,
    link: AtomicU8,
    closed: AtomicBool,
}

/// The rules as a thread has last seen them.
struct Seen {
    client: u64,
    generation: u64,
    rules: Arc<Rules>,
}

thread_local! {
    /// Of the client that the thread has asked last. Saves two locked operations per decision;
    /// keeps those rules in memory until the thread ends or asks again.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
}

impl Shared {
    /// The shared state, and the driver's end of the queue.
    pub(crate) fn new(config: Config, key: (u64, u64)) -> (Arc<Self>, Receiver<Signal>) {
        let (signals, receiver) = sync_channel(SIGNALS_MAX);
        let shared = Self {
            key: FingerprintKey::new(key),
            names: Names::default(),
            table: Table::new(config.keys_max),
            waiters: Waiters::new(config.waiters_max),
            counters: Counters::default(),
            wake: Notify::new(),
            changed: Notify::new(),
            rules: ArcSwap::default(),
            standing: Standing {
                generation: AtomicU64::new(0),
                link: AtomicU8::new(Link::Connecting.code()),
                closed: AtomicBool::new(false),
            },
            signals,
            overflowed: AtomicBool::new(false),
            heard_at: AtomicU64::new(0),
            number: CLIENTS.fetch_add(1, Ordering::Relaxed),
            config,
        };
        (Arc::new(shared), receiver)
    }

    /// Tells the driver; false if the queue is full or the driver has gone. Wakes nobody.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        match self.signals.try_send(signal) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.overflowed.store(true, Ordering::Release);
                false
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    /// True once after signals were lost.
    pub(crate) fn take_overflowed(&self) -> bool {
        self.overflowed.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn rules(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// Lends out the rules in force, from the calling thread's memory if it has seen them.
    #[inline]
    pub(crate) fn with_rules<T>(&self, work: impl FnOnce(&Rules) -> T) -> T {
        // Read before the rules: those may then be newer, and are read again next time.
        let generation = self.rules_generation();
        // Taken out rather than borrowed, so that work which asks again finds nothing and is safe.
        let seen = SEEN.try_with(Cell::take).ok().flatten();
        let seen = match seen {
            Some(seen) if seen.client == self.number && seen.generation == generation => seen,
            _ => self.look(generation),
        };
        let result = work(&seen.rules);
        // At the end of the thread there is nowhere to keep them.
        let _kept = SEEN.try_with(|place| place.set(Some(seen))).is_ok();
        result
    }

    #[cold]
    fn look(&self, generation: u64) -> Seen {
        Seen {
            client: self.number,
            generation,
            rules: self.rules.load_full(),
        }
    }

    #[inline]
    pub(crate) fn rules_generation(&self) -> u64 {
        self.standing.generation.load(Ordering::Acquire)
    }

    pub(crate) fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        self.standing.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        // Whoever waits for tokens may be admitted, or refused, under the new rules.
        self.waiters.wake_all();
        self.wake.notify_one();
    }

    #[inline]
    pub(crate) fn link(&self) -> Link {
        Link::from_code(self.standing.link.load(Ordering::Acquire))
    }

    pub(crate) fn set_link(&self, link: Link) {
        if self.standing.link.swap(link.code(), Ordering::AcqRel) != link.code() {
            self.changed.notify_waiters();
            self.waiters.wake_all();
        }
        if link == Link::Up {
            self.counters.add(Counter::Connects, 1);
        }
    }

    /// When the authority last said anything.
    pub(crate) fn heard_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.heard_at.load(Ordering::Acquire))
    }

    pub(crate) fn note_heard(&self, now: Timestamp) {
        self.heard_at.store(now.as_nanos(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.standing.closed.load(Ordering::Acquire)
    }

    /// Nothing is admitted from here on.
    pub(crate) fn refuse_all(&self) {
        self.standing.closed.store(true, Ordering::Release);
        self.standing.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        self.waiters.wake_all();
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters
            .read(self.table.len(), u64::from(self.table.capacity()))
    }
}
