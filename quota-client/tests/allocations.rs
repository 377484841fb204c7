//! A decision allocates nothing once its key has a lease.

#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use support::{Authority, LONG, policy, until};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what the calling thread allocates; the driver and the authority run on others.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn a_thousand_decisions_allocate_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut by_route = policy("route");
    by_route.key.push("route".to_owned());
    let mut scarce = policy("scarce");
    scarce.key = vec!["user".to_owned()];
    let authority = Authority::start(&[policy("api"), policy("other"), by_route, scarce]);
    authority.state().budgets.insert("scarce".to_owned(), 0);
    // The client's driver runs on the worker thread, the decisions on this one.
    let client = runtime.block_on(async { runtime.spawn(support_client(&authority)).await });
    let client = client.expect("the client is made");
    let dimensions = [("tenant", "t1"), ("route", "/a"), ("irrelevant", "x")];
    let handle = client.bucket("api", &[("tenant", "t1")]);
    runtime.block_on(async {
        assert!(client.check_within(&dimensions, LONG).await.is_allowed());
        // So many that the lease has grown to carry what follows.
        until("the leases are large", || {
            for _ in 0..1_000 {
                let _any = client.check(&dimensions).is_allowed();
            }
            client
                .check(&dimensions)
                .remaining()
                .is_some_and(|left| left.get() > 6_000)
        })
        .await;
    });
    assert!(handle.try_acquire(1).is_allowed());
    let user = [("user", "u1")];
    let _first_touch = client.check(&user);

    let mut admitted = 0;
    let checks = allocations(|| {
        for _ in 0..1_000 {
            admitted += u32::from(client.check(&dimensions).is_allowed());
        }
    });
    assert_eq!((checks, admitted), (0, 1_000), "checks of three policies");
    let acquires = allocations(|| {
        for _ in 0..1_000 {
            admitted += u32::from(handle.try_acquire(1).is_allowed());
        }
    });
    assert_eq!((acquires, admitted), (0, 2_000), "acquires by handle");
    let refusals = allocations(|| {
        for _ in 0..1_000 {
            admitted += u32::from(client.check(&user).is_allowed());
        }
    });
    assert_eq!((refusals, admitted), (0, 2_000), "refusals");
    assert!(allocations(|| drop(vec![1])) > 0, "the counter counts");
}

fn support_client(
    authority: &Authority,
) -> impl Future<Output = quota_client::QuotaClient> + Send + 'static {
    let config = authority.config();
    async move {
        quota_client::QuotaClient::connect(config)
            .await
            .expect("a good configuration")
    }
}
