//! The driver's part of rules 12, 15 and 16, in the store of the virtual world: it must refuse what
//! the real one refuses, or its verdicts are worth nothing.

use quota_core::record::HandOver;
use simulations::store::ModelStore;

/// Rule 15: every write names its tenure.
#[test]
fn a_write_of_a_replaced_owner_is_refused() {
    let mut store = ModelStore::default();
    let (old, new) = (store.claim(), store.claim());
    assert!(!store.write(old.epoch, &[]));
    assert!(store.write(new.epoch, &[]));
}

/// Rule 12: only the present owner knows that everything before it is over.
#[test]
fn a_replaced_owner_settles_nothing() {
    let mut store = ModelStore::default();
    let (old, new) = (store.claim(), store.claim());
    assert_eq!((old.tenures_before, new.tenures_before), (0, 1));
    assert!(!store.settle(old.epoch));
    assert_eq!(store.claim().tenures_before, 2);
}

/// Rule 16: a hand-over is valid for the next claim only.
#[test]
fn a_hand_over_is_read_once() {
    let mut store = ModelStore::default();
    let owner = store.claim();
    assert!(store.hand_over(owner.epoch, HandOver::default()));
    assert!(!store.write(owner.epoch, &[]), "it has released the shard");
    assert!(store.claim().hand_over.is_some());
    assert!(store.claim().hand_over.is_none());
}
