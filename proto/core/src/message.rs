//! What holders and authorities say to each other, free of any encoding.
//!
//! A holder's message carries a number; the authority's answers echo the highest number that it
//! had received from that incarnation when it decided, the *anchor*. The holder counts every term
//! from when it sent the anchor, so that it has always stopped before the authority reclaims.

use crate::id::{KeyNumber, LeaseId, PolicyVersion, Sequence};
use crate::key::BucketAddress;
use crate::time::Term;
use crate::tokens::Tokens;

/// Most tokens that one lease may hold at a time; what the client's packed word has room for.
pub const HELD_MAX: Tokens = Tokens::new((1 << 28) - 1);
/// Most tokens that one request may cost.
pub const COST_MAX: Tokens = Tokens::new(1 << 20);
/// Highest demand that is taken at face value, in tokens per second; more is read as this much.
pub const DEMAND_MAX: u64 = 1 << 40;

/// The first mention of a bucket in a stream: from here on the number stands for the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Chosen by the holder, never reused within the stream.
    pub number: KeyNumber,
    /// The bucket it stands for.
    pub bucket: BucketAddress,
}

/// One holder's report on one bucket, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The bucket, by its number in this stream.
    pub key: KeyNumber,
    /// Grows with every new request of this incarnation for this bucket; a retry repeats it.
    pub sequence: Sequence,
    /// The lease that the counters belong to; `None` opens a new one.
    pub lease: Option<LeaseId>,
    /// Tokens of that lease spent so far: a running total of what can never come back.
    pub spent: Tokens,
    /// Tokens of that lease returned so far: a running total of what the holder has already put
    /// out of its own reach.
    pub returned: Tokens,
    /// Further tokens asked for; zero only reports.
    pub want: Tokens,
    /// The smallest grant that is of use, at most `want`.
    pub least: Tokens,
    /// Tokens per second that callers ask this holder for, refused ones included.
    pub demand: u64,
    /// The lease is over: these counters are final, and what is neither spent nor returned is
    /// gone.
    pub release: bool,
}

/// Tokens in a lease, as running totals: repeated or late answers change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease. Tokens merge only within one lease.
    pub lease: LeaseId,
    /// All tokens ever granted to this lease.
    pub granted: Tokens,
    /// For how long, counted by the holder from when it sent the echoed anchor.
    pub term: Term,
    /// When the bucket will be full if nobody reports what was spent, counted from the answer.
    /// From then on its refill is lost, so a report is worth a message of its own. Zero if it is
    /// not: the bucket is asked for less than it refills. Advice only: nothing depends on it.
    pub headroom: Term,
    /// The policy version that the lease belongs to.
    pub version: PolicyVersion,
}

/// What became of a request's wish for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request is done: nothing of it waits at the authority.
    Done,
    /// The request waits its turn at the authority; a push with the same sequence will answer it.
    Queued {
        /// When its turn comes at the latest if nobody else asks for more.
        retry_after: Term,
    },
    /// The request was refused and nothing of it waits.
    Refused(Refusal),
    /// The authority asks the holder to return what it holds beyond `keep`.
    Recall {
        /// What the holder may keep.
        keep: Tokens,
    },
}

/// Why a request was refused. Every reason carries what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The authority has no such policy: wait for the next policy set.
    UnknownPolicy,
    /// The number was never introduced in this stream, or its bucket was forgotten since:
    /// introduce it again under a new number.
    UnknownKey,
    /// The key has another number of values than the policy has key dimensions: the holder works
    /// with another policy set, and waits for the next one.
    KeyMismatch {
        /// How many the policy has.
        dimensions: u32,
    },
    /// The smallest useful grant is more than this bucket can ever grant at once.
    CostAboveCapacity {
        /// The most that it can grant at once.
        capacity: Tokens,
    },
    /// The authority cannot take more work now.
    Busy {
        /// Ask again after this.
        retry_after: Term,
    },
}

/// One answer to a holder about one bucket: a reply to a request, or a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The bucket, by its number in this stream.
    pub key: KeyNumber,
    /// The sequence number of the latest request that this answers.
    pub sequence: Sequence,
    /// The lease as it stands after the decision, if there is one.
    pub grant: Option<Grant>,
    /// What became of the wish for tokens.
    pub status: Status,
}
