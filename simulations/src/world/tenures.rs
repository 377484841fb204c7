//! Who owns the shard: claims, keep-alives, hand-overs, and how tenures end.

use quota_core::authority::{Authority, AuthorityConfig};
use quota_core::id::Epoch;
use quota_core::time::{Term, Timestamp};

use super::{Event, Sabotage, World};
use crate::client::Link;
use crate::coverage::Sometimes;
use crate::server::Tenure;
use crate::shape::MILLI;
use crate::store::Claim;

impl World {
    /// The node that lives the given life.
    pub(super) fn node_of(&self, life: u64) -> Option<usize> {
        self.servers.iter().position(|server| server.life == life)
    }

    /// The node whose tenure is the newest, if it has begun.
    pub(super) fn owner(&self) -> Option<usize> {
        let newest = self.store.epoch();
        let owns = |t: &Tenure| t.epoch == newest;
        let mut nodes = self.servers.iter();
        nodes.position(|server| server.tenure.as_ref().is_some_and(owns))
    }

    pub(super) fn epoch_of(&self, node: usize) -> Epoch {
        let tenure = self.servers[node].tenure.as_ref();
        tenure.map(|t| t.epoch).unwrap_or_default()
    }

    /// What the driver asks before it decides a batch. A tenure that is over ends here.
    pub(super) fn holds_tenure(&mut self, node: usize) -> bool {
        let now = self.servers[node].clock.read(self.time);
        let server = &mut self.servers[node];
        let Some(tenure) = &server.tenure else {
            return false;
        };
        let over = tenure.until.is_some_and(|until| now >= until);
        let over = over && self.sabotage != Sabotage::TenureUnchecked;
        let jumped = std::mem::take(&mut server.jumped);
        self.coverage.hit_if(over, Sometimes::TenureRanOut);
        self.coverage.hit_if(jumped, Sometimes::WallJumped);
        if over || jumped {
            let at = self.time;
            self.trace.say(at, || {
                format!("authority {node}: gives up, its tenure is over or its wall clock jumped")
            });
            self.end_tenure(node, MILLI);
        }
        !over && !jumped
    }

    /// A node tries to claim the shard, again and again while another one has it.
    pub(super) fn server_start(&mut self, life: u64) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        if self.store.is_held(self.time) || self.servers[node].cut_until > self.time {
            let pause = self.shape.tenure.unwrap_or(MILLI) / 4;
            let pause = 1 + self.random.around(pause);
            return self.after(pause, Event::ServerStart { life });
        }
        let rows = self.store.handed_over();
        let mut claim = self.store.claim();
        match self.sabotage {
            Sabotage::ForgottenTenures => claim.tenures_before = 0,
            Sabotage::HandOverTwice => {
                if claim.hand_over.is_none() {
                    claim.hand_over = self.kept_hand_over.take();
                } else {
                    self.kept_hand_over = rows;
                }
            }
            _ => {}
        }
        let lived = self
            .servers
            .iter()
            .any(|s| s.life != life && s.tenure.is_some());
        self.coverage
            .hit_if(lived, Sometimes::TakeOverWhileOldLives);
        self.newest_claim = claim.epoch;
        self.servers[node].starting = true;
        let until = self.shape.tenure.map(|length| {
            self.store
                .keep_alive(claim.epoch, self.time + stretched(length));
            self.servers[node].clock.read(self.time) + Term::from_nanos(length)
        });
        let time = self.random.around(self.shape.write_time);
        let claim = Box::new(claim);
        self.after(time, Event::ServerLoaded { life, claim, until });
    }

    pub(super) fn server_loaded(&mut self, life: u64, claim: Claim, until: Option<Timestamp>) {
        let Some(node) = self.node_of(life) else {
            self.coverage
                .hit_if(claim.hand_over.is_some(), Sometimes::HandOverVoided);
            return;
        };
        self.servers[node].starting = false;
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
        let out = (0..self.buckets.len()).any(|bucket| self.spendable(bucket) > 0);
        let taken_over = !claim.first && claim.hand_over.is_none();
        self.coverage
            .hit_if(taken_over && out, Sometimes::TakeOverWithLeasesOut);
        let resumed = claim.hand_over.is_some();
        self.coverage
            .hit_if(resumed && out, Sometimes::HandOverWithLeasesOut);
        let config = AuthorityConfig {
            hash_seed: (self.random.bits(), self.random.bits()),
            ..self.config(node, &claim)
        };
        self.trace.note(&[4, self.time, claim.epoch.get()]);
        let at = self.time;
        self.trace.say(at, || {
            format!(
                "authority {node}: begins {config:?}, records {records:?}, {:?}",
                claim.hand_over
            )
        });
        let now = self.servers[node].clock.read(self.time);
        let applied = policies
            .iter()
            .map(|p| (p.id().clone(), p.changed_at()))
            .collect();
        let authority = Authority::new(now, config, policies, records, claim.hand_over);
        self.events += 1;
        self.seen_pushes = 0;
        self.servers[node].jumped = false;
        self.servers[node].tenure = Some(Tenure {
            authority,
            epoch: claim.epoch,
            until,
            applied,
            streams: Default::default(),
            resumed: Default::default(),
            unsettled: claim.tenures_before > 0,
            writing: false,
        });
        self.begun(node);
    }

    fn begun(&mut self, node: usize) {
        self.begun_at = self.time;
        // A node that took so long to load that another has claimed since puts nothing in force.
        let owns = self.owner() == Some(node);
        for policy in 0..self.policies.len() {
            let changed = owns && self.follow(policy);
            self.coverage.hit_if(changed, Sometimes::ChangedAroundCrash);
            self.schedule_clear(node, policy);
        }
        self.note_resumed(node);
        self.liar_taken_over();
        self.keep_alive_later(node);
        self.schedule_server_tick(node);
        self.check_everything();
    }

    pub(super) fn config(&self, node: usize, claim: &Claim) -> AuthorityConfig {
        AuthorityConfig {
            epoch: claim.epoch,
            tenures_before: claim.tenures_before,
            first_tenure: claim.first,
            drift: self.shape.drift,
            boot: self.servers[node].clock.boot,
            hash_seed: (0, 0),
            buckets_max: self.shape.buckets_max,
        }
    }

    // --- keep-alives ---------------------------------------------------------------------------

    fn keep_alive_later(&mut self, node: usize) {
        if let Some(length) = self.shape.tenure {
            let life = self.servers[node].life;
            self.after(length / 4, Event::KeepAliveDue { life });
        }
    }

    pub(super) fn keep_alive_due(&mut self, life: u64) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        // The look at the clock that ends a tenure in which nothing else happens.
        if !self.holds_tenure(node) {
            return;
        }
        self.keep_alive_later(node);
        let server = &self.servers[node];
        if server.cut_until > self.time {
            return;
        }
        let length = Term::from_nanos(self.shape.tenure.unwrap_or_default());
        let (epoch, until) = (self.epoch_of(node), server.clock.read(self.time) + length);
        let delay = self.random.around(self.shape.write_time / 4);
        self.after(delay, Event::KeepAlive { life, epoch, until });
    }

    /// The store hears an owner. It counts the tenure from now, longer than the owner does, by the
    /// allowance for drift.
    pub(super) fn keep_alive(&mut self, life: u64, epoch: Epoch, until: Timestamp) {
        let length = self.shape.tenure.unwrap_or_default();
        if self.store.keep_alive(epoch, self.time + stretched(length)) {
            let delay = self.random.around(self.shape.write_time / 4);
            self.after(delay, Event::KeptAlive { life, until });
        }
    }

    /// An owner learns that it was heard: its tenure counts from when it sent the keep-alive.
    pub(super) fn kept_alive(&mut self, life: u64, mut until: Timestamp) {
        let Some(node) = self.node_of(life) else {
            return;
        };
        let server = &mut self.servers[node];
        if self.sabotage == Sabotage::TenureFromAnswer {
            let length = Term::from_nanos(self.shape.tenure.unwrap_or_default());
            until = server.clock.read(self.time) + length;
        }
        if let Some(tenure) = server.tenure.as_mut() {
            tenure.until = tenure.until.max(Some(until));
        }
    }

    // --- ends ----------------------------------------------------------------------------------

    /// A planned hand-over: exact rows, then the release, in one step. False if it cannot be.
    pub(super) fn hand_over(&mut self, node: usize) -> bool {
        if self.servers[node].cut_until > self.time || !self.holds_tenure(node) {
            return false;
        }
        let now = self.servers[node].clock.read(self.time);
        let Some(tenure) = self.servers[node].tenure.as_mut().filter(|t| !t.writing) else {
            return false;
        };
        let rows = tenure.authority.hand_over(now);
        let epoch = tenure.epoch;
        let at = self.time;
        self.trace
            .say(at, || format!("authority {node}: hands over {rows:?}"));
        if self.store.hand_over(epoch, rows) {
            self.hit(Sometimes::HandOver);
        }
        let down = self.random.around(MILLI);
        self.stop_server(node, down);
        if self.random.chance(300) {
            self.servers[node].clock = self.draw_server_clock();
        }
        true
    }

    /// The process dies; it starts again after a while.
    pub(super) fn crash_server(&mut self, node: usize) {
        let down = match self.random.below(3) {
            0 => 0,
            1 => self.random.around(5 * MILLI),
            _ => self.random.below(self.shape.term * 2),
        };
        self.end_tenure(node, if self.healed { 0 } else { down });
    }

    /// A tenure ends without a hand-over, or a node dies that was about to begin one; the node
    /// tries to claim again after `down`.
    pub(super) fn end_tenure(&mut self, node: usize, down: u64) {
        if let Some(tenure) = self.servers[node].tenure.take() {
            self.see_end(&tenure);
        } else if !self.servers[node].starting {
            return;
        }
        self.stop_server(node, down);
        let now = self.time;
        self.trace.say(now, || {
            format!("authority {node}: ends, claims again after {down} ns")
        });
    }

    fn see_end(&mut self, tenure: &Tenure) {
        self.hit(Sometimes::AuthorityCrash);
        self.coverage
            .hit_if(tenure.writing, Sometimes::CrashWithWriteInFlight);
        if tenure.unsettled {
            self.unsettled_ends += 1;
            let ends = self.unsettled_ends;
            self.coverage
                .hit_if(ends == 1, Sometimes::SecondCrashUnsettled);
            self.coverage
                .hit_if(ends == 2, Sometimes::ThirdCrashUnsettled);
        }
        let forgotten = tenure.authority.stats().buckets_forgotten > 0;
        self.coverage.hit_if(forgotten, Sometimes::BucketForgotten);
    }

    fn stop_server(&mut self, node: usize, down: u64) {
        self.lives += 1;
        let life = self.lives;
        let server = &mut self.servers[node];
        server.tenure = None;
        server.starting = false;
        server.life = life;
        server.tick_at = None;
        server.paused_until = 0;
        server.stalled_until = 0;
        server.crash_after_grant = false;
        self.after(down, Event::ServerStart { life });
        self.break_streams(node);
    }

    /// Every stream to a node ends.
    pub(super) fn break_streams(&mut self, node: usize) {
        for client in 0..self.clients.len() {
            if let Link::Up(stream) = self.clients[client].link
                && self.clients[client].node == node
            {
                self.break_stream(client, stream);
            }
        }
    }
}

/// How long the store counts a tenure: the default allowance for drift, a quarter.
fn stretched(length: u64) -> u64 {
    length + length / 4
}
