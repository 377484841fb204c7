//! The driver around the authority: batches in, effects out, claims, crashes.

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId, WriteId};
use quota_core::id::{Epoch, Incarnation, MessageNumber};
use quota_core::message::{Answer, Refusal, Status};
use quota_core::record::ReservationWrite;
use quota_core::time::Timestamp;

use super::{DownMessage, Event, Sabotage, UpMessage, World, WriteFate};
use crate::client::Link;
use crate::coverage::Sometimes;
use crate::network::Way;
use crate::server::Tenure;
use crate::shape::MILLI;
use crate::store::Claim;

impl World {
    pub(super) fn up(
        &mut self,
        client: usize,
        incarnation: Incarnation,
        stream: StreamId,
        message: UpMessage,
    ) {
        let Some(tenure) = self.server.tenure.as_mut() else {
            return;
        };
        let known = tenure.streams.contains_key(&stream);
        if !known && matches!(message, UpMessage::Message(_)) {
            // A stream of an earlier process, or one whose beginning has not arrived: the
            // transport resets it.
            let life = self.clients[client].life;
            return self.after(
                self.shape.network.delay,
                Event::StreamBroken {
                    client,
                    life,
                    stream,
                },
            );
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
                tenure.streams.remove(&stream);
                vec![Input::Disconnect {
                    incarnation,
                    stream,
                }]
            }
            UpMessage::Message(message) => {
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
        };
        self.server_inputs(inputs);
    }

    /// Handles one batch at one clock reading, then all its effects.
    pub(super) fn server_inputs(&mut self, inputs: Vec<Input>) {
        let now = self.server.clock.read(self.time);
        let mut effects = std::mem::take(&mut self.effects);
        let Some(tenure) = self.server.tenure.as_mut() else {
            return;
        };
        for input in inputs {
            self.events += 1;
            tenure.authority.handle(now, input, &mut effects);
        }
        self.server_effects(&mut effects);
        effects.clear();
        self.effects = effects;
        self.schedule_server_tick();
        self.check_after_event();
    }

    fn server_effects(&mut self, effects: &mut Vec<Effect>) {
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
                Effect::Write { write, records } => self.begin_write(write, records),
                Effect::Settle => {
                    let time = self.random.around(self.shape.write_time);
                    let epoch = self.epoch();
                    self.after(time, Event::Settle { epoch });
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
        let crash = granted && self.server.crash_after_grant;
        let unsent = crash && self.random.chance(500);
        for (stream, anchor, list) in answers {
            let to = self
                .server
                .tenure
                .as_ref()
                .and_then(|t| t.streams.get(&stream))
                .copied();
            if let Some((client, _)) = to.filter(|_| !unsent) {
                self.send_down(client, stream, DownMessage::Answers(anchor, list));
            }
        }
        if crash {
            self.hit(Sometimes::CrashRightAfterGrant);
            self.crash_server();
        }
    }

    fn see_answer(&mut self, answer: &Answer) {
        match answer.status {
            Status::Queued { .. } => self.hit(Sometimes::Queued),
            Status::Refused(Refusal::CostAboveCapacity { .. }) => self.hit(Sometimes::CostRefused),
            Status::Refused(Refusal::UnknownKey) => self.hit(Sometimes::UnknownKey),
            Status::Refused(Refusal::UnknownPolicy) => self.hit(Sometimes::UnknownPolicy),
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
        let copy = match &message {
            DownMessage::Accepted => DownMessage::Accepted,
            DownMessage::Answers(anchor, list) => DownMessage::Answers(*anchor, list.clone()),
        };
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

    fn epoch(&self) -> Epoch {
        self.server
            .tenure
            .as_ref()
            .map(|t| t.epoch)
            .unwrap_or_default()
    }

    fn begin_write(&mut self, write: WriteId, records: Vec<ReservationWrite>) {
        let fate = if !self.healed && self.random.chance(self.shape.write_trouble_per_mille) {
            self.random.pick(&[
                WriteFate::UnknownApplied,
                WriteFate::UnknownLost,
                WriteFate::Failed,
            ])
        } else {
            WriteFate::Acknowledged
        };
        let time = self.random.around(self.shape.write_time);
        let (life, epoch) = (self.server.life, self.epoch());
        if let Some(tenure) = self.server.tenure.as_mut() {
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
        let orphan = life != self.server.life;
        let lost = matches!(fate, WriteFate::UnknownLost | WriteFate::Failed)
            || (orphan && (self.sabotage == Sabotage::EarlyAcknowledge || self.random.chance(500)));
        if orphan && lost {
            self.hit(Sometimes::LostWrite);
        }
        let applied = !lost && self.store.write(epoch, records);
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

    pub(super) fn write_ended(&mut self, life: u64, write: WriteId, acknowledged: bool) {
        if life != self.server.life {
            return;
        }
        if !acknowledged {
            // The shard gives up its epoch and claims again before it writes anything else.
            return self.crash_server_for(0);
        }
        if let Some(tenure) = self.server.tenure.as_mut() {
            tenure.writing = false;
        }
        self.server_inputs(vec![Input::Written { write }]);
    }

    pub(super) fn store_settle(&mut self, epoch: Epoch) {
        if self.store.settle(epoch) {
            self.hit(Sometimes::Settled);
            self.server.unsettled_crashes = 0;
            if let Some(tenure) = self.server.tenure.as_mut() {
                tenure.unsettled = false;
            }
        }
    }

    pub(super) fn schedule_server_tick(&mut self) {
        let Some(tenure) = self.server.tenure.as_ref() else {
            return;
        };
        let Some(deadline) = tenure.authority.next_deadline() else {
            return;
        };
        let at = self.moment(deadline);
        if self.server.tick_at.is_none_or(|old| at < old) {
            self.server.tick_at = Some(at);
            let life = self.server.life;
            self.at(at, Event::ServerTick { life });
        }
    }

    /// The driver's timers are never early, and late by up to a millisecond.
    fn moment(&mut self, deadline: Timestamp) -> u64 {
        let late = self.random.below(MILLI);
        self.server
            .clock
            .moment(deadline)
            .max(self.time)
            .saturating_add(late)
    }

    pub(super) fn server_tick(&mut self, life: u64) {
        if life != self.server.life || self.server.tick_at.is_none_or(|at| at > self.time) {
            return;
        }
        self.server.tick_at = None;
        self.server_inputs(vec![Input::Tick]);
    }

    pub(super) fn server_start(&mut self, life: u64) {
        if life != self.server.life {
            return;
        }
        let mut claim = self.store.claim();
        if self.sabotage == Sabotage::ForgottenTenures {
            claim.tenures_before = 0;
        }
        let time = self.random.around(self.shape.write_time);
        let claim = Box::new(claim);
        self.after(time, Event::ServerLoaded { life, claim });
    }

    pub(super) fn server_loaded(&mut self, life: u64, claim: Claim) {
        if life != self.server.life {
            self.coverage
                .hit_if(claim.hand_over.is_some(), Sometimes::HandOverVoided);
            return;
        }
        let now = self.server.clock.read(self.time);
        let records = if self.sabotage == Sabotage::ForgottenRecords {
            Vec::new()
        } else {
            self.store.reservations()
        };
        self.coverage
            .hit_if(!records.is_empty(), Sometimes::RecordRead);
        let mut policies = self.store.policies();
        if self.sabotage == Sabotage::ForgottenFormers {
            policies = policies.iter().filter_map(|p| p.cleared()).collect();
        }
        let applied = policies
            .iter()
            .map(|p| (p.id().clone(), p.changed_at()))
            .collect();
        let out = (0..self.buckets.len()).any(|bucket| self.spendable(bucket) > 0);
        let taken_over = !claim.first && claim.hand_over.is_none();
        self.coverage
            .hit_if(taken_over && out, Sometimes::TakeOverWithLeasesOut);
        let resumed = claim.hand_over.is_some();
        self.coverage
            .hit_if(resumed && out, Sometimes::HandOverWithLeasesOut);
        let config = AuthorityConfig {
            epoch: claim.epoch,
            tenures_before: claim.tenures_before,
            first_tenure: claim.first,
            drift: self.shape.drift,
            boot: self.server.clock.boot,
            hash_seed: (self.random.bits(), self.random.bits()),
            buckets_max: 1_000,
        };
        self.trace.note(&[4, self.time, claim.epoch.get()]);
        let at = self.time;
        self.trace.say(at, || {
            format!(
                "authority: begins {config:?}, records {records:?}, {:?}",
                claim.hand_over
            )
        });
        let authority = Authority::new(now, config, policies, records, claim.hand_over);
        self.events += 1;
        self.server.tenure = Some(Tenure {
            authority,
            epoch: claim.epoch,
            applied,
            streams: Default::default(),
            unsettled: claim.tenures_before > 0,
            writing: false,
        });
        for policy in 0..self.policies.len() {
            let changed = self.follow(policy);
            self.coverage.hit_if(changed, Sometimes::ChangedAroundCrash);
            self.schedule_clear(policy);
        }
        self.schedule_server_tick();
        self.check_everything();
    }

    /// The process dies; it starts again after a while.
    pub(super) fn crash_server(&mut self) {
        let down = match self.random.below(3) {
            0 => 0,
            1 => self.random.around(5 * MILLI),
            _ => self.random.below(self.shape.term * 2),
        };
        self.crash_server_for(if self.healed { 0 } else { down });
    }

    pub(super) fn crash_server_for(&mut self, down: u64) {
        self.server.crash_after_grant = false;
        let Some(tenure) = self.server.tenure.take() else {
            return;
        };
        self.hit(Sometimes::AuthorityCrash);
        self.coverage
            .hit_if(tenure.writing, Sometimes::CrashWithWriteInFlight);
        if tenure.unsettled {
            self.server.unsettled_crashes += 1;
            self.coverage.hit_if(
                self.server.unsettled_crashes == 1,
                Sometimes::SecondCrashUnsettled,
            );
            self.coverage.hit_if(
                self.server.unsettled_crashes == 2,
                Sometimes::ThirdCrashUnsettled,
            );
        }
        let forgotten = tenure.authority.stats().buckets_forgotten > 0;
        self.coverage.hit_if(forgotten, Sometimes::BucketForgotten);
        self.coverage
            .hit_if(tenure.authority.stats().pushes > 0, Sometimes::Pushed);
        self.stop_server(down);
        let now = self.time;
        self.trace.say(now, || {
            format!("authority: crashes, starts again after {down} ns")
        });
    }

    pub(super) fn stop_server(&mut self, down: u64) {
        self.server.tenure = None;
        self.server.life += 1;
        self.server.tick_at = None;
        self.server.paused_until = 0;
        let life = self.server.life;
        self.after(down, Event::ServerStart { life });
        for client in 0..self.clients.len() {
            if let Link::Up(stream) = self.clients[client].link {
                self.break_stream(client, stream);
            }
        }
    }
}
