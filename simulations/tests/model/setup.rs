//! What a run of the checker tries: the bucket, the bounds, and possibly a mistake.

use quota_core::id::PolicyVersion;
use quota_core::key::{BucketAddress, Key};
use quota_core::policy::{Durability, Limit, LimitSpec, PolicyHistory, PolicySpec};
use quota_core::time::Term;

use super::world::QUANTUM;

/// Something that the world around the machines does wrong, to see that the checker notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A take-over is not told of the tenures before it, so it counts nothing as out.
    GhostOfZero,
    /// A delayed answer is dated by the newest message that the holder has sent.
    NewestAnchor,
    /// A write is acknowledged at once and lost in a crash.
    EarlyAcknowledge,
    /// A take-over does not read the records back.
    ForgottenRecords,
    /// A take-over is told of one tenure before it, however many there were.
    SecondTenureForgotten,
}

/// The bucket and how much of everything is tried.
#[derive(Clone, Debug)]
pub struct Setup {
    pub history: PolicyHistory,
    pub mistake: Option<Mistake>,
    /// Time, in quanta.
    pub quanta: u8,
    /// Crashes of the authority, each with a take-over.
    pub crashes: u8,
    /// Restarts of holders.
    pub restarts: u8,
    /// Messages that are lost apart from those that a broken stream loses.
    pub losses: u8,
    /// Messages that arrive twice.
    pub duplicates: u8,
    /// Streams that break without a crash.
    pub reconnects: u8,
    /// Messages on their way in one direction of one stream; a further one pushes the oldest out.
    pub in_flight: usize,
    /// Messages of one direction of one stream arrive in any order.
    pub reorder: bool,
    /// Steps beyond the longest of the beginnings.
    pub depth: usize,
}

impl Setup {
    /// Two tokens, of which one may be out at a time; both refill within a quantum, so that what
    /// is wrongly granted twice can be spent before the ideal bucket has caught up.
    pub fn new(durability: Durability, quanta_per_term: u64, depth: usize) -> Self {
        let limit = LimitSpec::new(2, QUANTUM).with_burst(2);
        let mut spec = PolicySpec::new("p", &["k"], limit);
        spec.durability = durability;
        spec.cost.max = Some(1);
        spec.lease.term_max = QUANTUM.scale_up(quanta_per_term, 1).into();
        spec.lease.share_per_mille = 500;
        spec.lease.idle_return = Term::from_seconds(300).into();
        Self {
            history: PolicyHistory::create(spec, PolicyVersion::new(1)).expect("a legal policy"),
            mistake: None,
            quanta: 3,
            crashes: 1,
            restarts: 0,
            losses: 0,
            duplicates: 0,
            reconnects: 0,
            in_flight: 2,
            reorder: false,
            depth,
        }
    }

    pub fn with(mut self, mistake: Mistake) -> Self {
        self.mistake = Some(mistake);
        self
    }

    pub fn bucket(&self) -> BucketAddress {
        BucketAddress {
            policy: self.history.id().clone(),
            key: Key::from_values(&["k"]).expect("short"),
        }
    }

    pub fn limit(&self) -> Limit {
        let policy = self.history.current().expect("it is in force");
        *policy.limit_for(&self.bucket().key)
    }
}
