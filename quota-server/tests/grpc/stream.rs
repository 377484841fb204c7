//! The lease stream as a well-behaved holder sees it.

use quota_core::id::MessageNumber;
use quota_core::message::{Refusal, Status as Outcome};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::notice::GoAwayReason;
use quota_wire::convert::stream::FromAuthority;
use tempfile::tempdir;
use tonic::Code;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_granted_renews_and_returns() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let tenant = bucket("tenant", &["t1"]);
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, tenant.clone());

    let first = holder.ask(want(1, 1, 10)).await;
    let grant = granted(&first);
    assert_eq!(first.status, Outcome::Done);
    assert_eq!(
        (grant.granted, grant.term),
        (Tokens::new(10), Term::from_seconds(10))
    );

    let second = holder.ask(renew(want(1, 2, 5), grant.lease, 4, 0)).await;
    assert_eq!(granted(&second).lease, grant.lease);
    assert_eq!(granted(&second).granted, Tokens::new(15), "a running total");
    let seen = inspect(&server, &tenant).await;
    assert_eq!((seen.outstanding, seen.leases[0].spent), (11, 4));

    let mut release = renew(want(1, 3, 0), grant.lease, 6, 9);
    release.release = true;
    assert_eq!(holder.ask(release).await.status, Outcome::Done);
    let seen = inspect(&server, &tenant).await;
    assert_eq!((seen.outstanding, seen.leases.len()), (0, 0));
    let stats = stats(&server).await;
    assert_eq!(
        (
            stats.granted_tokens,
            stats.spent_tokens,
            stats.returned_tokens
        ),
        (15, 6, 9)
    );
    assert_eq!((stats.streams, stats.shards, stats.grants), (1, 4, 2));
    holder.close().await.expect("an orderly end");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_newest_message_and_a_repeat_gets_the_same() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, bucket("tenant", &["t1"]));
    holder.number = 41;
    holder.send(Vec::new(), vec![want(1, 1, 10)]).await;
    let (anchor, first) = holder.answer().await;
    assert_eq!(anchor, MessageNumber::new(42));
    let again = holder.ask(want(1, 1, 10)).await;
    assert_eq!(granted(&again), granted(&first), "no further tokens");
    // A lease that is not its own is ignored, counters and all.
    let mut other = granted(&first).lease;
    other.counter += 1000;
    let report = holder.ask(renew(want(1, 2, 0), other, 10, 0)).await;
    assert_eq!(report.grant, None);
    assert_eq!(
        inspect(&server, &bucket("tenant", &["t1"]))
            .await
            .outstanding,
        10
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_has_to_wait_is_answered_by_a_push() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, bucket("search", &["t1", "/search"]));
    let first = holder.ask(want(1, 1, 8)).await;
    let lease = granted(&first).lease;
    let all = granted(&first).granted;
    let queued = holder.ask(renew(want(1, 2, 8), lease, all.get(), 0)).await;
    // Ten a second: unless the machine slept for most of one, it has to wait.
    if let Outcome::Queued { .. } = queued.status {
        let pushed = loop {
            holder.send(Vec::new(), Vec::new()).await;
            let (anchor, answer) = holder.answer().await;
            assert!(anchor.get() >= 2, "the push names a message of this holder");
            if answer.status == Outcome::Done {
                break answer;
            }
        };
        assert_eq!(pushed.sequence.get(), 2);
        assert!(granted(&pushed).granted > all);
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_their_reason_and_the_stream_goes_on() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    let introductions = vec![
        introduction(1, bucket("nobody", &["t1"])),
        introduction(2, bucket("tenant", &["t1", "t2"])),
        introduction(3, bucket("api", &["k1"])),
    ];
    holder.send(introductions, Vec::new()).await;
    let refusal = async |holder: &mut Holder, key, tokens| {
        let mut request = want(key, 1, tokens);
        request.least = request.want;
        holder.ask(request).await.status
    };
    assert_eq!(
        refusal(&mut holder, 1, 1).await,
        Outcome::Refused(Refusal::UnknownPolicy)
    );
    let mismatch = Outcome::Refused(Refusal::KeyMismatch { dimensions: 1 });
    assert_eq!(refusal(&mut holder, 2, 1).await, mismatch);
    let dear = Outcome::Refused(Refusal::CostAboveCapacity {
        capacity: Tokens::new(16),
    });
    assert_eq!(refusal(&mut holder, 3, 17).await, dear);
    assert_eq!(
        refusal(&mut holder, 99, 1).await,
        Outcome::Refused(Refusal::UnknownKey)
    );
    assert_eq!(refusal(&mut holder, 3, 1).await, Outcome::Done);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_many_shards_come_back_whole() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    let keys = 1..=400_u32;
    let introductions = keys
        .clone()
        .map(|key| introduction(key, bucket("tenant", &[format!("t{key}")])));
    let requests = keys.clone().map(|key| want(key, 1, u64::from(key)));
    holder
        .send(introductions.collect(), requests.collect())
        .await;
    let mut seen = std::collections::BTreeMap::new();
    for _ in keys.clone() {
        let (anchor, answer) = holder.answer().await;
        assert_eq!(anchor, MessageNumber::new(1));
        seen.insert(answer.key.get(), granted(&answer).granted.get());
    }
    assert!(
        keys.clone().all(|key| seen[&key] == u64::from(key)),
        "{seen:?}"
    );
    let metrics = http(&server, "/metrics").await.1;
    assert_eq!(
        metric(&metrics, "quota_grants_total{policy=\"default/tenant\"}"),
        400
    );
    assert_eq!(
        metric(&metrics, "quota_records_written_total"),
        0,
        "volatile buckets write nothing"
    );
    assert_eq!(metric(&metrics, "quota_buckets"), 400);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_connects_again_goes_on_where_it_was() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut old = Holder::connect(&server, 7).await;
    old.introduce(1, bucket("tenant", &["t1"]));
    let first = old.ask(want(1, 1, 10)).await;
    let number = old.number;

    let mut new = Holder::connect(&server, 7).await;
    let FromAuthority::GoAway(farewell) = old.notice().await else {
        panic!("a farewell")
    };
    assert_eq!(farewell.reason, GoAwayReason::Replaced);
    assert_eq!(old.end().await.expect_err("replaced").code(), Code::Aborted);

    new.number = number;
    new.introduce(9, bucket("tenant", &["t1"]));
    let again = new.ask(want(9, 1, 10)).await;
    assert_eq!(granted(&again), granted(&first));
    assert_eq!(stats(&server).await.streams, 1);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_says_so_on_every_stream() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    let stopping = tokio::spawn(server.shutdown());
    let FromAuthority::GoAway(farewell) = holder.notice().await else {
        panic!("a farewell")
    };
    assert_eq!(farewell.reason, GoAwayReason::Draining);
    assert_eq!(
        holder.end().await.expect_err("stopped").code(),
        Code::Unavailable
    );
    patiently(stopping).await.expect("it stops");
}
