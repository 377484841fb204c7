//! What goes wrong, at random moments, until it is healed.

use quota_core::cell::Tick;
use quota_core::holder::{Cells, Input, Slot};

use super::policies::Step;
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
        let which = self
            .random
            .below(u64::try_from(self.shape.faults.len()).expect("few"));
        let fault = self.shape.faults[usize::try_from(which).expect("few")];
        if self.strike(fault) {
            *self.faults.entry(fault.name()).or_default() += 1;
            let now = self.time;
            self.trace.note(&[7, now, fault as u64]);
            self.trace.say(now, || format!("fault: {fault:?}"));
            self.check_everything();
        }
    }

    fn strike(&mut self, fault: Fault) -> bool {
        let client = usize::try_from(self.random.below(self.shape.clients)).expect("a few");
        match fault {
            Fault::AuthorityCrash
            | Fault::AuthorityCrashTwice
            | Fault::CrashAfterGrant
            | Fault::AuthorityReboot
            | Fault::HandOver
            | Fault::HandOverLost
            | Fault::AuthorityPause
            | Fault::AuthorityStall
            | Fault::AuthoritySuspend
            | Fault::StoreCutOff
            | Fault::WallStep => match self.draw_authority() {
                Some(node) => self.strike_authority(node, fault),
                None => false,
            },
            Fault::HolderCrash
            | Fault::HolderReboot
            | Fault::HolderShutdown
            | Fault::HolderPause
            | Fault::HolderSuspend
            | Fault::Evict => {
                let alive = self.clients[client].alive && !self.clients[client].draining;
                alive && self.strike_holder(client, fault)
            }
            Fault::Partition => {
                self.partition(client);
                true
            }
            Fault::StreamBreak => match self.clients[client].link {
                Link::Up(stream) => {
                    self.break_stream(client, stream);
                    true
                }
                _ => false,
            },
            Fault::PolicyChange
            | Fault::PolicyToggle
            | Fault::PolicyDelete
            | Fault::LeaseSettings => {
                self.strike_policy(fault);
                true
            }
            Fault::Liar | Fault::KeyFlood => {
                self.incite(fault == Fault::KeyFlood);
                true
            }
        }
    }

    /// A node that does something: mostly the owner, or one that still believes to be.
    fn draw_authority(&mut self) -> Option<usize> {
        let acts =
            |node: &usize| self.servers[*node].tenure.is_some() || self.servers[*node].starting;
        let acting: Vec<usize> = (0..self.servers.len()).filter(acts).collect();
        (!acting.is_empty()).then(|| self.random.pick(&acting))
    }

    fn strike_authority(&mut self, node: usize, fault: Fault) -> bool {
        let term = self.shape.term;
        let long = term.max(self.shape.tenure.unwrap_or_default()) * 2;
        match fault {
            Fault::AuthorityCrash => self.crash_server(node),
            Fault::AuthorityCrashTwice => {
                self.end_tenure(node, 0);
                let delay = self.random.below(term);
                self.after(delay, Event::ServerKill);
            }
            Fault::CrashAfterGrant => self.servers[node].crash_after_grant = true,
            Fault::AuthorityReboot => {
                self.hit(Sometimes::Reboot);
                self.crash_server(node);
                self.servers[node].clock = self.draw_server_clock();
            }
            Fault::HandOver => return self.hand_over(node),
            Fault::HandOverLost => {
                if !self.hand_over(node) {
                    return false;
                }
                // The marker is consumed within about a millisecond, and read some time later.
                for _ in 0..3 {
                    let delay = MILLI / 2 + self.random.below(2 * MILLI + self.shape.write_time);
                    self.after(delay, Event::KillStarting);
                }
            }
            Fault::AuthorityPause => {
                self.hit(Sometimes::AuthorityPaused);
                self.servers[node].paused_until = self.time + self.random.below(long);
            }
            Fault::AuthorityStall => {
                self.servers[node].stalled_until = self.time + self.random.below(long);
            }
            Fault::AuthoritySuspend => {
                self.hit(Sometimes::AuthoritySuspended);
                let span = self.random.below(long);
                self.servers[node].paused_until = self.time + span;
                self.break_streams(node);
                if self.sabotage == Sabotage::AuthorityClockStops {
                    self.servers[node].clock.stand_still(span);
                }
            }
            Fault::StoreCutOff => {
                let span = self.random.below(long);
                self.servers[node].cut_until = self.time + span;
                self.after(span, Event::StoreMended { node });
            }
            _ => self.servers[node].jumped = true,
        }
        true
    }

    /// A node and the store hear each other again: it is told what it missed.
    pub(super) fn store_mended(&mut self, node: usize) {
        if self.servers[node].cut_until > self.time {
            return;
        }
        let life = self.servers[node].life;
        for policy in 0..self.policies.len() {
            self.after(
                1,
                Event::PolicyTold {
                    policy,
                    client: None,
                    life,
                },
            );
        }
    }

    /// The second of two crashes.
    pub(super) fn server_kill(&mut self) {
        if !self.healed
            && let Some(node) = self.draw_authority()
        {
            self.end_tenure(node, 0);
        }
    }

    /// Whoever has claimed and is still reading dies.
    pub(super) fn kill_starting(&mut self) {
        let starting = self.servers.iter().position(|server| server.starting);
        if let Some(node) = starting.filter(|_| !self.healed) {
            self.end_tenure(node, 0);
        }
    }

    fn strike_holder(&mut self, client: usize, fault: Fault) -> bool {
        let term = self.shape.term;
        match fault {
            Fault::HolderCrash | Fault::HolderReboot => {
                let held = self.holds_tokens(client);
                self.hit(Sometimes::HolderCrash);
                self.coverage.hit_if(held, Sometimes::HolderCrashWithTokens);
                let delay = self.random.below(term);
                self.kill_client(client, delay);
                if fault == Fault::HolderReboot {
                    self.hit(Sometimes::HolderReboot);
                    self.clients[client].clock = self.draw_holder_clock();
                }
            }
            Fault::HolderShutdown => {
                self.clients[client].draining = true;
                self.drop_waiters(client, |_| true);
                self.client_input(client, Input::Shutdown);
            }
            Fault::HolderPause => {
                self.hit(Sometimes::HolderPaused);
                let until = self.time + self.random.below(term * 2);
                self.clients[client].paused_until = until;
                self.spend_late_at(client, until);
                self.coverage
                    .hit_if(until > self.time + term, Sometimes::PausedPastDeadline);
            }
            Fault::HolderSuspend => {
                self.hit(Sometimes::HolderSuspended);
                let span = self.random.below(term * 3);
                let past = self.holds_tokens(client) && span > term * 2;
                self.coverage.hit_if(past, Sometimes::SuspendedPastDeadline);
                self.clients[client].paused_until = self.time + span;
                self.spend_late_at(client, self.time + span);
                if self.sabotage == Sabotage::HolderClockStops {
                    self.clients[client].clock.stand_still(span);
                }
                if let Link::Up(stream) = self.clients[client].link {
                    self.break_stream(client, stream);
                }
            }
            _ => return self.evict(client),
        }
        true
    }

    /// In a sabotaged world, spenders that read the clock now debit when their process goes on.
    fn spend_late_at(&mut self, client: usize, until: u64) {
        if self.sabotage == Sabotage::ClockBeforeDebit {
            let (life, read) = (self.clients[client].life, self.time);
            self.at(until, Event::SpendLate { client, life, read });
        }
    }

    fn holds_tokens(&self, client: usize) -> bool {
        let holder = &self.clients[client];
        let now = Tick::at(holder.clock.read(self.time));
        (0..holder.uses.len()).any(|place| {
            let slot = Slot::new(u32::try_from(place).expect("small"));
            let view = holder.table.cell(slot).view();
            view.live(now) && !view.tokens.is_zero()
        })
    }

    fn strike_policy(&mut self, fault: Fault) {
        let policies = u64::try_from(self.policies.len()).expect("few");
        let policy = usize::try_from(self.random.below(policies)).expect("few");
        match fault {
            Fault::PolicyChange => {
                let spec = Box::new(self.draw_change(policy));
                self.apply_step(policy, Step::Put(spec));
            }
            Fault::LeaseSettings => {
                let spec = Box::new(self.draw_lease_settings(policy));
                let out = self.buckets_of(policy).any(|b| self.spendable(b) > 0);
                self.coverage.hit_if(out, Sometimes::LeaseSettingsChanged);
                let before = self.last_spec(policy).lease.term_max;
                let shorter = out && spec.lease.term_max < before;
                self.coverage.hit_if(shorter, Sometimes::TermShortened);
                self.apply_step(policy, Step::Put(spec));
            }
            Fault::PolicyToggle => self.plan_toggles(policy),
            _ => self.plan_deletion(policy),
        }
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
