//! How a world begins: its store, its nodes, its holders and their callers.

use std::collections::{BTreeMap, BinaryHeap};

use quota_core::id::{Epoch, MessageNumber, PolicyVersion};
use quota_core::key::{BucketAddress, Key};
use quota_core::policy::{PolicyHistory, PolicySpec};
use quota_core::tokens::Tokens;

use super::liar::Liar;
use super::{Event, Plan, Ruled, Sabotage, Watched, World, policies};
use crate::client::{Client, Link, Table, Use, machine};
use crate::clock::NodeClock;
use crate::coverage::Coverage;
use crate::network::Network;
use crate::oracle::{IdealBucket, IdealLimit};
use crate::random::Random;
use crate::server::Server;
use crate::shape::{Caller, MILLI, Shape};
use crate::store::ModelStore;
use crate::trace::Trace;

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        let sabotage = plan.sabotage;
        let mut random = Random::new(plan.seed);
        let mut shape = Shape::draw(&mut random);
        shape.tailor(plan);
        if plan.salt > 0 {
            random = Random::salted(plan.seed, plan.salt);
        }
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
            servers: Vec::new(),
            lives: 0,
            newest_claim: Epoch::default(),
            begun_at: 0,
            unsettled_ends: 0,
            kept_hand_over: None,
            liar: Liar::default(),
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
            since_imagined: 0,
            seen_pushes: 0,
            until: plan.until.unwrap_or(u64::MAX),
            faults: BTreeMap::new(),
            coverage: Coverage::default(),
            trace: Trace::new(plan.print),
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
        for _ in 0..if self.shape.tenure.is_some() { 2 } else { 1 } {
            self.lives += 1;
            let (clock, life) = (self.draw_server_clock(), self.lives);
            self.servers.push(Server::new(clock, life));
        }
        for client in 0..count {
            let clock = self.draw_holder_clock();
            let incarnation = self.random.bits();
            let slots = self.buckets.len();
            let callers = (0..slots).map(|bucket| self.draw_caller(bucket)).collect();
            self.clients.push(Client {
                clock,
                holder: machine(incarnation, slots),
                table: Table::new(slots),
                uses: vec![Use::Free; slots],
                link: Link::Down,
                node: 0,
                sent: Vec::new(),
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
        for node in 0..self.servers.len() {
            let life = self.servers[node].life;
            self.at(0, Event::ServerStart { life });
        }
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

    pub(super) fn draw_holder_clock(&mut self) -> NodeClock {
        self.boots += 1;
        let drift = self.draw_drift(true);
        let reading = self.random.below(1 << 40);
        NodeClock::new(self.time, reading, drift, self.boots)
    }

    pub(super) fn draw_server_clock(&mut self) -> NodeClock {
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
}

fn halved(limit: IdealLimit) -> IdealLimit {
    IdealLimit {
        capacity: Tokens::new(limit.capacity.get() / 2),
        ..limit
    }
}

fn create_policy(mut spec: PolicySpec, version: PolicyVersion) -> PolicyHistory {
    policies::make_legal(&mut spec);
    PolicyHistory::create(spec, version).expect("made legal")
}
