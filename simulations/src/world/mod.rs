//! The virtual world: one authority's node, its store, holders with callers, a network between
//! them, and a queue of events in true time.
//!
//! Everything that decides anything is the shipped core: the authority, the holder machine and the
//! lease cell's spend path. What is modelled is what the core must live with: clocks, messages,
//! processes and a store. One seed decides everything.
//!
//! - `authority_side`, `holder_side`: the drivers around the two machines
//! - `policies`: what administrators do
//! - `callers`: who spends, waits and gives up
//! - `faults`: what goes wrong, and how it is healed
//! - `event`: what can happen
//! - `checks`: the invariants
//! - `liveness`: what must be true once nothing goes wrong any more

mod authority_side;
mod callers;
mod checks;
mod event;
mod faults;
mod holder_side;
mod liveness;
mod policies;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use quota_core::authority::Effect;
use quota_core::id::{MessageNumber, PolicyVersion};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::policy::PolicyHistory;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use self::event::{DownMessage, Event, Scheduled, UpMessage, WriteFate};
use crate::client::{Client, Link, Table, Use, machine};
use crate::clock::NodeClock;
use crate::coverage::{Coverage, Sometimes};
use crate::network::Network;
use crate::oracle::IdealBucket;
use crate::random::Random;
use crate::server::Server;
use crate::shape::{Caller, MILLI, Shape};
use crate::store::ModelStore;
use crate::trace::Trace;

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
    /// The network rewrites every anchor to the newest message that the holder has sent.
    NewestAnchor,
    /// Holders' clocks run at half speed, far outside of the bound.
    SlowHolders,
    /// A claim tells of no earlier tenures.
    ForgottenTenures,
    /// A claim reads policies without their former versions.
    ForgottenFormers,
    /// Reservations are not read back at a claim.
    ForgottenRecords,
    /// Holders read the clock before the debit; a process that is paused in between goes on with
    /// what it read.
    ClockBeforeDebit,
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

/// One bucket as the world sees it from outside.
#[derive(Debug)]
struct Watched {
    address: BucketAddress,
    policy: usize,
    ideal: IdealBucket,
}

/// One policy as the world sees it from outside.
#[derive(Debug)]
struct Ruled {
    id: PolicyId,
    /// The revision that the oracle follows: the last one that an authority put in force.
    followed: PolicyVersion,
    /// The longest stretched term of all versions so far, in the authority's time.
    term: quota_core::time::Term,
}

/// The world.
#[derive(Debug)]
pub struct World {
    shape: Shape,
    sabotage: Sabotage,
    random: Random,
    time: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    store: ModelStore,
    server: Server,
    clients: Vec<Client>,
    network: Network,
    buckets: Vec<Watched>,
    policies: Vec<Ruled>,
    /// Millionths by which the oracle's clock is ahead of true time: the fastest authority.
    oracle_ppm: u64,
    streams: u64,
    boots: u128,
    healed: bool,
    measuring: Option<liveness::Measurement>,
    ended: bool,
    events: u64,
    since_checked: u64,
    faults: BTreeMap<&'static str, u64>,
    coverage: Coverage,
    trace: Trace,
    failure: Option<Failure>,
    effects: Vec<Effect>,
}

/// Runs the world of a seed to its end, or to the first thing that breaks. A panic of the shipped
/// code counts as broken.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, print: bool) -> Outcome {
    let mut world = World::new(seed, sabotage, print);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.live()));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        world.fail("an assertion of the shipped code", text.unwrap_or_default());
    }
    if let Some(failure) = &world.failure {
        let line = format!("BROKEN {}: {}", failure.invariant, failure.what);
        world.trace.say(failure.at, || line);
    }
    Outcome {
        events: world.events,
        faults: world.faults,
        coverage: world.coverage,
        failure: world.failure,
        hash: world.trace.hash(),
    }
}

impl World {
    fn new(seed: u64, sabotage: Sabotage, print: bool) -> Self {
        let mut random = Random::new(seed);
        let shape = Shape::draw(&mut random);
        let mut store = ModelStore::default();
        let mut policies = Vec::new();
        let mut buckets = Vec::new();
        for spec in &shape.policies {
            let version = store.next_version();
            let history = create_policy(spec.clone(), version);
            let place = policies.len();
            for key in ["a", "b"] {
                let address = BucketAddress {
                    policy: history.id().clone(),
                    key: Key::from_values(&[key]).expect("a short key"),
                };
                let current = history.current().expect("just created");
                let mut limit = current.limit_for(&address.key).into();
                if sabotage == Sabotage::StricterOracle {
                    limit = halved(limit);
                }
                buckets.push(Watched {
                    address,
                    policy: place,
                    ideal: IdealBucket::new(limit),
                });
            }
            policies.push(Ruled {
                id: history.id().clone(),
                followed: version,
                term: history.term_max(shape.drift),
            });
            store.put_policy(history);
        }
        let count = usize::try_from(shape.clients).expect("a few");
        let network = Network::new(shape.network, count);
        let mut world = Self {
            sabotage,
            time: 0,
            queue: BinaryHeap::new(),
            order: 0,
            store,
            server: Server {
                clock: NodeClock::new(0, 0, 0, 0),
                tenure: None,
                life: 0,
                paused_until: 0,
                tick_at: None,
                crash_after_grant: false,
                unsettled_crashes: 0,
                handed_over: false,
            },
            clients: Vec::new(),
            network,
            buckets,
            policies,
            oracle_ppm: 0,
            streams: 0,
            boots: 0,
            healed: false,
            measuring: None,
            ended: false,
            events: 0,
            since_checked: 0,
            faults: BTreeMap::new(),
            coverage: Coverage::default(),
            trace: Trace::new(print),
            failure: None,
            effects: Vec::new(),
            shape,
            random,
        };
        world.trace.say(0, || format!("{:#?}", world.shape));
        world.populate(count);
        world
    }

    fn populate(&mut self, count: usize) {
        if self.shape.authority_drifts {
            // Two clocks of different speed round their readings differently, by a nanosecond.
            self.oracle_ppm = u64::try_from(self.shape.drift_ppm).expect("not negative") + 1;
        }
        self.server.clock = self.draw_server_clock();
        for client in 0..count {
            let drift = self.draw_drift(true);
            let reading = self.random.below(1 << 40);
            let incarnation = self.random.bits();
            let slots = self.buckets.len();
            self.boots += 1;
            let callers = (0..slots).map(|bucket| self.draw_caller(bucket)).collect();
            self.clients.push(Client {
                clock: NodeClock::new(0, reading, drift, self.boots),
                holder: machine(incarnation, slots),
                table: Table::new(slots),
                uses: vec![Use::Free; slots],
                link: Link::Down,
                life: 0,
                alive: true,
                draining: false,
                paused_until: 0,
                tick_at: None,
                waiters: Vec::new(),
                receipts: Vec::new(),
                callers,
                newest: MessageNumber::default(),
                seen: (0, 0),
            });
            self.at(0, Event::Connect { client, life: 0 });
            for bucket in 0..slots {
                let first = self.random.below(self.shape.term);
                self.at(first, Event::Arrive { client, bucket });
            }
        }
        self.at(0, Event::ServerStart { life: 0 });
        if !self.shape.faults.is_empty() {
            let first = self.random.around(self.shape.fault_gap);
            self.at(first, Event::Fault);
        }
        self.at(self.shape.fault_phase, Event::Heal);
    }

    fn draw_drift(&mut self, holder: bool) -> i64 {
        let most = self.shape.drift_ppm;
        if holder && self.sabotage == Sabotage::SlowHolders {
            return -500_000;
        }
        if !holder && !self.shape.authority_drifts {
            return 0;
        }
        self.random.pick(&[-most, 0, most / 3, most])
    }

    fn draw_server_clock(&mut self) -> NodeClock {
        self.boots += 1;
        let drift = self.draw_drift(false);
        let reading = self.random.below(1 << 36);
        NodeClock::new(self.time, reading, drift, self.boots)
    }

    fn draw_caller(&mut self, bucket: usize) -> Caller {
        let limit = self.buckets[bucket].ideal.limit();
        let per_token = limit.rate.time_for(Tokens::ONE).as_nanos();
        let mean_cost = self.shape.cost_max.div_ceil(2);
        let load = self.random.pick(&[300, 1_000, 2_000, 5_000]);
        let gap = per_token * self.shape.clients * mean_cost * 1000 / load;
        let gap = gap.clamp(4 * MILLI, 3_000 * MILLI);
        match self.random.below(5) {
            0 => Caller::Hoard {
                gap: gap.max(self.shape.term / 8),
            },
            1 => Caller::Burst {
                every: self.shape.term * self.random.between(1, 3),
                size: (2 * limit.capacity.get()).min(60),
            },
            _ => Caller::Steady { gap },
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        let at = at.max(self.time);
        self.queue.push(Reverse(Scheduled {
            at,
            order: self.order,
            event,
        }));
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.time.saturating_add(delay), event);
    }

    fn live(&mut self) {
        while !self.ended && self.failure.is_none() {
            let Some(Reverse(next)) = self.queue.pop() else {
                return self.fail("the world goes on", "nothing is scheduled any more".into());
            };
            self.time = next.at;
            self.step(next.event);
        }
    }

    fn step(&mut self, event: Event) {
        if let Some(until) = self.paused(&event) {
            return self.at(until, event);
        }
        match event {
            Event::Up {
                client,
                incarnation,
                stream,
                message,
            } => {
                self.up(client, incarnation, stream, message);
            }
            Event::Down {
                client,
                life,
                stream,
                message,
            } => {
                self.down(client, life, stream, message);
            }
            Event::ServerTick { life } => self.server_tick(life),
            Event::ServerStart { life } => self.server_start(life),
            Event::ServerLoaded { life, claim } => self.server_loaded(life, *claim),
            Event::Write {
                life,
                epoch,
                write,
                records,
                fate,
            } => {
                self.store_write(life, epoch, write, &records, fate);
            }
            Event::WriteEnded {
                life,
                write,
                acknowledged,
            } => {
                self.write_ended(life, write, acknowledged);
            }
            Event::Settle { epoch } => self.store_settle(epoch),
            Event::ClientTick { client, life } => self.client_tick(client, life),
            Event::ClientStart { client, life } => self.client_start(client, life),
            Event::Arrive { client, bucket } => self.arrive(client, bucket),
            Event::SpendLate { client, life, read } => self.spend_late(client, life, read),
            Event::Drain { client, life, slot } => self.drain(client, life, slot),
            Event::GiveUp { client, life } => self.give_up(client, life),
            Event::RollBack { client, life } => self.roll_back_late(client, life),
            Event::Connect { client, life } => self.connect(client, life),
            Event::ConnectTimeout {
                client,
                life,
                stream,
            } => {
                if self.clients[client].link == Link::Connecting(stream) {
                    self.connect(client, life);
                }
            }
            Event::StreamBroken {
                client,
                life,
                stream,
            } => {
                self.stream_broken(client, life, stream);
            }
            Event::Mend { client, way } => self.network.cut(client, way, false),
            Event::Fault => self.fault(),
            Event::ServerKill => {
                if !self.healed {
                    self.crash_server_for(0);
                }
            }
            Event::PolicyStep { policy, step } => self.policy_step(policy, step),
            Event::PolicyTold {
                policy,
                client,
                life,
            } => self.policy_told(policy, client, life),
            Event::PolicyClear {
                policy,
                version,
                life,
            } => {
                self.policy_clear(policy, version, life);
            }
            Event::Stand {
                client,
                life,
                bucket,
            } => self.stand(client, life, bucket),
            Event::Heal => self.heal(),
            Event::Measure => self.measure(),
            Event::End => self.end(),
        }
    }

    /// Until when the node that an event is for stands still.
    fn paused(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Up { .. }
            | Event::ServerTick { .. }
            | Event::WriteEnded { .. }
            | Event::PolicyTold { client: None, .. } => self.server.paused_until,
            Event::Down { client, .. }
            | Event::ClientTick { client, .. }
            | Event::Arrive { client, .. }
            | Event::Drain { client, .. }
            | Event::GiveUp { client, .. }
            | Event::RollBack { client, .. }
            | Event::Connect { client, .. }
            | Event::StreamBroken { client, .. }
            | Event::PolicyTold {
                client: Some(client),
                ..
            } => self.clients[*client].paused_until,
            _ => 0,
        };
        (until > self.time).then_some(until)
    }

    /// The time that the promise is measured in: the authority's, or that of the fastest clock
    /// which an authority may have.
    fn ideal_now(&self) -> Timestamp {
        let run = u128::from(self.time) * u128::from(1_000_000 + self.oracle_ppm) / 1_000_000;
        Timestamp::from_nanos(u64::try_from(run).expect("a world ends long before its clocks"))
    }

    fn fail(&mut self, invariant: &'static str, what: String) {
        if self.failure.is_none() {
            self.failure = Some(Failure {
                invariant,
                at: self.time,
                what,
            });
        }
    }

    fn hit(&mut self, situation: Sometimes) {
        self.coverage.hit(situation);
    }

    /// Takes note of an admission: the oracle's moment of truth.
    fn admit(&mut self, bucket: usize, cost: Tokens) {
        let now = self.ideal_now();
        let watched = &mut self.buckets[bucket];
        let verdict = watched.ideal.admit(now, cost);
        let empty = watched.ideal.level(now) == Ok(0);
        self.coverage.hit_if(empty, Sometimes::IdealAtZero);
        self.trace.note(&[1, self.time, bucket as u64, cost.get()]);
        if let Err(violation) = verdict {
            let text = format!("{}: {violation}", self.buckets[bucket].address);
            self.fail("never over B + R·w", text);
        }
    }
}

fn halved(limit: crate::oracle::IdealLimit) -> crate::oracle::IdealLimit {
    crate::oracle::IdealLimit {
        capacity: Tokens::new(limit.capacity.get() / 2),
        ..limit
    }
}

fn create_policy(
    mut spec: quota_core::policy::PolicySpec,
    version: PolicyVersion,
) -> PolicyHistory {
    policies::make_legal(&mut spec);
    PolicyHistory::create(spec, version).expect("made legal")
}
