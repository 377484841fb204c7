//! Recalls, and what the queue gives to whom.

use quota_core::holder::Input as HolderInput;
use quota_core::id::{Incarnation, Sequence};
use quota_core::message::{Answer, Status};
use quota_core::policy::{Durability, PolicySpec};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::holding::Holding;
use crate::rig::{Rig, granted, spec};

/// One token a second, ten at once.
fn slow() -> PolicySpec {
    let mut slow = spec(10, 1, Durability::Volatile);
    slow.lease.share_per_mille = 1000;
    slow
}

/// A holder sits on five tokens, and another finds nothing.
fn hoarded() -> (Rig, u64) {
    let mut rig = Rig::first(slow());
    rig.connect(1, "a");
    let held = granted(&rig.ask(1, 1, None, 9)).granted.get();
    rig.connect(2, "a");
    let rest = granted(&rig.ask(2, 1, None, 9));
    rig.at(100).answers.clear();
    let lease = Some(rest.lease);
    rig.report(2, 2, lease, rest.granted.get(), 0, 5);
    (rig, held)
}

/// Whoever starves gets what others do not need, long before it refills.
#[test]
fn idle_tokens_are_recalled_and_go_to_whoever_starves() {
    let (mut rig, held) = hoarded();
    assert_eq!(rig.recalls.len(), 1, "{:?}", rig.answers);
    assert_eq!(rig.recalls[0].0, Incarnation::new(1));
    let lease = rig.view("a").leases[0].lease;
    rig.at(105).answers.clear();
    rig.report(1, 2, Some(lease), 0, held, 0);
    let pushed = rig
        .answers
        .iter()
        .filter(|(_, a)| a.sequence == Sequence::new(2));
    let served: u64 = pushed
        .filter_map(|(_, a)| a.grant)
        .map(|g| g.granted.get())
        .max()
        .unwrap_or(0);
    assert!(served > 5, "the other is served at once: {:?}", rig.answers);
}

/// A recall moves nothing: only the report that answers it does.
#[test]
fn a_recalled_token_stays_outstanding_until_it_is_reported() {
    let (mut rig, _) = hoarded();
    assert_eq!(rig.recalls.len(), 1);
    let view = rig.view("a");
    assert_eq!(view.outstanding.get(), {
        let leases = view.leases.iter();
        leases
            .map(|l| l.granted.get() - l.spent.get() - l.returned.get())
            .sum::<u64>()
    });
    assert!(view.outstanding.get() >= 5);
    assert!(view.available < 1);
}

/// A lease is recalled once for what it was granted, however long others wait.
#[test]
fn a_lease_is_recalled_once_for_each_grant() {
    let (mut rig, _) = hoarded();
    assert_eq!(rig.recalls.len(), 1);
    for now in [200, 300, 400] {
        rig.at(now).tick();
    }
    rig.connect(3, "a");
    rig.ask(3, 1, None, 5);
    let to_the_first = rig.recalls.iter().filter(|(to, _)| to.get() == 1);
    assert_eq!(to_the_first.count(), 1);
}

/// What a holder reports as returned cannot be spent any more.
#[test]
fn a_recalled_token_is_out_of_reach_before_it_is_reported() {
    let mut holding = Holding::ready();
    let asked = holding.ask();
    holding.granted(asked, 1, 8);
    holding.pass(400);
    assert_eq!(holding.left(), 8);
    let anchor = asked.0;
    let answer = Answer {
        key: asked.1.key,
        sequence: asked.1.sequence,
        grant: None,
        status: Status::Recall {
            keep: Tokens::new(3),
        },
    };
    holding.input(HolderInput::Answer { anchor, answer });
    let left = holding.left();
    let (_, report) = holding.sent();
    assert!(left <= 3 && report.returned == Tokens::new(8 - left));
    let spent = (0..20).filter(|_| holding.spend()).count();
    assert_eq!(u64::try_from(spent).expect("few"), left);
}

/// A request that waited is served once.
#[test]
fn a_ticket_is_granted_once() {
    let mut rig = Rig::first(spec(1, 2, Durability::Volatile));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 1)).lease;
    rig.report(1, 2, Some(lease), 1, 0, 0);
    rig.connect(2, "a");
    rig.ask(2, 1, None, 1);
    rig.at(500).answers.clear();
    rig.tick();
    let lease = granted(&rig.answers[0].1);
    assert_eq!(lease.granted, Tokens::ONE);
    let stats = rig.authority.stats();
    assert_eq!(stats.waiting, 0, "nobody waits any more");
    // Spent and reported: the next token is for whoever asks next.
    rig.report(2, 2, Some(lease.lease), 1, 0, 0);
    rig.at(1_100).answers.clear();
    rig.tick();
    assert!(rig.answers.is_empty(), "{:?}", rig.answers);
    assert_eq!(rig.view("a").outstanding, Tokens::ZERO);
}

/// A lowering asks for what is out under the old limit.
#[test]
fn a_lowering_recalls_what_is_out() {
    let mut rig = Rig::first(slow());
    rig.connect(1, "a");
    rig.ask(1, 1, None, 9);
    rig.at(50).answers.clear();
    let mut lower = slow();
    lower.limit = lower.limit.with_burst(2);
    rig.change(Some(lower), 2);
    assert_eq!(rig.recalls, [(Incarnation::new(1), Tokens::ZERO)]);
}

/// How long a bucket has room is told only while tokens are scarce.
#[test]
fn a_bucket_that_nobody_waits_for_tells_no_head_room() {
    let mut rig = Rig::first(spec(10, 20, Durability::Volatile));
    rig.at(10).connect(1, "a");
    let grant = granted(&rig.ask(1, 1, None, 4));
    assert_eq!(grant.headroom, Term::ZERO);
    rig.connect(2, "a");
    rig.ask(2, 1, None, 4);
    rig.connect(3, "a");
    rig.ask(3, 1, None, 4);
    let answer = rig.report(1, 2, Some(grant.lease), 4, 0, 0);
    assert!(granted(&answer).headroom > Term::ZERO);
}
