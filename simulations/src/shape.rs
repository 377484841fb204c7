//! What a seed decides before its world begins: sizes, speeds, and which faults are on.
//!
//! Swarm style: every seed turns some faults on and others off, since a world in which everything
//! goes wrong all the time hides what only one fault would show. Sizes are biased towards trouble:
//! small capacities, terms near the round trip.

use quota_core::policy::{Durability, LeaseSpec, LimitSpec, OverrideSpec, PolicySpec};
use quota_core::time::{DriftAllowance, Term};

use crate::random::Random;
use crate::world::Plan;

/// Nanoseconds in a millisecond.
pub const MILLI: u64 = 1_000_000;

/// How messages travel.
#[derive(Clone, Copy, Debug)]
pub struct NetworkShape {
    /// Mean of the usual delay, in nanoseconds.
    pub delay: u64,
    /// Per mille of messages that take much longer.
    pub slow_per_mille: u64,
    /// How long those take at most.
    pub slow: u64,
    /// Per mille lost.
    pub lost_per_mille: u64,
    /// Per mille delivered twice.
    pub twice_per_mille: u64,
    /// Within a stream and direction, messages arrive in order and none is lost unless the stream
    /// breaks, as on a real connection.
    pub ordered: bool,
}

/// Declares the faults with their names.
macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// Faults that strike at random moments; each is on or off in a seed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        /// All faults.
        pub const FAULTS: &[Fault] = &[$(Fault::$name,)*];

        impl Fault {
            /// The name under which it is counted.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    /// The authority's process dies and starts again at once or later.
    AuthorityCrash: "authority crash",
    /// Two or three crashes within a term.
    AuthorityCrashTwice: "authority crash, twice",
    /// The authority crashes right after its next grant.
    CrashAfterGrant: "crash after grant",
    /// The authority's machine reboots: another boot, another clock.
    AuthorityReboot: "authority reboot",
    /// A planned hand-over.
    HandOver: "hand-over",
    /// A planned hand-over whose reader dies after it has consumed the marker.
    HandOverLost: "hand-over lost",
    /// The authority's process stands still while its clock goes on.
    AuthorityPause: "authority pause",
    /// What the authority decides from now on is sent, and written, only later; often so late
    /// that another one has taken over.
    AuthorityStall: "authority stall",
    /// The authority's machine is suspended: its clock goes on, its streams do not survive.
    AuthoritySuspend: "authority suspend",
    /// Nothing passes between the authority and the store, while holders still reach it.
    StoreCutOff: "store cut off",
    /// The authority's wall clock jumps ahead.
    WallStep: "wall step",
    /// A holder dies and starts again with a new incarnation.
    HolderCrash: "holder crash",
    /// A holder's machine reboots: another incarnation on another clock.
    HolderReboot: "holder reboot",
    /// A holder gives everything back and starts again.
    HolderShutdown: "holder shutdown",
    /// A holder stands still while its clock goes on.
    HolderPause: "holder pause",
    /// A holder's machine is suspended: its clock goes on, its stream does not survive.
    HolderSuspend: "holder suspend",
    /// No messages between one holder and the authority, in one direction or both.
    Partition: "partition",
    /// A stream breaks.
    StreamBreak: "stream break",
    /// A holder gives up a slot and uses it for another bucket.
    Evict: "eviction",
    /// A policy changes: limit, lease settings, durability, overrides.
    PolicyChange: "policy change",
    /// A policy is toggled between two limits a few times.
    PolicyToggle: "policy toggle",
    /// A policy is deleted, and created again later.
    PolicyDelete: "policy deletion",
    /// The lease settings alone change: horizon, share, term, idle return, warm floor.
    LeaseSettings: "lease settings",
    /// Somebody who speaks the protocol and lies: see the world's `liar`.
    Liar: "liar",
    /// Somebody names many more keys than the authority has room for.
    KeyFlood: "key flood",
}

impl Fault {
    /// Its name as an argument of the command line.
    #[must_use]
    pub fn flag(self) -> String {
        self.name().replace(", ", "-").replace(' ', "-")
    }
}

/// How callers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// One after another, this far apart on average.
    Steady {
        /// Nanoseconds.
        gap: u64,
    },
    /// Nobody for a while, then many at once.
    Burst {
        /// Nanoseconds between bursts.
        every: u64,
        /// Callers of one burst.
        size: u64,
    },
    /// Shows demand, spends nothing until the lease's last tick, then drains it.
    Hoard {
        /// Nanoseconds between shows of demand.
        gap: u64,
    },
}

/// Everything that a seed decides in advance.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Holders.
    pub clients: u64,
    /// Policies; each has two keys.
    pub policies: Vec<PolicySpec>,
    /// The allowance that the authority makes for drift.
    pub drift: DriftAllowance,
    /// Nodes' clocks drift by at most this, in millionths.
    pub drift_ppm: i64,
    /// False if only holders drift, which makes the oracle exact.
    pub authority_drifts: bool,
    /// The network.
    pub network: NetworkShape,
    /// The faults that are on.
    pub faults: Vec<Fault>,
    /// Mean nanoseconds between faults.
    pub fault_gap: u64,
    /// Length of the fault phase in nanoseconds.
    pub fault_phase: u64,
    /// How long an owner that the store has not heard keeps the shard, in nanoseconds of its own
    /// clock; `None` if the shard is owned by lock. See [`crate::server`].
    pub tenure: Option<u64>,
    /// Most buckets that an authority has room for.
    pub buckets_max: u32,
    /// How long a write takes on average, in nanoseconds.
    pub write_time: u64,
    /// Per mille of writes that fail or have an unknown outcome.
    pub write_trouble_per_mille: u64,
    /// Check every bucket after every event, which settles it promptly; otherwise now and then.
    pub prompt: bool,
    /// Answers travel one by one instead of together.
    pub split_answers: bool,
    /// Per mille of callers that ask for two buckets at once.
    pub pairs_per_mille: u64,
    /// Per mille of spenders that are preempted between debit and clock.
    pub preempted_per_mille: u64,
    /// Whole-request costs go up to this.
    pub cost_max: u64,
    /// Per mille of messages that their receiver handles twice at once, to see that the second time
    /// changes nothing.
    pub repeated_per_mille: u64,
    /// Term of the first policies, in nanoseconds.
    pub term: u64,
}

impl Shape {
    /// The shape of a seed.
    pub fn draw(random: &mut Random) -> Self {
        let term = MILLI * random.pick(&[100, 150, 300, 700, 1_500, 4_000, 10_000]);
        let delay = (MILLI / 10 * random.pick(&[1, 5, 20, 100, 400])).min(term / 4);
        let cost_max = random.pick(&[1, 1, 1, 2, 5, 20]);
        let policies = 1 + random.below(3);
        let policies = (0..policies).map(|n| draw_policy(random, n, term, cost_max));
        let policies: Vec<_> = policies.collect();
        let some = random.pick(&[0, 150, 400, 1000]);
        let faults = FAULTS.iter().copied();
        let mut faults: Vec<Fault> = faults.filter(|_| random.chance(some)).collect();
        if faults.contains(&Fault::Liar) || faults.contains(&Fault::KeyFlood) {
            // The liar's account follows what an operator sees of a bucket, and of a deleted
            // policy's nothing is seen.
            faults.retain(|fault| *fault != Fault::PolicyDelete);
        }
        let write_time = MILLI / 10 * random.pick(&[1, 10, 50, 300]);
        let tenure = random
            .pick(&[term / 4, term, term * 2])
            .max(12 * write_time);
        let tenure = random.chance(500).then_some(tenure);
        let flooded = faults.contains(&Fault::KeyFlood);
        let buckets_max = if flooded { 8 + random.below(24) } else { 1_000 };
        let stretched = term + term / 4;
        Self {
            clients: random.between(1, 5),
            policies,
            drift: DriftAllowance {
                per_mille: 250,
                margin: Term::from_nanos(MILLI * random.pick(&[0, 5, 50])),
            },
            drift_ppm: random.pick(&[0, 100, 100_000]),
            authority_drifts: random.chance(300),
            network: NetworkShape {
                delay,
                slow_per_mille: random.pick(&[0, 0, 20, 200]),
                slow: random.pick(&[term / 2, term * 2]),
                lost_per_mille: random.pick(&[0, 0, 10, 150]),
                twice_per_mille: random.pick(&[0, 0, 10, 150]),
                ordered: random.chance(400),
            },
            faults,
            fault_gap: random.pick(&[term / 4, term, term * 3]),
            fault_phase: (stretched * 8).clamp(2_000 * MILLI, 40_000 * MILLI),
            tenure,
            buckets_max: u32::try_from(buckets_max).expect("small"),
            write_time,
            write_trouble_per_mille: random.pick(&[0, 0, 10, 100]),
            prompt: random.chance(500),
            split_answers: random.chance(300),
            pairs_per_mille: random.pick(&[0, 100, 400]),
            preempted_per_mille: random.pick(&[0, 0, 50]),
            cost_max,
            repeated_per_mille: random.pick(&[0, 50]),
            term,
        }
    }

    /// Leaves out what a plan leaves out.
    pub fn tailor(&mut self, plan: &Plan) {
        self.faults.retain(|fault| !plan.without.contains(fault));
        self.clients = self.clients.min(plan.clients.unwrap_or(u64::MAX)).max(1);
        let policies = plan.policies.unwrap_or(usize::MAX).max(1);
        self.policies.truncate(policies);
        if plan.calm {
            self.network.slow_per_mille = 0;
            self.network.lost_per_mille = 0;
            self.network.twice_per_mille = 0;
            self.preempted_per_mille = 0;
            self.pairs_per_mille = 0;
            self.repeated_per_mille = 0;
        }
    }
}

fn draw_policy(random: &mut Random, number: u64, term: u64, cost_max: u64) -> PolicySpec {
    let mut spec = PolicySpec::new(&format!("p{number}"), &["k"], draw_limit(random));
    spec.cost.max = (cost_max > 1 || random.chance(500)).then_some(cost_max);
    redraw_rest(random, &mut spec, term);
    spec
}

/// A limit: mostly small, refilled within a fraction of a second up to minutes.
pub fn draw_limit(random: &mut Random) -> LimitSpec {
    let burst = random.pick(&[1, 2, 3, 5, 6, 8, 10, 20, 50, 100, 1_000]);
    let refill = MILLI * random.pick(&[200, 700, 1_300, 5_000, 20_000, 90_000]);
    let tokens = match random.below(3) {
        0 => burst,
        1 => 7,
        _ => 1 + burst / 2,
    };
    // `tokens` per `period` so that `burst` refills in about `refill`.
    let period = (refill / burst * tokens).clamp(MILLI, 86_400_000 * MILLI);
    LimitSpec::new(tokens, Term::from_nanos(period)).with_burst(burst)
}

/// Lease settings, drawn anew.
pub fn redraw_lease(random: &mut Random, spec: &mut PolicySpec, term: u64) {
    let term = random.pick(&[term, term, term * 2, (term / 3).max(100 * MILLI)]);
    spec.lease = LeaseSpec {
        share_per_mille: random.pick(&[1, 300, 500, 800, 800, 1000]),
        horizon: Term::from_nanos(random.pick(&[10 * MILLI, 100 * MILLI, 500 * MILLI, 2 * term]))
            .into(),
        term_max: Term::from_nanos(term).into(),
        idle_return: Term::from_nanos((term * random.pick(&[1, 2, 8]) / 4).max(10 * MILLI)).into(),
        warm_floor: random.pick(&[0, 0, 1]),
    };
}

/// Lease settings, durability and overrides, drawn anew.
pub fn redraw_rest(random: &mut Random, spec: &mut PolicySpec, term: u64) {
    redraw_lease(random, spec, term);
    spec.durability = random.pick(&[
        Durability::Auto,
        Durability::Auto,
        Durability::Reserved,
        Durability::Volatile,
    ]);
    let overridden = random.chance(200);
    spec.overrides = Vec::new();
    if overridden {
        spec.overrides.push(OverrideSpec {
            key: vec!["a".into()],
            limit: draw_limit(random),
        });
    }
}
