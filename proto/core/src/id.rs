//! Identities: who holds, which tenure granted, which lease, which message.

use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw number.
            #[must_use]
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            /// The raw number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One life of one holder: a random number drawn at start, and again after a fork or a
    /// restored snapshot. Leases are bound to it.
    Incarnation(u64)
}

number! {
    /// The number of a holder's message, unique within its incarnation and growing. As an
    /// *anchor* it dates the terms of the grants that echo it. Zero is never sent.
    MessageNumber(u64)
}

number! {
    /// The number of a holder's request for one bucket. It grows within an incarnation; a repeat
    /// is a retry and never grants twice. Zero is never sent.
    Sequence(u64)
}

number! {
    /// An ownership tenure of a shard; only grows.
    Epoch(u64)
}

number! {
    /// The version of a policy: the store-wide revision at which it was written, so that it only
    /// grows, across deletion and re-creation too.
    PolicyVersion(u64)
}

number! {
    /// A key's interned number within one stream, chosen by the holder at first mention and never
    /// reused within that stream.
    KeyNumber(u32)
}

number! {
    /// A group of buckets that is served together.
    ShardId(u32)
}

impl MessageNumber {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("a holder sends fewer than 2^64 messages"),
        )
    }
}

impl Sequence {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("a holder sends fewer than 2^64 requests"),
        )
    }
}

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("a shard has fewer than 2^64 tenures"),
        )
    }
}

/// A lease's identity: the epoch that opened it and a counter within that epoch. Never used again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LeaseId {
    /// The tenure in which the lease was opened.
    pub epoch: Epoch,
    /// Counts the leases of that tenure and shard, from one.
    pub counter: u64,
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch, self.counter)
    }
}
