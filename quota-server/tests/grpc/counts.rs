//! The metrics of a real server, by policy and for its streams.

use quota_core::policy::{LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::policy::encode_spec;
use quota_wire::proto as wire;
use tempfile::tempdir;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_who_waited_and_what_crossed_the_wire_is_counted() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let limit = LimitSpec::new(1, Term::from_seconds(10)).with_burst(5);
    let request = wire::PutPolicyRequest {
        spec: Some(encode_spec(&PolicySpec::new("p", &["tenant"], limit))),
        ..wire::PutPolicyRequest::default()
    };
    admin(&server).await.put_policy(request).await.expect("new");
    let mut one = Holder::connect(&server, 1).await;
    let mut two = Holder::connect(&server, 2).await;
    let mut request = want(1, 1, 4);
    request.least = Tokens::new(4);
    one.introduce(1, bucket("p", &["t1"]));
    let grant = granted(&one.ask(request).await);
    two.introduce(1, bucket("p", &["t1"]));
    let queued = two.ask(request).await;
    assert_eq!(queued.grant, None);
    let of = |text: &str, name: &str| metric(text, &format!("{name}{{policy=\"default/p\"}}"));
    let (_, text) = http(&server, "/metrics").await;
    assert_eq!(of(&text, "quota_outstanding_tokens"), 4);
    assert_eq!(of(&text, "quota_first_touches_total"), 1);
    assert_eq!(of(&text, "quota_queued_total"), 1);
    assert_eq!(of(&text, "quota_wait_seconds_count"), 0);
    let (into, out) = (
        "quota_messages_in_bytes_total",
        "quota_messages_out_bytes_total",
    );
    let before = (metric(&text, into), metric(&text, out));
    assert!(before.0 > 0 && before.1 > 0);

    let mut back = renew(want(1, 2, 0), grant.lease, 1, 3);
    back.release = true;
    one.ask(back).await;
    // Three of the four are there again; the last is refilled, or less will do.
    let mut less = want(1, 2, 3);
    less.least = Tokens::new(3);
    let mut answer = two.ask(less).await;
    while answer.grant.is_none() {
        answer = two.answer().await.1;
    }
    let got = granted(&answer).granted.get();
    let (_, text) = http(&server, "/metrics").await;
    assert_eq!(of(&text, "quota_outstanding_tokens"), got);
    assert_eq!(of(&text, "quota_returned_tokens_total"), 3);
    assert_eq!(of(&text, "quota_first_touches_total"), 2);
    assert!(metric(&text, into) > before.0 && metric(&text, out) > before.1);
    drop((one, two));
    server.shutdown().await;

    // What holders have in hand is known after an orderly stop.
    let server = start(dir.path()).await;
    let (_, text) = http(&server, "/metrics").await;
    assert_eq!(of(&text, "quota_taken_over_tokens_total"), got);
    assert_eq!(of(&text, "quota_outstanding_tokens"), got);
    server.shutdown().await;
}
