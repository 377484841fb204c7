//! What holders ask, honestly or not, and how the network treats it.

use quota_core::authority::Input;
use quota_core::id::{Epoch, KeyNumber, LeaseId, MessageNumber, Sequence};
use quota_core::message::{Introduction, LeaseRequest};
use quota_core::tokens::Tokens;

use super::holder::{Held, Message};
use super::specs::address;
use super::world::World;

impl World {
    /// A new request, honest or not, or the last one once more.
    pub(crate) fn ask(&mut self, place: usize, key: usize) {
        if self.dice.chance(20)
            && let Some((key, request)) = self.holders[place].last[key]
        {
            return self.send(place, key, request);
        }
        let lease = match self.dice.below(20) {
            0 => None,
            1 => Some(LeaseId {
                // Nobody ever gets this one, also not by the time that the request arrives.
                epoch: Epoch::new(0),
                counter: self.dice.below(4),
            }),
            // Somebody else's.
            3 if self.holders.len() > 1 => {
                self.holders[(place + 1) % self.holders.len()].current[key]
            }
            2 => {
                let held = self.holders[place].leases.keys();
                let held: Vec<_> = held.filter(|(k, _)| *k == key).map(|(_, l)| *l).collect();
                (!held.is_empty()).then(|| self.dice.pick(&held))
            }
            _ => self.holders[place].current[key],
        };
        let now = self.now;
        let mut report = Held::default();
        let mut release = false;
        let style = if self.storm && self.dice.chance(80) {
            20
        } else {
            self.dice.below(20)
        };
        let me = self.holders[place].incarnation;
        let foreign = |l: LeaseId| self.granted.get(&l).is_none_or(|(owner, _)| *owner != me);
        if lease.is_some_and(foreign) {
            // What nobody should believe.
            report.spent = self.dice.pick(&[0, 1, u64::MAX]);
            report.returned = self.dice.pick(&[0, 1, u64::MAX]);
            release = self.dice.chance(30);
        }
        if let Some(held) = lease.and_then(|l| self.holders[place].leases.get_mut(&(key, l))) {
            match style {
                // Gives some or all back.
                0..=3 => {
                    let rest = held.spendable(now);
                    held.returned += if style < 2 {
                        rest
                    } else {
                        self.dice.below(rest + 1)
                    };
                }
                4 => {
                    release = true;
                    held.burned = true;
                }
                5 => held.burned = true,
                _ => {}
            }
            report = *held;
            match style {
                // Claims more than there ever was, and keeps its word.
                5 => (report.spent, report.returned) = (u64::MAX, u64::MAX),
                // Leaves without having reported all.
                4 | 6..=9 => report.spent = self.dice.below(report.spent + 1),
                10 => (report.spent, report.returned) = (0, 0),
                _ => {}
            }
        }
        let want = if self.dice.chance(20) {
            0
        } else if self.storm && self.dice.chance(70) {
            u64::MAX
        } else {
            self.dice.pick(&[1, 2, 5, 10, 100, 100, u64::MAX])
        };
        let least = self.dice.pick(&[0, 1, 1, 1, 2, 5, u64::MAX]);
        let holder = &mut self.holders[place];
        holder.sequences[key] += 1;
        let request = LeaseRequest {
            key: KeyNumber::new(0),
            sequence: Sequence::new(holder.sequences[key]),
            lease,
            spent: Tokens::new(report.spent),
            returned: Tokens::new(report.returned),
            want: Tokens::new(want),
            least: Tokens::new(least),
            demand: self.dice.pick(&[0, 1, 100, u64::MAX]),
            release,
        };
        holder.last[key] = Some((key, request));
        self.send(place, key, request);
    }

    pub(crate) fn heartbeat(&mut self, place: usize) {
        let now = self.now;
        let holder = &mut self.holders[place];
        holder.sent.push(now);
        let message = Message {
            holder: place,
            incarnation: holder.incarnation,
            stream: holder.stream,
            number: holder.sent.len() as u64,
            introduce: None,
            request: None,
        };
        self.post(message);
    }

    fn send(&mut self, place: usize, key: usize, request: LeaseRequest) {
        let now = self.now;
        let holder = &mut self.holders[place];
        holder.sent.push(now);
        let number = holder.sent.len() as u64;
        let introduce = match holder.numbers.get(&key) {
            Some(_) if !self.dice.chance(5) => None,
            _ => {
                holder.named += 1;
                let number = KeyNumber::new(holder.named);
                holder.numbers.insert(key, number);
                Some((number, key))
            }
        };
        let request = LeaseRequest {
            key: holder.numbers[&key],
            ..request
        };
        let message = Message {
            holder: place,
            incarnation: holder.incarnation,
            stream: holder.stream,
            number,
            introduce,
            request: Some(request),
        };
        self.post(message);
    }

    /// A message arrives at once, late, twice or never.
    fn post(&mut self, message: Message) {
        match self.dice.below(10) {
            0 => {}
            1 | 2 => self.network.push(message),
            3 => {
                self.deliver(message);
                self.network.push(message);
            }
            _ => self.deliver(message),
        }
        if self.network.len() > 12 {
            self.network.remove(0);
        }
    }

    pub(crate) fn deliver(&mut self, message: Message) {
        let (incarnation, stream) = (message.incarnation, message.stream);
        let number = MessageNumber::new(message.number);
        self.feed(Input::Anchor {
            incarnation,
            stream,
            number,
        });
        if let Some((number, key)) = message.introduce {
            let introduction = Box::new(Introduction {
                number,
                bucket: address(key),
            });
            self.feed(Input::Introduce {
                incarnation,
                stream,
                introduction,
            });
        }
        if let Some(request) = message.request {
            self.feed(Input::Request {
                incarnation,
                stream,
                number,
                request,
            });
        }
        let _ = message.holder;
    }
}
