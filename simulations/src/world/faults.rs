//! What goes wrong, at random moments, until it is healed.

use quota_core::holder::{Input, Slot};

use super::{Event, Sabotage, World};
use crate::client::{Link, Use};
use crate::coverage::Sometimes;
use crate::network::Way;
use crate::shape::{Fault, MILLI};

impl World {
    pub(super) fn fault(&mut self) {
        if self.healed {
            return;
        }
        let next = self.random.around(self.shape.fault_gap);
        self.after(next.max(1), Event::Fault);
        let fault = self.random.pick(&self.shape.faults.clone());
        if self.strike(fault) {
            *self.faults.entry(name(fault)).or_default() += 1;
            let now = self.time;
            self.trace.note(&[7, now, fault as u64]);
            self.trace.say(now, || format!("fault: {fault:?}"));
            self.check_everything();
        }
    }

    fn strike(&mut self, fault: Fault) -> bool {
        let term = self.shape.term;
        let up = self.server.tenure.is_some();
        let client = usize::try_from(self.random.below(self.shape.clients)).expect("a few");
        let alive = self.clients[client].alive && !self.clients[client].draining;
        match fault {
            Fault::AuthorityCrash if up => self.crash_server(),
            Fault::AuthorityCrashTwice if up => {
                self.crash_server_for(0);
                let delay = self.random.below(term);
                self.after(delay, Event::ServerKill);
            }
            Fault::CrashAfterGrant if up => self.server.crash_after_grant = true,
            Fault::AuthorityReboot if up => {
                self.hit(Sometimes::Reboot);
                self.crash_server();
                self.server.clock = self.draw_server_clock();
            }
            Fault::HandOver if up => return self.hand_over(),
            Fault::AuthorityPause if up => {
                self.hit(Sometimes::AuthorityPaused);
                self.server.paused_until = self.time + self.random.below(term * 2);
            }
            Fault::HolderCrash if alive => {
                let held = self.clients[client].uses.iter().any(|u| match u {
                    Use::Bucket(bucket) => self.spendable(*bucket) > 0,
                    _ => false,
                });
                self.hit(Sometimes::HolderCrash);
                self.coverage.hit_if(held, Sometimes::HolderCrashWithTokens);
                let delay = self.random.below(term);
                self.kill_client(client, delay);
            }
            Fault::HolderShutdown if alive => {
                self.clients[client].draining = true;
                self.drop_waiters(client, |_| true);
                self.client_input(client, Input::Shutdown);
            }
            Fault::HolderPause if alive => {
                self.hit(Sometimes::HolderPaused);
                let until = self.time + self.random.below(term * 2);
                self.clients[client].paused_until = until;
                if self.sabotage == Sabotage::ClockBeforeDebit {
                    let (life, read) = (self.clients[client].life, self.time);
                    self.at(until, Event::SpendLate { client, life, read });
                }
                self.coverage
                    .hit_if(until > self.time + term, Sometimes::PausedPastDeadline);
            }
            Fault::Partition => self.partition(client),
            Fault::StreamBreak => match self.clients[client].link {
                Link::Up(stream) => self.break_stream(client, stream),
                _ => return false,
            },
            Fault::Evict if alive => return self.evict(client),
            Fault::PolicyChange | Fault::PolicyToggle | Fault::PolicyDelete => {
                let policy = self
                    .random
                    .below(u64::try_from(self.policies.len()).expect("few"));
                let policy = usize::try_from(policy).expect("few");
                match fault {
                    Fault::PolicyChange => {
                        let spec = Box::new(self.draw_change(policy));
                        self.apply_step(policy, super::policies::Step::Put(spec));
                    }
                    Fault::PolicyToggle => self.plan_toggles(policy),
                    _ => self.plan_deletion(policy),
                }
            }
            _ => return false,
        }
        true
    }

    /// A planned hand-over: exact rows, then the release, in one step.
    fn hand_over(&mut self) -> bool {
        let now = self.server.clock.read(self.time);
        let Some(tenure) = self.server.tenure.as_mut().filter(|t| !t.writing) else {
            return false;
        };
        let rows = tenure.authority.hand_over(now);
        let now = self.time;
        self.trace
            .say(now, || format!("authority: hands over {rows:?}"));
        let epoch = tenure.epoch;
        if self.store.hand_over(epoch, rows) {
            self.hit(Sometimes::HandOver);
            if self.random.chance(300) {
                self.server.clock = self.draw_server_clock();
            }
        }
        let down = self.random.around(MILLI);
        self.stop_server(down);
        true
    }

    fn partition(&mut self, client: usize) {
        let length = self
            .random
            .pick(&[self.shape.term / 4, self.shape.term, self.shape.term * 3]);
        let ways: &[Way] = match self.random.below(3) {
            0 => &[Way::Up],
            1 => &[Way::Down],
            _ => &[Way::Up, Way::Down],
        };
        let whole = ways.len() == 2;
        self.coverage.hit_if(whole, Sometimes::FullPartition);
        self.coverage.hit_if(!whole, Sometimes::OneWayPartition);
        for way in ways {
            self.network.cut(client, *way, true);
            self.after(length, Event::Mend { client, way: *way });
        }
        if let Link::Up(stream) = self.clients[client].link
            && self.random.chance(500)
        {
            self.break_stream(client, stream);
        }
    }

    fn evict(&mut self, client: usize) -> bool {
        let uses = self.clients[client].uses.clone();
        let open = (0..uses.len()).filter(|place| matches!(uses[*place], Use::Bucket(_)));
        let open: Vec<usize> = open.collect();
        if open.is_empty() {
            return false;
        }
        let place = self.random.pick(&open);
        let Use::Bucket(bucket) = uses[place] else {
            return false;
        };
        let slot = Slot::new(u32::try_from(place).expect("small"));
        self.drop_waiters(client, |w| w.slot == slot);
        self.clients[client].uses[place] = Use::Closing(bucket);
        self.hit(Sometimes::SlotReused);
        self.client_input(client, Input::Close { slot });
        true
    }

    /// A holder's process ends; it starts again after a while.
    pub(super) fn kill_client(&mut self, client: usize, down: u64) {
        if let Link::Up(stream) = self.clients[client].link {
            self.break_stream(client, stream);
        }
        let node = &mut self.clients[client];
        node.alive = false;
        node.life += 1;
        node.link = Link::Down;
        node.waiters.clear();
        let life = node.life;
        self.after(down, Event::ClientStart { client, life });
    }

    pub(super) fn client_start(&mut self, client: usize, life: u64) {
        if life != self.clients[client].life {
            return;
        }
        let incarnation = self.random.bits();
        let slots = self.buckets.len();
        self.clients[client].restart(incarnation, slots);
        self.after(0, Event::Connect { client, life });
    }
}

/// The name under which a fault is counted.
fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::AuthorityCrash => "authority crash",
        Fault::AuthorityCrashTwice => "authority crash, twice",
        Fault::CrashAfterGrant => "crash after grant",
        Fault::AuthorityReboot => "authority reboot",
        Fault::HandOver => "hand-over",
        Fault::AuthorityPause => "authority pause",
        Fault::HolderCrash => "holder crash",
        Fault::HolderShutdown => "holder shutdown",
        Fault::HolderPause => "holder pause",
        Fault::Partition => "partition",
        Fault::StreamBreak => "stream break",
        Fault::Evict => "eviction",
        Fault::PolicyChange => "policy change",
        Fault::PolicyToggle => "policy toggle",
        Fault::PolicyDelete => "policy deletion",
    }
}
