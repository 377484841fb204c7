//! The world of a story: one shard, its store, its holders, one clock and the ideal buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input};
use quota_core::id::{Epoch, PolicyVersion};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::policy::{ChangeError, PolicyHistory};
use quota_core::record::{HandOver, Reservation};
use quota_core::time::{DriftAllowance, Term, Timestamp};
use simulations::oracle::IdealBucket;

use crate::holder::Holder;
use crate::words::{self, Words, show, show_bucket};

/// Where the clock stands when a story begins: not at zero, so that nothing rests on that.
const ORIGIN: Timestamp = Timestamp::from_nanos(7_000_000_000);

/// Every holder with a stream sends a message this often, whatever else it sends.
const HEARTBEAT: Term = Term::from_seconds(1);

pub(crate) struct World {
    pub(crate) now: Timestamp,
    authority: Option<Authority>,
    pub(crate) histories: BTreeMap<PolicyId, PolicyHistory>,
    revision: u64,
    records: BTreeMap<BucketAddress, Reservation>,
    /// Writes that are on their way, if the store is slow.
    pending: Option<Vec<Effect>>,
    hand_over: Option<HandOver>,
    boot: u128,
    epoch: u64,
    /// Tenures whose exposure may still be live, as the claim counts them.
    tenures: u32,
    pub(crate) holders: BTreeMap<String, Holder>,
    /// Holders that no answer reaches.
    pub(crate) deaf: BTreeSet<String>,
    /// Holders whose heartbeats do not arrive.
    pub(crate) silent: BTreeSet<String>,
    next_heartbeat: Timestamp,
    pub(crate) streams: u64,
    pub(crate) incarnations: u64,
    pub(crate) ideal: BTreeMap<BucketAddress, IdealBucket>,
    /// While time passes, what happens is printed with its time.
    passing: bool,
    output: String,
    pub(crate) broken: Vec<String>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            now: ORIGIN,
            authority: None,
            histories: BTreeMap::new(),
            revision: 0,
            records: BTreeMap::new(),
            pending: None,
            hand_over: None,
            boot: 1,
            epoch: 0,
            tenures: 0,
            holders: BTreeMap::new(),
            deaf: BTreeSet::new(),
            silent: BTreeSet::new(),
            next_heartbeat: ORIGIN + HEARTBEAT,
            streams: 0,
            incarnations: 0,
            ideal: BTreeMap::new(),
            passing: false,
            output: String::new(),
            broken: Vec::new(),
        };
        world.take_over();
        world
    }

    pub(crate) fn take_output(&mut self) -> String {
        std::mem::take(&mut self.output)
    }

    pub(crate) fn take_broken(&mut self) -> Vec<String> {
        std::mem::take(&mut self.broken)
    }

    pub(crate) fn say(&mut self, text: &str) {
        if self.passing {
            let _ = write!(self.output, "[{}] ", show(self.now.since(ORIGIN)));
        }
        let _ = writeln!(self.output, "{text}");
    }

    /// Runs one command.
    pub(crate) fn run(&mut self, line: &str) -> Result<(), String> {
        let mut words = Words::new(line);
        let first = words.text("a command")?;
        match first {
            "policy" => self.policy(&mut words),
            "delete" => self.delete(&mut words),
            "at" => {
                let at = ORIGIN + words.span("a time")?;
                words.end()?;
                self.pass(at)
            }
            "after" => {
                let at = self.now + words.span("a span")?;
                words.end()?;
                self.pass(at)
            }
            "crash" => self.crash(),
            "start" => self.start(&mut words),
            "hand-over" => self.stop_cleanly(),
            "store" => self.store(&mut words),
            "inspect" => self.inspect(&mut words),
            "stats" => self.stats(),
            holder => self.holder(holder, &mut words),
        }
    }

    pub(crate) fn authority(&mut self) -> Result<&mut Authority, String> {
        self.authority
            .as_mut()
            .ok_or_else(|| "the authority is down".to_owned())
    }

    // --- Policies --------------------------------------------------------------------------------

    fn policy(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let spec = words::parse_policy(words)?;
        self.revision += 1;
        let version = PolicyVersion::new(self.revision);
        let history = match self.histories.get(&spec.id()) {
            None => PolicyHistory::create(spec, version).map_err(ChangeError::Invalid),
            Some(history) if history.current().is_none() => history.recreate(spec, version),
            Some(history) => history.change(spec, version),
        };
        self.apply(history.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn delete(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let id = words::parse_id(words)?;
        words.end()?;
        self.revision += 1;
        let history = self.histories.get(&id).ok_or("there is no such policy")?;
        let history = history.delete(PolicyVersion::new(self.revision));
        self.apply(history.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn apply(&mut self, history: PolicyHistory) {
        let id = history.id().clone();
        let longest = history.term_max(DriftAllowance::DEFAULT);
        if let Some(policy) = history.current() {
            for (bucket, ideal) in self.ideal.iter_mut().filter(|(b, _)| b.policy == id) {
                let changed = ideal.change(self.now, policy.limit_for(&bucket.key), longest);
                changed.expect("stories go forward in time");
            }
        }
        self.histories.insert(id, history.clone());
        if self.authority.is_some() {
            self.feed(Input::ApplyPolicy {
                history: Box::new(history),
            });
        }
    }

    // --- Time ------------------------------------------------------------------------------------

    fn pass(&mut self, until: Timestamp) -> Result<(), String> {
        if until < self.now {
            return Err("time does not go back".into());
        }
        self.passing = true;
        loop {
            let tick = self.authority.as_ref().and_then(Authority::next_deadline);
            let tick = tick.map_or(Timestamp::MAX, |due| due.max(self.now));
            let next = tick.min(self.next_heartbeat);
            if next > until {
                break;
            }
            self.now = next;
            if next == tick {
                self.feed(Input::Tick);
            } else {
                self.next_heartbeat = next + HEARTBEAT;
                self.heartbeats();
            }
        }
        self.passing = false;
        self.now = until;
        Ok(())
    }

    // --- The authority and its store -------------------------------------------------------------

    fn crash(&mut self) -> Result<(), String> {
        self.authority()?;
        self.authority = None;
        self.pending = self.pending.take().map(|_| Vec::new());
        for holder in self.holders.values_mut() {
            holder.stream = None;
        }
        Ok(())
    }

    fn stop_cleanly(&mut self) -> Result<(), String> {
        let now = self.now;
        let rows = self.authority()?.hand_over(now);
        let (buckets, leases) = (
            rows.buckets.len(),
            rows.buckets.iter().map(|b| b.leases.len()),
        );
        let text = format!(
            "handed over {buckets} buckets with {} leases",
            leases.sum::<usize>()
        );
        self.say(&text);
        self.crash()?;
        self.hand_over = Some(rows);
        Ok(())
    }

    /// `start [after-boot]`
    fn start(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        if self.authority.is_some() {
            return Err("the authority is up".into());
        }
        match words.next() {
            Some("after-boot") => self.boot += 1,
            Some(other) => return Err(format!("start {other:?}?")),
            None => {}
        }
        self.take_over();
        let text = format!(
            "epoch {}, {} earlier tenures count",
            self.epoch,
            self.tenures - 1
        );
        self.say(&text);
        Ok(())
    }

    fn take_over(&mut self) {
        self.epoch += 1;
        let hand_over = self.hand_over.take();
        // An exact hand-over leaves nothing behind: its successor counts as the same tenure.
        if hand_over.is_some() {
            self.tenures -= 1;
        }
        let config = AuthorityConfig {
            epoch: Epoch::new(self.epoch),
            tenures_before: self.tenures,
            first_tenure: self.epoch == 1,
            drift: DriftAllowance::DEFAULT,
            boot: self.boot,
            hash_seed: (3, 4),
            buckets_max: 1000,
        };
        self.tenures += 1;
        let histories = self.histories.values().cloned().collect();
        let records = self.records.clone().into_iter().collect();
        self.authority = Some(Authority::new(
            self.now, config, histories, records, hand_over,
        ));
    }

    /// `store slow`: writes stay on their way. `store catches-up`: they arrive, and later ones too.
    fn store(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        match words.text("what the store does")? {
            "slow" => self.pending = Some(Vec::new()),
            "catches-up" => {
                for effect in self.pending.take().unwrap_or_default() {
                    self.write(effect);
                }
            }
            other => return Err(format!("the store does not do {other:?}")),
        }
        words.end()
    }

    fn write(&mut self, effect: Effect) {
        let Effect::Write { write, records } = effect else {
            return;
        };
        for record in records {
            let bucket = show_bucket(&record.bucket);
            match record.reservation {
                Some(reservation) => {
                    let (used, exposure) = (reservation.used, reservation.exposure);
                    self.say(&format!("store: {bucket} used {used}, exposure {exposure}"));
                    self.records.insert(record.bucket, reservation);
                }
                None => {
                    self.say(&format!("store: {bucket} removed"));
                    self.records.remove(&record.bucket);
                }
            }
        }
        self.feed(Input::Written { write });
    }

    pub(crate) fn feed(&mut self, input: Input) {
        let mut effects = Vec::new();
        let Some(authority) = self.authority.as_mut() else {
            return;
        };
        authority.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer {
                    incarnation,
                    stream,
                    anchor,
                    answer,
                } => {
                    self.deliver(incarnation, stream, anchor, &answer);
                }
                Effect::Write { .. } => match &mut self.pending {
                    Some(pending) => {
                        pending.push(effect);
                        self.say("store: a write is on its way");
                    }
                    None => self.write(effect),
                },
                Effect::Settle => {
                    self.tenures = 1;
                    self.say("settled");
                }
                Effect::PolicyApplied {
                    id,
                    version,
                    outstanding,
                    owed,
                } => {
                    let version = match version {
                        Some(version) => format!("version {version}"),
                        None => "deleted".to_owned(),
                    };
                    let name = id.name;
                    self.say(&format!(
                        "{name}: {version}, {outstanding} out, {owed} owed"
                    ));
                }
            }
        }
    }

    fn inspect(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let bucket = words.bucket()?;
        words.end()?;
        let now = self.now;
        let view = self
            .authority()?
            .inspect(now, &bucket)
            .ok_or("there is no such bucket")?;
        let mut text = format!(
            "{}: {} of {} available, {} out",
            show_bucket(&bucket),
            view.available,
            view.capacity,
            view.outstanding
        );
        if !view.ghost.is_zero() {
            let _ = write!(text, ", ghost {} for {}", view.ghost, show(view.ghost_term));
        }
        if view.reserved {
            let _ = write!(text, ", booked {}", view.booked);
        }
        if view.waiting > 0 {
            let _ = write!(text, ", {} waiting", view.waiting);
        }
        if view.unseen {
            text.push_str(", not seen");
        }
        self.say(&text);
        Ok(())
    }

    fn stats(&mut self) -> Result<(), String> {
        let stats = self.authority()?.stats();
        let text = format!(
            "{} buckets ({} forgotten), {} leases, {} waiting, {} retries, {} records",
            stats.buckets,
            stats.buckets_forgotten,
            stats.leases,
            stats.waiting,
            stats.retries,
            stats.records_written
        );
        self.say(&text);
        Ok(())
    }
}
