//! One tenure of a shard: the authority, and what its effects need to reach the world.
//!
//! Nothing here waits. A wake-up hands over all that came in and the one reading of the clock that
//! was taken after it; what the authority decides goes to outboxes at once, and what has to be
//! stored is kept for the task to start.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use quota_core::authority::{Authority, Effect, Input, StreamId, WriteId};
use quota_core::id::{Epoch, MessageNumber, ShardId};
use quota_core::message::Answer;
use quota_core::record::HandOver;
use quota_core::time::Timestamp;
use tokio::sync::oneshot;
use tonic::Status;

use super::event::{Applied, Event, Part, ShardReport};
use super::outbox::Outbox;
use super::totals::Totals;
use crate::metrics::Metrics;
use crate::store::ShardWrite;

/// A shard between its claim and its end.
#[derive(Debug)]
pub(super) struct Tenure {
    shard: ShardId,
    epoch: Epoch,
    authority: Authority,
    /// The revision of the policies in force here.
    revision: u64,
    streams: HashMap<StreamId, Arc<Outbox>>,
    applying: VecDeque<oneshot::Sender<Applied>>,
    writes: u64,
    write: Option<(WriteId, ShardWrite)>,
    settle: bool,
    settled: bool,
    effects: Vec<Effect>,
    run: Vec<Answer>,
    metrics: Arc<Metrics>,
}

impl Tenure {
    /// A tenure that begins with the policies of `revision`. `settled`: no earlier tenure has
    /// live exposure.
    pub(super) fn new(
        shard: ShardId,
        epoch: Epoch,
        authority: Authority,
        revision: u64,
        settled: bool,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            shard,
            epoch,
            authority,
            revision,
            streams: HashMap::new(),
            applying: VecDeque::new(),
            writes: 0,
            write: None,
            settle: false,
            settled,
            effects: Vec::new(),
            run: Vec::new(),
            metrics,
        }
    }

    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// When the next wake-up is due if nothing comes in.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.authority.next_deadline()
    }

    /// Handles everything that came in before `now`, in order, and empties `events`.
    pub(super) fn wake_up(
        &mut self,
        now: Timestamp,
        written: Option<WriteId>,
        events: &mut Vec<Event>,
        totals: &Totals,
    ) {
        if self.next_deadline().is_some_and(|due| due <= now) {
            self.handle(now, Input::Tick);
        }
        if let Some(write) = written {
            self.handle(now, Input::Written { write });
        }
        for event in events.drain(..) {
            self.event(now, event, totals);
        }
    }

    fn event(&mut self, now: Timestamp, event: Event, totals: &Totals) {
        match event {
            Event::Part(part) => self.part(now, *part),
            Event::Leave {
                incarnation,
                stream,
            } => {
                self.handle(
                    now,
                    Input::Disconnect {
                        incarnation,
                        stream,
                    },
                );
                self.streams.remove(&stream);
            }
            Event::Apply {
                revision,
                history,
                applied,
            } => {
                if revision <= self.revision {
                    // This tenure began with it; nobody cares if the asker gave up.
                    let _ = applied.send(Applied::default());
                    return;
                }
                self.revision = revision;
                self.applying.push_back(applied);
                self.handle(now, Input::ApplyPolicy { history });
            }
            Event::Forget { id } => self.handle(now, Input::ForgetPolicy { id }),
            Event::Inspect { bucket, reply } => {
                let _ = reply.send(self.authority.inspect(now, &bucket));
            }
            Event::Preview { history, reply } => {
                let (outstanding, owed) = self.authority.preview_policy(now, &history);
                let _ = reply.send(Applied { outstanding, owed });
            }
            Event::Top { query, from, reply } => {
                let _ = reply.send(self.authority.top_buckets(now, &query, from));
            }
            Event::Holdings { of, from, reply } => {
                let _ = reply.send(self.authority.holdings(now, &of, from));
            }
            Event::Report { reply } => {
                let _ = reply.send(self.report(totals));
            }
        }
    }

    fn part(&mut self, now: Timestamp, part: Part) {
        let Part {
            incarnation,
            stream,
            number,
            ..
        } = part;
        if let Some(outbox) = part.connect {
            self.streams.insert(stream, outbox);
            self.handle(
                now,
                Input::Connect {
                    incarnation,
                    stream,
                },
            );
        }
        self.handle(
            now,
            Input::Anchor {
                incarnation,
                stream,
                number,
            },
        );
        for introduction in part.introductions {
            let introduction = Box::new(introduction);
            self.handle(
                now,
                Input::Introduce {
                    incarnation,
                    stream,
                    introduction,
                },
            );
        }
        for request in part.requests {
            self.authority.handle(
                now,
                Input::Request {
                    incarnation,
                    stream,
                    number,
                    request,
                },
                &mut self.effects,
            );
        }
        self.deliver();
        if let Some(done) = part.done {
            let _ = done.send(());
        }
    }

    fn handle(&mut self, now: Timestamp, input: Input) {
        self.authority.handle(now, input, &mut self.effects);
        if !self.effects.is_empty() {
            self.deliver();
        }
    }

    /// Drains all effects. Answers for one stream that follow each other go out under one lock.
    fn deliver(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut to: Option<(StreamId, MessageNumber)> = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Answer {
                    stream,
                    anchor,
                    answer,
                    ..
                } => {
                    if to != Some((stream, anchor)) {
                        self.post(to);
                        to = Some((stream, anchor));
                    }
                    self.metrics.answered(&answer.status);
                    self.run.push(answer);
                }
                Effect::Write { write, records } => {
                    assert!(self.write.is_none(), "a shard has one write in flight");
                    self.writes += 1;
                    for of_policy in records.chunk_by(|a, b| a.bucket.policy == b.bucket.policy) {
                        let count = u64::try_from(of_policy.len()).expect("a count fits 64 bits");
                        self.metrics.recorded(&of_policy[0].bucket.policy, count);
                    }
                    let (shard, epoch) = (self.shard, self.epoch);
                    let number = self.writes;
                    self.write = Some((
                        write,
                        ShardWrite {
                            shard,
                            epoch,
                            number,
                            records,
                        },
                    ));
                }
                Effect::Settle => self.settle = true,
                Effect::PolicyApplied {
                    outstanding, owed, ..
                } => {
                    let applied = self
                        .applying
                        .pop_front()
                        .expect("policies are applied in order");
                    let _ = applied.send(Applied { outstanding, owed });
                }
            }
        }
        self.post(to);
        self.effects = effects;
    }

    fn post(&mut self, to: Option<(StreamId, MessageNumber)>) {
        let Some((stream, anchor)) = to else { return };
        match self.streams.get(&stream) {
            // A full outbox has ended its stream, whose task then leaves.
            Some(outbox) => drop(outbox.push(anchor, &mut self.run)),
            None => self.run.clear(),
        }
    }

    /// The write to be started, if there is one.
    pub(super) fn take_write(&mut self) -> Option<(WriteId, ShardWrite)> {
        self.write.take()
    }

    /// True once, when the shard is to be marked as settled.
    pub(super) fn take_settle(&mut self) -> bool {
        std::mem::take(&mut self.settle)
    }

    /// The mark is durable.
    pub(super) fn mark_settled(&mut self) {
        self.settled = true;
    }

    /// The totals of this tenure on top of the earlier ones.
    pub(super) fn report(&self, before: &Totals) -> ShardReport {
        let mut totals = before.clone();
        totals.add(&self.authority);
        totals.report(self.settled)
    }

    /// Adds this tenure's totals to those of the earlier ones.
    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.add(&self.authority);
        totals.clear_present();
    }

    /// Ends every stream that touched the shard.
    pub(super) fn end_streams(&mut self, status: &Status) {
        for (_, outbox) in self.streams.drain() {
            outbox.end(Some(status.clone()));
        }
    }

    /// The exact state; see [`Authority::hand_over`].
    pub(super) fn hand_over(mut self, now: Timestamp) -> HandOver {
        self.authority.hand_over(now)
    }
}
