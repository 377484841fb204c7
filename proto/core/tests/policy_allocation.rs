//! Matching a request allocates nothing.
//!
//! Alone in its file, since it counts every allocation of its process.
#![allow(
    unsafe_code,
    reason = "an allocator that counts cannot be written without it"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use quota_core::id::PolicyVersion;
use quota_core::policy::{Condition, LimitSpec, Policy, PolicySet, PolicySpec};
use quota_core::time::Term;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn finding_and_hashing_the_keys_of_a_request_allocates_nothing() {
    let limit = LimitSpec::new(10, Term::from_seconds(1));
    let specs = (0..100).map(|n| PolicySpec {
        conditions: [("route".into(), Condition::Literal(format!("/{}", n % 10)))].into(),
        ..PolicySpec::new(&format!("p{n}"), &["tenant", "route"], limit)
    });
    let policies =
        specs.map(|spec| Arc::new(Policy::parse(spec, PolicyVersion::new(1)).expect("legal")));
    let set = PolicySet::new(policies).expect("legal");
    let dimensions = [("route", "/7"), ("tenant", "t"), ("region", "eu")];

    let before = ALLOCATIONS.get();
    let mut hasher = DefaultHasher::new();
    let mut found = 0;
    for one in set.matches(&dimensions).expect("legal") {
        one.write_key(|piece| hasher.write(piece));
        found += 1;
    }
    let after = ALLOCATIONS.get();

    assert_eq!(found, 10);
    assert_ne!(hasher.finish(), DefaultHasher::new().finish());
    assert_eq!(after - before, 0, "allocations while matching");
    drop(vec![1_u8; 10]);
    assert!(ALLOCATIONS.get() > after, "the counter counts");
}
