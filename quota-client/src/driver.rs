//! The background task: owns the holder machine and the stream, and is the only one that installs
//! leases and frees table entries.
//!
//! Each turn of its loop takes in everything that callers have signalled, lets the machine act,
//! sends what it has to say and passes on what it found out. Callers never wait for a turn unless
//! they chose to wait for tokens; `try_acquire` does not even wake the task, which therefore looks
//! at its queue every few milliseconds while it has leases to keep.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use quota_core::holder::{Cause, Event, Holder, HolderConfig, Input, Slot};
use quota_core::id::{Incarnation, PolicyVersion};
use quota_core::key::Key;
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use quota_wire::convert::outcomes::put_outcomes;
use quota_wire::convert::stream::{FromAuthority, decode_from_authority, encode_requests};
use quota_wire::proto as wire;
use tokio::sync::{mpsc, oneshot};

use crate::clock::{self, WallJumpDetector};
use crate::config::ConfigError;
use crate::fingerprint::Fingerprint;
use crate::names::PolicyNumber;
use crate::report::Reporter;
use crate::shared::{Link, Shared, Signal};
use crate::stream::{Connection, News, Up};
use crate::table::Status;
use crate::waiters;

/// How often the queue is looked at while something is going on: a small part of the shortest
/// horizon, and about the length of a tick of the cells.
const POLL_BUSY: Term = Term::from_millis(4);
/// The same while nothing has happened for [`BUSY`].
const POLL_IDLE: Term = Term::from_millis(25);
const BUSY: Term = Term::from_seconds(1);
/// The clocks are compared at least this often.
const POLL_MAX: Term = Term::from_millis(500);

/// For how long a key that found no room on the stream keeps its entry, so that callers who ask
/// again at once do not open it again at every turn.
const TURNED_AWAY: Term = Term::from_millis(100);

/// What the owner of the client asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// Give everything back, then end.
    Close {
        within: Duration,
        /// Told whether everything was confirmed.
        done: oneshot::Sender<bool>,
    },
}

/// What the driver knows of an open slot beside the machine.
#[derive(Debug)]
struct Kept {
    policy: PolicyNumber,
    fingerprint: Fingerprint,
    key: Key,
    version: Option<PolicyVersion>,
}

#[derive(Debug)]
struct Closing {
    deadline: Timestamp,
    done: Option<oneshot::Sender<bool>>,
    drained: bool,
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    holder: Holder,
    signals: Receiver<Signal>,
    commands: mpsc::Receiver<Command>,
    connection: Connection,
    slots: HashMap<Slot, Kept>,
    jumps: WallJumpDetector,
    /// The generation of rules that the slots follow.
    generation: u64,
    news: Vec<waiters::News>,
    /// When the oldest request was sent that nothing has been heard since.
    due_since: Option<Timestamp>,
    /// Keys introduced in the present stream.
    introduced: u64,
    /// Slots that may be open at a time: as many as the stream takes, less room for others to
    /// come and go before the next stream is needed.
    open_max: u64,
    /// Slots that found no room, and when their entries are free again; oldest first.
    turned_away: VecDeque<(Timestamp, Slot)>,
    warned_of_room: bool,
    active_at: Timestamp,
    reporter: Reporter,
    closing: Option<Closing>,
}

/// Takes everything out of the callers' reach when the driver ends, however it ends.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.refuse_all();
        self.0.table.drain();
    }
}

enum Turn {
    Again,
    Over,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        signals: Receiver<Signal>,
        commands: mpsc::Receiver<Command>,
        incarnation: Incarnation,
        random: u64,
    ) -> Result<Self, ConfigError> {
        let connection = Connection::new(&shared.config, incarnation, random)?;
        let config = HolderConfig {
            incarnation,
            slots_max: shared.table.capacity(),
        };
        Ok(Self {
            holder: Holder::new(config),
            signals,
            commands,
            connection,
            slots: HashMap::new(),
            jumps: WallJumpDetector::new(),
            generation: 0,
            news: Vec::new(),
            due_since: None,
            introduced: 0,
            open_max: u64::MAX,
            turned_away: VecDeque::new(),
            warned_of_room: false,
            active_at: Timestamp::ZERO,
            reporter: Reporter::default(),
            closing: None,
            shared,
        })
    }

    pub(crate) async fn run(mut self) {
        let ending = Ending(Arc::clone(&self.shared));
        while let Turn::Again = self.turn() {
            let pause = clock::duration(self.pause());
            tokio::select! {
                news = self.connection.news() => self.hear(news),
                command = self.commands.recv() => match command {
                    Some(Command::Close { within, done }) => self.close(within, done),
                    None => break,
                },
                () = self.shared.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        drop(ending);
        if let Some(Closing {
            done: Some(done),
            drained,
            ..
        }) = self.closing.take()
        {
            // A caller that no longer waits does not mind.
            let _told = done.send(drained).is_ok();
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) -> Turn {
        let now = clock::now();
        if let Some(jump) = self.jumps.poll() {
            tracing::warn!(
                seconds = jump.as_seconds_ceil(),
                "the wall clock jumped forward: this machine may have been held, so all leases end"
            );
            self.end_leases(now);
        }
        self.free_turned_away(now);
        self.take_signals(now);
        self.follow_rules(now);
        if self.holder.next_deadline().is_some_and(|due| due <= now) {
            self.handle(now, Input::Tick);
        }
        self.send();
        self.take_events();
        self.wake_callers(now);
        self.watch_for_silence(now);
        match &self.closing {
            Some(closing) if closing.drained || closing.deadline <= now => Turn::Over,
            _ => Turn::Again,
        }
    }

    fn handle(&mut self, now: Timestamp, input: Input) {
        self.holder.handle(now, input, &self.shared.table);
    }

    /// Everything that callers said. Who waits is read first: whatever they touched before has
    /// then been signalled.
    fn take_signals(&mut self, now: Timestamp) {
        let mut news = std::mem::take(&mut self.news);
        self.shared.waiters.take_news(&mut news);
        while let Ok(signal) = self.signals.try_recv() {
            self.active_at = now;
            match signal {
                Signal::Touched(slot) => self.handle(now, Input::Touched { slot }),
                Signal::Close(slot) if self.shared.waiters.waits_on(slot) => {}
                Signal::Close(slot) => self.handle(now, Input::Close { slot }),
                Signal::Open(opening) if self.open_slots() >= self.open_max => {
                    self.turn_away(now, opening.slot);
                }
                Signal::Open(opening) => {
                    let kept = Kept {
                        policy: opening.policy,
                        fingerprint: opening.fingerprint,
                        key: opening.bucket.key.clone(),
                        version: None,
                    };
                    self.slots.insert(opening.slot, kept);
                    let open = Input::Open {
                        slot: opening.slot,
                        bucket: opening.bucket,
                        settings: opening.settings,
                    };
                    self.handle(now, open);
                    // Makes the machine follow rules that came after the caller's.
                    self.settle_slot(now, opening.slot);
                }
            }
        }
        if self.shared.take_overflowed() {
            let renewing: Vec<Slot> = self.shared.table.renewing().collect();
            for slot in renewing {
                self.handle(now, Input::Touched { slot });
            }
        }
        for item in news.drain(..) {
            self.active_at = now;
            let input = match item {
                waiters::News::Began { slot, cost } => Input::Waiting { slot, cost },
                waiters::News::Ceased {
                    slot,
                    cost,
                    decided,
                } => {
                    if !decided {
                        self.shared.table.entry(slot).cell().refuse(cost);
                    }
                    Input::WaitOver { slot, cost }
                }
            };
            self.handle(now, input);
        }
        self.news = news;
    }

    fn open_slots(&self) -> u64 {
        u64::try_from(self.slots.len()).unwrap_or(u64::MAX)
    }

    /// Refuses a key that the stream has no room for. Opened nevertheless, it would have the next
    /// stream filled by what is open already, and the one after it too, without end.
    fn turn_away(&mut self, now: Timestamp, slot: Slot) {
        if !std::mem::replace(&mut self.warned_of_room, true) {
            tracing::warn!(
                open_max = self.open_max,
                "as many keys are open as the authority takes on a stream; new keys are refused: \
                 raise the authority's limit or use more clients"
            );
        }
        let until = now + TURNED_AWAY;
        self.shared.table.entry(slot).note(Status::Busy, until);
        self.shared.waiters.wake_slot(slot);
        self.turned_away.push_back((until, slot));
    }

    fn free_turned_away(&mut self, now: Timestamp) {
        while let Some((until, slot)) = self.turned_away.front().copied()
            && until <= now
        {
            self.turned_away.pop_front();
            self.free(slot);
        }
    }

    /// Takes the entry of a slot that is not open from its key.
    fn free(&self, slot: Slot) {
        self.shared.table.free(slot);
        self.shared.waiters.forget(slot);
        self.shared.changed.notify_waiters();
    }

    /// Brings every slot in line with rules that have changed.
    fn follow_rules(&mut self, now: Timestamp) {
        let generation = self.shared.rules_generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let slots: Vec<Slot> = self.slots.keys().copied().collect();
        for slot in slots {
            self.settle_slot(now, slot);
        }
    }

    /// Brings one slot in line with the rules in force.
    fn settle_slot(&mut self, now: Timestamp, slot: Slot) {
        let Some(kept) = self.slots.get_mut(&slot) else {
            return;
        };
        let rules = self.shared.rules();
        let id = self.shared.names.name(kept.policy);
        let Some((_, policy, rule)) = rules
            .find(id)
            .filter(|(_, policy, _)| !policy.spec().disabled && policy.fits(&kept.key))
        else {
            self.handle(now, Input::Close { slot });
            return;
        };
        let first = kept.version.is_none();
        if kept.version.replace(policy.version()) == Some(policy.version()) {
            return;
        }
        let settings = rule.limit_of(kept.fingerprint, &kept.key).settings;
        self.handle(now, Input::PolicyChanged { slot, settings });
        if !first {
            // What the authority said was said under the version before.
            let entry = self.shared.table.entry(slot);
            if !matches!(entry.status(), Status::Granted | Status::Exhausted) {
                entry.note(Status::Unknown, Timestamp::ZERO);
            }
        }
    }

    fn send(&mut self) {
        let keys_max = self.connection.keys_max();
        let Some(up) = self.connection.up() else {
            return;
        };
        let mut full = false;
        while let Ok(place) = up.outbox.try_reserve() {
            // Read after the place is sure: the message dates grants by this instant.
            let now = clock::now();
            let Some(message) = self.holder.poll_transmit(now, &self.shared.table) else {
                break;
            };
            let outcomes = self.reporter.take(now, &self.shared.names);
            self.introduced += u64::try_from(message.introductions.len()).unwrap_or(u64::MAX);
            full |= self.introduced >= keys_max;
            if !message.requests.is_empty() {
                self.due_since.get_or_insert(now);
            }
            let mut message = encode_requests(&message);
            put_outcomes(&mut message, outcomes);
            place.send(message);
        }
        if full {
            tracing::debug!("this stream has seen as many keys as it may: opening another");
            self.lose_stream();
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.holder.poll_event() {
            match event {
                Event::Wake { slot, version } => {
                    let entry = self.shared.table.entry(slot);
                    entry.note_version(version);
                    entry.note(Status::Granted, Timestamp::ZERO);
                }
                Event::Refused { slot, cause } => {
                    let (status, expected) = match cause {
                        // Nothing is short: the grant only waits until its record is durable.
                        Cause::Exhausted { until } if until <= clock::now() => continue,
                        Cause::Exhausted { until } => (Status::Exhausted, until),
                        Cause::UnknownPolicy => (Status::UnknownPolicy, Timestamp::ZERO),
                        Cause::CostAboveCapacity { .. } => {
                            (Status::CostAboveCapacity, Timestamp::ZERO)
                        }
                        Cause::Busy { until } => (Status::Busy, until),
                    };
                    self.shared.table.entry(slot).note(status, expected);
                    self.shared.waiters.wake_slot(slot);
                }
                Event::Closed { slot } => {
                    if self.slots.remove(&slot).is_some() {
                        self.free(slot);
                    }
                }
                Event::Reconnect => self.lose_stream(),
                Event::Drained => {
                    if let Some(closing) = &mut self.closing {
                        closing.drained = true;
                    }
                }
            }
        }
    }

    fn wake_callers(&self, now: Timestamp) {
        let tick = quota_core::cell::Tick::at(now);
        self.shared.waiters.wake_served(|slot| {
            let view = self.shared.table.entry(slot).cell().view();
            if view.live(tick) {
                view.tokens
            } else {
                Tokens::ZERO
            }
        });
    }

    fn hear(&mut self, news: News) {
        let now = clock::now();
        self.active_at = now;
        match news {
            News::Up => self.connected(now),
            News::Failed { seed, error } => {
                // Once for each outage, not once for each attempt.
                if self.shared.link() != Link::Down {
                    let because = because(&error);
                    tracing::warn!(
                        seed, %error, because,
                        "the authority is out of reach; policies decide by `on_outage` until it is back"
                    );
                }
                self.shared.set_link(Link::Down);
            }
            News::Message(message) => self.take_message(now, *message),
            News::Ended(status) => {
                let reason = status.map(|status| status.to_string());
                tracing::warn!(
                    reason,
                    "the stream to the authority has ended; connecting again"
                );
                self.disconnected(now);
            }
        }
    }

    fn connected(&mut self, now: Timestamp) {
        self.open_max = self.connection.keys_max() / 4 * 3;
        if self.open_slots() > self.open_max {
            self.refuse_authority(now);
            return;
        }
        let shared = Arc::clone(&self.shared);
        let Some(up) = self.connection.up() else {
            return;
        };
        up.watch_policies(&shared);
        let Up { seed, welcome, .. } = up;
        tracing::info!(
            seed,
            node = welcome.node,
            server_version = welcome.server_version,
            "connected to an authority"
        );
        if welcome.limits.keys_max < self.shared.table.capacity() {
            tracing::warn!(
                keys_max = welcome.limits.keys_max,
                "the authority takes fewer keys on a stream than this client may hold"
            );
        }
        self.due_since = None;
        self.introduced = 0;
        self.shared.note_heard(now);
        self.reporter.stream_began();
        self.handle(now, Input::Connected);
        self.shared.set_link(Link::Up);
    }

    /// Turns down an authority whose streams cannot hold what is open, and closes the surplus, so
    /// that one of the next attempts succeeds.
    fn refuse_authority(&mut self, now: Timestamp) {
        tracing::warn!(
            open = self.open_slots(),
            open_max = self.open_max,
            "the authority takes fewer keys on a stream than this client has open: closing some \
             and trying another"
        );
        let keep = usize::try_from(self.open_max).unwrap_or(usize::MAX);
        let surplus: Vec<Slot> = self.slots.keys().skip(keep).copied().collect();
        for slot in surplus {
            self.handle(now, Input::Close { slot });
        }
        self.connection.drop_stream();
        self.shared.set_link(Link::Down);
    }

    fn disconnected(&mut self, now: Timestamp) {
        self.due_since = None;
        self.handle(now, Input::Disconnected);
        if self.shared.link() == Link::Up {
            self.shared.set_link(Link::Connecting);
        }
    }

    fn lose_stream(&mut self) {
        self.connection.drop_stream();
        self.disconnected(clock::now());
    }

    fn take_message(&mut self, now: Timestamp, message: wire::ServerMessage) {
        self.shared.note_heard(now);
        match decode_from_authority(message) {
            Ok(FromAuthority::Answers(answers)) => {
                self.due_since = None;
                self.connection.proved();
                for answer in answers.answers {
                    let anchor = answers.anchor;
                    self.handle(now, Input::Answer { anchor, answer });
                }
            }
            // The watch of the policies hears of the change itself.
            Ok(FromAuthority::Policies(_)) => {}
            Ok(FromAuthority::GoAway(farewell)) => {
                tracing::info!(message = farewell.message, "the authority is leaving");
                self.lose_stream();
            }
            Ok(FromAuthority::NotOwner(hint)) => {
                tracing::warn!(shard = %hint.shard, "the authority does not own a shard it was asked about");
                self.lose_stream();
            }
            Ok(FromAuthority::ShardMap(_) | FromAuthority::Unknown) => {}
            Err(error) => {
                tracing::error!(%error, "the authority sent a message that makes no sense");
                self.lose_stream();
            }
        }
    }

    /// Gives up a stream on which an answer is overdue: the server hangs, whatever its
    /// connection says.
    fn watch_for_silence(&mut self, now: Timestamp) {
        let silence_max = clock::term(self.shared.config.silence_max);
        let silent = |since: Timestamp| now.since(since.max(self.shared.heard_at())) > silence_max;
        if self.due_since.is_some_and(silent) {
            tracing::warn!("the authority does not answer; connecting again");
            self.lose_stream();
        }
    }

    /// Every lease may be over although its deadline has not come: takes them all out of reach.
    fn end_leases(&mut self, now: Timestamp) {
        let slots: Vec<Slot> = self.slots.keys().copied().collect();
        for slot in slots {
            self.handle(now, Input::Close { slot });
        }
    }

    fn close(&mut self, within: Duration, done: oneshot::Sender<bool>) {
        let now = clock::now();
        self.shared.refuse_all();
        self.closing = Some(Closing {
            deadline: now + clock::term(within),
            done: Some(done),
            drained: false,
        });
        self.take_signals(now);
        self.handle(now, Input::Shutdown);
    }

    fn pause(&self) -> Term {
        let now = clock::now();
        let poll = if now.since(self.active_at) <= BUSY {
            POLL_BUSY
        } else if self.slots.is_empty() {
            POLL_MAX
        } else {
            POLL_IDLE
        };
        let due = self.holder.next_deadline().map(|due| due.since(now));
        let closing = self.closing.as_ref();
        let closing = closing.map(|closing| closing.deadline.since(now));
        let free = self.turned_away.front();
        let free = free.map(|(until, _)| until.since(now));
        [due, closing, free]
            .into_iter()
            .flatten()
            .fold(poll, Term::min)
    }
}

/// What lies behind an error, down to its root.
fn because(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    let sources: Vec<_> = sources.map(ToString::to_string).collect();
    sources.join(": ")
}
