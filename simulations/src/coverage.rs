//! For each *always* a *sometimes*: whether the situations that a check is about were reached.

/// Declares the situations with their names.
macro_rules! situations {
    ($($name:ident: $text:literal,)*) => {
        /// A situation worth reaching.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the text beside each says it")]
        pub enum Sometimes { $($name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

situations! {
    MessageLost: "message lost",
    MessageDuplicated: "message duplicated",
    MessageOvertaken: "message overtaken by a later one",
    OneWayPartition: "one-way partition",
    FullPartition: "full partition",
    StreamReplaced: "new stream before the old one's end was noticed",
    AuthorityCrash: "authority crashed",
    TakeOverWithLeasesOut: "take-over with tokens in holders' hands",
    SecondCrashUnsettled: "second crash before the shard had settled",
    ThirdCrashUnsettled: "third crash before the shard had settled",
    CrashRightAfterGrant: "crash right after a grant",
    CrashWithWriteInFlight: "crash with a record in flight",
    LostWrite: "record in flight lost at a crash",
    UnackedWrite: "record durable though never acknowledged",
    UnknownOutcome: "record with an unknown outcome",
    FailedWrite: "record refused by a failing store",
    LateWriteFenced: "late record of an older tenure fenced",
    Reboot: "authority on another boot",
    HandOver: "exact hand-over",
    HandOverWithLeasesOut: "exact hand-over with leases out",
    HandOverVoided: "hand-over marker consumed, then a crash",
    Settled: "shard settled",
    TenureRanOut: "owner stopped at the end of its tenure",
    TakeOverWhileOldLives: "take-over while the old owner's process lives",
    GrantedWhileCutOff: "granted while cut off from the store",
    AnsweredAfterTakeOver: "answer sent after another owner had taken over",
    WriteAfterTakeOver: "record of an owner that does not know of its successor",
    Stalled: "authority decided and sent late",
    WallJumped: "wall clock jumped ahead",
    AuthoritySuspended: "authority suspended",
    ConnectedToStandby: "holder connected to a node that owns nothing",
    RecordRead: "reservation read back",
    HolderCrash: "holder crashed",
    HolderCrashWithTokens: "holder crashed with tokens in hand",
    HolderShutdown: "holder gave everything back",
    HolderPaused: "holder paused",
    HolderSuspended: "holder suspended",
    SuspendedPastDeadline: "holder suspended with tokens until after their deadline",
    HolderReboot: "holder on another boot",
    AuthorityPaused: "authority paused",
    PausedPastDeadline: "lease ended during a pause",
    PreemptedPastDeadline: "deadline passed between debit and clock",
    SpendEnded: "debit given up at the deadline",
    DrainedAtLastTick: "lease drained in its last tick",
    ExpiryDuringRenewal: "lease ended while its renewal was under way",
    RetrySent: "request repeated",
    RetryCrossed: "repeated request crossed its answer",
    RetryOfGranted: "repeated request answered with what was granted before",
    MessageRepeated: "message handled twice at once",
    AnswerRepeated: "answer handled twice at once",
    AnswerDropped: "answer dropped by its holder",
    Queued: "request queued",
    Pushed: "waiting request served by a push",
    WaiterServed: "waiting caller served",
    WaiterTimedOut: "waiting caller gave up",
    CostRefused: "cost above the limit refused",
    UnknownKey: "number unknown to the authority",
    UnknownPolicy: "policy unknown to the authority",
    LeaseReplaced: "lease installed over another",
    RecallSent: "tokens recalled for others who wait",
    RecallAnswered: "tokens taken out of reach for a recall",
    RolledBack: "roll-back restored",
    RollBackLost: "roll-back dropped",
    SlotReused: "slot closed and used for another bucket",
    BucketForgotten: "bucket forgotten by the authority",
    PolicyRaised: "limit raised",
    PolicyLowered: "limit lowered",
    LoweredWithLeasesOut: "limit lowered with tokens out",
    LoweredIntoDebt: "bucket owes after a lowering",
    ChangedAroundCrash: "policy changed while the authority was down",
    PolicyDeleted: "policy deleted with tokens out",
    PolicyRecreated: "policy created again with former versions",
    DurabilityChanged: "durability changed",
    LeaseSettingsChanged: "lease settings changed with tokens out",
    TermShortened: "term shortened with tokens out",
    ClassChanged: "override added or removed",
    FormersCleared: "former versions cleared",
    PolicyForgotten: "deleted policy forgotten",
    LiarGranted: "liar was granted tokens",
    LiedAboveGranted: "liar claimed more than it was granted",
    LiedAboutOthers: "liar reported on a lease of somebody else",
    LiarReplayed: "liar replayed an old message",
    LiarSameId: "liar came back under its old incarnation",
    LiarReturned: "liar's return was credited",
    LiarHoarded: "liar let a lease end unreported",
    TableFull: "authority had no room for a key",
    FloodForgotten: "flooded keys forgotten",
    Successor: "imagined successor compared with the owner",
    Measured: "bucket whose service was measured after the faults",
    IdealAtZero: "a bucket used to its last token",
}

/// How often each situation was reached.
#[derive(Clone, Debug)]
pub struct Coverage([u64; NAMES.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; NAMES.len()])
    }
}

impl Coverage {
    /// Takes note of a situation.
    pub fn hit(&mut self, situation: Sometimes) {
        self.hit_if(true, situation);
    }

    /// Takes note of a situation if `reached`.
    pub fn hit_if(&mut self, reached: bool, situation: Sometimes) {
        self.0[situation as usize] += u64::from(reached);
    }

    /// How often a situation was reached.
    #[must_use]
    pub fn count(&self, situation: Sometimes) -> u64 {
        self.0[situation as usize]
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Self) {
        for (into, from) in self.0.iter_mut().zip(other.0) {
            *into += from;
        }
    }

    /// The situations that were never reached.
    pub fn unreached(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.iter()
            .filter_map(|(name, count)| (count == 0).then_some(name))
    }

    /// All situations with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().copied().zip(self.0)
    }
}
