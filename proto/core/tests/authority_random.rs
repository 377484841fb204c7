//! The authority against adversaries, by random schedules.
//!
//! One shard, a few buckets, holders that spend at the last moment, hoard, report late or wrongly,
//! repeat, reorder and reconnect; an authority that crashes with writes lost or in doubt, hands
//! over, and changes policies. Outside of it all stands the exact ideal bucket, fed with what the
//! holders really spend.
//!
//! Time is the authority's. Its clock may run a tenth fast and a holder's a tenth slow, so a term
//! lasts eleven ninths of itself for a holder.
//!
//! Seeds are printed on failure. `QUOTA_SEED` (the first) and `QUOTA_CASES` (how many) replay and
//! widen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId};
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::level::Level;
use quota_core::message::{Answer, Introduction, LeaseRequest, Status};
use quota_core::policy::{
    CostSpec, Durability, LeaseSpec, Limit, LimitSpec, OverrideSpec, Policy, PolicyHistory,
    PolicySpec,
};
use quota_core::rate::Rate;
use quota_core::record::{HandOver, Reservation, ReservationWrite};
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;

const DRIFT: DriftAllowance = DriftAllowance::DEFAULT;
const MILLI: u64 = 1_000_000;
const STEPS: u64 = 250;
/// The largest capacity of any version, stored or in force, and a booked block beyond it.
const CAPACITY_MOST: Tokens = Tokens::new(130);

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `end - 1`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

fn id() -> PolicyId {
    PolicyId {
        namespace: "default".into(),
        name: "api".into(),
    }
}

/// The buckets: two of one plan, one of another; the second has an override now and then.
const KEYS: [[&str; 2]; 3] = [["free", "a"], ["free", "b"], ["gold", "c"]];

fn address(key: usize) -> BucketAddress {
    BucketAddress {
        policy: id(),
        key: Key::from_values(&KEYS[key]).unwrap(),
    }
}

fn limit_spec(dice: &mut Dice, storm: bool) -> LimitSpec {
    if storm {
        let burst = dice.pick(&[5, 20, 50, 100]);
        let (count, period) = dice.pick(&[(1, 1_000), (10, 100), (100, 1_000), (100, 1_000)]);
        return LimitSpec::new(count, Term::from_millis(period)).with_burst(burst);
    }
    let burst = dice.pick(&[1, 2, 3, 5, 10, 10, 20, 50, 100]);
    let (count, period) = dice.pick(&[
        (1, 3_600_000),
        (1, 1_000),
        (10, 1_000),
        (100, 1_000),
        (7, 300),
        (3, 7_000),
    ]);
    LimitSpec::new(count, Term::from_millis(period)).with_burst(burst)
}

fn spec(dice: &mut Dice, storm: bool) -> PolicySpec {
    let mut spec = PolicySpec::new("api", &["plan", "who"], limit_spec(dice, storm));
    if dice.chance(30) {
        spec.plans.insert("gold".into(), limit_spec(dice, storm));
    }
    if dice.chance(30) {
        spec.overrides.push(OverrideSpec {
            key: KEYS[1].map(String::from).to_vec(),
            limit: limit_spec(dice, storm),
        });
    }
    spec.durability = dice.pick(&[Durability::Reserved, Durability::Volatile]);
    spec.lease = LeaseSpec {
        share_per_mille: dice.pick(&[1000, 800, 800, 500, 300]),
        horizon: Term::from_millis(100).into(),
        term_max: Term::from_millis(if storm {
            dice.pick(&[1_000, 5_000, 5_000])
        } else {
            dice.pick(&[100, 300, 1_000, 1_000, 2_000])
        })
        .into(),
        ..LeaseSpec::default()
    };
    if dice.chance(20) {
        spec.cost = CostSpec {
            max: Some(dice.pick(&[1, 3, 10, 50])),
            ..CostSpec::default()
        };
    }
    spec
}

/// A limit that was in force for a bucket, from a moment on.
#[derive(Clone, Copy)]
struct InForce {
    from: u64,
    capacity: u64,
    rate: Rate,
}

/// The ideal bucket of one key.
struct Ideal {
    level: Level,
    at: u64,
    limits: Vec<InForce>,
    admitted: Vec<(u64, u64)>,
}

impl Ideal {
    fn new(limit: &Limit, now: u64) -> Self {
        let capacity = limit.capacity().get();
        Self {
            level: Level::from_tokens(i128::from(capacity), limit.rate()),
            at: now,
            limits: vec![InForce {
                from: now,
                capacity,
                rate: limit.rate(),
            }],
            admitted: Vec::new(),
        }
    }

    fn last(&self) -> InForce {
        *self.limits.last().unwrap()
    }

    fn settle(&mut self, now: u64) {
        let last = self.last();
        let term = Term::from_nanos(now - self.at);
        self.level = self
            .level
            .refilled(last.rate, term, i128::from(last.capacity));
        self.at = now;
    }

    fn change(&mut self, now: u64, limit: &Limit) {
        self.settle(now);
        let last = self.last();
        let (capacity, rate) = (limit.capacity().get(), limit.rate());
        if (last.capacity, last.rate) == (capacity, rate) {
            return;
        }
        // Rounded up, so that the two never differ by the rounding of a conversion.
        let level = self.level.converted(last.rate, rate).parts() + 1;
        let change = i128::from(capacity) - i128::from(last.capacity);
        let change = Level::from_tokens(change, rate).parts();
        let full = Level::from_tokens(i128::from(capacity), rate).parts();
        self.level = Level::from_parts((level + change).min(full));
        self.limits.push(InForce {
            from: now,
            capacity,
            rate,
        });
    }

    /// Every window that ends now holds at most `B + R·w`, for the largest of both in force since
    /// one longest term before it.
    fn admit(&mut self, now: u64, tokens: u64, longest: u64) {
        self.settle(now);
        self.level = self.level.minus(Tokens::new(tokens), self.last().rate);
        self.admitted.push((now, tokens));
        let mut sum = 0;
        for (begin, count) in self.admitted.iter().rev() {
            sum += count;
            let since = begin.saturating_sub(longest);
            let first = self.limits.partition_point(|l| l.from <= since).max(1) - 1;
            let live = &self.limits[first..];
            let capacity = live.iter().map(|l| l.capacity).max().unwrap();
            let window = Term::from_nanos(now - begin);
            let refill = live.iter().map(|l| l.rate.tokens_in(window).get()).max();
            let bound = capacity + refill.unwrap();
            assert!(
                sum <= bound,
                "{sum} tokens were spent within {} ms where {bound} are allowed",
                window.as_millis_ceil()
            );
        }
    }
}

/// A lease as its holder has it, at its most adverse.
#[derive(Clone, Copy, Default)]
struct Held {
    granted: u64,
    spent: u64,
    returned: u64,
    /// In the authority's time.
    deadline: u64,
    /// Out of the holder's own reach: released, or reported as spent without being so.
    burned: bool,
}

impl Held {
    fn spendable(&self, now: u64) -> u64 {
        if self.burned || now >= self.deadline {
            return 0;
        }
        (self.granted).saturating_sub(self.spent + self.returned)
    }
}

#[derive(Clone, Copy)]
struct Message {
    holder: usize,
    incarnation: Incarnation,
    stream: StreamId,
    number: u64,
    introduce: Option<(KeyNumber, usize)>,
    request: Option<LeaseRequest>,
}

struct Holder {
    incarnation: Incarnation,
    stream: StreamId,
    sent: Vec<u64>,
    numbers: BTreeMap<usize, KeyNumber>,
    named: u32,
    sequences: [u64; 3],
    last: [Option<(usize, LeaseRequest)>; 3],
    current: [Option<LeaseId>; 3],
    leases: BTreeMap<(usize, LeaseId), Held>,
    /// What a sequence was answered with, by lease.
    decided: BTreeMap<(usize, u64, LeaseId), u64>,
}

impl Holder {
    fn new(incarnation: u64, stream: u64) -> Self {
        Self {
            incarnation: Incarnation::new(incarnation),
            stream: StreamId::new(stream),
            sent: Vec::new(),
            numbers: BTreeMap::new(),
            named: 0,
            sequences: [0; 3],
            last: [None; 3],
            current: [None; 3],
            leases: BTreeMap::new(),
            decided: BTreeMap::new(),
        }
    }
}

#[derive(Default)]
struct Tally {
    grants: u64,
    admitted: u64,
    crashes: u64,
    hand_overs: u64,
    changes: u64,
    clears: u64,
    forgets: u64,
}

struct World {
    dice: Dice,
    now: u64,
    authority: Authority,
    // What is durable.
    history: Option<PolicyHistory>,
    /// The last version stored, deleted since or not.
    stored: Arc<Policy>,
    records: BTreeMap<BucketAddress, Reservation>,
    tenures: u32,
    epoch: u64,
    // What is not.
    boot: u128,
    /// What the clock of this boot read when the world began.
    origin: u64,
    write: Option<(quota_core::authority::WriteId, Vec<ReservationWrite>)>,
    settle_asked: bool,
    version: u64,
    /// True while the owner has not applied what is stored.
    pending: bool,
    applied_at: u64,
    longest: u64,
    ideals: Vec<Option<Ideal>>,
    holders: Vec<Holder>,
    network: Vec<Message>,
    /// Whose each lease is and what it was granted, answers that reached nobody included.
    granted: BTreeMap<LeaseId, (Incarnation, u64)>,
    incarnations: u64,
    streams: u64,
    /// Look only now and then, so that lazy settling is seen as well.
    looks: u64,
    /// Most of the demand goes to one bucket.
    keys: u64,
    first: u64,
    /// How likely a crash is, of a hundred.
    crashes: u64,
    changing: bool,
    /// Much happens within one long term, and holders hoard.
    storm: bool,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> Self {
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

    fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.now + self.origin)
    }

    fn next_deadline(&self) -> Option<u64> {
        let due = self.authority.next_deadline()?.as_nanos();
        Some(due.saturating_sub(self.origin).max(self.now))
    }

    /// The ideal buckets follow what the owner serves by now.
    fn in_force(&mut self, fresh: bool) {
        let Some(history) = &self.history else { return };
        self.pending = false;
        self.longest = self.longest.max(history.term_max(DRIFT).as_nanos());
        // A deleted policy's last limit goes on: for a new owner the last one stored.
        let policy = match history.current() {
            None if !fresh => return,
            _ => self.stored.clone(),
        };
        for (key, ideal) in self.ideals.iter_mut().enumerate() {
            let limit = policy.limit_for(&address(key).key);
            match ideal {
                None => *ideal = Some(Ideal::new(limit, self.now)),
                Some(ideal) => ideal.change(self.now, limit),
            }
        }
    }

    fn feed(&mut self, input: Input) {
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

    fn answered(&mut self, incarnation: Incarnation, anchor: MessageNumber, answer: Answer) {
        let Some(grant) = answer.grant else { return };
        let serving = self.history.as_ref().and_then(|h| h.current());
        let is_serving = self.pending || serving.is_some_and(|p| p.version() == grant.version);
        let total = self.granted.entry(grant.lease).or_insert((incarnation, 0));
        assert_eq!(total.0, incarnation, "a lease changed hands");
        assert!(
            is_serving || grant.granted.get() <= total.1,
            "a lease of another version was extended"
        );
        total.1 = total.1.max(grant.granted.get());
        let Some(holder) = self
            .holders
            .iter_mut()
            .find(|h| h.incarnation == incarnation)
        else {
            return;
        };
        let key = holder
            .numbers
            .iter()
            .find(|(_, n)| **n == answer.key)
            .map(|(k, _)| *k);
        // An answer on a stream that is gone by now reaches nobody.
        let Some(key) = key else { return };
        if !is_serving {
            assert_eq!(
                grant.term,
                Term::ZERO,
                "a lease got a longer term under another version"
            );
        }
        let index = usize::try_from(anchor.get()).unwrap() - 1;
        let sent = holder.sent[index];
        let lasts = grant.term.scale_down(11, 9).as_nanos();
        let held = holder.leases.entry((key, grant.lease)).or_default();
        if grant.granted.get() > held.granted {
            self.tally.grants += 1;
        }
        held.granted = held.granted.max(grant.granted.get());
        held.deadline = held.deadline.max(sent + lasts);
        if self.dice.chance(85) && answer.sequence.get() == holder.sequences[key] {
            holder.current[key] = Some(grant.lease);
        }
        if answer.status == Status::Done {
            let decided = (key, answer.sequence.get(), grant.lease);
            let before = holder.decided.entry(decided).or_insert(grant.granted.get());
            assert_eq!(
                *before,
                grant.granted.get(),
                "a retry was granted once more"
            );
        }
    }

    fn connect(&mut self, holder: usize) {
        let holder = &self.holders[holder];
        let (incarnation, stream) = (holder.incarnation, holder.stream);
        self.feed(Input::Connect {
            incarnation,
            stream,
        });
    }

    fn reconnect(&mut self, place: usize) {
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        let (incarnation, old) = (self.holders[place].incarnation, self.holders[place].stream);
        let politely = self.dice.chance(50);
        if politely {
            self.feed(Input::Disconnect {
                incarnation,
                stream: old,
            });
        }
        let holder = &mut self.holders[place];
        holder.stream = stream;
        holder.numbers.clear();
        self.connect(place);
        if !politely {
            self.feed(Input::Disconnect {
                incarnation,
                stream: old,
            });
        }
    }

    /// The process of a holder dies, with all that it held, and another begins.
    fn restart_holder(&mut self, place: usize) {
        self.incarnations += 1;
        self.streams += 1;
        let old = &self.holders[place];
        let (incarnation, stream) = (old.incarnation, old.stream);
        self.feed(Input::Disconnect {
            incarnation,
            stream,
        });
        self.holders[place] = Holder::new(self.incarnations, self.streams);
        self.connect(place);
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

    fn heartbeat(&mut self, place: usize) {
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

    fn deliver(&mut self, message: Message) {
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

    /// A new request, honest or not, or the last one once more.
    fn ask(&mut self, place: usize, key: usize) {
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

    fn spend(&mut self, everything: bool) {
        let now = self.now;
        for place in 0..self.holders.len() {
            let held: Vec<_> = self.holders[place].leases.keys().copied().collect();
            for at in held {
                let lease = self.holders[place].leases.get_mut(&at).unwrap();
                let rest = lease.spendable(now);
                let part = if everything || self.dice.chance(30) {
                    rest
                } else if self.dice.chance(40) {
                    self.dice.below(rest + 1)
                } else {
                    0
                };
                if part > 0 {
                    lease.spent += part;
                    self.tally.admitted += part;
                    let ideal = self.ideals[at.0].as_mut().unwrap();
                    ideal.admit(now, part, self.longest);
                }
            }
        }
    }

    /// What may still be spent of a bucket.
    fn live(&self, key: usize) -> u64 {
        let leases = self.holders.iter().flat_map(|h| &h.leases);
        let of_key = leases.filter(|((k, _), _)| *k == key);
        of_key.map(|(_, held)| held.spendable(self.now)).sum()
    }

    /// `available + live ≤ ideal`, and conservation.
    fn look(&mut self) {
        for key in 0..KEYS.len() {
            let live = self.live(key);
            let now = self.time();
            let Some(view) = self.authority.inspect(now, &address(key)) else {
                continue;
            };
            let Some(ideal) = self.ideals[key].as_mut() else {
                continue;
            };
            ideal.settle(self.now);
            let level = ideal.level.tokens(ideal.last().rate);
            assert!(
                view.available + i128::from(live) <= level,
                "{live} tokens are live and the ideal bucket holds {level}: {view:?}"
            );
            let out = view.outstanding.get() + view.ghost.get();
            assert!(
                view.available.max(0) + i128::from(out) <= i128::from(view.capacity.get())
                    || view.available <= 0,
                "{view:?}"
            );
        }
    }

    fn finish_write(&mut self) {
        if let Some((write, records)) = self.write.take() {
            self.store(records);
            self.feed(Input::Written { write });
        }
    }

    fn store(&mut self, records: Vec<ReservationWrite>) {
        for record in records {
            match record.reservation {
                Some(reservation) => self.records.insert(record.bucket, reservation),
                None => self.records.remove(&record.bucket),
            };
        }
    }

    fn finish_settle(&mut self) {
        if std::mem::take(&mut self.settle_asked) {
            self.tenures = 1;
        }
    }

    /// The process dies. A write in flight may have been done.
    fn crash(&mut self) {
        self.tally.crashes += 1;
        if self.storm {
            // Everybody takes all that there is first.
            let key = usize::try_from(self.first).unwrap();
            for place in 0..self.holders.len() {
                self.ask(place, key);
                self.finish_write();
            }
        }
        if let Some((_, records)) = self.write.take()
            && self.dice.chance(50)
        {
            self.store(records);
        }
        self.take_over(None);
    }

    fn hand_over(&mut self) {
        self.tally.hand_overs += 1;
        while self.write.is_some() {
            self.finish_write();
        }
        let rows = self.authority.hand_over(self.time());
        let mut named = BTreeSet::new();
        assert!(
            rows.buckets.iter().all(|row| named.insert(&row.bucket)),
            "a bucket has two rows"
        );
        self.take_over(Some(rows));
    }

    fn take_over(&mut self, rows: Option<HandOver>) {
        if self.dice.chance(50) {
            self.settle_asked = false;
        }
        self.finish_settle();
        if self.dice.chance(30) {
            self.boot += 1;
            self.origin = self.dice.below(100_000) * MILLI;
        }
        let pause = self.dice.pick(&[0, 1, 50, 1_000, 10_000]) * MILLI;
        self.now += self.dice.below(pause + 1);
        if self.pending {
            self.applied_at = self.now;
        }
        self.in_force(true);
        self.epoch += 1;
        let before = self.tenures;
        self.tenures += 1;
        let records = self.records.clone().into_iter().collect();
        self.authority = Authority::new(
            self.time(),
            config(self.epoch, before, false, self.boot),
            self.history.iter().cloned().collect(),
            records,
            rows,
        );
        for place in 0..self.holders.len() {
            self.streams += 1;
            let holder = &mut self.holders[place];
            holder.stream = StreamId::new(self.streams);
            holder.numbers.clear();
            self.connect(place);
        }
    }

    fn next_version(&mut self) -> PolicyVersion {
        self.version += 1;
        PolicyVersion::new(self.version)
    }

    /// Stores a change; the owner may hear of it later.
    fn change_policy(&mut self) {
        let version = self.next_version();
        let new = spec(&mut self.dice, self.storm);
        let deletes = self.dice.chance(15);
        let next = match &self.history {
            None => PolicyHistory::create(new, version).ok(),
            Some(old) if old.current().is_none() => old.recreate(new, version).ok(),
            Some(old) if deletes => old.delete(version).ok(),
            Some(old) => {
                // Half of the changes touch one thing only.
                let mut spec = old.current().unwrap().spec().clone();
                match self.dice.below(6) {
                    0 => spec.limit = new.limit,
                    1 => spec.durability = new.durability,
                    2 => spec.lease = new.lease,
                    3 => {
                        spec.limit = new.limit;
                        spec.overrides.clear();
                        spec.plans.clear();
                    }
                    _ => spec = new,
                }
                old.change(spec, version).ok()
            }
        };
        let Some(next) = next else { return };
        self.tally.changes += 1;
        if let Some(policy) = next.current() {
            self.stored = policy.clone();
        }
        self.history = Some(next);
        self.pending = true;
        match self.dice.below(10) {
            // The owner dies before it hears of it.
            0..=2 if self.crashes > 5 => {
                self.spend(true);
                self.wait();
                self.crash();
            }
            0..=2 => {}
            _ => self.apply_policy(),
        }
    }

    fn apply_policy(&mut self) {
        let Some(history) = self.history.clone() else {
            return;
        };
        self.applied_at = self.now;
        self.in_force(false);
        self.feed(Input::ApplyPolicy {
            history: Box::new(history),
        });
    }

    /// Former versions are dropped as soon as the rules allow.
    fn clear_policy(&mut self) {
        let Some(history) = self.history.as_ref() else {
            return;
        };
        let over = self.applied_at + history.clearable_after(DRIFT).as_nanos();
        if self.pending || history.former().is_empty() {
            return;
        }
        if over > self.now {
            if over - self.now > 200_000 * MILLI || !self.dice.chance(30) {
                return;
            }
            self.pass(over);
        }
        let applied = self.applied_at;
        self.history = self.history.as_ref().and_then(PolicyHistory::cleared);
        if self.history.is_some() {
            self.tally.clears += 1;
            self.apply_policy();
            self.applied_at = applied;
        } else {
            self.tally.forgets += 1;
            self.feed(Input::ForgetPolicy { id: id() });
        }
    }

    /// Time passes, with ticks on the way or without.
    fn pass(&mut self, until: u64) {
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

    fn wait(&mut self) {
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

    fn step(&mut self) {
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

    /// Without faults everything that was held ends, everyone is served, and all is forgotten.
    fn recover(&mut self) {
        self.network.clear();
        self.spend(true);
        for place in 0..self.holders.len() {
            self.restart_holder(place);
        }
        if self.history.as_ref().is_none_or(|h| h.current().is_none()) {
            return;
        }
        if self.pending {
            self.apply_policy();
        }
        let rates = self.ideals.iter().flatten().map(|ideal| ideal.last().rate);
        let slowest = rates.map(|rate| rate.time_for(CAPACITY_MOST).as_nanos());
        let full = slowest.max().unwrap() + 2 * self.longest + 30_000 * MILLI;
        self.quiet(self.now + full);
        self.settled();
        for key in 0..KEYS.len() {
            for place in 0..self.holders.len() {
                self.served(place, key, 1);
            }
        }
        for place in 0..self.holders.len() {
            self.restart_holder(place);
        }
        self.quiet(self.now + full);
        // One pass deletes the record of a full bucket, the next forgets the bucket.
        for _ in 0..3 {
            self.quiet(self.now + 30_000 * MILLI);
        }
        let stats = self.authority.stats();
        let counts = (stats.buckets, stats.leases, stats.waiting);
        assert_eq!(counts, (0, 0, 0), "something is remembered for ever");
    }

    fn settled(&mut self) {
        assert!(self.authority.next_deadline().is_none() || self.write.is_none());
        self.finish_settle();
    }

    fn quiet(&mut self, until: u64) {
        let mut rounds = 0;
        while let Some(due) = self
            .next_deadline()
            .filter(|due| *due <= until && rounds < 60)
        {
            rounds += 1;
            self.now = self.now.max(due);
            self.feed(Input::Tick);
            while self.write.is_some() {
                self.finish_write();
            }
        }
        // What is left of the way is one long sleep; a pass follows it.
        self.now = self.now.max(until);
        for _ in 0..12 {
            self.now += 1_000 * MILLI;
            self.feed(Input::Tick);
            while self.write.is_some() {
                self.finish_write();
            }
        }
    }

    /// One token is granted within a term and the time that it takes to refill.
    fn served(&mut self, place: usize, key: usize, least: u64) {
        let holder = &mut self.holders[place];
        holder.sequences[key] += 1;
        let request = LeaseRequest {
            key: KeyNumber::new(0),
            sequence: Sequence::new(holder.sequences[key]),
            lease: None,
            spent: Tokens::ZERO,
            returned: Tokens::ZERO,
            want: Tokens::new(least),
            least: Tokens::new(least),
            demand: 1,
            release: false,
        };
        let rate = self.ideals[key].as_ref().unwrap().last().rate;
        let patience = rate.time_for(Tokens::new(2)).as_nanos() + 2 * self.longest;
        let end = self.now + patience;
        let before = self.tally.grants;
        while self.tally.grants == before {
            let view = self.authority.inspect(self.time(), &address(key));
            assert!(self.now <= end, "nothing was granted in time: {view:?}");
            let holder = &mut self.holders[place];
            holder.sent.push(self.now);
            let number = holder.sent.len() as u64;
            holder.named += 1;
            let name = KeyNumber::new(holder.named);
            holder.numbers.insert(key, name);
            let message = Message {
                holder: place,
                incarnation: holder.incarnation,
                stream: holder.stream,
                number,
                introduce: Some((name, key)),
                request: Some(LeaseRequest {
                    key: name,
                    ..request
                }),
            };
            self.deliver(message);
            while self.write.is_some() {
                self.finish_write();
            }
            if self.tally.grants == before {
                self.now += patience / 64 + 1;
                self.feed(Input::Tick);
            }
        }
    }
}

fn config(epoch: u64, before: u32, first: bool, boot: u128) -> AuthorityConfig {
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

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn no_schedule_spends_more_than_the_ideal_bucket_holds() {
    struct Shown(u64);
    impl Drop for Shown {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with QUOTA_SEED={} QUOTA_CASES=1", self.0);
            }
        }
    }
    let first = number("QUOTA_SEED", 1);
    let cases = number("QUOTA_CASES", 2_000);
    let mut sum = Tally::default();
    for seed in first..first + cases {
        let _shown = Shown(seed);
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.recover();
        sum.grants += world.tally.grants;
        sum.admitted += world.tally.admitted;
        sum.crashes += world.tally.crashes;
        sum.hand_overs += world.tally.hand_overs;
        sum.changes += world.tally.changes;
        sum.clears += world.tally.clears;
        sum.forgets += world.tally.forgets;
    }
    if cases >= 100 {
        // What never happens proves nothing.
        let happened = [
            sum.grants,
            sum.admitted,
            sum.crashes,
            sum.hand_overs,
            sum.changes,
            sum.clears,
            sum.forgets,
        ];
        assert!(happened.iter().all(|n| *n > 0), "{happened:?}");
        println!("{happened:?}");
    }
}
