//! Writes the seeds of `wire` and `records` from real encoders: a few messages of each kind, and
//! the pinned records of the store. `cargo run --example seeds` in this directory.

extern crate quota_fuzz as quota_wire;

#[path = "../../../proto/wire/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use proptest::prelude::Strategy;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use prost::Message;
use quota_core::key::PolicyId;
use quota_core::time::Term;
use quota_fuzz::convert::notice::{GoAway, GoAwayReason, Node, PolicyNotice};
use quota_fuzz::convert::stream::FromAuthority;
use quota_fuzz::convert::{policy, stream, unary};
use quota_fuzz::{limits, proto as wire};

/// Seeds of each kind of message, and how long they are in bytes. Small ones are mutated faster.
const EACH: usize = 3;
const BYTES: std::ops::RangeInclusive<usize> = 8..=400;

fn main() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    few_of_each(&here.join("seeds/wire"));
    longest(&here.join("seeds/wire"));
    records(
        &here.join("seeds/records"),
        &here.join("../../quota-server/tests/golden"),
    );
}

/// The first byte is the kind of message, as the target numbers them; the second says that it
/// stands there once.
fn few_of_each(seeds: &Path) {
    // The same seeds each time.
    let mut runner = TestRunner::deterministic();
    let mut few = |kind: u8, name: &str, draw: &mut dyn FnMut(&mut TestRunner) -> Vec<u8>| {
        for number in 1..=EACH {
            let message = std::iter::repeat_with(|| draw(&mut runner))
                .take(1000)
                .find(|message| BYTES.contains(&message.len()));
            let message = message.unwrap_or_else(|| panic!("{name} has a size that fits"));
            let seed = [&[kind, 0][..], &message].concat();
            fs::write(seeds.join(format!("{name}-{number}")), seed).expect("a seed is written");
        }
    };
    let authority = |message| stream::encode_from_authority(&message)[0].encode_to_vec();
    few(0, "requests", &mut |r| {
        stream::encode_requests(&value(r, support::holder_message())).encode_to_vec()
    });
    few(1, "answers", &mut |r| {
        let message = value(r, support::authority_message());
        if message.answers.is_empty() {
            return Vec::new();
        }
        authority(FromAuthority::Answers(message))
    });
    few(1, "policies", &mut |r| {
        authority(FromAuthority::Policies(value(r, support::policy_notice())))
    });
    few(1, "shard-map", &mut |r| {
        authority(FromAuthority::ShardMap(value(r, support::shard_map())))
    });
    few(1, "not-owner", &mut |r| {
        authority(FromAuthority::NotOwner(value(r, support::not_owner())))
    });
    few(1, "go-away", &mut |r| {
        authority(FromAuthority::GoAway(value(r, support::go_away())))
    });
    few(2, "hello", &mut |r| {
        stream::encode_hello(&value(r, support::hello())).encode_to_vec()
    });
    few(3, "welcome", &mut |r| {
        stream::encode_welcome(&value(r, support::welcome())).encode_to_vec()
    });
    few(4, "acquire", &mut |r| {
        unary::encode_acquire(&value(r, support::acquire())).encode_to_vec()
    });
    few(5, "acquired", &mut |r| {
        unary::encode_acquired(&value(r, support::acquired())).encode_to_vec()
    });
    few(6, "release", &mut |r| {
        unary::encode_release(&value(r, support::release())).encode_to_vec()
    });
    few(7, "watch", &mut |r| {
        unary::encode_watch(&value(r, support::watch())).encode_to_vec()
    });
    few(8, "update", &mut |r| {
        let update = value(r, support::policies::policy_update());
        policy::encode_update(&update)[0].encode_to_vec()
    });
}

fn value<S: Strategy>(runner: &mut TestRunner, strategy: S) -> S::Value {
    let tree = strategy.new_tree(runner);
    tree.expect("a strategy has values").current()
}

/// Lists of one item whose second byte says that they stand there so often, as a power of two, that
/// the list is as long as it may be, and the same with one more doubling, which must be refused.
fn longest(seeds: &Path) {
    let key = Some(wire::Column {
        base: 1,
        offsets: Vec::new(),
    });
    let requests = wire::client_message::Body::Requests(wire::RequestBatch {
        number: 1,
        key_deltas: vec![1],
        sequence: key.clone(),
        ..wire::RequestBatch::default()
    });
    let requests = wire::ClientMessage {
        body: Some(requests),
    };
    let answers = wire::server_message::Body::Answers(wire::AnswerBatch {
        anchor: 1,
        key_deltas: vec![0],
        sequence: key,
        ..wire::AnswerBatch::default()
    });
    let answers = wire::ServerMessage {
        body: Some(answers),
    };
    let policies = FromAuthority::Policies(PolicyNotice {
        revision: 1,
        policies: vec![PolicyId {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
        }],
    });
    let go_away = FromAuthority::GoAway(GoAway {
        reason: GoAwayReason::Draining,
        grace: Term::from_seconds(1),
        instead: vec![Node {
            name: "n".to_owned(),
            address: "h:1".to_owned(),
        }],
        message: String::new(),
    });
    let watch = unary::encode_watch(&unary::WatchPolicies {
        namespaces: vec!["n".to_owned()],
        known_revision: 1,
    });
    let authority = |message: &_| stream::encode_from_authority(message)[0].encode_to_vec();
    for (kind, name, most, message) in [
        (0, "requests", limits::ITEMS_MAX, requests.encode_to_vec()),
        (1, "answers", limits::ITEMS_MAX, answers.encode_to_vec()),
        (
            1,
            "policies",
            limits::NOTICE_POLICIES_MAX,
            authority(&policies),
        ),
        (1, "go-away", limits::NODES_MAX, authority(&go_away)),
        (7, "watch", limits::NAMESPACES_MAX, watch.encode_to_vec()),
    ] {
        let doublings = u8::try_from(most.ilog2()).expect("below 64");
        for (doublings, length) in [(doublings, "longest"), (doublings + 1, "too-long")] {
            let seed = [&[kind, 240 + doublings][..], &message].concat();
            fs::write(seeds.join(format!("{name}-{length}")), seed).expect("a seed is written");
        }
    }
}

/// The first byte is the kind of record; then comes its value without version and checksum.
fn records(seeds: &Path, golden: &Path) {
    let kinds = [
        ("identity", 0),
        ("commits", 1),
        ("revision", 2),
        ("claim", 3),
        ("claim_released", 3),
        ("reservation", 4),
        ("policy", 5),
        ("policy_deleted", 5),
        ("hand_over", 6),
    ];
    for (name, kind) in kinds {
        let text = fs::read_to_string(golden.join(format!("v1_{name}.hex"))).expect("it is there");
        let mut lines = text.lines();
        let mut field = |label| unhex(lines.next().and_then(|line| line.strip_prefix(label)));
        let (key, stored) = (field("key "), field("record "));
        let value = &stored[1..stored.len() - 4];
        let seed = [&[kind][..], value].concat();
        fs::write(seeds.join(name), seed).expect("a seed is written");
        if matches!(name, "reservation" | "policy") {
            let seed = [&[7][..], &key].concat();
            fs::write(seeds.join(format!("{name}-key")), seed).expect("a seed is written");
        }
    }
}

fn unhex(text: Option<&str>) -> Vec<u8> {
    let pairs = text.expect("a golden file has two lines").as_bytes();
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).expect("ASCII"), 16);
    let bytes = pairs.chunks(2).map(|pair| byte(pair).expect("hexadecimal"));
    bytes.collect()
}
