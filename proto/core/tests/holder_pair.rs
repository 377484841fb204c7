//! Holder machines and the authority together, in virtual time over a network with latency: the
//! limit holds against an ideal bucket, and next to nothing of it goes unused.
#![cfg(not(loom))]
#![allow(missing_docs)]

mod holder_rig;

use std::collections::VecDeque;

use holder_rig::{Table, tokens};
use quota_core::authority::{self, Authority, AuthorityConfig, Effect, StreamId};
use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{Event, Holder, HolderConfig, HolderMessage, Input, Slot, SlotSettings};
use quota_core::id::{Epoch, Incarnation, MessageNumber, PolicyVersion};
use quota_core::level::Level;
use quota_core::message::Answer;
use quota_core::policy::{LimitSpec, PolicyHistory, PolicySpec};
use quota_core::rate::Rate;
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;

const SLOT: Slot = Slot::new(0);
const LATENCY: Term = Term::from_millis(2);

struct Gateway {
    holder: Holder,
    table: Table,
    incarnation: Incarnation,
    stream: StreamId,
    up: VecDeque<(Timestamp, HolderMessage)>,
    down: VecDeque<(Timestamp, MessageNumber, Answer)>,
    /// Costs of callers that wait, in order.
    callers: VecDeque<u64>,
    asked: u64,
    admitted: u64,
    messages: u64,
}

struct World {
    now: Timestamp,
    authority: Authority,
    gateways: Vec<Gateway>,
    rate: Rate,
    capacity: Tokens,
    ideal: Level,
    ideal_at: Timestamp,
    streams: u64,
}

fn start() -> Timestamp {
    Timestamp::ZERO + Term::from_seconds(500)
}

impl World {
    fn new(gateways: u64, count: u64, period: Term, burst: u64) -> Self {
        let limit = LimitSpec::new(count, period).with_burst(burst);
        let spec = PolicySpec::new("api", &["who"], limit);
        let history = PolicyHistory::create(spec, PolicyVersion::new(1)).expect("a legal policy");
        let config = AuthorityConfig {
            epoch: Epoch::new(1),
            tenures_before: 0,
            first_tenure: true,
            drift: DriftAllowance::DEFAULT,
            boot: 1,
            hash_seed: (1, 2),
            buckets_max: 100,
        };
        let rate = Rate::new(tokens(count), period).expect("a legal rate");
        let capacity = tokens(burst);
        let policy = history.current().expect("just created");
        let limit = policy.limit_for(&holder_rig::bucket("a").key);
        let settings = SlotSettings::for_limit(limit, policy.lease());
        let mut world = Self {
            now: start(),
            authority: Authority::new(start(), config, vec![history], Vec::new(), None),
            gateways: (1..=gateways).map(|n| gateway(n, settings)).collect(),
            rate,
            capacity,
            ideal: Level::from_tokens(i128::from(burst), rate),
            ideal_at: start(),
            streams: 0,
        };
        for index in 0..world.gateways.len() {
            world.connect(index);
        }
        world
    }

    fn connect(&mut self, index: usize) {
        self.streams += 1;
        let gateway = &mut self.gateways[index];
        gateway.stream = StreamId::new(self.streams);
        gateway.up.clear();
        gateway.down.clear();
        gateway
            .holder
            .handle(self.now, Input::Connected, &gateway.table);
        let (incarnation, stream) = (gateway.incarnation, gateway.stream);
        self.feed(authority::Input::Connect {
            incarnation,
            stream,
        });
    }

    fn feed(&mut self, input: authority::Input) {
        let mut effects = Vec::new();
        self.authority.handle(self.now, input, &mut effects);
        for effect in effects {
            if let Effect::Answer {
                incarnation,
                stream,
                anchor,
                answer,
            } = effect
            {
                let at = self.now + LATENCY;
                let gateway = self
                    .gateways
                    .iter_mut()
                    .find(|g| g.incarnation == incarnation && g.stream == stream);
                gateway
                    .expect("a known stream")
                    .down
                    .push_back((at, anchor, answer));
            }
        }
    }

    fn admit(&mut self, cost: u64) {
        let ceiling = i128::from(self.capacity.get());
        let passed = self.now.since(self.ideal_at);
        self.ideal = self.ideal.refilled(self.rate, passed, ceiling);
        self.ideal_at = self.now;
        let spent = Level::from_tokens(i128::from(cost), self.rate);
        self.ideal = Level::from_parts(self.ideal.parts() - spent.parts());
        assert!(self.ideal.parts() >= 0, "more than the limit was admitted");
    }

    /// One attempt to spend; reports the renewal and admits to the ideal bucket.
    fn spend(&mut self, index: usize, cost: u64) -> bool {
        let now = Tick::at(self.now);
        let gateway = &mut self.gateways[index];
        let (admitted, renew) = match gateway.table.0[0].spend(tokens(cost), || now) {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } | Spend::Ended { renew } => (false, renew),
        };
        if renew {
            let input = Input::Touched { slot: SLOT };
            gateway.holder.handle(self.now, input, &gateway.table);
        }
        if admitted {
            gateway.admitted += cost;
            self.admit(cost);
        }
        admitted
    }

    /// A caller that does not wait.
    fn try_acquire(&mut self, index: usize, cost: u64) -> bool {
        self.gateways[index].asked += cost;
        let admitted = self.spend(index, cost);
        if !admitted {
            self.gateways[index].table.0[0].refuse(tokens(cost));
        }
        admitted
    }

    /// A caller that waits for as long as it takes.
    fn acquire(&mut self, index: usize, cost: u64) {
        self.gateways[index].asked += cost;
        if self.gateways[index].callers.is_empty() && self.spend(index, cost) {
            return;
        }
        let gateway = &mut self.gateways[index];
        gateway.callers.push_back(cost);
        let cost = tokens(cost);
        let input = Input::Waiting { slot: SLOT, cost };
        gateway.holder.handle(self.now, input, &gateway.table);
    }

    fn wake(&mut self, index: usize) {
        while let Some(cost) = self.gateways[index].callers.front().copied() {
            if !self.spend(index, cost) {
                break;
            }
            let gateway = &mut self.gateways[index];
            gateway.callers.pop_front();
            let cost = tokens(cost);
            let input = Input::WaitOver { slot: SLOT, cost };
            gateway.holder.handle(self.now, input, &gateway.table);
        }
    }

    /// Delivers what is due and lets everyone speak.
    fn settle(&mut self) {
        for index in 0..self.gateways.len() {
            while let Some((at, _)) = self.gateways[index].up.front()
                && *at <= self.now
            {
                let (_, message) = self.gateways[index].up.pop_front().expect("just seen");
                self.arrive(index, message);
            }
        }
        if self
            .authority
            .next_deadline()
            .is_some_and(|at| at <= self.now)
        {
            self.feed(authority::Input::Tick);
        }
        for index in 0..self.gateways.len() {
            let now = self.now;
            let gateway = &mut self.gateways[index];
            while let Some((at, anchor, answer)) = gateway.down.front().copied()
                && at <= now
            {
                gateway.down.pop_front();
                let input = Input::Answer { anchor, answer };
                gateway.holder.handle(now, input, &gateway.table);
            }
            if gateway.holder.next_deadline().is_some_and(|at| at <= now) {
                gateway.holder.handle(now, Input::Tick, &gateway.table);
            }
            let mut woken = false;
            while let Some(event) = gateway.holder.poll_event() {
                woken |= matches!(event, Event::Wake { .. });
            }
            if woken {
                self.wake(index);
            }
            let gateway = &mut self.gateways[index];
            while let Some(message) = gateway.holder.poll_transmit(now, &gateway.table) {
                gateway.messages += 1;
                gateway.up.push_back((now + LATENCY, message));
            }
        }
    }

    fn arrive(&mut self, index: usize, message: HolderMessage) {
        let (incarnation, stream) = (
            self.gateways[index].incarnation,
            self.gateways[index].stream,
        );
        let number = message.number;
        self.feed(authority::Input::Anchor {
            incarnation,
            stream,
            number,
        });
        for introduction in message.introductions {
            let introduction = Box::new(introduction);
            self.feed(authority::Input::Introduce {
                incarnation,
                stream,
                introduction,
            });
        }
        for request in message.requests {
            self.feed(authority::Input::Request {
                incarnation,
                stream,
                number,
                request,
            });
        }
    }

    fn pass(&mut self, span: Term) {
        self.now += span;
        self.settle();
    }

    fn admitted(&self) -> u64 {
        self.gateways.iter().map(|gateway| gateway.admitted).sum()
    }
}

fn gateway(number: u64, settings: SlotSettings) -> Gateway {
    let incarnation = Incarnation::new(number);
    let mut holder = Holder::new(HolderConfig {
        incarnation,
        slots_max: 1,
    });
    let table = Table(vec![LeaseCell::new()]);
    let input = Input::Open {
        slot: SLOT,
        bucket: holder_rig::bucket("a"),
        settings,
    };
    holder.handle(start(), input, &table);
    Gateway {
        holder,
        table,
        incarnation,
        stream: StreamId::new(0),
        up: VecDeque::new(),
        down: VecDeque::new(),
        callers: VecDeque::new(),
        asked: 0,
        admitted: 0,
        messages: 0,
    }
}

#[test]
fn an_overloaded_limit_is_used_whole_and_shared_fairly() {
    let mut world = World::new(2, 1_000, Term::from_seconds(1), 1_000);
    // Three requests each two milliseconds, by turns: one and a half times the limit.
    for millisecond in 0..20_000_usize {
        world.try_acquire(millisecond % 2, 1);
        if millisecond % 2 == 0 {
            world.try_acquire((millisecond / 2) % 2, 1);
        }
        world.pass(Term::from_millis(1));
    }
    let admitted = world.admitted();
    let allowed = 1_000 + 20 * 1_000;
    let shares = world
        .gateways
        .iter()
        .map(|g| g.admitted)
        .collect::<Vec<_>>();
    let messages = world.gateways.iter().map(|g| g.messages).sum::<u64>();
    println!("admitted {admitted} of {allowed}, shares {shares:?}, messages {messages}");
    assert!(admitted * 100 >= allowed * 97, "{admitted} of {allowed}");
    assert!(shares.iter().min() > shares.iter().max().map(|most| most * 9 / 10).as_ref());
}

#[test]
fn demand_below_the_limit_is_hardly_ever_refused() {
    let mut world = World::new(3, 1_000, Term::from_seconds(1), 1_000);
    for millisecond in 0..10_000 {
        if millisecond % 2 == 0 {
            world.try_acquire(millisecond % 3, 1);
        }
        world.pass(Term::from_millis(1));
    }
    let asked = world.gateways.iter().map(|g| g.asked).sum::<u64>();
    let messages = world.gateways.iter().map(|g| g.messages).sum::<u64>();
    println!(
        "admitted {} of {asked}, messages {messages}",
        world.admitted()
    );
    assert!(world.admitted() * 100 >= asked * 99, "{}", world.admitted());
    assert!(
        messages < 3 * 10 * 15,
        "a few messages a second: {messages}"
    );
}

#[test]
fn callers_of_a_limit_smaller_than_the_fleet_all_have_their_turn() {
    let mut world = World::new(6, 5, Term::from_seconds(1), 5);
    for second in 0..60 {
        for index in 0..6 {
            if world.gateways[index].callers.len() < 3 {
                world.acquire(index, 1);
            }
        }
        for _ in 0..1000 {
            world.pass(Term::from_millis(1));
        }
        let _ = second;
    }
    let shares: Vec<_> = world.gateways.iter().map(|g| g.admitted).collect();
    println!("shares {shares:?}");
    assert!(world.admitted() >= 270, "of 305: {}", world.admitted());
    assert!(shares.iter().all(|share| *share >= 35), "{shares:?}");
}

#[test]
fn dear_callers_are_served_among_cheap_ones() {
    let mut world = World::new(2, 100, Term::from_seconds(1), 50);
    world.acquire(0, 40);
    for millisecond in 0..5_000 {
        if millisecond % 5 == 0 {
            world.try_acquire(1, 1);
        }
        if millisecond % 1_000 == 999 {
            world.acquire(0, 40);
        }
        world.pass(Term::from_millis(1));
    }
    // The others' last tokens come back when they have been idle for a while.
    for _ in 0..5_000 {
        world.pass(Term::from_millis(1));
    }
    println!(
        "{} {}",
        world.gateways[0].admitted, world.gateways[1].admitted
    );
    assert_eq!(
        world.gateways[0].admitted,
        6 * 40,
        "every dear caller is served"
    );
}

#[test]
fn an_idle_fleet_gives_everything_back() {
    let mut world = World::new(3, 100, Term::from_seconds(1), 100);
    for index in 0..3 {
        for _ in 0..5 {
            world.try_acquire(index, 1);
            world.pass(Term::from_millis(10));
        }
    }
    for _ in 0..6_000 {
        world.pass(Term::from_millis(1));
    }
    let view = world.authority.inspect(world.now, &holder_rig::bucket("a"));
    if let Some(view) = view {
        assert!(
            view.leases.is_empty() && view.outstanding.is_zero(),
            "{view:?}"
        );
        assert_eq!(view.available, 100);
    }
}

#[test]
fn a_broken_stream_neither_loses_nor_doubles_anything() {
    let mut world = World::new(2, 1_000, Term::from_seconds(1), 500);
    for millisecond in 0..20_000_usize {
        world.try_acquire(millisecond % 2, 1);
        if millisecond % 700 == 699 {
            let index = (millisecond / 700) % 2;
            let gateway = &mut world.gateways[index];
            let (incarnation, stream) = (gateway.incarnation, gateway.stream);
            gateway
                .holder
                .handle(world.now, Input::Disconnected, &gateway.table);
            world.feed(authority::Input::Disconnect {
                incarnation,
                stream,
            });
            world.connect(index);
        }
        world.pass(Term::from_millis(1));
    }
    let admitted = world.admitted();
    println!("admitted {admitted}");
    assert!(admitted >= 18_500, "{admitted}");
}
