//! Our way: one authority, leases, gateways that spend locally.
//!
//! The shipped authority, holder machine and lease cells decide; what is modelled is what the
//! client's driver and the server's node do around them: the driver looks at its signals every
//! few milliseconds, or at once when somebody waits; answers of one batch travel together.
//!
//! - `gateway`: one gateway's driver and table
//! - this file: the authority, the network between, and time

mod gateway;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId, WriteId};
use quota_core::holder::{HolderMessage, Slot};
use quota_core::id::{Epoch, MessageNumber, PolicyVersion};
use quota_core::key::{BucketAddress, Key};
use quota_core::message::Answer;
use quota_core::policy::{LeaseSpec, Policy, PolicyHistory, PolicySpec};
use quota_core::time::{DriftAllowance, Timestamp};
use quota_core::tokens::Tokens;

use self::gateway::Gateway;
use super::agenda::Agenda;
use super::limiter::{Decided, Footprint, KeyState, Limiter, Traffic};
use super::wire_size;
use super::workload::{Change, Request, Workload};

/// How long a record takes to become durable, in nanoseconds.
const WRITE: u64 = 4_000_000;
/// Bytes of a key at a gateway: its slot in the holder machine, its cell and its place in the table.
const GATEWAY_BYTES: u64 = 640;
/// Bytes of a bucket and of a lease at the authority, their index entries included.
const BUCKET_BYTES: u64 = 320;
const LEASE_BYTES: u64 = 128;

/// The policy of a workload, with default lease settings.
///
/// # Panics
/// If the workload's limit is no valid one.
#[must_use]
pub fn policy(workload: &Workload) -> Policy {
    Policy::parse(spec(workload), PolicyVersion::new(1)).expect("a workload's limit is a valid one")
}

fn spec(workload: &Workload) -> PolicySpec {
    PolicySpec::new("capacity", &["key"], workload.limit)
}

/// A key of a workload, by its number.
///
/// # Panics
/// Never: it is short.
#[must_use]
pub fn key(number: u32) -> Key {
    Key::from_values(&[format!("k{number}")]).expect("a short key")
}

/// One authority and its gateways.
#[derive(Debug)]
pub struct Fleet {
    authority: Authority,
    gateways: Vec<Gateway>,
    /// Which gateway a stream belongs to.
    streams: HashMap<u64, usize>,
    last_stream: u64,
    one_way: u64,
    patience: u64,
    agenda: Agenda<Happening>,
    /// When the authority's next tick is scheduled.
    tick_at: Option<u64>,
    traffic: Traffic,
    policy: Arc<Policy>,
    /// The machine's clock, if the authority's work is to be timed.
    clock: Option<fn() -> Duration>,
    busy: Duration,
}

#[derive(Debug)]
enum Happening {
    /// A gateway's driver takes a turn.
    Turn(usize),
    /// A message of a gateway reaches the authority.
    Up(usize, StreamId, HolderMessage),
    /// Answers reach a gateway.
    Down(usize, StreamId, MessageNumber, Vec<Answer>),
    Tick,
    Written(WriteId),
    /// Whoever has waited too long at a slot gives up.
    GiveUp(usize, Slot),
}

impl Fleet {
    /// A fleet whose gateways are connected and have asked for nothing yet.
    ///
    /// # Panics
    /// If `lease` is not valid for the workload's limit.
    #[must_use]
    pub fn new(workload: &Workload, lease: Option<LeaseSpec>) -> Self {
        let mut spec = spec(workload);
        if let Some(lease) = lease {
            spec.lease = lease;
        }
        let version = PolicyVersion::new(1);
        let history = PolicyHistory::create(spec, version).expect("valid lease settings");
        let policy = history.current().expect("just created");
        let policy = Arc::clone(policy);
        let config = AuthorityConfig {
            epoch: Epoch::new(1),
            tenures_before: 0,
            first_tenure: true,
            drift: DriftAllowance::default(),
            boot: 1,
            hash_seed: (1, 2),
            buckets_max: 1 << 22,
        };
        let authority = Authority::new(Timestamp::ZERO, config, vec![history], Vec::new(), None);
        let mut fleet = Self {
            authority,
            gateways: Vec::new(),
            streams: HashMap::new(),
            last_stream: 0,
            one_way: workload.one_way,
            patience: workload.patience,
            agenda: Agenda::default(),
            tick_at: None,
            traffic: Traffic::default(),
            policy,
            clock: None,
            busy: Duration::ZERO,
        };
        let present = workload.present(0);
        for place in 0..workload.gateways {
            fleet.gateways.push(Gateway::new(place));
            if present.contains(&place) {
                fleet.connect(0, usize::try_from(place).expect("32 bits fit"));
            }
        }
        fleet
    }

    /// The same, timed by the machine's clock: see [`Fleet::busy`].
    #[must_use]
    pub fn timed(mut self, clock: fn() -> Duration) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How long the authority has worked, in real time, if it is timed.
    #[must_use]
    pub const fn busy(&self) -> Duration {
        self.busy
    }

    /// Ends a gateway's process: what it holds is spent by nobody.
    pub fn kill(&mut self, now: u64, gateway: usize) {
        self.gateways[gateway].dead = true;
        self.disconnect(now, gateway);
    }

    /// The authority.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Tokens that lie with one gateway.
    #[must_use]
    pub fn held_by(&self, gateway: usize) -> Tokens {
        self.gateways[gateway].held()
    }

    fn connect(&mut self, now: u64, place: usize) {
        self.last_stream += 1;
        let stream = StreamId::new(self.last_stream);
        self.streams.insert(self.last_stream, place);
        let gateway = &mut self.gateways[place];
        gateway.stream = Some(stream);
        let incarnation = gateway.incarnation();
        gateway.connected(now);
        let phase = gateway.phase;
        self.authority_batch(
            now,
            [Input::Connect {
                incarnation,
                stream,
            }],
        );
        self.plan_turn(now, place, now + phase);
    }

    fn disconnect(&mut self, now: u64, place: usize) {
        let gateway = &mut self.gateways[place];
        let Some(stream) = gateway.stream.take() else {
            return;
        };
        let incarnation = gateway.incarnation();
        self.streams.remove(&stream.get());
        let input = Input::Disconnect {
            incarnation,
            stream,
        };
        self.authority_batch(now, [input]);
    }

    fn plan_turn(&mut self, now: u64, place: usize, at: u64) {
        let at = at.max(now);
        let gateway = &mut self.gateways[place];
        if gateway.turn_at.is_none_or(|old| at < old) {
            gateway.turn_at = Some(at);
            self.agenda.plan(at, Happening::Turn(place));
        }
    }

    /// The driver acts: time for the machine, then everything that it has to say.
    fn turn(&mut self, now: u64, place: usize, decided: &mut Vec<Decided>) {
        let gateway = &mut self.gateways[place];
        if gateway.dead {
            return;
        }
        gateway.turn_at = None;
        gateway.begin_turn(now);
        while let Some(message) = self.gateways[place].transmit(now) {
            let items = u64::try_from(message.requests.len()).expect("few");
            self.traffic.messages += 1;
            self.traffic.items += items;
            self.traffic.asked += items;
            self.traffic.bytes += wire_size::FRAME + wire_size::requests(&message);
            if let Some(stream) = self.gateways[place].stream {
                let up = Happening::Up(place, stream, message);
                self.agenda.plan(now + self.one_way, up);
            }
        }
        let gateway = &mut self.gateways[place];
        gateway.take_news(now, decided);
        if let Some(at) = gateway.next_turn(now) {
            self.plan_turn(now, place, at);
        }
        if self.gateways[place].has_left() {
            self.disconnect(now, place);
        }
    }

    /// One batch at the authority, and what it says to whom.
    fn authority_batch(&mut self, now: u64, inputs: impl IntoIterator<Item = Input>) {
        let mut effects = Vec::new();
        let time = Timestamp::from_nanos(now);
        let began = self.clock.map(|clock| clock());
        for input in inputs {
            self.authority.handle(time, input, &mut effects);
        }
        if let (Some(clock), Some(began)) = (self.clock, began) {
            self.busy += clock().saturating_sub(began);
        }
        let mut down: BTreeMap<u64, (MessageNumber, Vec<Answer>)> = BTreeMap::new();
        for effect in effects {
            match effect {
                Effect::Answer {
                    stream,
                    anchor,
                    answer,
                    ..
                } => {
                    let to = down.entry(stream.get()).or_insert((anchor, Vec::new()));
                    to.0 = to.0.min(anchor);
                    to.1.push(answer);
                }
                Effect::Write { write, .. } => {
                    self.agenda.plan(now + WRITE, Happening::Written(write))
                }
                Effect::Settle | Effect::PolicyApplied { .. } => {}
            }
        }
        for (stream, (anchor, answers)) in down {
            self.traffic.messages += 1;
            self.traffic.items += u64::try_from(answers.len()).expect("few");
            self.traffic.bytes += wire_size::FRAME + wire_size::answers(anchor, &answers);
            if let Some(place) = self.streams.get(&stream).copied() {
                let stream = StreamId::new(stream);
                let down = Happening::Down(place, stream, anchor, answers);
                self.agenda.plan(now + self.one_way, down);
            }
        }
        if let Some(due) = self.authority.next_deadline() {
            let at = due.as_nanos().max(now + 1);
            if self.tick_at.is_none_or(|old| at < old || old <= now) {
                self.tick_at = Some(at);
                self.agenda.plan(at, Happening::Tick);
            }
        }
    }

    fn arrives(&mut self, at: u64, place: usize, stream: StreamId, message: HolderMessage) {
        let gateway = &self.gateways[place];
        if gateway.dead || gateway.stream != Some(stream) {
            return;
        }
        let incarnation = gateway.incarnation();
        let number = message.number;
        let mut inputs = vec![Input::Anchor {
            incarnation,
            stream,
            number,
        }];
        let introduced = message.introductions.into_iter();
        inputs.extend(introduced.map(|introduction| Input::Introduce {
            incarnation,
            stream,
            introduction: Box::new(introduction),
        }));
        let requests = message.requests.into_iter();
        inputs.extend(requests.map(|request| Input::Request {
            incarnation,
            stream,
            number,
            request,
        }));
        self.authority_batch(at, inputs);
    }

    fn address(&self, number: u32) -> BucketAddress {
        BucketAddress {
            policy: self.policy.id().clone(),
            key: key(number),
        }
    }
}

impl Limiter for Fleet {
    fn next_event(&self) -> Option<u64> {
        self.agenda.next()
    }

    fn step(&mut self, at: u64, decided: &mut Vec<Decided>) {
        let Some(what) = self.agenda.take() else {
            return;
        };
        match what {
            Happening::Turn(place) if self.gateways[place].turn_at == Some(at) => {
                self.turn(at, place, decided);
            }
            Happening::Turn(_) => {}
            Happening::Up(place, stream, message) => self.arrives(at, place, stream, message),
            Happening::Down(place, stream, anchor, answers) => {
                let gateway = &mut self.gateways[place];
                if gateway.dead || gateway.stream != Some(stream) {
                    return;
                }
                gateway.answered(at, anchor, answers);
                gateway.turn_at = Some(at);
                self.turn(at, place, decided);
            }
            Happening::Tick => {
                if self.tick_at == Some(at) {
                    self.tick_at = None;
                    self.authority_batch(at, [Input::Tick]);
                }
            }
            Happening::Written(write) => self.authority_batch(at, [Input::Written { write }]),
            Happening::GiveUp(place, slot) => {
                self.gateways[place].refuse_hopeless(at, slot, decided);
            }
        }
    }

    fn offer(&mut self, request: Request, decided: &mut Vec<Decided>) {
        let now = request.at;
        let place = usize::try_from(request.gateway).expect("32 bits fit");
        if self.gateways[place].dead {
            return decided.push(Decided::new(request, now, false));
        }
        let until = now + self.patience;
        let policy = Arc::clone(&self.policy);
        let waits = self.gateways[place].offer(request, until, &policy, decided);
        if let Some(slot) = waits {
            self.agenda.plan(until, Happening::GiveUp(place, slot));
            self.plan_turn(now, place, now);
        }
        if let Some(poll) = self.gateways[place].next_poll(now) {
            self.plan_turn(now, place, poll);
        }
    }

    fn change(&mut self, now: u64, gateway: u32, change: Change, _: &mut Vec<Decided>) {
        let place = usize::try_from(gateway).expect("32 bits fit");
        match change {
            Change::Joins => self.connect(now, place),
            Change::Leaves => {
                self.gateways[place].shut_down(now);
                self.plan_turn(now, place, now);
            }
            Change::Dies => self.kill(now, place),
            Change::CutOff => {
                self.disconnect(now, place);
                self.gateways[place].disconnected(now);
                self.plan_turn(now, place, now);
            }
            Change::Heals => self.connect(now, place),
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn held(&mut self, _: u64) -> u64 {
        let held: Tokens = self.gateways.iter().map(Gateway::held).sum();
        held.get()
    }

    fn out_of_reach(&mut self, _: u64, key: u32, refusing: &[u32]) -> u64 {
        let others = self.gateways.iter().zip(0_u32..);
        let others = others.filter(|(_, number)| !refusing.contains(number));
        others.map(|(gateway, _)| gateway.held_of(key)).sum()
    }

    fn key_state(&mut self, now: u64, key: u32) -> Option<KeyState> {
        let address = self.address(key);
        let bucket = self
            .authority
            .inspect(Timestamp::from_nanos(now), &address)?;
        Some(KeyState {
            available: i64::try_from(bucket.available).unwrap_or(i64::MAX),
            outstanding: bucket.outstanding.get(),
        })
    }

    fn footprint(&self) -> Footprint {
        let stats = self.authority.stats();
        let at_gateways = self.gateways.iter().map(Gateway::keys).sum();
        Footprint {
            at_gateways,
            at_centre: stats.buckets + stats.leases,
            bytes: at_gateways * GATEWAY_BYTES
                + stats.buckets * BUCKET_BYTES
                + stats.leases * LEASE_BYTES,
        }
    }
}
