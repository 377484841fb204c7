//! The driver around the authority: batches in, effects and writes out.

use quota_core::authority::{Effect, Input, StreamId, WriteId};
use quota_core::holder::HolderMessage;
use quota_core::id::{Epoch, Incarnation, MessageNumber};
use quota_core::message::{Answer, Refusal, Status};
use quota_core::record::ReservationWrite;
use quota_core::time::Timestamp;

use super::liar::LIAR;
use super::{DownMessage, Event, Sabotage, UpMessage, World, WriteFate};
use crate::coverage::Sometimes;
use crate::network::Way;
use crate::shape::MILLI;

impl World {
    pub(super) fn up(
        &mut self,
        node: usize,
        client: usize,
        incarnation: Incarnation,
        stream: StreamId,
        message: UpMessage,
    ) {
        if !self.holds_tenure(node) {
            let asked = matches!(message, UpMessage::Connect) && self.servers.len() > 1;
            self.coverage.hit_if(asked, Sometimes::ConnectedToStandby);
            if matches!(message, UpMessage::Message(_)) {
                self.reset_stream(client, stream);
            }
            return;
        }
        let Some(tenure) = self.servers[node].tenure.as_mut() else {
            return;
        };
        let known = tenure.streams.contains_key(&stream);
        if !known && matches!(message, UpMessage::Message(_)) {
            // A stream of an earlier process, or one whose beginning has not arrived: the
            // transport resets it.
            return self.reset_stream(client, stream);
        }
        let inputs = match message {
            UpMessage::Connect => {
                let others = tenure
                    .streams
                    .values()
                    .any(|(_, other)| *other == incarnation);
                self.coverage.hit_if(others, Sometimes::StreamReplaced);
                tenure.streams.insert(stream, (client, incarnation));
                self.send_down(client, stream, DownMessage::Accepted);
                vec![Input::Connect {
                    incarnation,
                    stream,
                }]
            }
            UpMessage::Disconnect => {
                // A stream keeps the incarnation that it began with, whoever lives there by now.
                let begun = tenure.streams.remove(&stream);
                let incarnation = begun.map_or(incarnation, |(_, incarnation)| incarnation);
                vec![Input::Disconnect {
                    incarnation,
                    stream,
                }]
            }
            UpMessage::Message(message) => message_inputs(incarnation, stream, message),
        };
        let of_message = matches!(inputs.first(), Some(Input::Anchor { .. }));
        // A liar may claim what it has not been granted yet: then the copy, too, says something new.
        let again =
            of_message && client != LIAR && self.random.chance(self.shape.repeated_per_mille);
        let again = again.then(|| inputs.clone());
        let before = again.as_ref().map(|_| self.settled_totals(node));
        let life = self.servers[node].life;
        if client == LIAR {
            self.liar_claims(&inputs);
        }
        self.server_inputs(node, inputs);
        if let (Some(again), Some(before)) = (again, before)
            && self.servers[node].life == life
        {
            self.repeat_inputs(node, again, before);
        }
    }

    fn reset_stream(&mut self, client: usize, stream: StreamId) {
        if client == LIAR {
            return;
        }
        let life = self.clients[client].life;
        self.after(
            self.shape.network.delay,
            Event::StreamBroken {
                client,
                life,
                stream,
            },
        );
    }

    /// Handles one batch at one clock reading, then all its effects.
    pub(super) fn server_inputs(&mut self, node: usize, inputs: Vec<Input>) {
        if !self.holds_tenure(node) {
            return;
        }
        self.check_owner(node);
        let now = self.servers[node].clock.read(self.time);
        let mut effects = std::mem::take(&mut self.effects);
        let Some(tenure) = self.servers[node].tenure.as_mut() else {
            return;
        };
        for input in inputs {
            self.events += 1;
            tenure.authority.handle(now, input, &mut effects);
        }
        self.see_stats(node);
        self.server_effects(node, &mut effects);
        effects.clear();
        self.effects = effects;
        self.schedule_server_tick(node);
        self.liar_account();
        self.check_after_event();
    }

    fn see_stats(&mut self, node: usize) {
        let Some(tenure) = &self.servers[node].tenure else {
            return;
        };
        let stats = tenure.authority.stats();
        self.coverage
            .hit_if(stats.pushes > self.seen_pushes, Sometimes::Pushed);
        self.seen_pushes = stats.pushes;
    }

    fn server_effects(&mut self, node: usize, effects: &mut Vec<Effect>) {
        let mut answers: Vec<(StreamId, MessageNumber, Vec<Answer>)> = Vec::new();
        let mut granted = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Answer {
                    stream,
                    anchor,
                    answer,
                    ..
                } => {
                    granted |= answer.grant.is_some_and(|g| !g.granted.is_zero());
                    self.see_answer(&answer);
                    let together = !self.shape.split_answers;
                    let mut open = answers.iter_mut();
                    match open.find(|(s, _, _)| together && *s == stream) {
                        Some((_, least, list)) => {
                            *least = anchor.min(*least);
                            list.push(answer);
                        }
                        None => answers.push((stream, anchor, vec![answer])),
                    }
                }
                Effect::Write { write, records } => self.begin_write(node, write, records),
                Effect::Settle => {
                    let mut time = self.store_delay(node);
                    if self.sabotage == Sabotage::LateSettle {
                        time += self.shape.term;
                    }
                    let (life, epoch) = (self.servers[node].life, self.epoch_of(node));
                    self.after(time, Event::Settle { life, epoch });
                }
                Effect::PolicyApplied {
                    outstanding, owed, ..
                } => {
                    self.coverage
                        .hit_if(!owed.is_zero(), Sometimes::LoweredIntoDebt);
                    let _ = outstanding;
                }
            }
        }
        let crash = granted && self.servers[node].crash_after_grant;
        let cut = granted && self.servers[node].cut_until > self.time;
        self.coverage.hit_if(cut, Sometimes::GrantedWhileCutOff);
        let unsent = crash && self.random.chance(500);
        for (stream, anchor, list) in answers {
            let tenure = self.servers[node].tenure.as_ref();
            let to = tenure.and_then(|t| t.streams.get(&stream)).copied();
            let Some((client, incarnation)) = to else {
                continue;
            };
            if client == LIAR {
                self.liar_answered(node, incarnation, anchor, &list);
            } else if !unsent {
                self.answer(node, client, stream, DownMessage::Answers(anchor, list));
            }
        }
        if crash {
            self.hit(Sometimes::CrashRightAfterGrant);
            self.crash_server(node);
        }
    }

    /// Sends answers, or keeps them until the node sends again.
    fn answer(&mut self, node: usize, client: usize, stream: StreamId, message: DownMessage) {
        let (life, stalled) = (self.servers[node].life, self.servers[node].stalled_until);
        if stalled > self.time {
            // From here on it stands still.
            self.servers[node].paused_until = stalled;
            self.at(
                stalled,
                Event::Unstall {
                    life,
                    client,
                    stream,
                    message,
                },
            );
        } else {
            self.send_down(client, stream, message);
        }
    }

    /// Answers leave a node that stood still between its decision and its sending. It sends them
    /// whatever has become of its tenure; only the end of its process ends them.
    pub(super) fn unstall(
        &mut self,
        life: u64,
        client: usize,
        stream: StreamId,
        message: DownMessage,
    ) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        self.hit(Sometimes::Stalled);
        let late = self.servers[node].tenure.as_ref();
        let late = late.is_some_and(|t| t.epoch != self.store.epoch());
        self.coverage.hit_if(late, Sometimes::AnsweredAfterTakeOver);
        self.send_down(client, stream, message);
    }

    fn see_answer(&mut self, answer: &Answer) {
        match answer.status {
            Status::Queued { .. } => self.hit(Sometimes::Queued),
            Status::Recall { .. } => self.hit(Sometimes::RecallSent),
            Status::Refused(Refusal::CostAboveCapacity { .. }) => self.hit(Sometimes::CostRefused),
            Status::Refused(Refusal::UnknownKey) => self.hit(Sometimes::UnknownKey),
            Status::Refused(Refusal::UnknownPolicy) => self.hit(Sometimes::UnknownPolicy),
            Status::Refused(Refusal::Busy { .. }) => self.hit(Sometimes::TableFull),
            _ => {}
        }
        let grant = answer.grant.map_or([0; 3], |g| {
            [g.lease.counter, g.granted.get(), g.term.as_nanos()]
        });
        self.trace.note(&[2, self.time, answer.sequence.get()]);
        self.trace.note(&grant);
        let now = self.time;
        self.trace.say(now, || format!("authority: {answer:?}"));
    }

    fn send_down(&mut self, client: usize, stream: StreamId, message: DownMessage) {
        if client == LIAR {
            return;
        }
        let fate = self.network.send(
            self.time,
            client,
            Way::Down,
            &mut self.random,
            &mut self.coverage,
        );
        let life = self.clients[client].life;
        if fate.breaks {
            return self.break_stream(client, stream);
        }
        let copy = message.clone();
        let copies = [Some(message), Some(copy)];
        for (arrival, message) in fate.arrivals.into_iter().zip(copies) {
            if let (Some(at), Some(message)) = (arrival, message) {
                self.at(
                    at,
                    Event::Down {
                        client,
                        life,
                        stream,
                        message,
                    },
                );
            }
        }
    }

    /// How long a request to the store takes, from a node that may be cut off from it or stand
    /// still before it sends.
    pub(super) fn store_delay(&mut self, node: usize) -> u64 {
        let time = self.random.around(self.shape.write_time);
        let server = &self.servers[node];
        let held_up = server.cut_until.max(server.stalled_until);
        time + held_up.saturating_sub(self.time)
    }

    fn begin_write(&mut self, node: usize, write: WriteId, records: Vec<ReservationWrite>) {
        let fate = if !self.healed && self.random.chance(self.shape.write_trouble_per_mille) {
            self.random.pick(&[
                WriteFate::UnknownApplied,
                WriteFate::UnknownLost,
                WriteFate::Failed,
            ])
        } else {
            WriteFate::Acknowledged
        };
        let time = self.store_delay(node);
        let (life, epoch) = (self.servers[node].life, self.epoch_of(node));
        if let Some(tenure) = self.servers[node].tenure.as_mut() {
            tenure.writing = true;
        }
        if self.sabotage == Sabotage::EarlyAcknowledge {
            let acknowledged = true;
            self.after(
                0,
                Event::WriteEnded {
                    life,
                    write,
                    acknowledged,
                },
            );
        }
        self.after(
            time,
            Event::Write {
                life,
                epoch,
                write,
                records,
                fate,
            },
        );
    }

    pub(super) fn store_write(
        &mut self,
        life: u64,
        epoch: Epoch,
        write: WriteId,
        records: &[ReservationWrite],
        fate: WriteFate,
    ) {
        let orphan = self.node_of(life).is_none();
        let replaced = epoch != self.store.epoch();
        self.coverage
            .hit_if(replaced && !orphan, Sometimes::WriteAfterTakeOver);
        let lost = matches!(fate, WriteFate::UnknownLost | WriteFate::Failed)
            || (orphan && (self.sabotage == Sabotage::EarlyAcknowledge || self.random.chance(500)));
        if orphan && lost {
            self.hit(Sometimes::LostWrite);
        }
        let kept = if self.sabotage == Sabotage::TornBatch {
            &records[..records.len() / 2]
        } else {
            records
        };
        let applied = !lost && self.apply_records(epoch, kept);
        self.coverage
            .hit_if(!lost && !applied, Sometimes::LateWriteFenced);
        self.coverage
            .hit_if(orphan && applied, Sometimes::UnackedWrite);
        self.trace.note(&[3, self.time, u64::from(applied)]);
        let now = self.time;
        self.trace
            .say(now, || format!("store: applied {applied}, {records:?}"));
        match fate {
            WriteFate::Failed => self.hit(Sometimes::FailedWrite),
            WriteFate::UnknownApplied | WriteFate::UnknownLost => {
                self.hit(Sometimes::UnknownOutcome);
            }
            WriteFate::Acknowledged => {}
        }
        if self.sabotage != Sabotage::EarlyAcknowledge {
            let acknowledged = fate == WriteFate::Acknowledged && applied;
            self.after(
                0,
                Event::WriteEnded {
                    life,
                    write,
                    acknowledged,
                },
            );
        }
    }

    fn apply_records(&mut self, epoch: Epoch, records: &[ReservationWrite]) -> bool {
        if self.sabotage == Sabotage::NoFence {
            self.store.put(records);
            self.check_fence(epoch, true);
            return true;
        }
        let applied = self.store.write(epoch, records);
        self.check_fence(epoch, applied);
        applied
    }

    pub(super) fn write_ended(&mut self, life: u64, write: WriteId, acknowledged: bool) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        if !acknowledged {
            // The shard gives up its epoch and claims again before it writes anything else.
            return self.end_tenure(node, 0);
        }
        if let Some(tenure) = self.servers[node].tenure.as_mut() {
            tenure.writing = false;
        }
        self.server_inputs(node, vec![Input::Written { write }]);
    }

    pub(super) fn store_settle(&mut self, life: u64, epoch: Epoch) {
        let named = match self.sabotage {
            Sabotage::LateSettle => self.store.epoch(),
            _ => epoch,
        };
        let settled = self.store.settle(named);
        let Some(node) = self.node_of(life) else {
            return;
        };
        if !settled {
            return self.end_tenure(node, 0);
        }
        self.hit(Sometimes::Settled);
        self.unsettled_ends = 0;
        if let Some(tenure) = self.servers[node].tenure.as_mut() {
            tenure.unsettled = false;
        }
    }

    pub(super) fn schedule_server_tick(&mut self, node: usize) {
        let Some(tenure) = self.servers[node].tenure.as_ref() else {
            return;
        };
        let Some(deadline) = tenure.authority.next_deadline() else {
            return;
        };
        let at = self.moment(node, deadline);
        let server = &mut self.servers[node];
        if server.tick_at.is_none_or(|old| at < old) {
            server.tick_at = Some(at);
            let life = server.life;
            self.at(at, Event::ServerTick { life });
        }
    }

    /// The driver's timers are never early, and late by up to a millisecond.
    fn moment(&mut self, node: usize, deadline: Timestamp) -> u64 {
        let late = self.random.below(MILLI);
        self.servers[node]
            .clock
            .moment(deadline)
            .max(self.time)
            .saturating_add(late)
    }

    pub(super) fn server_tick(&mut self, life: u64) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        let server = &mut self.servers[node];
        if server.tick_at.is_none_or(|at| at > self.time) {
            return;
        }
        server.tick_at = None;
        self.server_inputs(node, vec![Input::Tick]);
    }
}

fn message_inputs(
    incarnation: Incarnation,
    stream: StreamId,
    message: HolderMessage,
) -> Vec<Input> {
    let number = message.number;
    let mut inputs = vec![Input::Anchor {
        incarnation,
        stream,
        number,
    }];
    inputs.extend(message.introductions.into_iter().map(|introduction| {
        let introduction = Box::new(introduction);
        Input::Introduce {
            incarnation,
            stream,
            introduction,
        }
    }));
    inputs.extend(message.requests.into_iter().map(|request| Input::Request {
        incarnation,
        stream,
        number,
        request,
    }));
    inputs
}
