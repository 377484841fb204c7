//! The driver around the holder machine.

use quota_core::authority::StreamId;
use quota_core::holder::{Cause, Cells, Event as Told, HolderMessage, Input, Slot, SlotSettings};
use quota_core::id::MessageNumber;
use quota_core::message::{Answer, Status};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use super::{DownMessage, Event, Sabotage, UpMessage, World};
use crate::client::{Link, Use, Waiter};
use crate::coverage::Sometimes;
use crate::network::Way;
use crate::shape::{Caller, MILLI};

impl World {
    pub(super) fn client_now(&self, client: usize) -> Timestamp {
        self.clients[client].clock.read(self.time)
    }

    pub(super) fn client_input(&mut self, client: usize, input: Input) {
        let now = self.client_now(client);
        let node = &mut self.clients[client];
        self.events += 1;
        node.holder.handle(now, input, &node.table);
        self.pump(client);
    }

    /// Drains what the machine has to say, to callers and to the authority.
    pub(super) fn pump(&mut self, client: usize) {
        loop {
            while let Some(told) = self.clients[client].holder.poll_event() {
                self.told(client, told);
            }
            let now = self.client_now(client);
            let node = &mut self.clients[client];
            if let Link::Up(stream) = node.link
                && let Some(message) = node.holder.poll_transmit(now, &node.table)
            {
                self.trace
                    .note(&[5, self.time, client as u64, message.number.get()]);
                let at = self.time;
                self.trace
                    .say(at, || format!("holder {client}: {message:?}"));
                self.send_up(client, stream, UpMessage::Message(message));
                continue;
            }
            break;
        }
        let node = &mut self.clients[client];
        let stats = node.holder.stats();
        let seen = (stats.answers_dropped, stats.retries);
        self.coverage
            .hit_if(seen.0 > node.seen.0, Sometimes::AnswerDropped);
        self.coverage
            .hit_if(seen.1 > node.seen.1, Sometimes::RetrySent);
        node.seen = seen;
        self.schedule_client_tick(client);
        self.check_after_event();
    }

    fn told(&mut self, client: usize, told: Told) {
        match told {
            Told::Wake { slot, .. } => self.wake(client, slot),
            Told::Refused { slot, cause } => {
                if matches!(cause, Cause::CostAboveCapacity { .. }) {
                    self.drop_waiters(client, |w| w.slot == slot);
                }
            }
            Told::Closed { slot } => {
                let place = usize::try_from(slot.index()).expect("small");
                self.clients[client].uses[place] = Use::Free;
            }
            Told::Reconnect => {
                self.clients[client].link = Link::Down;
                let life = self.clients[client].life;
                self.after(1, Event::Connect { client, life });
            }
            Told::Drained => {
                if self.clients[client].draining {
                    self.hit(Sometimes::HolderShutdown);
                    self.kill_client(client, MILLI);
                }
            }
        }
    }

    fn wake(&mut self, client: usize, slot: Slot) {
        self.serve_waiters(client, slot);
        let place = usize::try_from(slot.index()).expect("small");
        let Use::Bucket(bucket) = self.clients[client].uses[place] else {
            return;
        };
        if matches!(self.clients[client].callers[bucket], Caller::Hoard { .. }) {
            self.plan_drain(client, slot);
        }
    }

    fn serve_waiters(&mut self, client: usize, slot: Slot) {
        loop {
            let waiters = self.clients[client].waiters.iter();
            let Some((place, waiter)) = waiters.enumerate().find(|(_, w)| w.slot == slot) else {
                return;
            };
            let waiter = *waiter;
            if !self.spend(client, waiter.bucket, slot, waiter.cost) {
                return;
            }
            self.hit(Sometimes::WaiterServed);
            // Serving may have changed the list; find the waiter again.
            let waiters = &mut self.clients[client].waiters;
            let same =
                |w: &Waiter| w.slot == slot && w.since == waiter.since && w.cost == waiter.cost;
            let again = waiters.get(place).filter(|w| same(w)).map(|_| place);
            if let Some(place) = again.or_else(|| waiters.iter().position(same)) {
                waiters.remove(place);
            }
            let cost = waiter.cost;
            self.client_input(client, Input::WaitOver { slot, cost });
            self.served_in_liveness(client, waiter);
        }
    }

    fn schedule_client_tick(&mut self, client: usize) {
        let late = self.random.below(MILLI);
        let node = &mut self.clients[client];
        let Some(deadline) = node.holder.next_deadline().filter(|_| node.alive) else {
            return;
        };
        let at = node
            .clock
            .moment(deadline)
            .max(self.time)
            .saturating_add(late);
        if node.tick_at.is_none_or(|old| at < old) {
            node.tick_at = Some(at);
            let life = node.life;
            self.at(at, Event::ClientTick { client, life });
        }
    }

    pub(super) fn client_tick(&mut self, client: usize, life: u64) {
        let node = &mut self.clients[client];
        if life != node.life || !node.alive || node.tick_at.is_none_or(|at| at > self.time) {
            return;
        }
        node.tick_at = None;
        self.client_input(client, Input::Tick);
    }

    pub(super) fn down(
        &mut self,
        client: usize,
        life: u64,
        stream: StreamId,
        message: DownMessage,
    ) {
        let node = &mut self.clients[client];
        if life != node.life || !node.alive {
            return;
        }
        match message {
            DownMessage::Accepted => {
                if node.link == Link::Connecting(stream) {
                    node.link = Link::Up(stream);
                    self.client_input(client, Input::Connected);
                }
            }
            DownMessage::Answers(mut anchor, answers) => {
                if node.link != Link::Up(stream) {
                    return;
                }
                if self.sabotage == Sabotage::NewestAnchor {
                    anchor = node.newest;
                }
                for answer in answers {
                    if self.clients[client].life != life {
                        return;
                    }
                    self.see_replacement(client, &answer);
                    self.see_crossing(client, anchor, &answer);
                    let again = self.random.chance(self.shape.repeated_per_mille);
                    if again {
                        self.repeat_answer(client, anchor, answer);
                    } else {
                        let before = self.returned(client);
                        self.client_input(client, Input::Answer { anchor, answer });
                        let recalled = matches!(answer.status, Status::Recall { .. })
                            && self.returned(client) > before;
                        self.coverage.hit_if(recalled, Sometimes::RecallAnswered);
                    }
                }
            }
        }
    }

    /// Tokens that the holder's leases count as returned.
    fn returned(&self, client: usize) -> Tokens {
        let node = &self.clients[client];
        let slots = (0..node.uses.len()).filter_map(|n| u32::try_from(n).ok());
        let leases = slots.filter_map(|n| node.holder.lease(Slot::new(n)));
        leases.map(|lease| lease.returned).sum()
    }

    fn see_replacement(&mut self, client: usize, answer: &Answer) {
        let Some(grant) = answer.grant else { return };
        let node = &self.clients[client];
        let slots = (0..node.uses.len()).filter_map(|n| u32::try_from(n).ok());
        let replaced = slots
            .filter_map(|n| node.holder.lease(Slot::new(n)))
            .any(|lease| lease.live && lease.id.epoch != grant.lease.epoch);
        self.coverage.hit_if(replaced, Sometimes::LeaseReplaced);
    }

    fn send_up(&mut self, client: usize, stream: StreamId, message: UpMessage) {
        if let UpMessage::Message(sent) = &message {
            self.note_sent(client, sent);
        }
        let fate = self.network.send(
            self.time,
            client,
            Way::Up,
            &mut self.random,
            &mut self.coverage,
        );
        let incarnation = self.clients[client].holder.incarnation();
        if fate.breaks {
            return self.break_stream(client, stream);
        }
        let node = self.clients[client].node;
        let copy = message.clone();
        for (arrival, message) in fate.arrivals.into_iter().zip([message, copy]) {
            if let Some(at) = arrival {
                self.at(
                    at,
                    Event::Up {
                        node,
                        client,
                        incarnation,
                        stream,
                        message,
                    },
                );
            }
        }
    }

    fn note_sent(&mut self, client: usize, message: &HolderMessage) {
        let node = &mut self.clients[client];
        let number = message.number;
        node.newest = number;
        for request in &message.requests {
            let (key, sequence) = (request.key, request.sequence);
            match node.sent.iter_mut().find(|(k, _, _)| *k == key) {
                Some((_, last, messages)) if *last == sequence => messages[1] = number,
                Some(entry) => *entry = (key, sequence, [number; 2]),
                None => node.sent.push((key, sequence, [number; 2])),
            }
        }
    }

    /// An answer to a request that has been repeated since: the repetition crossed it.
    fn see_crossing(&mut self, client: usize, anchor: MessageNumber, answer: &Answer) {
        let sent = self.clients[client].sent.iter();
        let crossed = sent
            .filter(|(key, sequence, _)| (*key, *sequence) == (answer.key, answer.sequence))
            .any(|(_, _, [first, last])| *first <= anchor && anchor < *last);
        let granted = answer.grant.is_some_and(|g| !g.granted.is_zero());
        self.coverage
            .hit_if(crossed && granted, Sometimes::RetryCrossed);
    }

    pub(super) fn connect(&mut self, client: usize, life: u64) {
        let node = &mut self.clients[client];
        if life != node.life || !node.alive || matches!(node.link, Link::Up(_)) {
            return;
        }
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        node.link = Link::Connecting(stream);
        node.sent.clear();
        self.clients[client].node = self.draw_node();
        self.send_up(client, stream, UpMessage::Connect);
        let patience = 8 * self.shape.network.delay + self.random.around(20 * MILLI);
        self.after(
            patience,
            Event::ConnectTimeout {
                client,
                life,
                stream,
            },
        );
    }

    /// Holders know which node owns the shard, but not always.
    pub(super) fn draw_node(&mut self) -> usize {
        if self.servers.len() == 1 {
            return 0;
        }
        let owner = self.owner().unwrap_or_default();
        let stray = if self.healed { 50 } else { 200 };
        if self.random.chance(stray) {
            self.servers.len() - 1 - owner
        } else {
            owner
        }
    }

    /// A stream ends; each side notices in its own time.
    pub(super) fn break_stream(&mut self, client: usize, stream: StreamId) {
        let soon = self.random.around(MILLI);
        let late = self.random.below(self.shape.term);
        let delays = if self.healed {
            [soon, soon]
        } else {
            [soon, late]
        };
        let life = self.clients[client].life;
        let here = self.random.pick(&delays);
        let there = self.random.pick(&delays);
        self.after(
            here,
            Event::StreamBroken {
                client,
                life,
                stream,
            },
        );
        let incarnation = self.clients[client].holder.incarnation();
        let message = UpMessage::Disconnect;
        let node = self.clients[client].node;
        self.after(
            there,
            Event::Up {
                node,
                client,
                incarnation,
                stream,
                message,
            },
        );
    }

    pub(super) fn stream_broken(&mut self, client: usize, life: u64, stream: StreamId) {
        let node = &mut self.clients[client];
        let is_this = matches!(node.link, Link::Up(s) | Link::Connecting(s) if s == stream);
        if life != node.life || !node.alive || !is_this {
            return;
        }
        let was_up = matches!(node.link, Link::Up(_));
        node.link = Link::Down;
        if was_up {
            self.client_input(client, Input::Disconnected);
        }
        let backoff = self.random.around(5 * MILLI);
        self.after(backoff, Event::Connect { client, life });
    }

    // --- callers -------------------------------------------------------------------------------

    pub(super) fn arrive(&mut self, client: usize, bucket: usize) {
        if self.measuring.is_some() {
            return;
        }
        let caller = self.clients[client].callers[bucket];
        let next = match caller {
            Caller::Steady { gap } | Caller::Hoard { gap } => self.random.around(gap),
            Caller::Burst { every, .. } => every,
        };
        self.after(next.max(1), Event::Arrive { client, bucket });
        let node = &self.clients[client];
        if !node.alive || node.draining {
            return;
        }
        let Some(slot) = self.slot_for(client, bucket) else {
            return;
        };
        match caller {
            Caller::Steady { .. } => self.call(client, bucket, slot),
            Caller::Burst { size, .. } => {
                for _ in 0..size {
                    self.call(client, bucket, slot);
                }
            }
            Caller::Hoard { .. } => {
                let cell = self.clients[client].table.cell(slot);
                cell.refuse(Tokens::new(8));
                if cell.view().tokens.is_zero() {
                    self.client_input(client, Input::Touched { slot });
                }
            }
        }
    }

    /// The slot that serves a bucket, opened if need be.
    pub(super) fn slot_for(&mut self, client: usize, bucket: usize) -> Option<Slot> {
        if let Some(slot) = self.clients[client].slot_of(bucket) {
            return Some(slot);
        }
        let node = &mut self.clients[client];
        if node.uses.contains(&Use::Closing(bucket)) && self.random.chance(500) {
            return None;
        }
        let free = node.uses.iter().position(|u| *u == Use::Free)?;
        node.uses[free] = Use::Bucket(bucket);
        let slot = Slot::new(u32::try_from(free).expect("small"));
        let settings = self.settings(bucket);
        let bucket = self.buckets[bucket].address.clone();
        self.client_input(
            client,
            Input::Open {
                slot,
                bucket,
                settings,
            },
        );
        Some(slot)
    }

    /// How a holder keeps a bucket, by the newest version in the store.
    pub(super) fn settings(&self, bucket: usize) -> SlotSettings {
        let watched = &self.buckets[bucket];
        let history = self.store.policy(&watched.address.policy);
        let policy = history.and_then(|h| h.versions().next());
        let Some(policy) = policy else {
            return SlotSettings {
                horizon: quota_core::time::Term::from_millis(100),
                term: quota_core::time::Term::from_seconds(1),
                idle_return: quota_core::time::Term::from_seconds(1),
                warm_floor: Tokens::ZERO,
                cost_max: Tokens::ONE,
            };
        };
        SlotSettings::for_limit(policy.limit_for(&watched.address.key), policy.lease())
    }
}
