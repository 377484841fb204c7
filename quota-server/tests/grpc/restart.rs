//! What is left after a stop, and after a crash.

use quota_core::message::Status as Outcome;
use quota_core::tokens::Tokens;
use quota_server::server::{Server, StartError};
use quota_wire::proto as wire;
use tempfile::tempdir;

use crate::support::*;

/// What of a bucket does not change while nothing happens but time.
fn lasting(seen: &wire::InspectBucketResponse) -> wire::InspectBucketResponse {
    let lease = |lease: &wire::LeaseView| wire::LeaseView {
        reclaim_in: None,
        // Asked for anew by the next message.
        demand: 0,
        anchor_age: None,
        ..*lease
    };
    wire::InspectBucketResponse {
        available: 0,
        demand: 0,
        leases: seen.leases.iter().map(lease).collect(),
        // Booked anew by the next owner.
        block: 0,
        ..seen.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_and_a_start_keep_the_exact_state() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let buckets = [
        bucket("api", &["k1"]),
        bucket("reports", &["t1"]),
        bucket("tenant", &["t1"]),
    ];
    let mut holder = Holder::connect(&server, 7).await;
    let mut before = Vec::new();
    let mut grants = Vec::new();
    for (key, bucket) in (1..).zip(&buckets) {
        holder.introduce(key, bucket.clone());
        let mut answer = holder.ask(want(key, 1, 6)).await;
        // A reserved bucket has to book its first tokens.
        while answer.status != Outcome::Done {
            answer = holder.answer().await.1;
        }
        let grant = granted(&answer);
        let report = holder.ask(renew(want(key, 2, 0), grant.lease, 2, 1)).await;
        assert_eq!(report.status, Outcome::Done);
        grants.push(grant);
        before.push(inspect(&server, bucket).await);
    }
    let number = holder.number;
    server.shutdown().await;

    let server = start(dir.path()).await;
    for (bucket, before) in buckets.iter().zip(&before) {
        let after = inspect(&server, bucket).await;
        assert_eq!(lasting(&after), lasting(before));
        assert!(after.available >= before.available, "{after:?}\n{before:?}");
        assert!(after.outstanding == 3 && after.known);
        assert_eq!(after.leases[0].anchor_age, None, "it was not heard yet");
    }
    // The holder goes on with its leases, and a repeat is still a repeat.
    let mut holder = Holder::connect(&server, 7).await;
    holder.number = number;
    for ((key, bucket), grant) in (1..).zip(&buckets).zip(&grants) {
        holder.introduce(key, bucket.clone());
        let again = holder.ask(renew(want(key, 2, 0), grant.lease, 2, 1)).await;
        assert_eq!(granted(&again).lease, grant.lease);
        assert_eq!(granted(&again).granted, grant.granted);
    }
    let stats = stats(&server).await;
    assert_eq!(stats.granted_tokens, 0, "nothing was granted twice");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_is_consumed_by_the_start_that_reads_it() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let api = bucket("api", &["k1"]);
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, api.clone());
    assert_eq!(holder.ask(want(1, 1, 8)).await.status, Outcome::Done);
    server.shutdown().await;
    let server = start(dir.path()).await;
    assert_eq!(inspect(&server, &api).await.outstanding, 8);
    server.kill().await;
    // Had the old rows been read again, twelve tokens would be there.
    let server = start(dir.path()).await;
    let seen = inspect(&server, &api).await;
    assert!(seen.available < 12 && seen.ghost >= 16, "{seen:?}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_volatile_buckets_are_empty_and_reserved_ones_as_recorded() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let (api, reports) = (bucket("api", &["k1"]), bucket("reports", &["t1"]));
    let mut holder = Holder::connect(&server, 7).await;
    for (key, bucket) in [(1, &api), (2, &reports)] {
        holder.introduce(key, bucket.clone());
        let mut answer = holder.ask(want(key, 1, 6)).await;
        while answer.status != Outcome::Done {
            answer = holder.answer().await.1;
        }
        assert_eq!(granted(&answer).granted, Tokens::new(6));
    }
    let block = inspect(&server, &reports).await.block;
    server.kill().await;

    let server = start(dir.path()).await;
    let metrics = http(&server, "/metrics").await.1;
    assert!(
        metric(&metrics, "quota_records_read_total") > 0,
        "records were read back"
    );
    // 100 a minute are at most a few tokens in the moment since; 80 % of the burst may be out,
    // also for a key that nobody ever used.
    for bucket in [&api, &bucket("api", &["unseen"])] {
        let seen = inspect(&server, bucket).await;
        assert!(seen.available <= 4, "it starts empty: {seen:?}");
        assert_eq!((seen.ghost, seen.outstanding), (16, 16));
        assert!(seen.ghost_remaining.is_some());
    }
    let seen = inspect(&server, &reports).await;
    let booked = 6 + i64::try_from(block).expect("small");
    assert!(
        seen.available >= 1000 - booked && seen.available <= 1000 - 6,
        "{seen:?}"
    );
    assert!(seen.ghost >= 6 && seen.ghost <= 6 + block, "{seen:?}");
    assert_eq!(
        inspect(&server, &bucket("reports", &["unseen"]))
            .await
            .available,
        1000
    );

    // A retry of what the crash forgot opens a new lease, within what is certainly there.
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(2, reports.clone());
    let mut answer = holder.ask(want(2, 2, 10)).await;
    while answer.status != Outcome::Done {
        answer = holder.answer().await.1;
    }
    assert_eq!(granted(&answer).granted, Tokens::new(10));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_outlive_the_server_and_the_demonstration_is_given_once() {
    use quota_core::policy::{LimitSpec, PolicySpec};
    use quota_core::time::Term;
    use quota_wire::convert::common::encode_policy_id;
    use quota_wire::convert::policy::encode_spec;

    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    assert_eq!(stats(&server).await.policies, 4);
    let mut client = admin(&server).await;
    for name in ["api", "tenant", "search", "reports"] {
        let id = Some(encode_policy_id(&policy(name)));
        let request = wire::DeletePolicyRequest {
            id,
            expected_version: None,
        };
        client.delete_policy(request).await.expect("it is there");
    }
    let spec = PolicySpec::new(
        "mine",
        &["tenant"],
        LimitSpec::new(5, Term::from_seconds(1)),
    );
    let request = wire::PutPolicyRequest {
        spec: Some(encode_spec(&spec)),
        ..Default::default()
    };
    let stored = client.put_policy(request).await.expect("new").into_inner();
    server.kill().await;

    let server = start(dir.path()).await;
    let stats = stats(&server).await;
    assert_eq!((stats.policies, stats.policy_revision), (1, stored.version));
    let kept = inspect(&server, &bucket("mine", &["t1"])).await;
    assert_eq!(kept.policy_version, stored.version);
    server.shutdown().await;

    let bare = tempdir().expect("a directory");
    let server = start_with(bare.path(), &["--no-demo"]).await;
    assert_eq!(crate::support::stats(&server).await.policies, 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_refused_with_advice() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let refused = Server::start(config(dir.path(), &[]))
        .await
        .expect_err("in use");
    assert!(matches!(refused, StartError::Store(_)), "{refused:?}");
    assert!(refused.to_string().contains("--data-dir"), "{refused}");
    let mut taken = config(tempdir().expect("a directory").path(), &[]);
    taken.grpc_listen = server.grpc_addr;
    let refused = Server::start(taken).await.expect_err("taken");
    assert!(refused.to_string().contains("--grpc-listen"), "{refused}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_shown_over_http() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    assert_eq!(http(&server, "/readyz").await.0, 200);
    assert_eq!(http(&server, "/healthz").await.0, 200);
    assert_eq!(http(&server, "/nothing").await.0, 404);
    server.shutdown().await;
}

/// `QUOTA_TEST_RECORDS=1000000 cargo test --release -p quota-server --test grpc many_stored --
/// --nocapture` says how long a start with a million reserved buckets takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_finds_its_many_stored_buckets() {
    use quota_core::id::{PolicyVersion, ShardId};
    use quota_core::record::{Reservation, ReservationWrite, Stamp};
    use quota_server::clock;
    use quota_server::store::sled::{SledOptions, SledStore};
    use quota_server::store::{ShardWrite, Store};

    const SHARDS: u32 = 4;
    let dir = tempdir().expect("a directory");
    // The demonstration policies are stored by a first start.
    start(dir.path()).await.shutdown().await;
    let mut store = SledStore::open(&SledOptions::new(dir.path())).expect("it opens");
    let records: u64 = std::env::var("QUOTA_TEST_RECORDS")
        .map_or(20_000, |count| count.parse().expect("a number of records"));
    let mut of_shard = vec![Vec::new(); 4];
    for tenant in 0..records {
        let bucket = bucket("reports", &[format!("tenant-{tenant}")]);
        let shard = usize::try_from(bucket.shard(SHARDS).get()).expect("small");
        let reservation = Reservation {
            version: PolicyVersion::new(4),
            used: Tokens::new(100),
            exposure: Tokens::new(20),
            stamp: Stamp {
                boot: clock::boot_id(),
                at: clock::now(),
            },
        };
        of_shard[shard].push(ReservationWrite {
            bucket,
            reservation: Some(reservation),
        });
    }
    for (shard, records) in (0..).zip(of_shard) {
        let shard = ShardId::new(shard);
        let epoch = store.claim(shard).expect("it claims").epoch;
        for (number, records) in (1..).zip(records.chunks(5000)) {
            let records = records.to_vec();
            let write = ShardWrite {
                shard,
                epoch,
                number,
                records,
            };
            assert!(store.write(&[write])[0].is_ok());
        }
    }
    drop(store);
    let begun = clock::now();
    let server = start(dir.path()).await;
    println!(
        "started in {} ms",
        clock::now().since(begun).as_millis_ceil()
    );
    assert_eq!(stats(&server).await.buckets, records);
    let seen = inspect(&server, &bucket("reports", &["tenant-7"])).await;
    assert!(seen.available >= 900 && seen.ghost == 20, "{seen:?}");
    let begun = clock::now();
    server.shutdown().await;
    println!(
        "handed over in {} ms",
        clock::now().since(begun).as_millis_ceil()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_comes_before_the_shards_are_served_waits_for_them() {
    let dir = tempdir().expect("a directory");
    let config = quota_server::config::Config {
        shards: Some(1024),
        ..config(dir.path(), &[])
    };
    let server = Server::start(config).await.expect("it starts");
    let mut holder = Holder::connect(&server, 7).await;
    for key in 1..=64 {
        let tenant = [format!("t{key}")];
        holder.introduce(key, bucket("tenant", &tenant));
    }
    let requests = (1..=64).map(|key| want(key, 1, 1)).collect();
    holder.send(Vec::new(), requests).await;
    for _ in 0..64 {
        let answer = holder.answer().await.1;
        assert_eq!(granted(&answer).granted, Tokens::new(1));
    }
    holder.close().await.expect("it was not ended before");
    server.shutdown().await;
}
