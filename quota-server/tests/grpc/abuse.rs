//! What a holder that misbehaves gets, and that nobody else notices.

use quota_core::message::Status as Outcome;
use quota_core::tokens::Tokens;
use quota_server::server::RunningServer;
use quota_wire::convert::handshake::{Hello, SPOKEN, encode_hello};
use quota_wire::convert::stream::{encode_hello as hello_message, encode_requests};
use quota_wire::proto as wire;
use quota_wire::proto::client_message::Body;
use tempfile::tempdir;
use tonic::{Code, Status};

use crate::support::*;

fn client(body: Body) -> wire::ClientMessage {
    wire::ClientMessage { body: Some(body) }
}

fn batch(number: u64) -> wire::RequestBatch {
    wire::RequestBatch {
        number,
        ..wire::RequestBatch::default()
    }
}

/// A batch with one item for key 1.
fn item() -> wire::RequestBatch {
    let one = Some(wire::Column {
        base: 1,
        offsets: Vec::new(),
    });
    wire::RequestBatch {
        key_deltas: vec![1],
        sequence: one,
        ..batch(2)
    }
}

fn column(base: u64) -> Option<wire::Column> {
    Some(wire::Column {
        base,
        offsets: Vec::new(),
    })
}

async fn ended_by(server: &RunningServer, message: wire::ClientMessage) -> Status {
    let mut holder = Holder::connect(server, 1000).await;
    let abused = introduction(1, bucket("tenant", &["abused"]));
    holder.send(vec![abused], Vec::new()).await;
    holder.say(message).await;
    holder.end().await.expect_err("the stream is ended")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_not_spoken_is_refused_with_ours() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::silent(connect(&server).await, 7).await;
    let hello = Hello {
        protocols: SPOKEN,
        incarnation: holder.incarnation,
        client_name: String::new(),
        client_version: String::new(),
    };
    let newer = wire::Hello {
        protocol_min: 2,
        protocol_max: 9,
        ..encode_hello(&hello)
    };
    holder.say(client(Body::Hello(newer))).await;
    let status = holder.end().await.expect_err("refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let detail = detail(&status);
    assert_eq!(detail.reason(), wire::ErrorReason::ProtocolNotSpoken);
    assert_eq!(
        detail.protocols,
        Some(wire::ProtocolRange { min: 1, max: 1 })
    );

    // The next one who speaks it is welcome.
    let mut other = Holder::silent(connect(&server).await, 8).await;
    other
        .say(hello_message(&Hello {
            incarnation: other.incarnation,
            ..hello
        }))
        .await;
    assert!(other.hear().await.expect("a welcome").is_some());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_broken_rule_ends_its_stream_and_no_other() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut bystander = Holder::connect(&server, 7).await;
    bystander.introduce(1, bucket("tenant", &["t1"]));
    let grant = granted(&bystander.ask(want(1, 1, 10)).await);

    let requests = |batch| client(Body::Requests(batch));
    let hello = wire::Hello {
        protocol_min: 1,
        protocol_max: 1,
        incarnation: 5,
        ..Default::default()
    };
    let taken = wire::Introduction {
        number: 1,
        namespace: "default".into(),
        policy: "tenant".into(),
        key: b"\0\x01x".to_vec(),
    };
    let torn = wire::Introduction {
        number: 2,
        key: b"\0\x09x".to_vec(),
        ..taken.clone()
    };
    let nameless = wire::Introduction {
        number: 2,
        policy: String::new(),
        ..taken.clone()
    };
    let cases = [
        ("body", wire::ClientMessage { body: None }),
        ("body", client(Body::Hello(hello))),
        ("requests.number", requests(batch(0))),
        ("requests.number", requests(batch(u64::MAX))),
        (
            "requests.sequence",
            requests(wire::RequestBatch {
                sequence: None,
                ..item()
            }),
        ),
        (
            "requests.want",
            requests(wire::RequestBatch {
                want: column(1 << 63),
                ..item()
            }),
        ),
        (
            "requests.want",
            requests(wire::RequestBatch {
                want: column(u64::MAX),
                ..item()
            }),
        ),
        (
            "requests.least",
            requests(wire::RequestBatch {
                want: column(1),
                least: column(9),
                ..item()
            }),
        ),
        (
            "requests.spent",
            requests(wire::RequestBatch {
                spent: column(u64::MAX),
                ..item()
            }),
        ),
        (
            "requests.flags",
            requests(wire::RequestBatch {
                flags: column(2),
                ..item()
            }),
        ),
        (
            "requests.key_deltas",
            requests(wire::RequestBatch {
                key_deltas: vec![-1],
                ..item()
            }),
        ),
        (
            "requests.demand",
            requests(wire::RequestBatch {
                demand: Some(wire::Column {
                    base: 0,
                    offsets: vec![1, 2, 3],
                }),
                ..item()
            }),
        ),
        (
            "requests.key_deltas",
            requests(wire::RequestBatch {
                key_deltas: vec![0; 5000],
                ..item()
            }),
        ),
        (
            "requests.introductions[0].number",
            requests(wire::RequestBatch {
                introductions: vec![taken],
                ..batch(2)
            }),
        ),
        (
            "requests.introductions[0].key",
            requests(wire::RequestBatch {
                introductions: vec![torn],
                ..batch(2)
            }),
        ),
        (
            "requests.introductions[0].policy",
            requests(wire::RequestBatch {
                introductions: vec![nameless],
                ..batch(2)
            }),
        ),
    ];
    for (field, message) in cases {
        let said = format!("{message:?}");
        let status = ended_by(&server, message).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{said}: {status:?}");
        let detail = detail(&status);
        assert_eq!(detail.reason(), wire::ErrorReason::Malformed, "{said}");
        assert!(
            detail.fields[0].field.starts_with(field),
            "{said}: {:?}",
            detail.fields
        );
    }

    let mut silent = Holder::silent(connect(&server).await, 9).await;
    silent.say(client(Body::Requests(batch(1)))).await;
    assert_eq!(
        silent.end().await.expect_err("no hello").code(),
        Code::InvalidArgument
    );

    // Nothing of it reached the ledger, and the bystander's lease is as it was.
    let seen = inspect(&server, &bucket("tenant", &["abused"])).await;
    assert_eq!((seen.outstanding, seen.leases.len()), (0, 0));
    let again = bystander.ask(renew(want(1, 2, 5), grant.lease, 1, 0)).await;
    assert_eq!(granted(&again).granted, Tokens::new(15));
    let metrics = http(&server, "/metrics").await.1;
    assert_eq!(metric(&metrics, "quota_messages_refused_total"), 17);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_message_is_refused_before_it_is_decoded() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let fat = wire::Introduction {
        key: vec![0; 2 << 20],
        ..Default::default()
    };
    let message = wire::RequestBatch {
        introductions: vec![fat],
        ..batch(2)
    };
    let status = ended_by(&server, client(Body::Requests(message))).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(detail(&status).fields[0].field, "message");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_keys_are_keys_like_any_other() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 7).await;
    let long = "x".repeat(256);
    let odd: [&[u8]; 9] = [
        b"",
        b"/",
        b"*",
        b"%",
        b"\0",
        b"a\0b",
        "\u{e9}\u{1f980}".as_bytes(),
        b"\xff\xfe",
        long.as_bytes(),
    ];
    for (key, value) in (1..).zip(odd) {
        holder.introduce(key, bucket("tenant", &[value]));
        let answer = holder.ask(want(key, 1, 400)).await;
        assert_eq!(
            granted(&answer).granted,
            Tokens::new(400),
            "a bucket of its own: {value:?}"
        );
        let seen = inspect(&server, &bucket("tenant", &[value])).await;
        assert_eq!(seen.outstanding, 400);
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_names_too_many_keys_is_ended() {
    let dir = tempdir().expect("a directory");
    let server = start_with(dir.path(), &["--keys-per-stream-max", "3"]).await;
    let mut holder = Holder::connect(&server, 7).await;
    for key in 1..=3 {
        holder.introduce(key, bucket("tenant", &[format!("t{key}")]));
    }
    assert_eq!(holder.ask(want(3, 1, 1)).await.status, Outcome::Done);
    let fourth = introduction(4, bucket("tenant", &["t4"]));
    holder.send(vec![fourth], Vec::new()).await;
    let status = holder.end().await.expect_err("too many");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(detail(&status).fields[0].field, "requests.introductions");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_limit_are_turned_away() {
    let dir = tempdir().expect("a directory");
    let server = start_with(dir.path(), &["--streams-max", "1"]).await;
    let mut first = Holder::connect(&server, 7).await;
    let mut second = Holder::silent(connect(&server).await, 8).await;
    let hello = Hello {
        protocols: SPOKEN,
        incarnation: second.incarnation,
        client_name: String::new(),
        client_version: String::new(),
    };
    second.say(hello_message(&hello)).await;
    // Not welcomed first: a client would take that for a connection that works.
    assert_eq!(
        second.hear().await.expect_err("full").code(),
        Code::ResourceExhausted
    );
    first.introduce(1, bucket("tenant", &["t1"]));
    assert_eq!(first.ask(want(1, 1, 1)).await.status, Outcome::Done);
    server.shutdown().await;
}

/// A full message of retries: every item is answered, and nothing is granted twice.
fn flood(number: u64) -> wire::ClientMessage {
    let message = quota_core::holder::HolderMessage {
        number: quota_core::id::MessageNumber::new(number),
        introductions: Vec::new(),
        requests: (1..=1000).map(|key| want(key, 1, 1)).collect(),
    };
    encode_requests(&message)
}

/// The first mention of everything, in use at once, so that nothing of it is forgotten again.
async fn introduce_flood(holder: &mut Holder) {
    let bucket = |key| introduction(key, bucket("tenant", &[format!("f{key}")]));
    let introductions = (1..=1000).map(bucket);
    let requests = (1..=1000).map(|key| want(key, 1, 1));
    holder
        .send(introductions.collect(), requests.collect())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_never_reads_loses_its_stream_and_nothing_else() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut bystander = Holder::connect(&server, 7).await;
    bystander.introduce(1, bucket("tenant", &["t1"]));
    let grant = granted(&bystander.ask(want(1, 1, 10)).await);

    let narrow = endpoint(&server).initial_stream_window_size(65_535);
    let channel = narrow.connect().await.expect("it connects");
    let mut deaf = Holder::greeted(channel, 8).await;
    introduce_flood(&mut deaf).await;
    let sender = deaf.sender();
    let flooding = tokio::spawn(async move {
        // Waits for ever once nobody takes what it sends.
        for number in 10.. {
            if sender.send(flood(number)).await.is_err() {
                return;
            }
        }
    });
    // The server ends it, however long it goes on asking.
    until(async || stats(&server).await.streams == 1).await;
    let answer = bystander.ask(renew(want(1, 2, 5), grant.lease, 1, 0)).await;
    assert_eq!(granted(&answer).lease, grant.lease);
    assert_eq!(granted(&answer).granted, Tokens::new(15));
    let status = deaf.end().await.expect_err("ended");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    flooding.abort();
    // Its leases stay till their terms are over.
    assert_eq!(
        inspect(&server, &bucket("tenant", &["f1"]))
            .await
            .outstanding,
        1
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_answered_in_full_and_others_are_served_meanwhile() {
    const MESSAGES: u64 = 60;
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut bystander = Holder::connect(&server, 7).await;
    bystander.introduce(1, bucket("tenant", &["t1"]));
    let channel = connect(&server).await;
    let flooding = tokio::spawn(async move {
        let mut holder = Holder::greeted(channel, 8).await;
        introduce_flood(&mut holder).await;
        for _ in 0..1000 {
            holder.answer().await;
        }
        let mut answered = 0;
        for number in 10..10 + MESSAGES {
            assert!(holder.say(flood(number)).await, "it is not ended");
            // Reads half as fast as it asks, then catches up.
            for _ in 0..500 {
                holder.answer().await;
                answered += 1;
            }
        }
        while answered < MESSAGES * 1000 {
            holder.answer().await;
            answered += 1;
        }
    });
    for sequence in 1..=50 {
        assert_eq!(
            bystander.ask(want(1, sequence, 1)).await.status,
            Outcome::Done
        );
    }
    patiently(flooding).await.expect("every item is answered");
    assert_eq!(
        inspect(&server, &bucket("tenant", &["f1"]))
            .await
            .outstanding,
        1
    );
    server.shutdown().await;
}
