//! Our way: one authority, leases, gateways that spend locally.
//!
//! The shipped authority, holder machine and lease cells decide; what is modelled is what the
//! client's driver and the server's node do around them: the driver looks at its signals every
//! few milliseconds, or at once when somebody waits; answers of one batch travel together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId, WriteId};
use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{
    Cause, Cells, Event as Told, Holder, HolderConfig, HolderMessage, Input as HolderInput, Slot,
    SlotSettings,
};
use quota_core::id::{Epoch, Incarnation, MessageNumber, PolicyVersion};
use quota_core::key::{BucketAddress, Key};
use quota_core::message::Answer;
use quota_core::policy::{LeaseSpec, Policy, PolicyHistory, PolicySpec};
use quota_core::time::{DriftAllowance, Timestamp};
use quota_core::tokens::Tokens;

use super::limiter::{Decided, Limiter, Traffic};
use super::workload::{Request, Workload};

/// How often the client's driver looks at what callers have signalled, in nanoseconds.
const POLL: u64 = 4_000_000;
/// How long a record takes to become durable, in nanoseconds.
const WRITE: u64 = 4_000_000;

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

/// The one key of a workload.
///
/// # Panics
/// Never: it is short.
#[must_use]
pub fn key() -> Key {
    Key::from_values(&["k"]).expect("a short key")
}

/// One authority and its gateways.
#[derive(Debug)]
pub struct Fleet {
    authority: Authority,
    gateways: Vec<Gateway>,
    one_way: u64,
    patience: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Happening>,
    count: u64,
    /// When the authority's next tick is scheduled.
    tick_at: Option<u64>,
    traffic: Traffic,
    policy: Arc<Policy>,
}

#[derive(Debug)]
enum Happening {
    /// A gateway's driver takes a turn.
    Turn(usize),
    /// A message of a gateway reaches the authority.
    Up(usize, HolderMessage),
    /// Answers reach a gateway.
    Down(usize, MessageNumber, Vec<Answer>),
    Tick,
    Written(WriteId),
    /// Whoever has waited too long gives up.
    GiveUp(usize),
}

#[derive(Debug)]
struct Gateway {
    holder: Holder,
    cell: One,
    open: bool,
    touched: bool,
    /// When the authority expects tokens, after it had none.
    exhausted_until: Option<Timestamp>,
    waiting: VecDeque<Waiter>,
    /// When the driver's next turn is scheduled.
    turn_at: Option<u64>,
    phase: u64,
    dead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    request: Request,
    until: u64,
}

#[derive(Debug, Default)]
struct One(LeaseCell);

impl Cells for One {
    fn cell(&self, _: Slot) -> &LeaseCell {
        &self.0
    }
}

const SLOT: Slot = Slot::new(0);

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
            buckets_max: 1 << 20,
        };
        let authority = Authority::new(Timestamp::ZERO, config, vec![history], Vec::new(), None);
        let mut fleet = Self {
            authority,
            gateways: Vec::new(),
            one_way: workload.one_way,
            patience: workload.patience,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            count: 0,
            tick_at: None,
            traffic: Traffic::default(),
            policy,
        };
        for place in 0..u64::from(workload.gateways) {
            let incarnation = Incarnation::new(place + 1);
            let mut gateway = Gateway {
                holder: Holder::new(HolderConfig {
                    incarnation,
                    slots_max: 1,
                }),
                cell: One::default(),
                open: false,
                touched: false,
                exhausted_until: None,
                waiting: VecDeque::new(),
                turn_at: None,
                // Drivers do not take their turns in step.
                phase: place * 1_000_003 % POLL,
                dead: false,
            };
            fleet.authority_input(
                0,
                Input::Connect {
                    incarnation,
                    stream: StreamId::new(place + 1),
                },
            );
            let now = Timestamp::ZERO;
            gateway
                .holder
                .handle(now, HolderInput::Connected, &gateway.cell);
            fleet.gateways.push(gateway);
        }
        for place in 0..fleet.gateways.len() {
            fleet.plan_turn(0, place, fleet.gateways[place].phase);
        }
        fleet
    }

    /// Ends a gateway's process: what it holds is spent by nobody.
    pub fn kill(&mut self, now: u64, gateway: usize) {
        self.gateways[gateway].dead = true;
        let place = u64::try_from(gateway).expect("few");
        let input = Input::Disconnect {
            incarnation: Incarnation::new(place + 1),
            stream: StreamId::new(place + 1),
        };
        self.authority_input(now, input);
    }

    /// What the authority has counted for the policy.
    ///
    /// # Panics
    /// Never: the policy is there.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Tokens that lie with one gateway.
    #[must_use]
    pub fn held_by(&self, gateway: usize) -> Tokens {
        self.gateways[gateway].cell.0.view().tokens
    }

    fn plan(&mut self, at: u64, happening: Happening) {
        self.count += 1;
        self.events.push(Reverse((at, self.count)));
        self.pending.insert(self.count, happening);
    }

    fn plan_turn(&mut self, now: u64, place: usize, at: u64) {
        let at = at.max(now);
        let gateway = &mut self.gateways[place];
        if gateway.turn_at.is_none_or(|old| at < old) {
            gateway.turn_at = Some(at);
            self.plan(at, Happening::Turn(place));
        }
    }

    /// The driver's next look at its signals.
    fn next_poll(&self, now: u64, place: usize) -> u64 {
        let phase = self.gateways[place].phase;
        (now.saturating_sub(phase) / POLL + 1) * POLL + phase
    }

    /// The driver acts: time for the machine, then everything that it has to say.
    fn turn(&mut self, now: u64, place: usize, decided: &mut Vec<Decided>) {
        let time = Timestamp::from_nanos(now);
        let gateway = &mut self.gateways[place];
        if gateway.dead {
            return;
        }
        gateway.turn_at = None;
        if std::mem::take(&mut gateway.touched) {
            let input = HolderInput::Touched { slot: SLOT };
            gateway.holder.handle(time, input, &gateway.cell);
        }
        if gateway
            .holder
            .next_deadline()
            .is_some_and(|due| due <= time)
        {
            gateway
                .holder
                .handle(time, HolderInput::Tick, &gateway.cell);
        }
        loop {
            let gateway = &mut self.gateways[place];
            let Some(message) = gateway.holder.poll_transmit(time, &gateway.cell) else {
                break;
            };
            self.traffic.messages += 1;
            self.traffic.items += u64::try_from(message.requests.len()).expect("few");
            self.plan(now + self.one_way, Happening::Up(place, message));
        }
        let mut served = false;
        while let Some(told) = self.gateways[place].holder.poll_event() {
            let gateway = &mut self.gateways[place];
            match told {
                Told::Wake { .. } => {
                    gateway.exhausted_until = None;
                    served = true;
                }
                Told::Refused {
                    cause: Cause::Exhausted { until },
                    ..
                } => {
                    if until > time {
                        gateway.exhausted_until = Some(until);
                        self.refuse_hopeless(now, place, decided);
                    }
                }
                Told::Refused { .. } => self.refuse_hopeless(now, place, decided),
                Told::Closed { .. } | Told::Drained | Told::Reconnect => {}
            }
        }
        if served {
            self.serve_waiting(now, place, decided);
        }
        let due = self.gateways[place].holder.next_deadline();
        if let Some(due) = due {
            // A timer wakes the driver a little late, and the machine is never asked twice at once.
            self.plan_turn(now, place, due.as_nanos().max(now + 1));
        }
        if self.gateways[place].touched {
            let poll = self.next_poll(now, place);
            self.plan_turn(now, place, poll);
        }
    }

    /// Spends through the shipped cell; true if the request is admitted.
    fn spend(&mut self, now: u64, place: usize, cost: u64) -> bool {
        let gateway = &mut self.gateways[place];
        let tick = Tick::at(Timestamp::from_nanos(now));
        let (admitted, renew) = match gateway.cell.0.spend(Tokens::new(cost), || tick) {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } | Spend::Ended { renew } => (false, renew),
        };
        gateway.touched |= renew;
        admitted
    }

    fn serve_waiting(&mut self, now: u64, place: usize, decided: &mut Vec<Decided>) {
        while let Some(waiter) = self.gateways[place].waiting.front().copied() {
            if !self.spend(now, place, waiter.request.cost) {
                break;
            }
            self.gateways[place].waiting.pop_front();
            self.wait_over(now, place, waiter.request.cost);
            decided.push(Decided {
                request: waiter.request,
                at: now,
                admitted: true,
            });
        }
    }

    fn wait_over(&mut self, now: u64, place: usize, cost: u64) {
        let gateway = &mut self.gateways[place];
        let input = HolderInput::WaitOver {
            slot: SLOT,
            cost: Tokens::new(cost),
        };
        let time = Timestamp::from_nanos(now);
        gateway.holder.handle(time, input, &gateway.cell);
    }

    /// Refuses those who would wait longer than they want, or longer than it makes sense.
    fn refuse_hopeless(&mut self, now: u64, place: usize, decided: &mut Vec<Decided>) {
        let expected = self.gateways[place].exhausted_until;
        let waiting = std::mem::take(&mut self.gateways[place].waiting);
        let hopeless =
            |w: &Waiter| w.until <= now || expected.is_some_and(|at| at.as_nanos() > w.until);
        let (over, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(hopeless);
        self.gateways[place].waiting = kept.into();
        for waiter in over {
            let cost = Tokens::new(waiter.request.cost);
            self.gateways[place].cell.0.refuse(cost);
            self.wait_over(now, place, waiter.request.cost);
            decided.push(Decided {
                request: waiter.request,
                at: now,
                admitted: false,
            });
        }
    }

    fn authority_input(&mut self, now: u64, input: Input) {
        self.authority_batch(now, [input]);
    }

    /// One batch at the authority, and what it says to whom.
    fn authority_batch(&mut self, now: u64, inputs: impl IntoIterator<Item = Input>) {
        let mut effects = Vec::new();
        let time = Timestamp::from_nanos(now);
        for input in inputs {
            self.authority.handle(time, input, &mut effects);
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
                Effect::Write { write, .. } => self.plan(now + WRITE, Happening::Written(write)),
                Effect::Settle | Effect::PolicyApplied { .. } => {}
            }
        }
        for (stream, (anchor, answers)) in down {
            self.traffic.messages += 1;
            self.traffic.items += u64::try_from(answers.len()).expect("few");
            let place = usize::try_from(stream - 1).expect("few");
            self.plan(now + self.one_way, Happening::Down(place, anchor, answers));
        }
        if let Some(due) = self.authority.next_deadline() {
            let at = due.as_nanos().max(now + 1);
            if self.tick_at.is_none_or(|old| at < old || old <= now) {
                self.tick_at = Some(at);
                self.plan(at, Happening::Tick);
            }
        }
    }
}

impl Limiter for Fleet {
    fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at, _))| *at)
    }

    fn step(&mut self, at: u64, decided: &mut Vec<Decided>) {
        let Some(Reverse((_, number))) = self.events.pop() else {
            return;
        };
        let happening = self.pending.remove(&number).expect("planned with its time");
        match happening {
            Happening::Turn(place) if self.gateways[place].turn_at == Some(at) => {
                self.turn(at, place, decided);
            }
            Happening::Turn(_) => {}
            Happening::Up(place, message) => {
                if self.gateways[place].dead {
                    return;
                }
                let incarnation = self.gateways[place].holder.incarnation();
                let stream = StreamId::new(u64::try_from(place).expect("few") + 1);
                let number = message.number;
                let mut inputs = vec![Input::Anchor {
                    incarnation,
                    stream,
                    number,
                }];
                inputs.extend(message.introductions.into_iter().map(|introduction| {
                    Input::Introduce {
                        incarnation,
                        stream,
                        introduction: Box::new(introduction),
                    }
                }));
                inputs.extend(message.requests.into_iter().map(|request| Input::Request {
                    incarnation,
                    stream,
                    number,
                    request,
                }));
                self.authority_batch(at, inputs);
            }
            Happening::Down(place, anchor, answers) => {
                let gateway = &mut self.gateways[place];
                if gateway.dead {
                    return;
                }
                let time = Timestamp::from_nanos(at);
                for answer in answers {
                    let input = HolderInput::Answer { anchor, answer };
                    gateway.holder.handle(time, input, &gateway.cell);
                }
                gateway.turn_at = Some(at);
                self.turn(at, place, decided);
            }
            Happening::Tick => {
                if self.tick_at == Some(at) {
                    self.tick_at = None;
                    self.authority_input(at, Input::Tick);
                }
            }
            Happening::Written(write) => self.authority_input(at, Input::Written { write }),
            Happening::GiveUp(place) => self.refuse_hopeless(at, place, decided),
        }
    }

    fn offer(&mut self, request: Request, decided: &mut Vec<Decided>) {
        let now = request.at;
        let time = Timestamp::from_nanos(now);
        let place = usize::try_from(request.gateway).expect("32 bits fit");
        let mut decide = |admitted| {
            decided.push(Decided {
                request,
                at: now,
                admitted,
            });
        };
        if self.gateways[place].dead {
            return decide(false);
        }
        if !self.gateways[place].open {
            let settings =
                SlotSettings::for_limit(self.policy.limit_for(&key()), self.policy.lease());
            let open = HolderInput::Open {
                slot: SLOT,
                bucket: BucketAddress {
                    policy: self.policy.id().clone(),
                    key: key(),
                },
                settings,
            };
            let gateway = &mut self.gateways[place];
            gateway.open = true;
            gateway.holder.handle(time, open, &gateway.cell);
        }
        if self.spend(now, place, request.cost) {
            decide(true);
        } else {
            let until = now + self.patience;
            let expected = self.gateways[place].exhausted_until;
            let hopeless = expected.is_some_and(|at| at.as_nanos() > until);
            if hopeless || self.patience == 0 {
                self.gateways[place]
                    .cell
                    .0
                    .refuse(Tokens::new(request.cost));
                decide(false);
            } else {
                let gateway = &mut self.gateways[place];
                gateway.waiting.push_back(Waiter { request, until });
                let input = HolderInput::Waiting {
                    slot: SLOT,
                    cost: Tokens::new(request.cost),
                };
                gateway.holder.handle(time, input, &gateway.cell);
                self.plan(until, Happening::GiveUp(place));
                self.plan_turn(now, place, now);
            }
        }
        if self.gateways[place].touched {
            let poll = self.next_poll(now, place);
            self.plan_turn(now, place, poll);
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn held(&self, _: u32) -> Tokens {
        self.gateways.iter().map(|g| g.cell.0.view().tokens).sum()
    }
}
