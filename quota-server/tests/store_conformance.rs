//! What every store must do, run against each of them.
//!
//! A new store joins by implementing [`Bench`] and naming itself at the end.

mod store_support;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::policy::{SwitchMode, SwitchScope};
use quota_server::store::memory::{MemoryDisk, MemoryStore};
use quota_server::store::sled::{SledOptions, SledStore};
use quota_server::store::{
    PolicyWrite, PolicyWriteError, ShardWrite, Store, StoreError, SwitchRecord, SwitchesRecord,
    WriteError,
};
use store_support::{bucket_in, history, policy_id, put, removal, rows, used, write};

const SHARDS: u32 = 4;
const ONE: ShardId = ShardId::new(1);
const TWO: ShardId = ShardId::new(2);

/// A place where one store can be opened again and again, by one owner at a time.
trait Bench {
    fn new() -> Self;
    fn open_with(&self, shards: Option<u32>) -> Result<Box<dyn Store>, StoreError>;

    fn open(&self) -> Box<dyn Store> {
        self.open_with(Some(SHARDS)).expect("opens")
    }
}

fn write_one(store: &mut dyn Store, batch: ShardWrite) -> Result<(), WriteError> {
    let mut outcomes = store.write(&[batch]);
    assert_eq!(outcomes.len(), 1);
    outcomes.pop().expect("one outcome")
}

fn a_claim_raises_epoch_and_tenures_and_survives<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let first = store.claim(ONE).expect("claims");
    assert!(first.first);
    assert_eq!((first.shard, first.tenures_before), (ONE, 0));
    assert_eq!(first.hand_over, None);

    let second = store.claim(ONE).expect("claims");
    assert!(!second.first && second.epoch > first.epoch);
    assert_eq!(second.tenures_before, 1);

    drop(store);
    let mut store = bench.open();
    let third = store.claim(ONE).expect("claims");
    assert!(!third.first && third.epoch > second.epoch);
    assert_eq!(third.tenures_before, 2);

    store.settle(ONE, third.epoch).expect("settles");
    drop(store);
    let mut store = bench.open();
    assert_eq!(store.claim(ONE).expect("claims").tenures_before, 1);
    let other = store.claim(TWO).expect("claims");
    assert!(
        other.first && other.tenures_before == 0,
        "shards count apart"
    );
}

fn a_stale_epoch_is_refused_in_every_call<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let bucket = bucket_in(ONE, SHARDS, 0);
    let unclaimed = write_one(
        &mut *store,
        write(ONE, Epoch::new(1), 1, vec![put(&bucket, 1)]),
    );
    assert!(matches!(
        unclaimed,
        Err(WriteError::Fenced { current: None, .. })
    ));

    let old = store.claim(ONE).expect("claims").epoch;
    write_one(&mut *store, write(ONE, old, 1, vec![put(&bucket, 1)])).expect("owns it");
    let new = store.claim(ONE).expect("claims").epoch;

    let refused = |outcome: Result<(), WriteError>| match outcome {
        Err(WriteError::Fenced {
            got,
            current,
            released,
            shard,
        }) => {
            assert_eq!(
                (shard, got, current, released),
                (ONE, old, Some(new), false)
            );
        }
        other => panic!("a stale epoch gave {other:?}"),
    };
    for number in [1, 2] {
        refused(write_one(
            &mut *store,
            write(ONE, old, number, vec![put(&bucket, 99)]),
        ));
    }
    refused(store.settle(ONE, old));
    refused(store.hand_over(ONE, old, &rows(1)));
    let future = write(ONE, new.next(), 1, vec![put(&bucket, 98)]);
    assert!(matches!(
        write_one(&mut *store, future),
        Err(WriteError::Fenced { .. })
    ));
    assert_eq!(
        used(&mut *store, ONE)[&bucket],
        1,
        "a refusal changes nothing"
    );

    let claim = store.claim(ONE).expect("claims");
    assert_eq!(claim.tenures_before, 2, "the stale settle changed nothing");
    assert_eq!(claim.hand_over, None, "the stale hand-over changed nothing");
}

fn a_write_that_does_not_follow_the_one_before_is_refused<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let bucket = bucket_in(ONE, SHARDS, 0);
    let epoch = store.claim(ONE).expect("claims").epoch;
    write_one(&mut *store, write(ONE, epoch, 1, vec![put(&bucket, 1)])).expect("is due");
    for number in [0, 1, 3, u64::MAX] {
        let outcome = write_one(
            &mut *store,
            write(ONE, epoch, number, vec![put(&bucket, 9)]),
        );
        match outcome {
            Err(WriteError::OutOfOrder { got, expected, .. }) => {
                assert_eq!((got, expected), (number, Some(2)));
            }
            other => panic!("write {number} gave {other:?}"),
        }
    }
    write_one(&mut *store, write(ONE, epoch, 2, vec![put(&bucket, 2)])).expect("is due");

    drop(store);
    let mut store = bench.open();
    assert!(
        matches!(
            write_one(&mut *store, write(ONE, epoch, 3, vec![put(&bucket, 9)])),
            Err(WriteError::OutOfOrder { expected: None, .. })
        ),
        "a tenure does not outlive its process"
    );
    assert_eq!(used(&mut *store, ONE)[&bucket], 2);
}

fn batches_are_fenced_one_by_one_and_applied_whole<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let one = store.claim(ONE).expect("claims").epoch;
    let stale = store.claim(TWO).expect("claims").epoch;
    store.claim(TWO).expect("claims");
    let buckets = |shard| (0..50).map(move |nth| bucket_in(shard, SHARDS, nth));
    let records = |shard| {
        buckets(shard)
            .map(|bucket| put(&bucket, 7))
            .collect::<Vec<_>>()
    };
    let mut misplaced = records(ONE);
    misplaced.push(put(&bucket_in(TWO, SHARDS, 0), 8));

    let outcomes = store.write(&[
        write(ONE, one, 1, records(ONE)),
        write(TWO, stale, 1, records(TWO)),
        write(ONE, one, 2, misplaced),
        write(
            ONE,
            one,
            2,
            vec![
                removal(&bucket_in(ONE, SHARDS, 3)),
                put(&bucket_in(ONE, SHARDS, 4), 9),
            ],
        ),
        write(ShardId::new(SHARDS), one, 1, Vec::new()),
    ]);
    assert!(outcomes[0].is_ok(), "{:?}", outcomes[0]);
    assert!(matches!(outcomes[1], Err(WriteError::Fenced { .. })));
    assert!(matches!(outcomes[2], Err(WriteError::Failed { .. })));
    assert!(outcomes[3].is_ok(), "{:?}", outcomes[3]);
    assert!(matches!(outcomes[4], Err(WriteError::Failed { .. })));

    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = bench.open();
        }
        let found = used(&mut *store, ONE);
        assert_eq!(found.len(), 49);
        assert_eq!(found.get(&bucket_in(ONE, SHARDS, 3)), None);
        assert_eq!(found[&bucket_in(ONE, SHARDS, 4)], 9, "the later batch wins");
        assert_eq!(found[&bucket_in(ONE, SHARDS, 5)], 7);
        assert!(
            used(&mut *store, TWO).is_empty(),
            "nothing of a refused batch"
        );
    }
}

fn a_later_record_in_a_batch_wins<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let epoch = store.claim(ONE).expect("claims").epoch;
    let (kept, gone) = (bucket_in(ONE, SHARDS, 0), bucket_in(ONE, SHARDS, 1));
    let records = vec![
        put(&kept, 1),
        removal(&kept),
        put(&kept, 2),
        put(&gone, 1),
        removal(&gone),
    ];
    write_one(&mut *store, write(ONE, epoch, 1, records)).expect("owns it");
    let found = used(&mut *store, ONE);
    assert_eq!((found.get(&kept), found.get(&gone)), (Some(&2), None));
}

fn a_hand_over_is_exact_and_consumed_once<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    let epoch = store.claim(ONE).expect("claims").epoch;
    let bucket = bucket_in(ONE, SHARDS, 0);
    write_one(&mut *store, write(ONE, epoch, 1, vec![put(&bucket, 1)])).expect("owns it");
    store.hand_over(ONE, epoch, &rows(1)).expect("hands over");

    let released = |outcome: Result<(), WriteError>| {
        assert!(
            matches!(&outcome, Err(WriteError::Fenced { released: true, .. })),
            "{outcome:?}"
        );
    };
    released(write_one(
        &mut *store,
        write(ONE, epoch, 2, vec![put(&bucket, 2)]),
    ));
    released(store.settle(ONE, epoch));
    released(store.hand_over(ONE, epoch, &rows(2)));

    drop(store);
    let mut store = bench.open();
    let next = store.claim(ONE).expect("claims");
    assert!(next.epoch > epoch && !next.first);
    assert_eq!(next.hand_over, Some(rows(1)));
    assert_eq!(used(&mut *store, ONE)[&bucket], 1);

    drop(store);
    let mut store = bench.open();
    let after = store.claim(ONE).expect("claims");
    assert_eq!(after.hand_over, None, "consumed by the claim before");
    assert_eq!(after.tenures_before, 2);

    store
        .hand_over(ONE, after.epoch, &rows(3))
        .expect("hands over");
    assert_eq!(
        store.claim(ONE).expect("claims").hand_over,
        Some(rows(3)),
        "a shorter or later hand-over is not mixed with an earlier one"
    );
}

/// Stores a new history of a policy with this limit.
fn put_policy(
    store: &mut dyn Store,
    name: &str,
    expected: Option<PolicyVersion>,
    tokens: u64,
) -> Result<PolicyVersion, PolicyWriteError> {
    let revision = store.next_revision().expect("reads");
    store.put_policy(&PolicyWrite {
        expected,
        revision,
        history: history(name, tokens, revision),
    })?;
    Ok(revision)
}

fn policies_are_compared_and_set_and_revisions_only_grow<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    assert!(store.policies().expect("reads").is_empty());
    let b = put_policy(&mut *store, "b", None, 11).expect("is new");
    let a = put_policy(&mut *store, "a", None, 21).expect("is new");
    assert!(a > b, "one revision for the whole store");

    let conflict = |outcome| match outcome {
        Err(PolicyWriteError::Conflict { found, .. }) => found,
        other => panic!("expected a conflict, got {other:?}"),
    };
    assert_eq!(conflict(put_policy(&mut *store, "a", None, 99)), Some(a));
    assert_eq!(conflict(put_policy(&mut *store, "a", Some(b), 99)), Some(a));
    assert_eq!(conflict(put_policy(&mut *store, "c", Some(b), 99)), None);
    let a2 = put_policy(&mut *store, "a", Some(a), 22).expect("expected what is there");
    assert!(a2 > a);

    let taken = store.put_policy(&PolicyWrite {
        expected: Some(b),
        revision: a2,
        history: history("b", 99, a2),
    });
    assert!(matches!(taken, Err(PolicyWriteError::RevisionTaken { .. })));

    drop(store);
    let mut store = bench.open();
    let seen: Vec<_> = store
        .policies()
        .expect("reads")
        .into_iter()
        .map(|policy| (policy.revision, policy.history))
        .collect();
    assert_eq!(seen, [(a2, history("a", 22, a2)), (b, history("b", 11, b))]);

    let forgotten = store.forget_policy(&policy_id("a"), a);
    assert!(matches!(forgotten, Err(PolicyWriteError::Conflict { .. })));
    store
        .forget_policy(&policy_id("a"), a2)
        .expect("is the expected one");
    drop(store);
    let mut store = bench.open();
    assert_eq!(store.policies().expect("reads").len(), 1);
    let again = put_policy(&mut *store, "a", None, 23).expect("is new again");
    assert!(
        again > a2,
        "a forgotten policy's revisions are not used again"
    );
}

fn kill_switches_are_replaced_as_a_whole_and_survive<B: Bench>() {
    let bench = B::new();
    let mut store = bench.open();
    assert_eq!(store.switches().expect("reads"), SwitchesRecord::default());
    let switch = |mode, expires_at| SwitchRecord {
        mode,
        expires_at,
        reason: "drill".to_owned(),
    };
    let both = [
        (SwitchScope::Everything, switch(SwitchMode::AdmitAll, None)),
        (
            SwitchScope::Policy(policy_id("api")),
            switch(SwitchMode::RefuseAll, Some(7)),
        ),
    ];
    let both = SwitchesRecord {
        switches: both.into(),
    };
    let due = store.next_revision().expect("reads");
    assert_eq!(store.put_switches(&both).expect("writes"), due);
    assert!(store.next_revision().expect("reads") > due);
    drop(store);
    let mut store = bench.open();
    assert_eq!(store.switches().expect("reads"), both);
    let none = SwitchesRecord::default();
    assert!(store.put_switches(&none).expect("writes") > due);
    drop(store);
    assert_eq!(bench.open().switches().expect("reads"), none);
}

fn the_identity_is_fixed_at_creation<B: Bench>() {
    let bench = B::new();
    let identity = bench.open().identity();
    assert_eq!(identity.shards, SHARDS);
    assert_eq!(bench.open_with(None).expect("opens").identity(), identity);
    match bench.open_with(Some(SHARDS + 1)) {
        Err(StoreError::ShardCount { stored, asked }) => {
            assert_eq!((stored, asked), (SHARDS, SHARDS + 1));
        }
        other => panic!(
            "another shard count gave {:?}",
            other.map(|store| store.identity())
        ),
    }
    assert_eq!(
        bench.open().identity(),
        identity,
        "the refusal changed nothing"
    );
    assert_ne!(B::new().open().identity().cluster, identity.cluster);
    assert!(matches!(
        bench.open().claim(ShardId::new(SHARDS)),
        Err(StoreError::UnknownShard { .. })
    ));
    assert!(matches!(
        bench.open().load(ShardId::new(u32::MAX)),
        Err(StoreError::UnknownShard { .. })
    ));
}

struct OnSled(tempfile::TempDir);

impl Bench for OnSled {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn open_with(&self, shards: Option<u32>) -> Result<Box<dyn Store>, StoreError> {
        let options = SledOptions {
            shards,
            ..SledOptions::new(self.0.path().join("data"))
        };
        Ok(Box::new(SledStore::open(&options)?))
    }
}

struct InMemory(MemoryDisk);

impl Bench for InMemory {
    fn new() -> Self {
        Self(MemoryDisk::new(SHARDS))
    }

    fn open_with(&self, shards: Option<u32>) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(MemoryStore::open(&self.0, shards)?))
    }
}

macro_rules! conform {
    ($($store:ident: $bench:ty),* $(,)?) => { $(mod $store {
        use super::*;
        conform!(@each $bench:
            a_claim_raises_epoch_and_tenures_and_survives
            a_stale_epoch_is_refused_in_every_call
            a_write_that_does_not_follow_the_one_before_is_refused
            batches_are_fenced_one_by_one_and_applied_whole
            a_later_record_in_a_batch_wins
            a_hand_over_is_exact_and_consumed_once
            policies_are_compared_and_set_and_revisions_only_grow
            kill_switches_are_replaced_as_a_whole_and_survive
            the_identity_is_fixed_at_creation
        );
    })* };
    (@each $bench:ty: $($case:ident)*) => { $(
        #[test]
        fn $case() {
            super::$case::<$bench>();
        }
    )* };
}

conform! { sled: OnSled, memory: InMemory }
