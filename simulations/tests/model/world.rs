//! One bucket, two holders, one authority at a time: the shipped machines, driven step by step.
//!
//! Time passes in quanta, of which a term has two or three. Every clock is exact and every timer punctual, since what
//! drift and lateness do is the random world's business; here each order of messages, writes,
//! crashes and spendings is tried.

use quota_core::authority::{
    Authority, AuthorityConfig, Effect, Input as ToAuthority, StreamId, WriteId,
};
use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{
    Cells, Event, Holder, HolderConfig, HolderMessage, Input as ToHolder, Slot, SlotSettings,
};
use quota_core::id::{Epoch, Incarnation, MessageNumber};
use quota_core::message::Answer;
use quota_core::record::ReservationWrite;
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;
use simulations::oracle::IdealBucket;
use simulations::store::ModelStore;

use super::setup::{Mistake, Setup};

/// A step of time: terms are multiples, so that every deadline that matters falls on one.
pub const QUANTUM: Term = Term::from_millis(500);
/// No drift to allow for: the authority's term is the holder's, so nothing hides behind a margin.
const DRIFT: DriftAllowance = DriftAllowance {
    per_mille: 0,
    margin: Term::ZERO,
};
const SLOT: Slot = Slot::new(0);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Whoever waits at holder `.0` spends a token of its lease, or tries to.
    Call(u8),
    /// The authority receives the `.1`th message on its way from holder `.0`.
    Up(u8, u8),
    /// The same, and the message stays on its way.
    UpTwice(u8, u8),
    /// Holder `.0` receives the `.1`th message on its way to it.
    Down(u8, u8),
    /// The same, and the message stays on its way.
    DownTwice(u8, u8),
    /// The `.1`th message from holder `.0` is lost.
    LoseUp(u8, u8),
    /// The `.1`th message to holder `.0` is lost.
    LoseDown(u8, u8),
    /// Holder `.0` opens a new stream; what was on its way in the old one is gone.
    Reconnect(u8),
    /// The process of holder `.0` starts anew; what it held is gone.
    Restart(u8),
    /// The write in flight becomes durable and is acknowledged.
    Written,
    /// The authority crashes and another takes over; of a write in flight nothing is found.
    Crash,
    /// The same, but the write in flight is found.
    CrashAfterWrite,
    /// A quantum of time passes.
    Pass,
}

/// One holder's process and both directions of its stream.
pub struct Node {
    pub holder: Holder,
    pub cell: LeaseCell,
    pub stream: StreamId,
    /// False once the authority behind the stream has crashed.
    pub connected: bool,
    /// A wait is announced to the holder.
    pub waiting: bool,
    pub newest: MessageNumber,
    pub up: Vec<HolderMessage>,
    pub down: Vec<(MessageNumber, Vec<Answer>)>,
}

impl Cells for Node {
    fn cell(&self, _: Slot) -> &LeaseCell {
        &self.cell
    }
}

/// What has been used up of what the setup allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub quanta: u8,
    pub crashes: u8,
    pub restarts: u8,
    pub losses: u8,
    pub duplicates: u8,
    pub reconnects: u8,
    pub lost_writes: u8,
    pub unacknowledged_writes: u8,
}

/// Everything.
pub struct World<'s> {
    setup: &'s Setup,
    pub now: Timestamp,
    pub authority: Authority,
    pub epoch: Epoch,
    pub settled: bool,
    pub store: ModelStore,
    pub write: Option<(WriteId, Vec<ReservationWrite>)>,
    pub nodes: [Node; 2],
    pub ideal: IdealBucket,
    pub used: Used,
    /// The promise was broken.
    pub broken: bool,
    /// The last step let a lease end before its tokens were spent.
    pub wasted: bool,
    streams: u64,
    incarnations: u64,
}

impl<'s> World<'s> {
    /// Both holders are connected, and heard once.
    pub fn new(setup: &'s Setup) -> Self {
        let mut store = ModelStore::default();
        let (authority, epoch) = claim(setup, Timestamp::ZERO, &mut store);
        let mut world = Self {
            now: Timestamp::ZERO,
            authority,
            epoch,
            settled: true,
            store,
            write: None,
            nodes: [process(setup, 1), process(setup, 2)],
            ideal: IdealBucket::new(&setup.limit()),
            used: Used::default(),
            broken: false,
            wasted: false,
            streams: 0,
            incarnations: 2,
            setup,
        };
        for at in [0, 1] {
            world.connect(at);
            world.up(at, 0, false);
            world.wait(at);
        }
        world
    }

    /// Takes one step, which must be one of [`World::actions`].
    pub fn apply(&mut self, action: Action) {
        self.wasted = false;
        match action {
            Action::Call(node) => self.call(usize::from(node)),
            Action::Up(node, place) => self.up(usize::from(node), usize::from(place), false),
            Action::UpTwice(node, place) => self.up(usize::from(node), usize::from(place), true),
            Action::Down(node, place) => self.down(usize::from(node), usize::from(place), false),
            Action::DownTwice(node, place) => {
                self.down(usize::from(node), usize::from(place), true);
            }
            Action::LoseUp(node, place) => {
                self.used.losses += 1;
                self.nodes[usize::from(node)].up.remove(usize::from(place));
            }
            Action::LoseDown(node, place) => {
                self.used.losses += 1;
                self.nodes[usize::from(node)]
                    .down
                    .remove(usize::from(place));
            }
            Action::Reconnect(node) => {
                let node = usize::from(node);
                if self.nodes[node].connected {
                    self.used.reconnects += 1;
                }
                self.connect(node);
            }
            Action::Restart(node) => self.restart(usize::from(node)),
            Action::Written => self.written(),
            Action::Crash => self.crash(false),
            Action::CrashAfterWrite => self.crash(true),
            Action::Pass => self.pass(),
        }
    }

    /// Every step that can be taken from here.
    pub fn actions(&self) -> Vec<Action> {
        let (setup, used) = (self.setup, &self.used);
        let mut actions = Vec::new();
        for (at, node) in (0_u8..).zip(&self.nodes) {
            if !node.cell.view().tokens.is_zero() {
                actions.push(Action::Call(at));
            }
            let within_reach = |queue: usize| if setup.reorder { queue } else { queue.min(1) };
            for (place, _) in (0_u8..).zip(&node.up[..within_reach(node.up.len())]) {
                actions.push(Action::Up(at, place));
                if used.duplicates < setup.duplicates {
                    actions.push(Action::UpTwice(at, place));
                }
                if used.losses < setup.losses {
                    actions.push(Action::LoseUp(at, place));
                }
            }
            for (place, _) in (0_u8..).zip(&node.down[..within_reach(node.down.len())]) {
                actions.push(Action::Down(at, place));
                if used.duplicates < setup.duplicates {
                    actions.push(Action::DownTwice(at, place));
                }
                if used.losses < setup.losses {
                    actions.push(Action::LoseDown(at, place));
                }
            }
            if !node.connected || used.reconnects < setup.reconnects {
                actions.push(Action::Reconnect(at));
            }
            if used.restarts < setup.restarts {
                actions.push(Action::Restart(at));
            }
        }
        if self.write.is_some() {
            actions.push(Action::Written);
        }
        if used.crashes < setup.crashes {
            actions.push(Action::Crash);
            if self.write.is_some() && setup.mistake != Some(Mistake::EarlyAcknowledge) {
                actions.push(Action::CrashAfterWrite);
            }
        }
        if used.quanta < setup.quanta {
            actions.push(Action::Pass);
        }
        actions
    }

    // --- holders ---------------------------------------------------------------------------------

    fn call(&mut self, at: usize) {
        let now = Tick::at(self.now);
        let spend = self.nodes[at].cell.spend(Tokens::ONE, || now);
        let (admitted, renew) = match spend {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } | Spend::Ended { renew } => (false, renew),
        };
        if admitted {
            self.broken |= self.ideal.admit(self.now, Tokens::ONE).is_err();
        }
        self.wait(at);
        if renew {
            self.tell(at, ToHolder::Touched { slot: SLOT });
        }
    }

    /// Somebody waits at each holder whose lease has nothing left: demand never ends.
    fn wait(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.waiting && node.cell.view().tokens.is_zero() {
            node.waiting = true;
            let cost = Tokens::ONE;
            self.tell(at, ToHolder::Waiting { slot: SLOT, cost });
        }
    }

    /// Feeds a holder, then takes out what it has to say.
    fn tell(&mut self, at: usize, input: ToHolder) {
        let now = self.now;
        self.nodes[at].handle(now, input);
        loop {
            while let Some(event) = self.nodes[at].holder.poll_event() {
                if matches!(event, Event::Wake { .. }) && self.nodes[at].waiting {
                    // Whoever waited spends in a call of its own: at once, late or never.
                    self.nodes[at].waiting = false;
                    let cost = Tokens::ONE;
                    self.nodes[at].handle(now, ToHolder::WaitOver { slot: SLOT, cost });
                }
            }
            let node = &mut self.nodes[at];
            let cells = One(&node.cell);
            let Some(message) = node.holder.poll_transmit(now, &cells) else {
                return;
            };
            node.newest = message.number;
            if node.connected {
                node.up.push(message);
                if node.up.len() > self.setup.in_flight {
                    node.up.remove(0);
                }
            }
        }
    }

    fn down(&mut self, at: usize, place: usize, keep: bool) {
        let (mut anchor, answers) = self.nodes[at].down.remove(place);
        if keep {
            self.used.duplicates += 1;
            self.nodes[at].down.insert(place, (anchor, answers.clone()));
        }
        if self.setup.mistake == Some(Mistake::NewestAnchor) {
            anchor = self.nodes[at].newest;
        }
        for answer in answers {
            self.tell(at, ToHolder::Answer { anchor, answer });
        }
    }

    fn connect(&mut self, at: usize) {
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        let (old, was_connected) = (self.nodes[at].stream, self.nodes[at].connected);
        let incarnation = self.nodes[at].holder.incarnation();
        let node = &mut self.nodes[at];
        node.up.clear();
        node.down.clear();
        node.stream = stream;
        if was_connected {
            self.feed(vec![ToAuthority::Disconnect {
                incarnation,
                stream: old,
            }]);
        }
        self.feed(vec![ToAuthority::Connect {
            incarnation,
            stream,
        }]);
        self.nodes[at].connected = true;
        self.tell(at, ToHolder::Connected);
    }

    fn restart(&mut self, at: usize) {
        self.used.restarts += 1;
        self.incarnations += 1;
        let old = std::mem::replace(&mut self.nodes[at], process(self.setup, self.incarnations));
        if old.connected {
            self.feed(vec![ToAuthority::Disconnect {
                incarnation: old.holder.incarnation(),
                stream: old.stream,
            }]);
        }
        self.connect(at);
        self.wait(at);
    }

    // --- the authority ---------------------------------------------------------------------------

    fn up(&mut self, at: usize, place: usize, keep: bool) {
        let node = &mut self.nodes[at];
        let message = node.up.remove(place);
        if keep {
            self.used.duplicates += 1;
            node.up.insert(place, message.clone());
        }
        let (incarnation, stream) = (node.holder.incarnation(), node.stream);
        let number = message.number;
        let mut inputs = vec![ToAuthority::Anchor {
            incarnation,
            stream,
            number,
        }];
        let introductions = message.introductions.into_iter().map(Box::new);
        inputs.extend(introductions.map(|introduction| ToAuthority::Introduce {
            incarnation,
            stream,
            introduction,
        }));
        let requests = message.requests.into_iter();
        inputs.extend(requests.map(|request| ToAuthority::Request {
            incarnation,
            stream,
            number,
            request,
        }));
        self.feed(inputs);
    }

    /// One batch at one reading of the clock. Answers that the batch gave one stream share a
    /// message.
    fn feed(&mut self, inputs: Vec<ToAuthority>) {
        let mut effects = Vec::new();
        for input in inputs {
            self.authority.handle(self.now, input, &mut effects);
        }
        let mut answers: [Option<(MessageNumber, Vec<Answer>)>; 2] = [None, None];
        for effect in effects {
            match effect {
                Effect::Answer {
                    stream,
                    anchor,
                    answer,
                    ..
                } => {
                    let nodes = self.nodes.iter();
                    let Some(at) = nodes.clone().position(|node| node.stream == stream) else {
                        continue;
                    };
                    let (least, list) = answers[at].get_or_insert((anchor, Vec::new()));
                    *least = anchor.min(*least);
                    list.push(answer);
                }
                Effect::Write { write, records } => {
                    assert!(self.write.is_none(), "one write is in flight at a time");
                    self.write = Some((write, records));
                }
                Effect::Settle => self.settled = self.store.settle(self.epoch),
                Effect::PolicyApplied { .. } => {}
            }
        }
        for (node, answers) in self.nodes.iter_mut().zip(answers) {
            node.down.extend(answers);
            if node.down.len() > self.setup.in_flight {
                node.down.remove(0);
            }
        }
        let early = self.setup.mistake == Some(Mistake::EarlyAcknowledge);
        if let Some((write, _)) = self.write.as_ref().filter(|_| early) {
            let write = *write;
            // The records stay where they are and are never found by a successor.
            self.write = None;
            self.feed(vec![ToAuthority::Written { write }]);
        }
    }

    fn written(&mut self) {
        let (write, records) = self.write.take().expect("a write is in flight");
        assert!(
            self.store.write(self.epoch, &records),
            "nobody else owns it"
        );
        self.feed(vec![ToAuthority::Written { write }]);
    }

    fn crash(&mut self, applied: bool) {
        self.used.crashes += 1;
        if let Some((_, records)) = self.write.take() {
            if applied {
                self.used.unacknowledged_writes += 1;
                self.store.write(self.epoch, &records);
            } else {
                self.used.lost_writes += 1;
            }
        }
        // What the old owner has sent still arrives; what is on its way to it does not.
        for node in &mut self.nodes {
            node.connected = false;
            node.up.clear();
        }
        (self.authority, self.epoch) = claim(self.setup, self.now, &mut self.store);
        self.settled = false;
    }

    fn pass(&mut self) {
        self.used.quanta += 1;
        self.now += QUANTUM;
        let due = self.authority.next_deadline();
        if due.is_some_and(|due| due <= self.now) {
            self.feed(vec![ToAuthority::Tick]);
        }
        for at in [0, 1] {
            let lease = self.nodes[at].holder.lease(SLOT);
            let over = lease.is_some_and(|lease| lease.deadline <= self.now);
            self.wasted |= over && !self.nodes[at].cell.view().tokens.is_zero();
            self.tell(at, ToHolder::Tick);
            self.wait(at);
        }
    }
}

/// The one cell of a holder's table, beside a machine that is borrowed for writing.
struct One<'c>(&'c LeaseCell);

impl Cells for One<'_> {
    fn cell(&self, _: Slot) -> &LeaseCell {
        self.0
    }
}

impl Node {
    fn handle(&mut self, now: Timestamp, input: ToHolder) {
        self.holder.handle(now, input, &One(&self.cell));
    }
}

/// A fresh process that is about to use the bucket.
fn process(setup: &Setup, incarnation: u64) -> Node {
    let config = HolderConfig {
        incarnation: Incarnation::new(incarnation),
        slots_max: 1,
    };
    let mut node = Node {
        holder: Holder::new(config),
        cell: LeaseCell::new(),
        stream: StreamId::new(0),
        connected: false,
        waiting: false,
        newest: MessageNumber::default(),
        up: Vec::new(),
        down: Vec::new(),
    };
    let policy = setup.history.current().expect("it is in force");
    let settings = SlotSettings::for_limit(&setup.limit(), policy.lease());
    let open = ToHolder::Open {
        slot: SLOT,
        bucket: setup.bucket(),
        settings,
    };
    node.handle(Timestamp::ZERO, open);
    node
}

fn claim(setup: &Setup, now: Timestamp, store: &mut ModelStore) -> (Authority, Epoch) {
    let claim = store.claim();
    let tenures_before = match setup.mistake {
        Some(Mistake::GhostOfZero) => 0,
        Some(Mistake::SecondTenureForgotten) => claim.tenures_before.min(1),
        _ => claim.tenures_before,
    };
    let records = match setup.mistake {
        Some(Mistake::ForgottenRecords) => Vec::new(),
        _ => store.reservations(),
    };
    let config = AuthorityConfig {
        epoch: claim.epoch,
        tenures_before,
        first_tenure: claim.first,
        drift: DRIFT,
        boot: 1,
        hash_seed: (1, 2),
        buckets_max: 4,
    };
    let policies = vec![setup.history.clone()];
    let authority = Authority::new(now, config, policies, records, None);
    (authority, claim.epoch)
}
