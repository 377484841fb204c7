//! The space of states, for the checker.
//!
//! The machines cannot be copied, and are not made so for a test: a state is the steps that lead to
//! it, and is reached again by taking them anew. Two states are the same if everything that can
//! still matter reads the same; what machines have merely counted is left out.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use quota_core::time::Timestamp;
use stateright::{Model, Property};

use super::setup::{Mistake, Setup};
use super::world::{Action, World};

/// A state.
#[derive(Clone)]
pub struct State {
    path: Box<[Action]>,
    digest: u64,
    actions: Box<[Action]>,
    facts: Facts,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {:?}: {:?}", self.path, self.facts)
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// What the properties ask about a state.
#[derive(Clone, Copy, Debug)]
struct Facts {
    kept: bool,
    covered: bool,
    emptied: bool,
    old_beside_new: bool,
    old_owner_heard: bool,
    settled: bool,
    queued: bool,
    wasted: bool,
    waits_for_record: bool,
    record_lost: bool,
    record_kept: bool,
    repeated: bool,
    second_crash: bool,
}

impl Facts {
    /// `settled` brings the authority's books to now, which changes no decision; this world is
    /// taken no further.
    fn of(world: &mut World<'_>, setup: &Setup) -> Self {
        let (now, epoch) = (world.now, world.epoch);
        let view = world
            .authority
            .inspect(now, &setup.bucket())
            .expect("the policy is in force");
        let leases = world.nodes.each_ref().map(|node| {
            let tokens = node.cell.view().tokens.get();
            let lease = node.holder.lease(quota_core::holder::Slot::new(0));
            lease.map(|lease| (lease.id.epoch, lease.deadline, tokens))
        });
        let live = leases.map(|lease| lease.filter(|l| l.2 > 0 && now < l.1));
        let spendable: u64 = live.iter().flatten().map(|lease| lease.2).sum();
        let level = world.ideal.level(now).expect("time goes on");
        let old = |lease: &(_, _, u64)| lease.0 < epoch;
        let taken_over = world.used.crashes > 0;
        let late = world
            .nodes
            .iter()
            .any(|node| !node.connected && !node.down.is_empty());
        Self {
            kept: !world.broken,
            covered: view.available.max(0) + i128::from(spendable) <= level,
            emptied: level == 0,
            old_beside_new: live.iter().flatten().any(old)
                && live.iter().flatten().any(|lease| !old(lease)),
            old_owner_heard: late && live.iter().flatten().any(old),
            settled: taken_over && world.settled && spendable > 0,
            queued: view.waiting > 0,
            wasted: world.wasted,
            waits_for_record: world.write.is_some() && view.waiting > 0,
            record_lost: world.used.lost_writes > 0,
            record_kept: world.used.unacknowledged_writes > 0,
            repeated: world.used.duplicates > 0 && spendable > 0,
            second_crash: world.used.crashes > 1 && !world.settled && spendable > 0,
        }
    }
}

impl State {
    fn at(setup: &Setup, path: Vec<Action>) -> Self {
        let mut world = World::new(setup);
        for action in &path {
            world.apply(*action);
        }
        // First, since it settles the books: two states that differ only in that are one.
        let facts = Facts::of(&mut world, setup);
        Self {
            path: path.into(),
            digest: digest(&mut world),
            actions: world.actions().into(),
            facts,
        }
    }
}

/// A number for everything that can still matter.
fn digest(world: &mut World<'_>) -> u64 {
    let mut text = String::with_capacity(8192);
    let now: Timestamp = world.now;
    let level = world.ideal.level(now).expect("time goes on");
    let written = write!(
        text,
        "{now:?} {level} {} {} {:?} {:?} {:?} {:?}",
        world.broken, world.settled, world.used, world.store, world.write, world.authority
    );
    written.expect("a string takes all");
    for node in &world.nodes {
        let written = write!(
            text,
            "{:?} {:?} {:?} {} {} {:?} {:?}",
            node.holder, node.cell, node.stream, node.connected, node.waiting, node.up, node.down
        );
        written.expect("a string takes all");
    }
    let mut hasher = DefaultHasher::new();
    without_counts(&text, |part| part.hash(&mut hasher));
    hasher.finish()
}

/// Leaves out the fields named `stats`, which the machines only ever write.
fn without_counts(text: &str, mut part: impl FnMut(&str)) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("stats: ") {
        part(before);
        let end = after.find('}').expect("counts are a flat struct");
        rest = &after[end..];
    }
    part(rest);
}

/// The model of a setup.
pub struct Space(pub Setup);

impl Model for Space {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // Also from where a holder has its first token, so that the same bound reaches further.
        let mut granted = vec![Action::Up(0, 0), Action::Down(0, 0)];
        if self.0.limit().is_reserved() && self.0.mistake != Some(Mistake::EarlyAcknowledge) {
            granted.insert(1, Action::Written);
        }
        vec![State::at(&self.0, Vec::new()), State::at(&self.0, granted)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A broken promise is not followed any further.
        if state.facts.kept {
            actions.extend_from_slice(&state.actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut path = last.path.to_vec();
        path.push(action);
        Some(State::at(&self.0, path))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(PROMISE, |_, state: &State| state.facts.kept),
            Property::always(COVER, |_, state: &State| state.facts.covered),
            Property::sometimes(EMPTIED, |_, state: &State| state.facts.emptied),
            Property::sometimes(QUEUED, |_, state: &State| state.facts.queued),
            Property::sometimes(WASTED, |_, state: &State| state.facts.wasted),
            Property::sometimes(OLD_BESIDE_NEW, |_, s: &State| s.facts.old_beside_new),
            Property::sometimes(OLD_OWNER_HEARD, |_, s: &State| s.facts.old_owner_heard),
            Property::sometimes(SETTLED, |_, state: &State| state.facts.settled),
            Property::sometimes(SECOND_CRASH, |_, state: &State| state.facts.second_crash),
            Property::sometimes(REPEATED, |_, state: &State| state.facts.repeated),
            Property::sometimes(WAITS_FOR_RECORD, |_, s: &State| s.facts.waits_for_record),
            Property::sometimes(RECORD_LOST, |_, s: &State| s.facts.record_lost),
            Property::sometimes(RECORD_KEPT, |_, s: &State| s.facts.record_kept),
        ]
    }
}

/// The promise itself.
pub const PROMISE: &str = "the ideal bucket is never below zero";
/// What makes it so: nothing is both available and spendable that the ideal bucket does not have.
pub const COVER: &str = "available and spendable are covered by the ideal bucket";

pub const EMPTIED: &str = "the ideal bucket is emptied";
pub const QUEUED: &str = "a wish waits";
pub const WASTED: &str = "a lease ends before its tokens are spent";
pub const OLD_BESIDE_NEW: &str = "tokens of an earlier and of this tenure are out";
pub const OLD_OWNER_HEARD: &str = "an answer of an earlier tenure is still to come";
pub const SETTLED: &str = "tokens are out in a shard that has settled again";
pub const SECOND_CRASH: &str = "tokens are out after a second crash before the shard settled";
pub const REPEATED: &str = "tokens are out after a message came twice";
pub const WAITS_FOR_RECORD: &str = "a wish waits for its record";
pub const RECORD_LOST: &str = "a crash lost the record in flight";
pub const RECORD_KEPT: &str = "a crash left the record in flight, unacknowledged";
