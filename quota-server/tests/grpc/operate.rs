//! Tuning leases, the buckets that stand out, and the holders that are connected.

use quota_core::policy::{LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::common::{decode_bucket, encode_policy_id, encode_term};
use quota_wire::convert::policy::encode_spec;
use quota_wire::proto as wire;
use quota_wire::proto::TopBucketsOrder as Order;
use tempfile::tempdir;
use tonic::Code;

use crate::support::*;

/// Refills in a minute, so that no request waits for a record.
fn spec(name: &str, tokens: u64) -> PolicySpec {
    PolicySpec::new(
        name,
        &["tenant"],
        LimitSpec::new(tokens, Term::from_seconds(60)),
    )
}

async fn put(admin: &mut Admin, spec: &PolicySpec, dry_run: bool) -> wire::PutPolicyResponse {
    let request = wire::PutPolicyRequest {
        spec: Some(encode_spec(spec)),
        expected_version: None,
        dry_run,
    };
    admin.put_policy(request).await.expect("legal").into_inner()
}

type Admin = wire::admin_client::AdminClient<tonic::transport::Channel>;

fn tune(name: &str, lease: wire::LeaseSpec) -> wire::TuneLeaseRequest {
    wire::TuneLeaseRequest {
        id: Some(encode_policy_id(&policy(name))),
        lease: Some(lease),
        expected_version: None,
        dry_run: false,
    }
}

fn horizon(millis: u64) -> wire::LeaseSpec {
    wire::LeaseSpec {
        horizon: Some(encode_term(Term::from_millis(millis))),
        ..wire::LeaseSpec::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tuning_changes_the_fields_that_are_set_and_the_next_grants_follow() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let mut written = spec("p", 1000);
    written.plans.clear();
    written.lease.idle_return = Term::from_seconds(7).into();
    let created = put(&mut admin, &written, false).await;
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, bucket("p", &["t1"]));
    let old = granted(&holder.ask(want(1, 1, 10)).await);
    assert_eq!(old.term, Term::from_seconds(10));

    let dry = wire::TuneLeaseRequest {
        dry_run: true,
        ..tune("p", horizon(250))
    };
    let dry = admin.tune_lease(dry).await.expect("legal").into_inner();
    assert!(dry.changed && dry.version == created.version);
    assert_eq!(dry.outstanding_before, 10);

    let mut fields = horizon(250);
    fields.term_max = Some(encode_term(Term::from_seconds(3)));
    let request = wire::TuneLeaseRequest {
        expected_version: Some(created.version),
        ..tune("p", fields)
    };
    let tuned = admin.tune_lease(request.clone()).await.expect("legal");
    let tuned = tuned.into_inner();
    assert!(tuned.changed && tuned.version > created.version);
    assert_eq!((tuned.outstanding_before, tuned.owed), (10, 0));
    assert_eq!(
        tuned
            .before
            .and_then(|lease| lease.horizon)
            .map(|h| h.nanos),
        Some(375_000_000)
    );
    assert_eq!(
        tuned.after.and_then(|lease| lease.horizon).map(|h| h.nanos),
        Some(250_000_000)
    );

    // The next grant follows, and nothing else of the policy is another.
    let grant = granted(&holder.ask(renew(want(1, 2, 10), old.lease, 0, 0)).await);
    assert_eq!(grant.version.get(), tuned.version);
    assert_eq!(grant.term, Term::from_seconds(3));
    let get = wire::GetPolicyRequest {
        id: Some(encode_policy_id(&policy("p"))),
    };
    let stored = admin
        .get_policy(get)
        .await
        .expect("it is there")
        .into_inner();
    written.lease.horizon = Term::from_millis(250).into();
    written.lease.term_max = Term::from_seconds(3).into();
    assert_eq!(stored.spec, Some(encode_spec(&written)));

    // The same again says so; the old version is not there any more.
    let same = admin.tune_lease(tune("p", fields)).await.expect("legal");
    let same = same.into_inner();
    assert!(!same.changed && same.version == tuned.version);
    let stale = admin.tune_lease(request).await.expect_err("stale");
    assert_eq!(stale.code(), Code::Aborted);
    assert_eq!(detail(&stale).version, Some(tuned.version));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tuning_refuses_what_is_no_change_or_no_lease() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let before = stats(&server).await.policy_revision;
    let mut refused = async |request| admin.tune_lease(request).await.expect_err("refused");

    let empty = refused(tune("api", wire::LeaseSpec::default())).await;
    assert_eq!(empty.code(), Code::InvalidArgument);
    for field in [
        "share_per_mille",
        "horizon",
        "term_max",
        "idle_return",
        "warm_floor",
    ] {
        assert!(empty.message().contains(field), "{}", empty.message());
    }
    let absent = wire::TuneLeaseRequest {
        lease: None,
        ..tune("api", horizon(1))
    };
    assert_eq!(refused(absent).await.code(), Code::InvalidArgument);
    let nobody = wire::TuneLeaseRequest {
        id: None,
        ..tune("api", horizon(500))
    };
    assert_eq!(detail(&refused(nobody).await).fields[0].field, "id");
    for (field, lease) in [
        ("lease.horizon", horizon(1)),
        (
            "lease.share_per_mille",
            wire::LeaseSpec {
                share_per_mille: Some(1001),
                ..wire::LeaseSpec::default()
            },
        ),
    ] {
        let status = refused(tune("api", lease)).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        let detail = detail(&status);
        assert_eq!(detail.reason(), wire::ErrorReason::InvalidPolicy);
        assert_eq!(detail.fields[0].field, field);
    }
    let mut negative = horizon(500);
    negative.horizon.as_mut().expect("set").seconds = -1;
    let status = refused(tune("api", negative)).await;
    assert_eq!(detail(&status).reason(), wire::ErrorReason::Malformed);
    assert_eq!(detail(&status).fields[0].field, "lease.horizon");
    assert_eq!(
        refused(tune("nobody", horizon(500))).await.code(),
        Code::NotFound
    );
    assert_eq!(
        stats(&server).await.policy_revision,
        before,
        "nothing changed"
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tunings_at_the_same_time_all_stand() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut first = admin(&server).await;
    let (mut second, mut third) = (first.clone(), first.clone());
    let with = |lease| tune("api", lease);
    let (a, b, c) = tokio::join!(
        first.tune_lease(with(horizon(300))),
        second.tune_lease(with(wire::LeaseSpec {
            warm_floor: Some(3),
            ..wire::LeaseSpec::default()
        })),
        third.tune_lease(with(wire::LeaseSpec {
            share_per_mille: Some(700),
            ..wire::LeaseSpec::default()
        })),
    );
    let versions = [a, b, c].map(|one| one.expect("legal").into_inner().version);
    assert!(versions[0] != versions[1] && versions[1] != versions[2]);
    let get = wire::GetPolicyRequest {
        id: Some(encode_policy_id(&policy("api"))),
    };
    let stored = first
        .get_policy(get)
        .await
        .expect("it is there")
        .into_inner();
    let lease = stored.spec.and_then(|spec| spec.lease).expect("a section");
    assert_eq!(lease.horizon.map(|span| span.nanos), Some(300_000_000));
    assert_eq!(
        (lease.warm_floor, lease.share_per_mille),
        (Some(3), Some(700))
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_would_be_out_and_owed() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    put(&mut admin, &spec("p", 100), false).await;
    let mut holder = Holder::connect(&server, 7).await;
    let mut out = 0;
    for key in 1..=8 {
        holder.introduce(key, bucket("p", &[format!("t{key}")]));
        out += granted(&holder.ask(want(key, 1, 50)).await).granted.get();
    }
    assert!(out > 8 * 20, "{out}");
    let dry = put(&mut admin, &spec("p", 20), true).await;
    assert_eq!((dry.outstanding_before, dry.owed), (out, out - 8 * 20));
    let real = put(&mut admin, &spec("p", 20), false).await;
    assert_eq!((real.outstanding_before, real.owed), (out, out - 8 * 20));
    server.shutdown().await;
}

fn top(order: Order) -> wire::TopBucketsRequest {
    wire::TopBucketsRequest {
        order: order.into(),
        ..wire::TopBucketsRequest::default()
    }
}

fn keys(top: &wire::TopBucketsResponse) -> Vec<(String, u64)> {
    let name = |one: &wire::TopBucket| {
        let bucket = decode_bucket("bucket", one.bucket.clone()).expect("a bucket");
        let key: Vec<&[u8]> = bucket.key.values().collect();
        format!("{} {}", bucket.policy.name, String::from_utf8_lossy(key[0]))
    };
    top.buckets
        .iter()
        .map(|one| (name(one), one.amount))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_that_stand_out_are_found_over_all_shards() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    put(&mut admin, &spec("p", 100), false).await;
    put(&mut admin, &spec("q", 100), false).await;
    let mut holder = Holder::connect(&server, 7).await;
    for key in 1..=9 {
        let name = if key == 9 { "q" } else { "p" };
        holder.introduce(key, bucket(name, &[format!("t{key}")]));
        let mut request = want(key, 1, u64::from(key));
        request.demand = u64::from(key) * 10;
        granted(&holder.ask(request).await);
    }
    // At most 80 of 100 tokens may be out at a time, and one is.
    let mut other = Holder::connect(&server, 8).await;
    other.introduce(1, bucket("p", &["t1"]));
    for sequence in 1..=5 {
        let mut all = want(1, sequence, 80);
        all.least = Tokens::new(80);
        other.ask(all).await;
    }
    let mut ask = async |request| {
        let top = admin.top_buckets(request).await.expect("served");
        let top = top.into_inner();
        assert_eq!(top.shards_missing, 0);
        top
    };
    let of_p = |order| wire::TopBucketsRequest {
        policy: Some(encode_policy_id(&policy("p"))),
        limit: 3,
        ..top(order)
    };
    let found = keys(&ask(top(Order::Demand)).await);
    assert_eq!(found[0], ("q t9".into(), 90));
    let found = keys(&ask(of_p(Order::Demand)).await);
    let expected = [("p t8", 80), ("p t7", 70), ("p t6", 60)];
    assert_eq!(found, expected.map(|(name, n)| (name.to_owned(), n)));
    let busy = ask(of_p(Order::Messages)).await;
    assert_eq!(keys(&busy)[0], ("p t1".into(), 6));
    assert_eq!(busy.buckets[0].amount_error, 0);
    let refused = ask(top(Order::Refusals)).await;
    assert!(!refused.buckets.is_empty());
    assert_eq!(keys(&refused)[0].0, "p t1");
    assert_eq!(refused.buckets[0].queued, 1);
    let stranded = ask(top(Order::Stranded)).await;
    // Nothing is stranded where half a second of demand is more than what is held.
    assert!(
        stranded
            .buckets
            .iter()
            .all(|one| one.amount <= one.outstanding)
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_survey_can_be_is_refused() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let unsaid = wire::TopBucketsRequest::default();
    let unheard = wire::TopBucketsRequest {
        order: 99,
        ..unsaid.clone()
    };
    let many = wire::TopBucketsRequest {
        limit: 1001,
        ..top(Order::Demand)
    };
    for (request, field) in [(unsaid, "order"), (unheard, "order"), (many, "limit")] {
        let status = admin.top_buckets(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(detail(&status).fields[0].field, field);
    }
    let nobody = wire::TopBucketsRequest {
        policy: Some(encode_policy_id(&policy("nobody"))),
        ..top(Order::Demand)
    };
    let status = admin.top_buckets(nobody).await.expect_err("unknown");
    assert_eq!(status.code(), Code::NotFound);
    let torn = wire::ListHoldersRequest {
        page_size: 1,
        page_token: "torn".into(),
    };
    let status = admin.list_holders(torn).await.expect_err("not a token");
    assert_eq!(detail(&status).fields[0].field, "page_token");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_are_listed_with_what_they_have() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    put(&mut admin, &spec("p", 100), false).await;
    let mut holders = Vec::new();
    for number in [30, 10, 20] {
        let mut holder = Holder::connect(&server, number).await;
        for key in 1..=4 {
            let name = format!("h{number} t{key}");
            holder.introduce(key, bucket("p", &[name]));
            granted(&holder.ask(want(key, 1, number)).await);
        }
        holders.push(holder);
    }
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = wire::ListHoldersRequest {
            page_size: 2,
            page_token,
        };
        let page = admin.list_holders(request).await.expect("served");
        let page = page.into_inner();
        assert!(page.holders.len() <= 2 && page.shards_missing == 0);
        seen.extend(page.holders);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let found: Vec<_> = seen
        .iter()
        .map(|one| (one.incarnation, one.leases, one.outstanding, one.demand))
        .collect();
    assert_eq!(found, [(10, 4, 40, 4), (20, 4, 80, 4), (30, 4, 120, 4)]);
    for holder in &seen {
        assert_eq!(
            (&holder.client_name[..], &holder.client_version[..]),
            ("test", "0")
        );
        assert!(holder.protocol >= 1 && holder.connected.is_some());
    }
    // A lease's view says what its holder has, and how old the word of it is.
    let view = inspect(&server, &bucket("p", &["h20 t1"])).await;
    assert_eq!((view.leases[0].held, view.leases[0].granted), (20, 20));
    assert!(view.leases[0].anchor_age.is_some());
    holders
        .pop()
        .expect("three")
        .close()
        .await
        .expect("it closes");
    until(async || {
        let request = wire::ListHoldersRequest::default();
        let page = admin.clone().list_holders(request).await.expect("served");
        page.into_inner().holders.len() == 2
    })
    .await;
    server.shutdown().await;
}
