//! The virtual world: one authority's node, its store, holders with callers, a network between
//! them, and a queue of events in true time.
//!
//! Everything that decides anything is the shipped core: the authority, the holder machine and the
//! lease cell's spend path. What is modelled is what the core must live with: clocks, messages,
//! processes and a store. One seed decides everything.
//!
//! - `plan`: what to run, and what came of it
//! - `populate`: how a world begins
//! - `authority_side`, `holder_side`: the drivers around the two machines
//! - `tenures`: who owns the shard
//! - `policies`: what administrators do
//! - `callers`: who spends, waits and gives up
//! - `faults`: what goes wrong, and how it is healed
//! - `liar`: somebody who speaks the protocol and lies
//! - `event`: what can happen
//! - `invariants`: what must never happen, one file each
//! - `liveness`: what must be true once nothing goes wrong any more

mod authority_side;
mod callers;
mod event;
mod faults;
mod holder_side;
mod invariants;
mod liar;
mod liveness;
mod plan;
mod policies;
mod populate;
mod tenures;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use quota_core::authority::Effect;
use quota_core::id::{Epoch, PolicyVersion};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::record::HandOver;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use self::event::{DownMessage, Event, Scheduled, UpMessage, WriteFate};
pub use self::plan::{Failure, Outcome, Plan, Sabotage};
use crate::client::{Client, Link};
use crate::coverage::{Coverage, Sometimes};
use crate::network::Network;
use crate::oracle::IdealBucket;
use crate::random::Random;
use crate::server::Server;
use crate::shape::Shape;
use crate::store::ModelStore;
use crate::trace::Trace;

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
    servers: Vec<Server>,
    /// Lives of nodes so far.
    lives: u64,
    /// The epoch of the last claim, as seen from outside of the store.
    newest_claim: Epoch,
    /// When the last tenure began, in true time.
    begun_at: u64,
    /// Tenures in a row that ended before the shard had settled.
    unsettled_ends: u64,
    /// What a sabotaged store hands over twice.
    kept_hand_over: Option<HandOver>,
    liar: liar::Liar,
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
    since_imagined: u64,
    seen_pushes: u64,
    until: u64,
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
    run_plan(&Plan {
        print,
        ..Plan::of_seed(seed, sabotage)
    })
}

/// Runs a plan; see [`run`].
#[must_use]
pub fn run_plan(plan: &Plan) -> Outcome {
    let mut world = World::new(plan);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.live()));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        world.fail(invariants::ASSERTION, text.unwrap_or_default());
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
                return self.fail(
                    invariants::GOES_ON,
                    "nothing is scheduled any more".to_owned(),
                );
            };
            if next.at > self.until {
                return;
            }
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
                node,
                client,
                incarnation,
                stream,
                message,
            } => self.up(node, client, incarnation, stream, message),
            Event::Down {
                client,
                life,
                stream,
                message,
            } => self.down(client, life, stream, message),
            Event::ServerTick { life } => self.server_tick(life),
            Event::ServerStart { life } => self.server_start(life),
            Event::ServerLoaded { life, claim, until } => self.server_loaded(life, *claim, until),
            Event::KeepAliveDue { life } => self.keep_alive_due(life),
            Event::KeepAlive { life, epoch, until } => self.keep_alive(life, epoch, until),
            Event::KeptAlive { life, until } => self.kept_alive(life, until),
            Event::Unstall {
                life,
                client,
                stream,
                message,
            } => self.unstall(life, client, stream, message),
            Event::StoreMended { node } => self.store_mended(node),
            Event::KillStarting => self.kill_starting(),
            Event::LiarTurn => self.liar_turn(),
            Event::LiarEnd { lease } => self.liar_end(lease),
            Event::Write {
                life,
                epoch,
                write,
                records,
                fate,
            } => self.store_write(life, epoch, write, &records, fate),
            Event::WriteEnded {
                life,
                write,
                acknowledged,
            } => self.write_ended(life, write, acknowledged),
            Event::Settle { life, epoch } => self.store_settle(life, epoch),
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
            Event::ServerKill => self.server_kill(),
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
            Event::Up { node, .. } => self.servers[*node].paused_until,
            Event::ServerTick { life }
            | Event::ServerStart { life }
            | Event::ServerLoaded { life, .. }
            | Event::KeepAliveDue { life }
            | Event::KeptAlive { life, .. }
            | Event::WriteEnded { life, .. }
            | Event::PolicyTold {
                client: None, life, ..
            } => {
                let node = self.node_of(*life);
                node.map_or(0, |node| self.servers[node].paused_until)
            }
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
            self.fail(invariants::PROMISE, text);
        }
    }
}
