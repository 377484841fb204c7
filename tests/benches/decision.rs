//! What a decision costs in a client, beside `governor` and a bare atomic subtraction.
//!
//! `KEYS=1000000 cargo bench -p quota-tests --bench decision` for other than 200,000 keys in the
//! last table; each is leased before the clock starts.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::{Quota, RateLimiter};
use quota_client::{Config, Handle, QuotaClient};
use quota_core::policy::{Durability, LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_tests::bench::{Table, setting};
use quota_tests::local::{LocalServer, plenty};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(10);
/// First touches under way at a time.
const TOGETHER: usize = 512;

/// Visits places below `length`, a power of two, in an order that caches cannot foresee: a full
/// cycle of a linear congruential generator (Hull and Dobell 1962).
fn visit(length: usize, operations: u64, mut each: impl FnMut(usize)) {
    let mut place = 0_usize;
    for _ in 0..operations {
        place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & (length - 1);
        each(place);
    }
}

fn counted(
    allowed: &AtomicU64,
    asked: &AtomicU64,
    operations: u64,
    mut each: impl FnMut() -> bool,
) {
    let mut yes = 0;
    for _ in 0..operations {
        yes += u64::from(each());
    }
    allowed.fetch_add(yes, Ordering::Relaxed);
    asked.fetch_add(operations, Ordering::Relaxed);
}

async fn lease_all(handles: &[Arc<Handle>]) -> anyhow::Result<()> {
    for batch in handles.chunks(TOGETHER) {
        let mut touches = JoinSet::new();
        for handle in batch {
            let handle = Arc::clone(handle);
            touches.spawn(async move {
                let decision = handle.acquire(1, PATIENCE).await;
                decision
                    .is_allowed()
                    .then_some(())
                    .ok_or_else(|| format!("{decision:?}"))
            });
        }
        while let Some(leased) = touches.join_next().await {
            leased?.map_err(|decision| anyhow::anyhow!("a key got no lease: {decision}"))?;
        }
    }
    Ok(())
}

fn one_key(client: &QuotaClient) -> (AtomicU64, AtomicU64) {
    let counts = (AtomicU64::new(0), AtomicU64::new(0));
    let handle = client.bucket("one", &[("k", "hot")]);
    let exhausted = client.bucket("empty", &[("e", "hot")]);
    let bare = AtomicU64::new(u64::MAX);
    let most = Quota::per_second(NonZeroU32::MAX);
    let direct = RateLimiter::direct(most);
    let keyed: governor::DefaultKeyedRateLimiter<String> = RateLimiter::keyed(most);
    let hot = "hot".to_owned();
    for threads in [1, 2] {
        let mut table = Table::new("one key");
        table.case("bare fetch_sub", 2_000_000, |operations| {
            for _ in 0..operations {
                black_box(bare.fetch_sub(1, Ordering::Relaxed));
            }
        });
        table.case("quota, by handle", 1_000_000, |operations| {
            counted(&counts.0, &counts.1, operations, || {
                handle.try_acquire(1).is_allowed()
            });
        });
        table.case("quota, by key", 500_000, |operations| {
            counted(&counts.0, &counts.1, operations, || {
                client.check(&[("k", "hot")]).is_allowed()
            });
        });
        table.case("quota, refused", 1_000_000, |operations| {
            for _ in 0..operations {
                black_box(exhausted.try_acquire(1).is_allowed());
            }
        });
        table.case("governor, direct", 1_000_000, |operations| {
            for _ in 0..operations {
                black_box(direct.check().is_ok());
            }
        });
        table.case("governor, keyed", 500_000, |operations| {
            for _ in 0..operations {
                black_box(keyed.check_key(&hot).is_ok());
            }
        });
        table.run(threads);
    }
    counts
}

fn three_policies(client: &QuotaClient) {
    let dimensions = [("x", "hot"), ("y", "hot"), ("z", "hot")];
    let most = Quota::per_second(NonZeroU32::MAX);
    let keyed: [governor::DefaultKeyedRateLimiter<String>; 3] =
        std::array::from_fn(|_| RateLimiter::keyed(most));
    let hot = "hot".to_owned();
    for threads in [1, 2] {
        let mut table = Table::new("three policies at once");
        table.case("governor, three keyed", 300_000, |operations| {
            for _ in 0..operations {
                black_box(keyed.iter().all(|limiter| limiter.check_key(&hot).is_ok()));
            }
        });
        table.case("quota, all or nothing", 300_000, |operations| {
            for _ in 0..operations {
                black_box(client.check(&dimensions).is_allowed());
            }
        });
        table.run(threads);
    }
}

fn many_keys(client: &QuotaClient, handles: &[Arc<Handle>], names: &[String]) {
    let most = Quota::per_second(NonZeroU32::MAX);
    let keyed: governor::DefaultKeyedRateLimiter<String> = RateLimiter::keyed(most);
    for name in names {
        let _ = keyed.check_key(name);
    }
    for threads in [1, 2] {
        let mut table = Table::new(format!("{} keys", names.len()));
        let operations = 400_000;
        table.case("governor, keyed", operations, |operations| {
            visit(names.len(), operations, |place| {
                black_box(keyed.check_key(&names[place]).is_ok());
            });
        });
        table.case("quota, by handle", operations, |operations| {
            visit(handles.len(), operations, |place| {
                black_box(handles[place].try_acquire(1).is_allowed());
            });
        });
        table.case("quota, by key", operations, |operations| {
            visit(names.len(), operations, |place| {
                black_box(client.check(&[("k", &names[place])]).is_allowed());
            });
        });
        table.run(threads);
    }
}

/// A policy whose only token is gone after the first request.
fn empty() -> PolicySpec {
    let limit = LimitSpec::new(1, Term::from_seconds(300 * 86_400));
    let mut spec = PolicySpec::new("empty", &["e"], limit);
    spec.durability = Durability::Volatile;
    spec
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    // Powers of two, so that a mask stands for a remainder.
    let many = usize::try_from(setting("KEYS", 200_000))?.next_power_of_two();
    let (client, server) = runtime.block_on(async {
        let three = [plenty("a", "x"), plenty("b", "y"), plenty("c", "z")];
        let policies = [vec![plenty("one", "k"), empty()], three.to_vec()].concat();
        let server = LocalServer::start(&policies).await?;
        let mut config = Config::new([server.seed()]);
        // Room to spare: a table that is nearly full turns some keys away.
        config.keys_max = many * 2;
        let client = QuotaClient::connect(config).await?;
        client.ready().await;
        anyhow::Ok((client, server))
    })?;
    let warm = [
        ("k", "hot"),
        ("e", "hot"),
        ("x", "hot"),
        ("y", "hot"),
        ("z", "hot"),
    ];
    let warmed = runtime.block_on(client.check_within(&warm, PATIENCE));
    anyhow::ensure!(
        warmed.is_allowed(),
        "the first request is refused: {warmed:?}"
    );

    let (allowed, asked) = one_key(&client);
    let (allowed, asked) = (allowed.into_inner(), asked.into_inner());
    println!("  {allowed} of {asked} were admitted");
    three_policies(&client);
    for keys in [2_048, many] {
        let names: Vec<String> = (0..keys).map(|key| format!("customer-{key:018}")).collect();
        let handles = names
            .iter()
            .map(|name| Arc::new(client.bucket("one", &[("k", name)])));
        let handles: Vec<Arc<Handle>> = handles.collect();
        runtime.block_on(lease_all(&handles))?;
        many_keys(&client, &handles, &names);
    }
    runtime.block_on(async {
        client.close(PATIENCE).await;
        server.server.shutdown().await;
    });
    Ok(())
}
