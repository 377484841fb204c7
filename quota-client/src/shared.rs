//! What callers and the driver share.
//!
//! Callers read and spend; the driver installs and frees. What callers have to tell the driver
//! goes through one bounded queue, so that a key is always announced before anyone touches it.

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
    rules: ArcSwap<Rules>,
    /// Which rules are in force: counts their changes.
    generation: AtomicU64,
    signals: SyncSender<Signal>,
    overflowed: AtomicBool,
    link: AtomicU8,
    heard_at: AtomicU64,
    closed: AtomicBool,
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
            generation: AtomicU64::new(0),
            signals,
            overflowed: AtomicBool::new(false),
            link: AtomicU8::new(Link::Connecting.code()),
            heard_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
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

    #[inline]
    pub(crate) fn rules(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    #[inline]
    pub(crate) fn rules_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        self.wake.notify_one();
    }

    pub(crate) fn link(&self) -> Link {
        Link::from_code(self.link.load(Ordering::Acquire))
    }

    pub(crate) fn set_link(&self, link: Link) {
        if self.link.swap(link.code(), Ordering::AcqRel) != link.code() {
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

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Nothing is admitted from here on.
    pub(crate) fn refuse_all(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_waiters();
        self.waiters.wake_all();
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters
            .read(self.table.len(), u64::from(self.table.capacity()))
    }
}
