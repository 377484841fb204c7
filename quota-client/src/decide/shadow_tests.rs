//! What policies in shadow mode must not do: change anything that the others decide.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use quota_core::cell::Rise;
use quota_core::id::PolicyVersion;
use quota_core::policy::{LimitSpec, OnOutage, Policy, PolicySpec};
use quota_core::time::Term;

use super::*;
use crate::config::Config;
use crate::decision::Outcome;
use crate::rules::{Rules, Switched, Switches};

/// A small generator of its own, so that a failure repeats (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A client without a driver, with leases that the test installs by the name of the bucket.
struct Rig {
    shared: Arc<Shared>,
    signals: Receiver<Signal>,
    slots: HashMap<(String, Vec<u8>), Slot>,
}

impl Rig {
    fn new(specs: &[PolicySpec], switches: Switches) -> Self {
        let mut config = Config::new(["http://127.0.0.1:1"]);
        config.keys_max = 1_000;
        // The same keys for both, so that shares by fingerprint are the same.
        let (shared, signals) = Shared::new(config, (1, 2));
        let policies = specs
            .iter()
            .map(|spec| Policy::parse(spec.clone(), PolicyVersion::new(1)).expect("good"))
            .map(Arc::new);
        let rules = Rules::new(1, true, policies, &shared.names, &shared.key).expect("a set");
        shared.set_rules(rules.under(switches));
        Self {
            shared,
            signals,
            slots: HashMap::new(),
        }
    }

    fn note_openings(&mut self) {
        for signal in self.signals.try_iter() {
            if let Signal::Open(opening) = signal {
                let bucket = (
                    opening.bucket.policy.name.clone(),
                    opening.bucket.key.as_bytes().to_vec(),
                );
                self.slots.insert(bucket, opening.slot);
            }
        }
    }

    /// The authority says something of a bucket, if the client has asked for it.
    fn tell(&self, bucket: &(String, Vec<u8>), status: Status, tokens: u64, deadline: Tick) {
        let Some(slot) = self.slots.get(bucket) else {
            return;
        };
        let entry = self.shared.table.entry(*slot);
        entry.note(status, Timestamp::ZERO);
        if status == Status::Granted {
            let installed = entry
                .cell()
                .install(Tokens::new(tokens), deadline, Rise::Fresh);
            installed.expect("few leases are installed");
        }
    }
}

/// What callers notice of a decision.
fn noticed(attempt: &Attempt<'_>) -> (bool, Option<Reason>, Option<String>, Option<Tokens>) {
    let decision = match attempt {
        Attempt::Admitted(decision) => *decision,
        Attempt::Refused(refused) => refused.decision,
    };
    (
        decision.is_allowed(),
        decision.reason(),
        decision.policy().map(ToString::to_string),
        decision.remaining(),
    )
}

#[test]
fn removing_all_shadow_policies_changes_no_enforced_outcome() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let (mut refused, mut would_refuse, mut passed) = (0_u32, 0_u32, 0_u32);
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut specs: Vec<PolicySpec> = Vec::new();
        for name in &NAMES[..usize::try_from(2 + random.below(4)).expect("small")] {
            let dimension = if random.chance(50) { "tenant" } else { "route" };
            let limit = LimitSpec::new(1_000, Term::from_seconds(1));
            let mut spec = PolicySpec::new(name, &[dimension], limit);
            spec.shadow = random.chance(40);
            spec.order = i32::try_from(random.below(3)).expect("small");
            if random.chance(30) {
                spec.on_outage = OnOutage::Open;
            }
            if random.chance(20) {
                spec.cost.max = Some(3);
            }
            specs.push(spec);
        }
        let mut switches = Switches::new();
        if random.chance(20) {
            let mode =
                [SwitchMode::AdmitAll, SwitchMode::RefuseAll][usize::from(random.chance(50))];
            let spec = &specs[usize::try_from(random.below(2)).expect("small")];
            let scope = quota_core::policy::SwitchScope::Policy(spec.id());
            switches.insert(scope, Switched { mode, until: None });
        }
        let mut with = Rig::new(&specs, switches.clone());
        specs.retain(|spec| !spec.shadow);
        let mut without = Rig::new(&specs, switches);
        for step in 0..120 {
            let link = [Link::Up, Link::Up, Link::Up, Link::Connecting, Link::Down]
                [usize::try_from(random.below(5)).expect("small")];
            with.shared.set_link(link);
            without.shared.set_link(link);
            if random.chance(50) {
                let status = [
                    Status::Granted,
                    Status::Granted,
                    Status::Granted,
                    Status::Exhausted,
                    Status::Busy,
                    Status::UnknownPolicy,
                ][usize::try_from(random.below(6)).expect("small")];
                let tokens = random.below(4);
                let term = if random.chance(20) { 0 } else { 600 };
                let deadline = Tick::at(clock::now() + Term::from_seconds(term));
                let mut known: Vec<_> = with.slots.keys().cloned().collect();
                known.sort();
                if !known.is_empty() {
                    let place = random.below(u64::try_from(known.len()).expect("small"));
                    let bucket = &known[usize::try_from(place).expect("small")];
                    with.tell(bucket, status, tokens, deadline);
                    without.tell(bucket, status, tokens, deadline);
                }
            }
            let mut dimensions = vec![("tenant", if random.chance(50) { "t1" } else { "t2" })];
            if random.chance(70) {
                dimensions.push(("route", "/"));
            }
            let cost = random.chance(40).then(|| Tokens::new(random.below(5)));
            let mood = [
                Mood::Hasty,
                Mood::Patient,
                Mood::Spent { silent: true },
                Mood::Spent { silent: false },
            ][usize::try_from(random.below(4)).expect("small")];
            let here = with.shared.attempt(&dimensions, cost, mood);
            let there = without.shared.attempt(&dimensions, cost, mood);
            let said = format!("seed {seed}, step {step}: {dimensions:?} {cost:?} {mood:?}");
            assert_eq!(noticed(&here), noticed(&there), "{said}");
            match here {
                Attempt::Refused(_) => refused += 1,
                Attempt::Admitted(decision) => {
                    passed += 1;
                    would_refuse += u32::from(decision.shadow_refusal().is_some());
                    if decision.shadow_refusal().is_some() {
                        assert_ne!(decision.outcome(), Outcome::Allowed, "{said}");
                    }
                }
            }
            with.note_openings();
            without.note_openings();
            for (bucket, slot) in &without.slots {
                let tokens =
                    |rig: &Rig, slot: Slot| rig.shared.table.entry(slot).cell().view().tokens;
                let there = tokens(&without, *slot);
                assert_eq!(
                    tokens(&with, with.slots[bucket]),
                    there,
                    "{said}: {bucket:?}"
                );
            }
        }
    }
    // Each situation came up often.
    println!("{passed} passed, {refused} refused, shadows would have refused {would_refuse}");
    assert!(passed > 5_000 && refused > 5_000 && would_refuse > 500);
}

#[test]
fn what_a_policy_in_shadow_finds_is_tallied_and_asked_for() {
    let mut spec = PolicySpec::new("p", &["tenant"], LimitSpec::new(9, Term::from_seconds(1)));
    spec.shadow = true;
    let mut rig = Rig::new(&[spec], Switches::new());
    rig.shared.set_link(Link::Up);
    let check = |rig: &Rig| {
        let decision = rig.shared.check(&[("tenant", "t1")], None);
        (decision.outcome(), decision.policy().is_some())
    };
    assert_eq!(check(&rig), (Outcome::AllowedShadow, false), "first touch");
    rig.note_openings();
    let bucket = rig.slots.keys().next().expect("it was touched").clone();
    let deadline = Tick::at(clock::now() + Term::from_seconds(60));
    rig.tell(&bucket, Status::Granted, 2, deadline);
    assert_eq!(check(&rig), (Outcome::Allowed, false));
    assert_eq!(check(&rig), (Outcome::Allowed, false));
    let cell = rig.shared.table.entry(rig.slots[&bucket]).cell();
    let _earlier = cell.take_refused();
    rig.tell(&bucket, Status::Exhausted, 0, deadline);
    assert_eq!(check(&rig), (Outcome::AllowedShadow, false));
    assert_eq!(
        cell.take_refused(),
        Tokens::ONE,
        "sized as if it were enforced"
    );
    let decision = rig.shared.check(&[("tenant", "t1")], None);
    let refusal = decision.shadow_refusal().expect("it is used up");
    assert_eq!(
        (refusal.0.name.as_str(), refusal.1),
        ("p", Reason::Exhausted)
    );
    let (_, tally) = rig.shared.names.tallies().next().expect("one policy");
    let outcomes = tally.outcomes();
    assert_eq!(
        (
            outcomes.shadow_admitted,
            outcomes.shadow_refused,
            outcomes.shadow_undecided
        ),
        (2, 2, 1)
    );
}

#[test]
fn keys_that_are_only_watched_leave_room_for_those_that_are_enforced() {
    let limit = LimitSpec::new(9, Term::from_seconds(1));
    let mut watched = PolicySpec::new("watched", &["tenant"], limit);
    watched.shadow = true;
    let enforced = PolicySpec::new("enforced", &["user"], limit);
    let rig = Rig::new(&[watched, enforced], Switches::new());
    rig.shared.set_link(Link::Up);
    let capacity = u64::from(rig.shared.table.capacity());
    for number in 0..4 * capacity {
        let tenant = format!("tenant {number}");
        assert!(rig.shared.check(&[("tenant", &tenant)], None).is_allowed());
        let _read: Vec<_> = rig.signals.try_iter().collect();
    }
    let crowd = rig.shared.table.len();
    assert!(crowd < capacity * 4 / 5, "{crowd} of {capacity}");
    for number in 0..capacity / 8 {
        let user = format!("user {number}");
        let reason = rig.shared.check(&[("user", &user)], None).reason();
        assert_eq!(reason, Some(Reason::FirstTouch), "there is room for {user}");
        let _read: Vec<_> = rig.signals.try_iter().collect();
    }
}

#[test]
fn a_percentage_picks_the_same_keys_at_every_client_and_grows_with_it() {
    let spec = |percent| {
        let mut spec = PolicySpec::new("p", &["tenant"], LimitSpec::new(1, Term::from_seconds(1)));
        spec.shadow = true;
        spec.shadow_percent = Some(percent);
        spec
    };
    let watched = |percent, key| {
        let config = Config::new(["http://127.0.0.1:1"]);
        let (shared, _signals) = Shared::new(config, key);
        let policy = Policy::parse(spec(percent), PolicyVersion::new(1)).expect("good");
        let rules = Rules::new(1, true, [Arc::new(policy)], &shared.names, &shared.key);
        let rules = rules.expect("a set");
        let keys = (0..2_000).map(|number| format!("tenant {number}"));
        keys.map(|key| rules.at(0).1.only_watches(&[key.as_str()]))
            .collect::<Vec<bool>>()
    };
    let (ten, forty) = (watched(10, (1, 2)), watched(40, (1, 2)));
    assert_eq!(
        ten,
        watched(10, (77, 78)),
        "whatever the client's own secret"
    );
    let count = |list: &[bool]| list.iter().filter(|one| **one).count();
    assert!((120..=280).contains(&count(&ten)), "{}", count(&ten));
    assert!((680..=920).contains(&count(&forty)), "{}", count(&forty));
    // Going from 40 to 10 enforces further keys, and lets none go.
    assert!(ten.iter().zip(&forty).all(|(ten, forty)| !ten || *forty));
}

#[test]
fn an_overloaded_authority_permits_nothing_however_open_the_policy() {
    let mut spec = PolicySpec::new("p", &["tenant"], LimitSpec::new(9, Term::from_seconds(1)));
    spec.on_outage = OnOutage::Open;
    let mut rig = Rig::new(&[spec], Switches::new());
    rig.shared.set_link(Link::Up);
    let moods = [
        Mood::Hasty,
        Mood::Spent { silent: true },
        Mood::Spent { silent: false },
    ];
    let reasons = |rig: &Rig| {
        moods.map(|mood| noticed(&rig.shared.attempt(&[("tenant", "t")], None, mood)).1)
    };
    let _first_touch = reasons(&rig);
    rig.note_openings();
    let bucket = rig.slots.keys().next().expect("it was touched").clone();
    rig.tell(&bucket, Status::Busy, 0, Tick::at(clock::now()));
    assert_eq!(reasons(&rig), [Some(Reason::Overloaded); 3]);
    rig.shared.set_link(Link::Down);
    assert_eq!(reasons(&rig), [None; 3], "out of reach it is open");
}
