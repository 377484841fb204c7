//! What to run, and what came of it.

use std::collections::BTreeMap;

use crate::coverage::Coverage;
use crate::shape::Fault;

/// A run: a seed, and what is left out of the world that the seed describes. Leaving something out
/// changes what chance decides afterwards, so it is another run, but the same every time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything that is not decided here.
    pub seed: u64,
    /// Another course of events in the same world; zero is the seed's own.
    pub salt: u64,
    /// Faults that do not strike.
    pub without: Vec<Fault>,
    /// At most so many holders.
    pub clients: Option<u64>,
    /// At most so many policies, of two buckets each.
    pub policies: Option<usize>,
    /// No message is lost, doubled or slow, nobody is preempted, and no request needs two buckets.
    pub calm: bool,
    /// The run ends at this true time, in nanoseconds, whatever is going on.
    pub until: Option<u64>,
    /// A deliberate fault of the world.
    pub sabotage: Sabotage,
    /// Print what happens.
    pub print: bool,
}

impl Plan {
    /// All that a seed means.
    #[must_use]
    pub const fn of_seed(seed: u64, sabotage: Sabotage) -> Self {
        Self {
            seed,
            salt: 0,
            without: Vec::new(),
            clients: None,
            policies: None,
            calm: false,
            until: None,
            sabotage,
            print: false,
        }
    }
}

/// A deliberate fault of the world itself, outside of the shipped code, that the checks must
/// catch: it shows that they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None: the world is as the core may expect it to be.
    None,
    /// The oracle believes in half the capacity.
    StricterOracle,
    /// The store acknowledges a write before it is durable, and a crash loses it.
    EarlyAcknowledge,
    /// The store acknowledges a batch of which it has kept only the first half.
    TornBatch,
    /// The store accepts the records of an owner that has been replaced.
    NoFence,
    /// A settling that an owner asked for before it was replaced settles its successor.
    LateSettle,
    /// The network rewrites every anchor to the newest message that the holder has sent.
    NewestAnchor,
    /// Holders' clocks run at half speed, far outside of the bound.
    SlowHolders,
    /// Holders' clocks stand still while their machine is suspended.
    HolderClockStops,
    /// An authority's clock stands still while its machine is suspended, and its wall clock does
    /// not tell.
    AuthorityClockStops,
    /// A claim tells of no earlier tenures.
    ForgottenTenures,
    /// A claim reads policies without their former versions.
    ForgottenFormers,
    /// Reservations are not read back at a claim.
    ForgottenRecords,
    /// A hand-over is read by the claim after next too.
    HandOverTwice,
    /// An owner counts its tenure from when the store's answer arrived.
    TenureFromAnswer,
    /// An owner does not look at its tenure before it decides.
    TenureUnchecked,
    /// Holders read the clock before the debit; a process that is paused in between goes on with
    /// what it read.
    ClockBeforeDebit,
    /// What a liar returned is spent all the same.
    LiarSpendsReturns,
}

/// What broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The invariant.
    pub invariant: &'static str,
    /// When, in true nanoseconds.
    pub at: u64,
    /// The numbers.
    pub what: String,
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Inputs handled by the shipped core.
    pub events: u64,
    /// Faults that struck, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// The situations reached.
    pub coverage: Coverage,
    /// The first thing that broke.
    pub failure: Option<Failure>,
    /// The hash of all that happened.
    pub hash: u64,
}
