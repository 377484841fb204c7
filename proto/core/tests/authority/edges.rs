//! Policies that come and go, full shards, tight caps and damaged rows.

use super::driver::{self, Ask, DRIFT, World, at, bucket, policy, tokens, want};
use quota_core::authority::Input;
use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::message::{Refusal, Status};
use quota_core::policy::{Durability, LimitSpec, OverrideSpec, PolicySpec};
use quota_core::time::Term;

fn version(number: u64) -> PolicyVersion {
    PolicyVersion::new(number)
}

fn id() -> PolicyId {
    bucket("k").policy
}

fn with(durability: Durability, spec: PolicySpec) -> PolicySpec {
    PolicySpec { durability, ..spec }
}

/// Tokens granted by all answers since the last look: totals of fresh leases.
fn granted(world: &mut World) -> u64 {
    let answers = world.take_answers();
    let totals = answers.iter().filter_map(|(_, _, a)| a.grant);
    totals.map(|grant| grant.granted.get()).max().unwrap_or(0)
}

/// A policy is used, deleted and forgotten, and created again before the background pass has
/// reached its old buckets.
fn forgotten_and_created_again(durability: Durability) -> World {
    let spec = with(durability, policy(50, 1000, 100));
    let mut world = World::new(spec.clone());
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(40));
    world.take_answers();
    let deleted = world.histories[0].delete(version(2)).unwrap();
    world.apply(at(1), deleted.clone());
    // Exactly as long as the history asks for.
    let over = at(1) + deleted.clearable_after(DRIFT);
    assert_eq!(deleted.cleared(), None);
    world.histories.clear();
    world.feed(over, Input::ForgetPolicy { id: id() });
    world.apply(over, driver::history(spec, 3));
    world
}

#[test]
fn a_forgotten_policy_deletes_no_record_of_its_successor() {
    let mut world = forgotten_and_created_again(Durability::Reserved);
    let mut other = world.connect(at(14_600), 2);
    let start = at(14_600);
    other.ask(&mut world, start, "k", want(40));
    let first = granted(&mut world);
    assert!(first > 0);
    // The pass reaches the old bucket, which is full, and gives its record back.
    world.pass(at(25_000));
    assert!(
        world.records.contains_key(&bucket("k")),
        "tokens are out under a record that is gone"
    );
    world.crash(at(25_001));
    let view = world.inspect(at(25_001), "k");
    assert!(view.ghost >= tokens(first), "{view:?}");
}

#[test]
fn a_hand_over_names_each_bucket_once() {
    let mut world = forgotten_and_created_again(Durability::Volatile);
    let mut other = world.connect(at(14_600), 2);
    other.ask(&mut world, at(14_600), "k", want(40));
    world.take_answers();
    let before = world.inspect(at(14_600), "k").available;
    let rows = world.restart_cleanly(at(14_600), at(14_600));
    let named = rows.buckets.iter().filter(|row| row.bucket == bucket("k"));
    assert_eq!(named.count(), 1);
    assert_eq!(world.inspect(at(14_600), "k").available, before);
}

#[test]
fn a_deleted_policy_refills_no_faster_than_the_version_that_was_in_force() {
    let fast = with(Durability::Reserved, policy(1000, 1000, 100));
    let slow = with(Durability::Reserved, policy(1, 3_600_000, 50));
    let mut world = World::new(fast);
    let lowered = world.histories[0].change(slow.clone(), version(2)).unwrap();
    world.apply(at(0), lowered.clone());
    // One longest term and more: the fast version is over for every window that follows.
    let mut client = world.connect(at(60_000), 1);
    let mut lease = None;
    let mut spent = 0;
    for turn in 0..10 {
        let ask = Ask {
            lease,
            spent,
            ..want(20)
        };
        client.ask(&mut world, at(60_000 + turn), "k", ask);
        for (_, _, answer) in world.take_answers() {
            if let Some(grant) = answer.grant {
                lease = Some(grant.lease);
                spent = grant.granted.get();
            }
        }
    }
    assert!(spent >= 45, "{spent}");
    let report = Ask {
        lease,
        spent,
        ..Ask::default()
    };
    client.ask(&mut world, at(60_020), "k", report);
    let deleted = lowered.delete(version(3)).unwrap();
    world.apply(at(60_030), deleted.clone());
    world.crash(at(60_040));
    let again = deleted.recreate(slow, version(4)).unwrap();
    world.apply(at(80_000), again);
    let view = world.inspect(at(80_000), "k");
    assert!(
        view.available <= 50 - i128::from(spent),
        "{spent} of 50 were spent 20 s ago at 1 an hour: {view:?}"
    );
}

#[test]
fn a_class_that_goes_takes_what_it_was_owed_along() {
    let limit =
        |count, period, burst| LimitSpec::new(count, Term::from_millis(period)).with_burst(burst);
    let narrow = OverrideSpec {
        key: vec!["k".into()],
        limit: limit(1, 3_600_000, 5),
    };
    let old = PolicySpec {
        overrides: vec![narrow],
        ..with(Durability::Volatile, policy(10, 1000, 10))
    };
    let mut world = World::new(old);
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(4));
    let first = granted(&mut world);
    assert!(first > 0);
    world.crash(at(100));
    // Ten at once for everybody, but at one an hour: the old version is outdone.
    let new = with(Durability::Volatile, policy(1, 3_600_000, 10));
    let changed = world.histories[0].change(new, version(2)).unwrap();
    world.apply(at(20_000), changed);
    let view = world.inspect(at(20_000), "k");
    assert!(
        view.available <= 10 - i128::from(first),
        "{first} were spent 20 s ago, and no version refilled this key faster than 1 an hour: {view:?}"
    );
}

#[test]
fn a_key_that_was_refused_for_want_of_room_is_served_when_there_is_room() {
    let mut world = World::new(policy(10, 1000, 100));
    let mut crowd = world.connect(at(0), 1);
    for key in 0..1000 {
        crowd.key(&mut world, at(0), &format!("c{key}"));
    }
    let mut client = world.connect(at(1), 2);
    client.ask(&mut world, at(1), "k", want(1));
    assert!(matches!(
        world.status(),
        Status::Refused(Refusal::Busy { .. })
    ));
    world.pass(at(60_000));
    assert_eq!(world.authority.stats().buckets, 0);
    // "Ask again after this": the same number, or a new one where it is told so.
    client.ask(&mut world, at(60_000), "k", want(1));
    let status = world.status();
    assert!(
        matches!(status, Status::Done | Status::Refused(Refusal::UnknownKey)),
        "{status:?}"
    );
}

#[test]
fn a_key_that_came_before_its_policy_is_served_after_it() {
    let mut world = World::start(Vec::new());
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(1));
    assert_eq!(world.status(), Status::Refused(Refusal::UnknownPolicy));
    world.apply(at(1), driver::history(policy(10, 1000, 100), 1));
    client.ask(&mut world, at(2_000), "k", want(1));
    let status = world.status();
    assert!(
        matches!(status, Status::Done | Status::Refused(Refusal::UnknownKey)),
        "{status:?}"
    );
}

#[test]
fn holders_that_left_wait_no_more() {
    let mut world = World::new(policy(1, 3_600_000, 1));
    let mut first = world.connect(at(0), 1);
    first.ask(&mut world, at(0), "k", want(1));
    let lease = world.grant().lease;
    first.ask(
        &mut world,
        at(0),
        "k",
        Ask {
            lease: Some(lease),
            spent: 1,
            ..want(1)
        },
    );
    for who in 2..500 {
        let mut guest = world.connect(at(who), who);
        guest.ask(&mut world, at(who), "k", want(1));
        let (incarnation, stream) = (guest.incarnation, guest.stream);
        world.feed(
            at(who),
            Input::Disconnect {
                incarnation,
                stream,
            },
        );
        first.anchor(&mut world, at(who));
    }
    assert_eq!(world.authority.stats().waiting, 1);
}

#[test]
fn forgotten_policies_leave_memory() {
    // Nothing public counts them: what a pass over all policies tells must not grow.
    let mut world = World::start(Vec::new());
    for round in 0..50_u64 {
        let created = driver::history(policy(10, 1000, 10), 2 * round + 1);
        world.apply(at(round * 100_000), created.clone());
        let deleted = created.delete(version(2 * round + 2)).unwrap();
        world.apply(at(round * 100_000 + 1), deleted);
        world.histories.clear();
        world.feed(
            at(round * 100_000 + 90_000),
            Input::ForgetPolicy { id: id() },
        );
    }
    let kept = format!("{:?}", world.authority)
        .matches("PolicySlot")
        .count();
    assert!(kept <= 2, "{kept} slots for no policy");
}

#[test]
fn what_is_there_is_granted_to_a_small_wish_although_others_sit_on_the_rest() {
    let mut world = World::new(policy(100, 1000, 100));
    let mut hoarders: Vec<_> = (1..=3).map(|who| world.connect(at(0), who)).collect();
    let mut leases = Vec::new();
    // Two take what the share allows, all but a few tokens, and never spend.
    for (hoarder, wish) in hoarders.iter_mut().zip([38, 38]) {
        hoarder.ask(&mut world, at(0), "k", want(wish));
        leases.push(world.grant().lease);
    }
    let asker = hoarders.pop().unwrap();
    let mut asker = asker;
    asker.ask(
        &mut world,
        at(0),
        "k",
        Ask {
            least: 1,
            ..want(50)
        },
    );
    let mut got = granted(&mut world);
    for turn in 1..240_u64 {
        let now = at(turn * 250);
        world.pass(now);
        for (hoarder, lease) in hoarders.iter_mut().zip(&leases) {
            let keep = Ask {
                lease: Some(*lease),
                demand: 1,
                ..Ask::default()
            };
            hoarder.ask(&mut world, now, "k", keep);
        }
        let me = asker.incarnation;
        asker.anchor(&mut world, now);
        let answers = world.take_answers();
        let mine = answers.iter().filter(|(who, _, _)| *who == me);
        got += mine.filter_map(|(_, _, a)| a.grant).count() as u64;
    }
    let view = world.inspect(at(60_000), "k");
    assert!(
        got > 0,
        "{} available, nothing granted in a minute",
        view.available
    );
}

#[test]
fn a_stored_history_without_versions_is_refused() {
    let created = driver::history(policy(10, 1000, 10), 1);
    let mut stored = serde_json::to_value(&created).unwrap();
    stored["current"] = serde_json::Value::Null;
    let read = serde_json::from_value::<quota_core::policy::PolicyHistory>(stored);
    assert!(read.is_err(), "{read:?}");
}

#[test]
fn a_damaged_row_of_a_hand_over_is_no_panic() {
    for damage in ["rate", "used"] {
        let mut world = World::new(policy(10, 1000, 10));
        let mut client = world.connect(at(0), 1);
        client.ask(&mut world, at(0), "k", want(1));
        let rows = world.authority.hand_over(at(1));
        let mut stored = serde_json::to_value(rows.buckets[0].level).unwrap();
        match damage {
            "rate" => stored["rate"]["denominator"] = 0.into(),
            _ => stored["used_parts"] = i64::MAX.into(),
        }
        let Ok(mut level) = serde_json::from_value::<quota_core::record::LevelRow>(stored) else {
            continue;
        };
        if damage == "used" {
            level.used_parts = i128::MAX;
            level.rate = quota_core::rate::Rate::new(tokens(1), Term::from_nanos(1)).unwrap();
        }
        let mut rows = rows;
        rows.buckets[0].level = level;
        let config = quota_core::authority::AuthorityConfig {
            epoch: quota_core::id::Epoch::new(2),
            tenures_before: 1,
            first_tenure: false,
            drift: DRIFT,
            boot: 1,
            hash_seed: (1, 2),
            buckets_max: 10,
        };
        let histories = world.histories.clone();
        let _ =
            quota_core::authority::Authority::new(at(2), config, histories, Vec::new(), Some(rows));
    }
}
