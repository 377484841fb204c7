//! What holders do in a story.

use std::fmt::Write;

use quota_core::authority::{Input, StreamId};
use quota_core::id::{Incarnation, KeyNumber, MessageNumber};
use quota_core::key::BucketAddress;
use quota_core::message::{Answer, Introduction, LeaseRequest, Refusal, Status};
use quota_core::tokens::Tokens;
use simulations::oracle::IdealBucket;

use crate::holder::Holder;
use crate::words::{self, Words, show, show_bucket, show_lease, show_status};
use crate::world::World;

impl World {
    /// Runs a command of a holder; one that is not there yet is born.
    pub(crate) fn holder(&mut self, name: &str, words: &mut Words<'_>) -> Result<(), String> {
        if !name.starts_with('h') {
            return Err("no such command; holders are called h1, h2, and so on".into());
        }
        if !self.holders.contains_key(name) {
            self.born(name);
        }
        match words.text("what the holder does")? {
            "asks" => self.ask(name, words),
            "reports" => self.report(name, words, Tokens::ZERO, false),
            "returns" => {
                let bucket = words.bucket()?;
                let count = Tokens::new(words.number("a number of tokens")?);
                self.send(name, &bucket, words, count, false)
            }
            "releases" => self.report(name, words, Tokens::ZERO, true),
            "retries" => self.again(name, words, true),
            "repeats" => self.again(name, words, false),
            "spends" => self.spend(name, words, false),
            "cheats" => self.spend(name, words, true),
            "connects" => self.connect(name),
            "disconnects" => self.disconnect(name),
            "dies" => self.die(name),
            "goes-deaf" => {
                self.deaf.insert(name.into());
                words.end()
            }
            "goes-silent" => {
                self.silent.insert(name.into());
                words.end()
            }
            "speaks" => {
                self.silent.remove(name);
                words.end()
            }
            "hears" => {
                self.deaf.remove(name);
                words.end()
            }
            other => Err(format!("a holder does not do {other:?}")),
        }
    }

    /// A holder is born with a stream, and again after it died.
    fn born(&mut self, name: &str) {
        self.incarnations += 1;
        let holder = Holder::new(Incarnation::new(self.incarnations));
        self.holders.insert(name.into(), holder);
    }

    fn die(&mut self, name: &str) -> Result<(), String> {
        self.disconnect(name)?;
        self.holders.remove(name);
        Ok(())
    }

    fn connect(&mut self, name: &str) -> Result<(), String> {
        self.authority()?;
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        let holder = self.known(name)?;
        holder.connect(stream);
        let incarnation = holder.incarnation;
        self.feed(Input::Connect {
            incarnation,
            stream,
        });
        Ok(())
    }

    fn disconnect(&mut self, name: &str) -> Result<(), String> {
        let holder = self.known(name)?;
        let incarnation = holder.incarnation;
        if let Some(stream) = holder.stream.take() {
            self.feed(Input::Disconnect {
                incarnation,
                stream,
            });
        }
        Ok(())
    }

    fn known(&mut self, name: &str) -> Result<&mut Holder, String> {
        self.holders
            .get_mut(name)
            .ok_or_else(|| format!("{name} is not alive"))
    }

    /// The holder's stream, opened if it has none.
    fn stream(&mut self, name: &str) -> Result<StreamId, String> {
        if self.known(name)?.stream.is_none() {
            self.connect(name)?;
        }
        self.known(name)?
            .stream
            .ok_or_else(|| "the authority is down".to_owned())
    }

    /// Every holder with a stream sends a message, unless it is silent.
    pub(crate) fn heartbeats(&mut self) {
        let now = self.now;
        let silent = &self.silent;
        let heard = self
            .holders
            .iter_mut()
            .filter(|(name, _)| !silent.contains(*name));
        let anchors: Vec<Input> = heard
            .filter_map(|(_, holder)| {
                let (stream, incarnation) = (holder.stream?, holder.incarnation);
                Some(Input::Anchor {
                    incarnation,
                    stream,
                    number: holder.next_message(now),
                })
            })
            .collect();
        for anchor in anchors {
            self.feed(anchor);
        }
    }

    /// `h1 asks api/k1 want 5 [least 5] [demand 20] [spent 7] [returned 7] [lease 1/1 | no-lease]`
    fn ask(&mut self, name: &str, words: &mut Words<'_>) -> Result<(), String> {
        let bucket = words.bucket()?;
        self.send(name, &bucket, words, Tokens::ZERO, false)
    }

    fn report(
        &mut self,
        name: &str,
        words: &mut Words<'_>,
        returned: Tokens,
        release: bool,
    ) -> Result<(), String> {
        let bucket = words.bucket()?;
        self.send(name, &bucket, words, returned, release)
    }

    fn send(
        &mut self,
        name: &str,
        bucket: &BucketAddress,
        words: &mut Words<'_>,
        returned: Tokens,
        release: bool,
    ) -> Result<(), String> {
        self.stream(name)?;
        let holder = self.known(name)?;
        let held = holder.leases.get_mut(bucket);
        if let Some(held) = held.filter(|_| !returned.is_zero()) {
            if held.rest() < returned {
                return Err(format!("{name} holds only {}", held.rest()));
            }
            held.returned += returned;
        }
        let held = holder.leases.get(bucket).copied();
        let mut request = LeaseRequest {
            key: KeyNumber::default(),
            sequence: holder.next_sequence(bucket),
            lease: held.map(|held| held.id),
            spent: held.map_or(Tokens::ZERO, |held| held.spent),
            returned: held.map_or(Tokens::ZERO, |held| held.returned),
            want: Tokens::ZERO,
            least: Tokens::ONE,
            demand: 0,
            release,
        };
        words::fill_in(&mut request, words)?;
        if release {
            holder.leases.remove(bucket);
        }
        self.transmit(name, bucket, request)
    }

    /// Sends a request in a new message.
    fn transmit(
        &mut self,
        name: &str,
        bucket: &BucketAddress,
        mut request: LeaseRequest,
    ) -> Result<(), String> {
        let stream = self.stream(name)?;
        let now = self.now;
        let holder = self.known(name)?;
        let incarnation = holder.incarnation;
        let (key, is_new) = holder.number_of(bucket);
        let number = holder.next_message(now);
        request.key = key;
        holder
            .requests
            .entry(bucket.clone())
            .or_default()
            .push((number, request));
        if is_new {
            let introduction = Introduction {
                number: key,
                bucket: bucket.clone(),
            };
            let introduction = Box::new(introduction);
            self.feed(Input::Introduce {
                incarnation,
                stream,
                introduction,
            });
        }
        self.feed(Input::Request {
            incarnation,
            stream,
            number,
            request,
        });
        Ok(())
    }

    /// `h1 retries api/k1`: the last request once more, in a new message. `h1 repeats api/k1 2`:
    /// the network delivers a copy of the second one.
    fn again(&mut self, name: &str, words: &mut Words<'_>, is_retry: bool) -> Result<(), String> {
        let bucket = words.bucket()?;
        let sent = self
            .known(name)?
            .requests
            .get(&bucket)
            .cloned()
            .unwrap_or_default();
        let count: usize = if is_retry {
            sent.len()
        } else {
            words.number("which request")?
        };
        words.end()?;
        let nth = count.checked_sub(1).and_then(|at| sent.get(at));
        let (number, request) = *nth.ok_or("there is no such request")?;
        if is_retry {
            return self.transmit(name, &bucket, request);
        }
        let stream = self.stream(name)?;
        let incarnation = self.known(name)?.incarnation;
        self.feed(Input::Request {
            incarnation,
            stream,
            number,
            request,
        });
        Ok(())
    }

    /// Hands an answer to its holder, if it still has the stream and hears.
    pub(crate) fn deliver(
        &mut self,
        incarnation: Incarnation,
        stream: StreamId,
        anchor: MessageNumber,
        answer: &Answer,
    ) {
        let mut holders = self.holders.iter_mut();
        let found = holders.find(|(_, h)| h.incarnation == incarnation && h.stream == Some(stream));
        let Some((name, holder)) = found else { return };
        let name = name.clone();
        let Some(bucket) = holder.bucket_of(answer.key) else {
            return;
        };
        if self.deaf.contains(&name) {
            return self.say(&format!("{name}: an answer is lost"));
        }
        if answer.status == Status::Refused(Refusal::UnknownKey) {
            holder.forget_number(&bucket);
        }
        let text = match holder.install(&bucket, anchor, answer) {
            None => "an answer to nothing that it sent is dropped".to_owned(),
            Some((added, given_up)) => {
                let mut text = match (added, answer.status) {
                    (Tokens::ZERO, status) => show_status(status),
                    (added, Status::Done) => format!("granted {added}"),
                    (added, status) => format!("granted {added}, {}", show_status(status)),
                };
                if let Some(held) = holder
                    .leases
                    .get(&bucket)
                    .filter(|_| answer.grant.is_some())
                {
                    let rest = held.rest();
                    let term = show(held.deadline.since(self.now));
                    let _ = write!(text, "; holds {rest} in {} for {term}", show_lease(held.id));
                }
                if !given_up.is_zero() {
                    let _ = write!(text, "; gave up {given_up}");
                }
                text
            }
        };
        self.say(&format!("{name}: {text}"));
    }

    /// `h1 spends api/k1 3`. One that cheats spends what it does not hold.
    fn spend(&mut self, name: &str, words: &mut Words<'_>, cheats: bool) -> Result<(), String> {
        let bucket = words.bucket()?;
        let count = Tokens::new(words.number("a number of tokens")?);
        words.end()?;
        let now = self.now;
        let held = self.known(name)?.leases.get_mut(&bucket);
        let free = match &held {
            None => Tokens::ZERO,
            Some(held) if held.deadline <= now => Tokens::ZERO,
            Some(held) => held.rest(),
        };
        if free < count && !cheats {
            let ended = held.is_some_and(|held| held.deadline <= now);
            let why = if ended { ", its lease has ended" } else { "" };
            self.say(&format!("{name}: cannot spend {count} of {free}{why}"));
            return Ok(());
        }
        if let Some(held) = held {
            held.spent += count;
        }
        self.admit(&bucket, count)
    }

    fn admit(&mut self, bucket: &BucketAddress, count: Tokens) -> Result<(), String> {
        if !self.ideal.contains_key(bucket) {
            let history = self
                .histories
                .get(&bucket.policy)
                .ok_or("there is no such policy")?;
            let policy = history.versions().next().ok_or("the policy is gone")?;
            let ideal = IdealBucket::new(policy.limit_for(&bucket.key));
            self.ideal.insert(bucket.clone(), ideal);
        }
        let ideal = self.ideal.get_mut(bucket).expect("made above");
        if let Err(violation) = ideal.admit(self.now, count) {
            self.broken
                .push(format!("{}: {violation}", show_bucket(bucket)));
        }
        Ok(())
    }
}
