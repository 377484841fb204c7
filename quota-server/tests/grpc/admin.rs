//! Policies, inspection, health and reflection.

use quota_core::message::{Refusal, Status as Outcome};
use quota_core::policy::{Kind, LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_wire::convert::common::encode_policy_id;
use quota_wire::convert::policy::{UpdateParts, encode_spec};
use quota_wire::convert::stream::FromAuthority;
use quota_wire::proto as wire;
use tempfile::tempdir;
use tonic::{Code, Streaming};

use crate::support::*;

fn spec(name: &str, tokens: u64) -> PolicySpec {
    PolicySpec::new(
        name,
        &["tenant"],
        LimitSpec::new(tokens, Term::from_seconds(60)),
    )
}

fn put(spec: &PolicySpec, expected_version: Option<u64>) -> wire::PutPolicyRequest {
    wire::PutPolicyRequest {
        spec: Some(encode_spec(spec)),
        expected_version,
        dry_run: false,
    }
}

fn delete(name: &str, expected_version: Option<u64>) -> wire::DeletePolicyRequest {
    wire::DeletePolicyRequest {
        id: Some(encode_policy_id(&policy(name))),
        expected_version,
    }
}

fn get(name: &str) -> wire::GetPolicyRequest {
    wire::GetPolicyRequest {
        id: Some(encode_policy_id(&policy(name))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_names_the_version_that_it_replaces() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let created = admin
        .put_policy(put(&spec("p", 10), Some(0)))
        .await
        .expect("new")
        .into_inner();
    assert!(created.changed && created.version > 0);

    // Created again, or changed from a version that is not there any more.
    for expected in [0, created.version - 1, u64::MAX] {
        let status = admin
            .put_policy(put(&spec("p", 20), Some(expected)))
            .await
            .expect_err("stale");
        assert_eq!(status.code(), Code::Aborted);
        let detail = detail(&status);
        assert_eq!(detail.reason(), wire::ErrorReason::VersionConflict);
        assert_eq!(detail.version, Some(created.version));
    }
    let same = admin
        .put_policy(put(&spec("p", 10), Some(created.version)))
        .await;
    let same = same.expect("nothing to do").into_inner();
    assert!(!same.changed && same.version == created.version);

    let dry = wire::PutPolicyRequest {
        dry_run: true,
        ..put(&spec("p", 20), None)
    };
    let dry = admin
        .put_policy(dry)
        .await
        .expect("it would do")
        .into_inner();
    assert!(dry.changed && dry.version == created.version);
    let stored = admin
        .get_policy(get("p"))
        .await
        .expect("it is there")
        .into_inner();
    assert_eq!(
        stored.spec,
        Some(encode_spec(&spec("p", 10))),
        "a dry run changes nothing"
    );

    let changed = put(&spec("p", 20), Some(created.version));
    let changed = admin
        .put_policy(changed)
        .await
        .expect("the right version")
        .into_inner();
    assert!(changed.version > created.version);

    let status = admin
        .delete_policy(delete("p", Some(created.version)))
        .await
        .expect_err("stale");
    assert_eq!(status.code(), Code::Aborted);
    let deleted = admin
        .delete_policy(delete("p", Some(changed.version)))
        .await;
    let deleted = deleted.expect("the right version").into_inner();
    assert!(deleted.revision > changed.version);
    assert_eq!(
        admin.get_policy(get("p")).await.expect_err("gone").code(),
        Code::NotFound
    );
    let status = admin
        .delete_policy(delete("p", None))
        .await
        .expect_err("gone");
    assert_eq!(status.code(), Code::NotFound);
    let again = admin
        .put_policy(put(&spec("p", 10), Some(0)))
        .await
        .expect("anew")
        .into_inner();
    assert!(again.version > deleted.revision, "versions only grow");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_policy_is_refused_with_its_field() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let refused = async |spec: PolicySpec| {
        let mut admin = admin.clone();
        admin
            .put_policy(put(&spec, None))
            .await
            .expect_err("refused")
    };
    for (field, spec) in [
        ("limit.tokens", spec("p", 0)),
        ("limit.tokens", spec("p", u64::MAX)),
        ("name", spec("", 1)),
        ("name", spec("a/b", 1)),
    ] {
        let status = refused(spec).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        let detail = detail(&status);
        assert_eq!(detail.reason(), wire::ErrorReason::InvalidPolicy);
        assert_eq!(detail.fields[0].field, field);
    }
    let status = refused(PolicySpec {
        kind: Kind::SlidingWindow,
        ..spec("p", 5)
    })
    .await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(detail(&status).reason(), wire::ErrorReason::NotServed);
    assert!(
        status.message().contains("token bucket"),
        "{}",
        status.message()
    );

    let rekeyed = PolicySpec {
        key: vec!["route".into()],
        ..spec("tenant", 5)
    };
    let status = refused(rekeyed).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(
        detail(&status).reason(),
        wire::ErrorReason::ChangeNotAllowed
    );

    let status = admin
        .put_policy(wire::PutPolicyRequest::default())
        .await
        .expect_err("no spec");
    assert_eq!(status.code(), Code::InvalidArgument);
    let later = admin
        .credit_bucket(wire::CreditBucketRequest::default())
        .await
        .expect_err("later");
    assert_eq!(later.code(), Code::Unimplemented);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_change_is_acknowledged_every_grant_follows_it() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    admin
        .put_policy(put(&spec("p", 100), None))
        .await
        .expect("new");
    let keys = 1..=20_u32;
    let mut holder = Holder::connect(&server, 7).await;
    let introductions = keys
        .clone()
        .map(|key| introduction(key, bucket("p", &[format!("t{key}")])));
    holder
        .send(
            introductions.collect(),
            keys.clone().map(|key| want(key, 1, 50)).collect(),
        )
        .await;
    let mut leases = std::collections::BTreeMap::new();
    for _ in keys.clone() {
        let (_, answer) = holder.answer().await;
        leases.insert(answer.key.get(), granted(&answer));
    }

    let mut out: u64 = leases.values().map(|grant| grant.granted.get()).sum();

    let lowered = admin
        .put_policy(put(&spec("p", 10), None))
        .await
        .expect("lowered")
        .into_inner();
    assert_eq!(lowered.outstanding_before, out, "over all shards");
    // Each bucket had 100 less what is out, and now 10 less that.
    assert_eq!(lowered.owed, out - 20 * 10);
    let FromAuthority::Policies(notice) = holder.notice().await else {
        panic!("a notice")
    };
    assert_eq!(
        (notice.revision, notice.policies),
        (lowered.version, vec![policy("p")])
    );

    let raised = admin
        .put_policy(put(&spec("p", 200), None))
        .await
        .expect("raised")
        .into_inner();
    for key in keys {
        let old = leases[&key];
        let grant = granted(&holder.ask(renew(want(key, 2, 50), old.lease, 0, 0)).await);
        assert_eq!(grant.version.get(), raised.version);
        assert_ne!(grant.lease, old.lease, "a lease belongs to one version");
        out += grant.granted.get();
    }

    let gone = admin
        .delete_policy(delete("p", None))
        .await
        .expect("deleted")
        .into_inner();
    assert_eq!(gone.outstanding_before, out);
    let refused = holder.ask(want(1, 3, 1)).await.status;
    assert_eq!(refused, Outcome::Refused(Refusal::UnknownPolicy));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_was_is_forgotten_when_nothing_of_it_can_be_live() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    // Full again within a millisecond, leases of a tenth of a second.
    let brief = |key: &str, tokens| {
        let limit = LimitSpec::new(tokens, Term::from_millis(1));
        let mut spec = PolicySpec::new("brief", &[key], limit);
        spec.lease.term_max = Term::from_millis(100).into();
        spec
    };
    let revision = async || stats(&server).await.policy_revision;
    admin
        .put_policy(put(&brief("tenant", 20), None))
        .await
        .expect("new");
    let lowered = admin
        .put_policy(put(&brief("tenant", 10), None))
        .await
        .expect("lowered")
        .into_inner();
    // The history is stored anew without the former version; the policy keeps its own.
    until(async || revision().await > lowered.version).await;
    let kept = admin.get_policy(get("brief")).await.expect("it is there");
    assert_eq!(kept.into_inner().version, lowered.version);
    let mut holder = Holder::connect(&server, 7).await;
    holder.introduce(1, bucket("brief", &["t1"]));
    let grant = granted(&holder.ask(want(1, 1, 1)).await);
    assert_eq!(grant.version.get(), lowered.version);

    // A deleted policy keeps its key for as long as its leases may be live, and no longer.
    admin
        .delete_policy(delete("brief", None))
        .await
        .expect("it is there");
    let other = put(&brief("route", 10), None);
    let status = admin
        .put_policy(other.clone())
        .await
        .expect_err("too early");
    assert_eq!(status.code(), Code::FailedPrecondition);
    until(async || admin.clone().put_policy(other.clone()).await.is_ok()).await;
    server.shutdown().await;
}

async fn next(
    parts: &mut UpdateParts,
    updates: &mut Streaming<wire::PolicyUpdate>,
) -> (bool, Vec<String>, usize, u64) {
    loop {
        let part = patiently(updates.message())
            .await
            .expect("it is open")
            .expect("it goes on");
        if let Some(update) = parts.push(part).expect("legal parts") {
            let names = update
                .policies
                .iter()
                .map(|policy| policy.spec.name.clone())
                .collect();
            return (
                update.complete,
                names,
                update.deleted.len(),
                update.revision,
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_get_all_policies_and_then_each_change() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut admin = admin(&server).await;
    let mut watcher = caller(&server).await;
    let mut parts = UpdateParts::default();
    let all = wire::WatchPoliciesRequest::default();
    let mut updates = watcher
        .watch_policies(all.clone())
        .await
        .expect("served")
        .into_inner();
    let (complete, names, _, revision) = next(&mut parts, &mut updates).await;
    assert!(complete);
    assert_eq!(names, ["api", "reports", "search", "tenant"]);

    let created = admin
        .put_policy(put(&spec("p", 10), None))
        .await
        .expect("new")
        .into_inner();
    let update = next(&mut parts, &mut updates).await;
    assert_eq!(update, (false, vec!["p".to_owned()], 0, created.version));
    let deleted = admin
        .delete_policy(delete("p", None))
        .await
        .expect("there")
        .into_inner();
    let update = next(&mut parts, &mut updates).await;
    assert_eq!(update, (false, Vec::new(), 1, deleted.revision));

    // One who knows everything already is told so; one who knows an old state gets all.
    let known = |known_revision| wire::WatchPoliciesRequest {
        known_revision,
        ..all.clone()
    };
    let mut current = watcher
        .watch_policies(known(deleted.revision))
        .await
        .expect("served")
        .into_inner();
    let update = next(&mut UpdateParts::default(), &mut current).await;
    assert_eq!(update, (false, Vec::new(), 0, deleted.revision));
    let mut old = watcher
        .watch_policies(known(revision))
        .await
        .expect("served")
        .into_inner();
    let (complete, names, ..) = next(&mut UpdateParts::default(), &mut old).await;
    assert!(complete && names.len() == 4);

    // Another namespace's watcher hears nothing of this one.
    let elsewhere = wire::WatchPoliciesRequest {
        namespaces: vec!["other".into()],
        ..all
    };
    let mut elsewhere = watcher
        .watch_policies(elsewhere)
        .await
        .expect("served")
        .into_inner();
    let (complete, names, ..) = next(&mut UpdateParts::default(), &mut elsewhere).await;
    assert!(complete && names.is_empty());
    let theirs = PolicySpec {
        namespace: "other".into(),
        ..spec("q", 1)
    };
    admin
        .put_policy(put(&spec("p", 11), None))
        .await
        .expect("ours");
    admin.put_policy(put(&theirs, None)).await.expect("theirs");
    let (_, names, ..) = next(&mut UpdateParts::default(), &mut elsewhere).await;
    assert_eq!(names, ["q"]);
    server.shutdown().await;
    let ended = patiently(async {
        while updates.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    });
    assert_eq!(
        ended.await.expect_err("the server stops").code(),
        Code::Unavailable
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_listed_page_by_page() {
    let dir = tempdir().expect("a directory");
    let server = start_with(dir.path(), &["--no-demo"]).await;
    let mut admin = admin(&server).await;
    for number in 10..17 {
        admin
            .put_policy(put(&spec(&format!("p{number}"), 1), None))
            .await
            .expect("new");
    }
    let other = PolicySpec {
        namespace: "other".into(),
        ..spec("p99", 1)
    };
    admin.put_policy(put(&other, None)).await.expect("new");
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = wire::ListPoliciesRequest {
            namespace: "default".into(),
            page_size: 3,
            page_token,
        };
        let page = admin
            .list_policies(request)
            .await
            .expect("served")
            .into_inner();
        assert!(page.policies.len() <= 3);
        names.extend(
            page.policies
                .into_iter()
                .map(|policy| policy.spec.expect("a spec").name),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let expected: Vec<String> = (10..17).map(|number| format!("p{number}")).collect();
    assert_eq!(names, expected);
    let torn = wire::ListPoliciesRequest {
        page_token: "torn".into(),
        ..Default::default()
    };
    let status = admin.list_policies(torn).await.expect_err("not a token");
    assert_eq!(status.code(), Code::InvalidArgument);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspecting_says_what_a_first_request_would_find() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let seen = inspect(&server, &bucket("api", &["k1"])).await;
    assert_eq!(
        (seen.capacity, seen.available, seen.outstanding),
        (20, 20, 0)
    );
    assert_eq!((seen.known, &seen.limit_class[..]), (false, "default"));
    let mut admin = admin(&server).await;
    for (bucket, code) in [
        (bucket("nobody", &["k1"]), Code::NotFound),
        (bucket("api", &["a", "b"]), Code::FailedPrecondition),
    ] {
        let bucket = Some(quota_wire::convert::common::encode_bucket(&bucket));
        let request = wire::InspectBucketRequest { bucket };
        assert_eq!(
            admin
                .inspect_bucket(request)
                .await
                .expect_err("refused")
                .code(),
            code
        );
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut health = HealthClient::new(connect(&server).await);
    for service in ["", "quota.v1.Allocator", "quota.v1.Admin"] {
        let request = || tonic_health::pb::HealthCheckRequest {
            service: service.into(),
        };
        let mut health = health.clone();
        until(async || {
            let answer = health.clone().check(request()).await.expect("it is known");
            answer.into_inner().status() == ServingStatus::Serving
        })
        .await;
        assert!(health.watch(request()).await.is_ok());
    }
    let unknown = tonic_health::pb::HealthCheckRequest {
        service: "nobody".into(),
    };
    assert_eq!(
        health.check(unknown).await.expect_err("unknown").code(),
        Code::NotFound
    );

    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(
            "quota.v1.Allocator".into(),
        )),
    };
    let list = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ask.clone()
    };
    let mut reflection = ServerReflectionClient::new(connect(&server).await);
    let answers = reflection
        .server_reflection_info(tokio_stream::iter([ask, list]))
        .await;
    let mut answers = answers.expect("served").into_inner();
    let mut said = async || {
        let answer = patiently(answers.message())
            .await
            .expect("open")
            .expect("an answer");
        answer.message_response.expect("a body")
    };
    let MessageResponse::FileDescriptorResponse(files) = said().await else {
        panic!("a file")
    };
    assert!(!files.file_descriptor_proto.is_empty());
    let MessageResponse::ListServicesResponse(services) = said().await else {
        panic!("a list")
    };
    let names: Vec<String> = services
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for name in [
        "quota.v1.Admin",
        "quota.v1.Allocator",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
    server.shutdown().await;
}
