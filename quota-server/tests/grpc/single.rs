//! Taking and releasing tokens by single calls.

use std::time::Duration;

use quota_core::key::BucketAddress;
use quota_core::policy::{LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_wire::convert::common::encode_bucket;
use quota_wire::convert::policy::encode_spec;
use quota_wire::proto as wire;
use tempfile::tempdir;
use tonic::Code;

use crate::support::*;

fn acquire(bucket: &BucketAddress, tokens: u64) -> wire::AcquireRequest {
    wire::AcquireRequest {
        bucket: Some(encode_bucket(bucket)),
        tokens,
        ..Default::default()
    }
}

fn wait(duration: Duration) -> Option<prost_types::Duration> {
    Some(prost_types::Duration::try_from(duration).expect("short"))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_taken_by_a_call_count_as_spent() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let tenant = bucket("tenant", &["t1"]);
    let taken = caller(&server)
        .await
        .acquire(acquire(&tenant, 5))
        .await
        .expect("there are tokens");
    let taken = taken.into_inner();
    assert_eq!(
        (taken.granted, taken.lease, taken.incarnation),
        (5, None, 0)
    );
    assert!(taken.policy_version > 0);
    until(async || stats(&server).await.spent_tokens == 5).await;
    let seen = inspect(&server, &tenant).await;
    assert_eq!(
        (seen.outstanding, seen.leases.len()),
        (0, 0),
        "nothing is left behind"
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_takes_no_further_tokens() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut caller = caller(&server).await;
    let call = wire::AcquireRequest {
        incarnation: 7,
        sequence: 1,
        ..acquire(&bucket("api", &["k1"]), 5)
    };
    for _ in 0..3 {
        let taken = caller
            .acquire(call.clone())
            .await
            .expect("the same tokens")
            .into_inner();
        assert_eq!(taken.granted, 5);
    }
    assert_eq!(stats(&server).await.granted_tokens, 5);
    let next = wire::AcquireRequest {
        sequence: 2,
        ..call.clone()
    };
    caller.acquire(next).await.expect("further tokens");
    assert_eq!(stats(&server).await.granted_tokens, 10);
    // The same caller at another bucket is another matter.
    let elsewhere = acquire(&bucket("api", &["k2"]), 3);
    let elsewhere = wire::AcquireRequest {
        incarnation: 7,
        sequence: 1,
        ..elsewhere
    };
    caller
        .acquire(elsewhere)
        .await
        .expect("tokens of the other bucket");
    assert_eq!(stats(&server).await.granted_tokens, 13);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lease_is_released_once_and_again_without_harm() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let tenant = bucket("tenant", &["t1"]);
    let mut caller = caller(&server).await;
    let held = wire::AcquireRequest {
        hold: true,
        ..acquire(&tenant, 5)
    };
    let held = caller
        .acquire(held)
        .await
        .expect("there are tokens")
        .into_inner();
    assert!(held.term.is_some() && held.incarnation != 0);
    assert_eq!(inspect(&server, &tenant).await.outstanding, 5);
    let release = wire::ReleaseRequest {
        bucket: Some(encode_bucket(&tenant)),
        lease: held.lease,
        incarnation: held.incarnation,
        spent: 2,
        returned: 3,
    };
    // Somebody else's release changes nothing.
    let stranger = wire::ReleaseRequest {
        incarnation: held.incarnation ^ 1,
        ..release.clone()
    };
    caller.release(stranger).await.expect("nothing happens");
    assert_eq!(inspect(&server, &tenant).await.outstanding, 5);
    for _ in 0..2 {
        caller
            .release(release.clone())
            .await
            .expect("it is released");
        let stats = stats(&server).await;
        assert_eq!(
            (stats.spent_tokens, stats.returned_tokens, stats.leases),
            (2, 3, 0)
        );
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_cannot_speak_for_a_holder_that_is_connected() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let tenant = bucket("tenant", &["t1"]);
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, tenant.clone());
    let grant = granted(&holder.ask(want(1, 1, 10)).await);
    let release = wire::ReleaseRequest {
        bucket: Some(encode_bucket(&tenant)),
        lease: Some(quota_wire::convert::common::encode_lease(grant.lease)),
        incarnation: 7,
        spent: 0,
        returned: 10,
    };
    let status = caller(&server)
        .await
        .release(release)
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(detail(&status).reason(), wire::ErrorReason::UnknownLease);
    let again = holder.ask(renew(want(1, 2, 1), grant.lease, 1, 0)).await;
    assert_eq!(
        granted(&again).lease,
        grant.lease,
        "its stream is as it was"
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_quota_says_when_to_come_back() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let key = bucket("api", &["k1"]);
    let mut caller = caller(&server).await;
    caller
        .acquire(acquire(&key, 16))
        .await
        .expect("the burst allows it");
    for patience in [Duration::ZERO, Duration::from_millis(50)] {
        let call = wire::AcquireRequest {
            wait: wait(patience),
            ..acquire(&key, 16)
        };
        let status = caller
            .acquire(call)
            .await
            .expect_err("100 a minute take a while");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let detail = detail(&status);
        assert_eq!(detail.reason(), wire::ErrorReason::QuotaExhausted);
        let retry = quota_wire::status::retry_after(&detail).expect("a time");
        assert!(retry.as_nanos() > 0);
    }
    assert_eq!(stats(&server).await.granted_tokens, 16);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_gave_up_is_not_granted_anything_later() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    // 20 at once, two a second.
    let limit = LimitSpec::new(2, Term::from_seconds(1)).with_burst(20);
    let spec = PolicySpec::new("slow", &["tenant"], limit);
    let put = wire::PutPolicyRequest {
        spec: Some(encode_spec(&spec)),
        ..Default::default()
    };
    admin(&server).await.put_policy(put).await.expect("new");
    let key = bucket("slow", &["t1"]);
    let mut caller = caller(&server).await;
    caller
        .acquire(acquire(&key, 16))
        .await
        .expect("the burst allows it");
    let impatient = wire::AcquireRequest {
        wait: wait(Duration::from_millis(50)),
        ..acquire(&key, 8)
    };
    let status = caller.acquire(impatient).await.expect_err("it takes long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let patient = wire::AcquireRequest {
        wait: wait(Duration::from_secs(30)),
        ..acquire(&key, 9)
    };
    let taken = caller.acquire(patient).await.expect("it comes");
    assert_eq!(taken.into_inner().granted, 9);
    assert_eq!(stats(&server).await.granted_tokens, 25);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_gets_its_tokens_when_its_turn_comes() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let key = bucket("search", &["t1", "/search"]);
    let mut caller = caller(&server).await;
    caller
        .acquire(acquire(&key, 8))
        .await
        .expect("the burst allows it");
    let call = wire::AcquireRequest {
        wait: wait(Duration::from_secs(30)),
        ..acquire(&key, 8)
    };
    let taken = caller
        .acquire(call)
        .await
        .expect("ten a second come")
        .into_inner();
    assert_eq!(taken.granted, 8);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_bucket_answers_its_first_call() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let taken = caller(&server)
        .await
        .acquire(acquire(&bucket("reports", &["t1"]), 3))
        .await;
    assert_eq!(
        taken.expect("it waits for the record").into_inner().granted,
        3
    );
    let metrics = http(&server, "/metrics").await.1;
    assert!(metric(&metrics, "quota_records_written_total") > 0);
    assert!(metric(&metrics, "quota_records_total{policy=\"default/reports\"}") > 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_cannot_be_served_say_why() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut caller = caller(&server).await;
    let tenant = bucket("tenant", &["t1"]);
    let cases = [
        (
            acquire(&bucket("nobody", &["t1"]), 1),
            Code::NotFound,
            wire::ErrorReason::UnknownPolicy,
        ),
        (
            acquire(&bucket("tenant", &["a", "b"]), 1),
            Code::FailedPrecondition,
            wire::ErrorReason::KeyMismatch,
        ),
        (
            acquire(&bucket("api", &["k1"]), 17),
            Code::OutOfRange,
            wire::ErrorReason::CostAboveCapacity,
        ),
        (
            acquire(&tenant, 0),
            Code::InvalidArgument,
            wire::ErrorReason::Malformed,
        ),
        (
            acquire(&tenant, 1 << 63),
            Code::InvalidArgument,
            wire::ErrorReason::Malformed,
        ),
        (
            wire::AcquireRequest {
                bucket: None,
                ..acquire(&tenant, 1)
            },
            Code::InvalidArgument,
            wire::ErrorReason::Malformed,
        ),
        (
            wire::AcquireRequest {
                incarnation: 7,
                ..acquire(&tenant, 1)
            },
            Code::InvalidArgument,
            wire::ErrorReason::Malformed,
        ),
        (
            wire::AcquireRequest {
                wait: wait(Duration::from_secs(61)),
                ..acquire(&tenant, 1)
            },
            Code::InvalidArgument,
            wire::ErrorReason::Malformed,
        ),
    ];
    for (call, code, reason) in cases {
        let said = format!("{call:?}");
        let status = caller.acquire(call).await.expect_err(&said);
        assert_eq!(
            (status.code(), detail(&status).reason()),
            (code, reason),
            "{said}"
        );
    }
    assert_eq!(stats(&server).await.granted_tokens, 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_can_be_repeated_leave_one_lease_and_not_one_each() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut caller = caller(&server).await;
    let tenant = bucket("tenant", &["t1"]);
    let call = |sequence| wire::AcquireRequest {
        incarnation: 7,
        sequence,
        ..acquire(&tenant, 2)
    };
    for sequence in 1..=20 {
        let taken = caller.acquire(call(sequence)).await.expect("tokens");
        assert_eq!(taken.into_inner().granted, 2);
    }
    until(async || stats(&server).await.spent_tokens == 40).await;
    let seen = inspect(&server, &tenant).await;
    assert_eq!(seen.outstanding, 0);
    // That of the last but one may be about to end.
    assert!(seen.leases.len() <= 2, "{} leases", seen.leases.len());
    // The last call can still be repeated.
    let again = caller.acquire(call(20)).await.expect("the same tokens");
    assert_eq!(again.into_inner().granted, 2);
    assert_eq!(stats(&server).await.granted_tokens, 40);
    server.shutdown().await;
}
