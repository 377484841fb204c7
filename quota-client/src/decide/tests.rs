use std::sync::Arc;
use std::sync::mpsc::Receiver;

use quota_core::cell::Rise;
use quota_core::id::PolicyVersion;
use quota_core::policy::{LimitSpec, Policy, PolicySpec};
use quota_core::time::Term;

use super::*;
use crate::config::Config;
use crate::handle::Handle;
use crate::rules::Rules;

const T1: [(&str, &str); 1] = [("tenant", "t1")];

/// A client without a driver: the tests install leases themselves.
struct Rig {
    shared: Arc<Shared>,
    signals: Receiver<Signal>,
}

impl Rig {
    /// Policies by tenant, each with a slot for `t1`, in the order of their names.
    fn new(names: &[&str]) -> (Self, Vec<Slot>) {
        let mut config = Config::new(["http://127.0.0.1:1"]);
        config.keys_max = 100;
        let (shared, signals) = Shared::new(config, (1, 2));
        let policies = names.iter().map(|name| {
            let limit = LimitSpec::new(1_000_000, Term::from_seconds(1));
            let spec = PolicySpec::new(name, &["tenant"], limit);
            Arc::new(Policy::parse(spec, PolicyVersion::new(1)).expect("a good policy"))
        });
        let rules = Rules::new(1, true, policies, &shared.names, &shared.key).expect("a set");
        shared.set_rules(rules);
        shared.set_link(Link::Up);
        let rig = Self { shared, signals };
        assert!(matches!(rig.attempt(), Attempt::Refused(_)));
        let opened = rig.signals.try_iter().filter_map(|signal| match signal {
            Signal::Open(opening) => Some(opening.slot),
            _ => None,
        });
        let slots: Vec<_> = opened.collect();
        assert_eq!(
            slots.len(),
            names.len(),
            "one request touches all its keys at once"
        );
        (rig, slots)
    }

    fn install(&self, slot: Slot, tokens: u64, term: Term) {
        let deadline = Tick::at(clock::now() + term);
        let cell = self.shared.table.entry(slot).cell();
        let installed = cell.install(Tokens::new(tokens), deadline, Rise::Within);
        installed.expect("few leases are installed");
        self.shared
            .table
            .entry(slot)
            .note(Status::Granted, Timestamp::ZERO);
    }

    fn tokens(&self, slot: Slot) -> u64 {
        self.shared.table.entry(slot).cell().view().tokens.get()
    }

    fn attempt(&self) -> Attempt<'_> {
        self.shared.attempt(&T1, None, Mood::Hasty)
    }

    fn rollbacks(&self) -> (u64, u64) {
        let stats = self.shared.stats();
        (stats.rollbacks, stats.rollbacks_lost)
    }
}

fn refused_by<'c>(attempt: &Attempt<'c>) -> Option<&'c str> {
    match attempt {
        Attempt::Admitted(_) => None,
        Attempt::Refused(refused) => refused.decision.policy().map(|id| id.name.as_str()),
    }
}

#[test]
fn every_policy_is_debited_once() {
    let (rig, slots) = Rig::new(&["a", "b", "c"]);
    for slot in &slots {
        rig.install(*slot, 10, Term::from_seconds(60));
    }
    assert!(matches!(rig.attempt(), Attempt::Admitted(_)));
    assert_eq!(
        slots
            .iter()
            .map(|slot| rig.tokens(*slot))
            .collect::<Vec<_>>(),
        [9, 9, 9]
    );
}

#[test]
fn a_policy_that_is_short_is_seen_before_any_is_debited() {
    let (rig, slots) = Rig::new(&["a", "b", "c"]);
    rig.install(slots[0], 10, Term::from_seconds(60));
    rig.install(slots[1], 10, Term::from_seconds(60));
    rig.install(slots[2], 0, Term::from_seconds(60));
    assert_eq!(refused_by(&rig.attempt()), Some("c"));
    assert_eq!((rig.tokens(slots[0]), rig.tokens(slots[1])), (10, 10));
    assert_eq!(rig.rollbacks(), (0, 0));
}

#[test]
fn what_was_debited_comes_back_when_a_lease_turns_out_to_be_over() {
    let (rig, slots) = Rig::new(&["a", "b", "c"]);
    rig.install(slots[0], 10, Term::from_seconds(60));
    // Over before it is spent, which only the reading of the clock after the debits shows.
    rig.install(slots[1], 10, Term::ZERO);
    rig.install(slots[2], 10, Term::from_seconds(60));
    assert_eq!(refused_by(&rig.attempt()), Some("b"));
    assert_eq!((rig.tokens(slots[0]), rig.tokens(slots[2])), (10, 10));
    assert_eq!(rig.rollbacks(), (2, 0));
}

#[test]
fn racing_requests_are_admitted_all_or_nothing() {
    const PLENTY: u64 = 100_000_000;
    const SCARCE: u64 = 20_000;
    let (rig, slots) = Rig::new(&["plenty", "scarce"]);
    rig.install(slots[0], PLENTY, Term::from_seconds(600));
    rig.install(slots[1], SCARCE, Term::from_seconds(600));
    let shared = &rig.shared;
    let admitted: u64 = std::thread::scope(|scope| {
        let spender = || {
            let mut admitted = 0;
            let mut refused = 0;
            while refused < 100 {
                match shared.attempt(&T1, None, Mood::Hasty) {
                    Attempt::Admitted(_) => admitted += 1,
                    Attempt::Refused(_) => refused += 1,
                }
            }
            admitted
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(spender)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    assert_eq!(admitted, SCARCE, "neither more nor less");
    assert_eq!(
        rig.rollbacks().1,
        0,
        "nobody has reported or renewed meanwhile"
    );
    assert_eq!(rig.tokens(slots[0]), PLENTY - SCARCE);
}

#[test]
fn a_request_with_more_policies_than_usual_is_decided_alike() {
    let names: Vec<String> = (0..20).map(|number| format!("p{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (rig, slots) = Rig::new(&names);
    for slot in &slots {
        rig.install(*slot, 2, Term::from_seconds(60));
    }
    assert!(matches!(rig.attempt(), Attempt::Admitted(_)));
    rig.install(slots[19], 0, Term::from_seconds(60));
    assert_eq!(refused_by(&rig.attempt()), Some("p19"));
    assert!(slots[..19].iter().all(|slot| rig.tokens(*slot) == 1));
}

#[test]
fn the_renewal_of_a_key_is_asked_for_exactly_once() {
    // By the request that takes the last token, or by the first that finds none.
    for tokens in [1, 0] {
        let (rig, slots) = Rig::new(&["a"]);
        rig.install(slots[0], tokens, Term::from_seconds(60));
        let _earlier: Vec<_> = rig.signals.try_iter().collect();
        for _ in 0..10 {
            let _any = rig.attempt();
        }
        let touched = rig.signals.try_iter();
        let touched = touched.filter(|signal| matches!(signal, Signal::Touched(_)));
        assert_eq!(touched.count(), 1, "with {tokens} tokens");
    }
}

#[test]
fn a_lease_that_is_over_has_its_renewal_asked_for() {
    let (rig, slots) = Rig::new(&["a"]);
    rig.install(slots[0], 5, Term::ZERO);
    let _earlier: Vec<_> = rig.signals.try_iter().collect();
    let Attempt::Refused(refused) = rig.attempt() else {
        panic!("the lease is over")
    };
    assert_eq!(refused.decision.reason(), Some(Reason::FirstTouch));
    let mut signals = rig.signals.try_iter();
    assert!(signals.any(|signal| matches!(signal, Signal::Touched(_))));
}

#[test]
fn a_refusal_counts_as_demand_once_however_it_is_decided() {
    let (rig, slots) = Rig::new(&["only"]);
    rig.install(slots[0], 0, Term::from_seconds(60));
    let shared = &rig.shared;
    let entry = shared.table.entry(slots[0]);
    let id = shared.with_rules(|rules| rules.at(0).0.id().clone());
    let handle = Handle::new(Arc::clone(shared), id, &T1);
    let cost = Tokens::new(2);
    let _earlier = entry.cell().take_refused();
    for status in [Status::Exhausted, Status::Granted, Status::Unknown] {
        let expected = clock::now() + Term::from_seconds(5);
        entry.note(status, expected);
        // The first one asks for a renewal, and is decided at length.
        for _ in 0..3 {
            let by_key = shared.check(&T1, Some(cost));
            assert_eq!(entry.cell().take_refused(), cost, "{status:?}");
            let by_handle = handle.try_acquire(cost.get());
            assert_eq!(entry.cell().take_refused(), cost, "{status:?}");
            assert_eq!(by_key.outcome(), by_handle.outcome(), "{status:?}");
            assert!(by_key.reason().is_some() && by_key.limit().is_some());
            assert_eq!(by_key.limit(), by_handle.limit());
            assert_eq!(by_key.version(), by_handle.version());
            assert_eq!(by_key.remaining(), by_handle.remaining());
            let wait = by_handle.retry_after().expect("it may pass later");
            assert!(
                clock::term(wait) > Term::from_seconds(4),
                "{status:?}: {wait:?}"
            );
        }
    }
    let stats = shared.stats();
    assert_eq!(
        (stats.exhausted + stats.first_touch, stats.allowed),
        (18, 0)
    );
}
