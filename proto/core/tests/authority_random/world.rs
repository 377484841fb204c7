//! The world: one authority, its durable side, its holders and the time that passes for all.

use std::collections::BTreeMap;
use std::sync::Arc;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, WriteId};
use quota_core::id::{Epoch, Incarnation, LeaseId, PolicyVersion};
use quota_core::key::BucketAddress;
use quota_core::policy::{Policy, PolicyHistory};
use quota_core::record::{Reservation, ReservationWrite};
use quota_core::time::{DriftAllowance, Timestamp};

use super::dice::Dice;
use super::holder::{Holder, Message};
use super::ideal::Ideal;
use super::specs::{KEYS, spec};

pub(crate) const DRIFT: DriftAllowance = DriftAllowance::DEFAULT;
pub(crate) const MILLI: u64 = 1_000_000;

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) grants: u64,
    pub(crate) admitted: u64,
    pub(crate) crashes: u64,
    pub(crate) hand_overs: u64,
    pub(crate) changes: u64,
    pub(crate) clears: u64,
    pub(crate) forgets: u64,
}

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) now: u64,
    pub(crate) authority: Authority,
    // What is durable.
    pub(crate) history: Option<PolicyHistory>,
    /// The last version stored, deleted since or not.
    pub(crate) stored: Arc<Policy>,
    pub(crate) records: BTreeMap<BucketAddress, Reservation>,
    pub(crate) tenures: u32,
    pub(crate) epoch: u64,
    // What is not.
    pub(crate) boot: u128,
    /// What the clock of this boot read when the world began.
    pub(crate) origin: u64,
    pub(crate) write: Option<(WriteId, Vec<ReservationWrite>)>,
    pub(crate) settle_asked: bool,
    pub(crate) version: u64,
    /// True while the owner has not applied what is stored.
    pub(crate) pending: bool,
    pub(crate) applied_at: u64,
    pub(crate) longest: u64,
    pub(crate) ideals: Vec<Option<Ideal>>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) network: Vec<Message>,
    /// Whose each lease is and what it was granted, answers that reached nobody included.
    pub(crate) granted: BTreeMap<LeaseId, (Incarnation, u64)>,
    pub(crate) incarnations: u64,
    pub(crate) streams: u64,
    /// Look only now and then, so that lazy settling is seen as well.
    pub(crate) looks: u64,
    /// Most of the demand goes to one bucket.
    pub(crate) keys: u64,
    pub(crate) first: u64,
    /// How likely a crash is, of a hundred.
    pub(crate) crashes: u64,
    pub(crate) changing: bool,
    /// Much happens within one long term, and holders hoard.
    pub(crate) storm: bool,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let storm = dice.chance(30);
        let history = loop {
            if let Ok(history) =
                PolicyHistory::create(spec(&mut dice, storm), PolicyVersion::new(1))
            {
                break history;
            }
        };
        let now = 5_000_000_000 + dice.below(1_000);
        let config = config(1, 0, true, 1);
        let authority = Authority::new(
            Timestamp::from_nanos(now),
            config,
            vec![history.clone()],
            Vec::new(),
            None,
        );
        let looks = dice.pick(&[0, 10, 50, 100]);
        let changing = dice.chance(60);
        let keys = if storm { 1 } else { dice.pick(&[1, 1, 3]) };
        let first = dice.below(3);
        let crashes = dice.pick(&[5, 30, 100]);
        let mut world = Self {
            dice,
            now,
            authority,
            stored: history.current().unwrap().clone(),
            history: Some(history),
            records: BTreeMap::new(),
            tenures: 1,
            epoch: 1,
            boot: 1,
            origin: 0,
            write: None,
            settle_asked: false,
            version: 1,
            pending: false,
            applied_at: now,
            longest: 0,
            ideals: KEYS.iter().map(|_| None).collect(),
            holders: Vec::new(),
            network: Vec::new(),
            granted: BTreeMap::new(),
            incarnations: 0,
            streams: 0,
            looks,
            keys,
            first,
            crashes,
            changing,
            storm,
            tally: Tally::default(),
        };
        world.in_force(true);
        for _ in 0..=world.dice.below(4) {
            world.incarnations += 1;
            world.streams += 1;
            let holder = Holder::new(world.incarnations, world.streams);
            world.holders.push(holder);
            let place = world.holders.len() - 1;
            world.connect(place);
        }
        world
    }

    pub(crate) fn step(&mut self) {
        let place = usize::try_from(self.dice.below(self.holders.len() as u64)).unwrap();
        match self.dice.below(100) {
            0..=39 => {
                let key = usize::try_from((self.first + self.dice.below(self.keys)) % 3).unwrap();
                self.ask(place, key);
            }
            40..=44 => self.heartbeat(place),
            45..=49 => {
                if !self.network.is_empty() {
                    let index = self.dice.below(self.network.len() as u64);
                    let message = self.network[usize::try_from(index).unwrap()];
                    if self.dice.chance(50) {
                        self.network.retain(|m| m.number != message.number);
                    }
                    self.deliver(message);
                }
            }
            50..=69 => self.wait(),
            70..=76 if self.storm && !self.dice.chance(15) => self.heartbeat(place),
            70..=76 => {
                let everything = self.dice.chance(30);
                self.spend(everything);
            }
            77..=84 => self.finish_write(),
            85..=86 => self.finish_settle(),
            87 => self.reconnect(place),
            88 => self.restart_holder(place),
            89..=91 if self.dice.below(100) < self.crashes => self.crash(),
            92 => self.hand_over(),
            93..=95 if self.changing => self.change_policy(),
            96 if self.pending => self.apply_policy(),
            97..=98 if self.changing => self.clear_policy(),
            _ => self.feed(Input::Tick),
        }
        if self.dice.below(100) < self.looks {
            self.look();
        }
    }

    /// Time passes, with ticks on the way or without.
    pub(crate) fn pass(&mut self, until: u64) {
        if self.dice.chance(70) {
            for _ in 0..200 {
                let Some(due) = self.next_deadline().filter(|due| *due <= until) else {
                    break;
                };
                self.now = self.now.max(due);
                self.feed(Input::Tick);
                if self.dice.chance(70) {
                    self.finish_write();
                }
            }
        }
        self.now = self.now.max(until);
    }

    pub(crate) fn wait(&mut self) {
        let until = match self.dice.below(if self.storm { 7 } else { 12 }) {
            0..=4 => self.now + self.dice.below(5 * MILLI),
            5 | 6 => self.now + self.dice.below(if self.storm { 900 } else { 300 } * MILLI),
            7 => self.now + self.dice.below(4_000 * MILLI),
            8 => self.now + self.dice.below(30_000 * MILLI),
            9 => {
                let due = self.next_deadline();
                due.unwrap_or(self.now).min(self.now + 10_000 * MILLI)
            }
            // The last moment of some lease.
            _ => {
                let live: Vec<u64> = self
                    .holders
                    .iter()
                    .flat_map(|h| h.leases.values())
                    .filter(|held| held.spendable(self.now) > 0)
                    .map(|held| held.deadline - 1)
                    .collect();
                if live.is_empty() {
                    self.now
                } else {
                    self.dice.pick(&live)
                }
            }
        };
        self.pass(until);
    }

    pub(crate) fn feed(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.authority.handle(self.time(), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer {
                    incarnation,
                    anchor,
                    answer,
                    ..
                } => self.answered(incarnation, anchor, answer),
                Effect::Write { write, records } => {
                    assert!(self.write.is_none(), "one write in flight");
                    self.write = Some((write, records));
                }
                Effect::Settle => self.settle_asked = true,
                Effect::PolicyApplied { .. } => {}
            }
        }
    }

    pub(crate) fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.now + self.origin)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let due = self.authority.next_deadline()?.as_nanos();
        Some(due.saturating_sub(self.origin).max(self.now))
    }
}

pub(crate) fn config(epoch: u64, before: u32, first: bool, boot: u128) -> AuthorityConfig {
    AuthorityConfig {
        epoch: Epoch::new(epoch),
        tenures_before: before,
        first_tenure: first,
        drift: DRIFT,
        boot,
        hash_seed: (3, 4),
        buckets_max: 1_000,
    }
}
