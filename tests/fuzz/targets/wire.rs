//! Any bytes as each message that a server or a client accepts: what is accepted keeps to the
//! limits, and says the same again when it is encoded and decoded once more.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use quota_core::id::KeyNumber;
use quota_core::key::{NAME_BYTES_MAX, PolicyId};
use quota_core::message::{DEMAND_MAX, HELD_MAX};
use quota_core::policy::POLICIES_MAX;
use quota_core::time::Term;
use quota_fuzz::convert::notice::Node;
use quota_fuzz::convert::policy::UpdateParts;
use quota_fuzz::convert::stream::FromAuthority;
use quota_fuzz::convert::{handshake, policy, stream, unary};
use quota_fuzz::{limits, proto as wire};

fuzz_target!(|bytes: &[u8]| {
    let [kind, times, message @ ..] = bytes else {
        return;
    };
    let message = &repeated(message, *times)[..];
    match kind % 9 {
        0 => from_holder(message),
        1 => from_authority(message),
        2 => hello(message),
        3 => welcome(message),
        4 => acquire(message),
        5 => acquired(message),
        6 => release(message),
        7 => watch(message),
        _ => update(message),
    }
});

/// A message that stands in the bytes several times has each of its lists as many times as long,
/// so repetition leads past the limits on counts, which no mutation would reach byte by byte.
fn repeated(message: &[u8], times: u8) -> Vec<u8> {
    let doublings = u32::from(times.saturating_sub(240));
    let times = 1_usize << doublings.min(13);
    if message.len().saturating_mul(times) > limits::MESSAGE_BYTES_MAX / 8 {
        return message.to_vec();
    }
    message.repeat(times)
}

/// What `bytes` say, if they are accepted: a value that survives another round, and whose encoding
/// is a fixed point within the limit on bytes.
fn stable<W, D, E>(
    bytes: &[u8],
    decode: impl Fn(W) -> Result<D, E>,
    encode: impl Fn(&D) -> W,
) -> Option<D>
where
    W: Message + Default,
    D: PartialEq + Debug,
    E: Debug,
{
    let value = decode(W::decode(bytes).ok()?).ok()?;
    let encoded = encode(&value).encode_to_vec();
    assert!(encoded.len() <= limits::MESSAGE_BYTES_MAX);
    let again = W::decode(&encoded[..]).expect("what was encoded can be decoded");
    let again = decode(again).expect("what was accepted is accepted again");
    assert_eq!(value, again);
    assert_eq!(encoded, encode(&again).encode_to_vec());
    Some(value)
}

fn from_holder(bytes: &[u8]) {
    let accepted = stable(bytes, stream::decode_from_holder, stream::encode_requests);
    let Some(message) = accepted else { return };
    assert!((1..=limits::TOTAL_MAX).contains(&message.number.get()));
    assert!(message.requests.len() <= limits::ITEMS_MAX);
    for request in &message.requests {
        assert!((1..=limits::TOTAL_MAX).contains(&request.sequence.get()));
        assert!(request.spent.get() <= limits::TOTAL_MAX);
        assert!(request.returned.get() <= limits::TOTAL_MAX);
        assert!(request.least <= request.want && request.want <= HELD_MAX);
        assert!(request.demand <= DEMAND_MAX);
        assert!(request.lease.is_none_or(|lease| lease.counter > 0));
    }
    assert!(message.introductions.len() <= limits::INTRODUCTIONS_MAX);
    let mut introduced = 0;
    for introduction in &message.introductions {
        named(&introduction.bucket.policy);
        let key = introduction.bucket.key.as_bytes().len();
        assert!(key <= limits::KEY_BYTES_MAX);
        introduced += key;
    }
    assert!(introduced <= limits::INTRODUCED_BYTES_MAX);
    let numbers = message
        .introductions
        .iter()
        .map(|i| u64::from(i.number.get()));
    different(numbers.map(|number| (number, 0)));
    let requests = message.requests.iter();
    different(requests.map(|r| (u64::from(r.key.get()), r.sequence.get())));
}

fn named(id: &PolicyId) {
    for name in [&id.namespace, &id.name] {
        assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
    }
}

fn different(pairs: impl Iterator<Item = (u64, u64)>) {
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_unstable();
    assert!(pairs.is_sorted_by(|one, next| one < next), "each once");
}

fn from_authority(bytes: &[u8]) {
    let Ok(message) = wire::ServerMessage::decode(bytes) else {
        return;
    };
    let Ok(value) = stream::decode_from_authority(message) else {
        return;
    };
    let encoded = stream::encode_from_authority(&value);
    let says_nothing = match &value {
        FromAuthority::Answers(message) => message.answers.is_empty(),
        FromAuthority::Unknown => true,
        _ => false,
    };
    if says_nothing {
        return assert!(encoded.is_empty());
    }
    assert_eq!(encoded.len(), 1, "what came in one message fits one");
    let bytes = encoded[0].encode_to_vec();
    assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX);
    let again = wire::ServerMessage::decode(&bytes[..]).expect("it was encoded");
    assert_eq!(stream::decode_from_authority(again).as_ref(), Ok(&value));
    within_limits(&value);
}

fn within_limits(message: &FromAuthority) {
    match message {
        FromAuthority::Answers(message) => {
            assert!((1..=limits::TOTAL_MAX).contains(&message.anchor.get()));
            assert!(message.answers.len() <= limits::ITEMS_MAX);
            for answer in &message.answers {
                assert!((1..=limits::TOTAL_MAX).contains(&answer.sequence.get()));
                let Some(grant) = answer.grant else { continue };
                assert!(grant.granted.get() <= limits::TOTAL_MAX);
                assert!(grant.lease.counter > 0);
            }
        }
        FromAuthority::Policies(notice) => {
            assert!(notice.policies.len() <= limits::NOTICE_POLICIES_MAX);
            notice.policies.iter().for_each(named);
        }
        FromAuthority::ShardMap(map) => {
            nodes(&map.nodes);
            assert!((1..=limits::SHARDS_MAX).contains(&map.owners.len()));
            for owner in map.owners.iter().flatten() {
                assert!(usize::try_from(*owner).is_ok_and(|owner| owner < map.nodes.len()));
            }
        }
        FromAuthority::NotOwner(hint) => {
            let keys: &[KeyNumber] = &hint.keys;
            assert!(keys.len() <= limits::ITEMS_MAX);
            nodes(hint.owner.as_slice());
        }
        FromAuthority::GoAway(farewell) => {
            nodes(&farewell.instead);
            assert!(farewell.message.len() <= limits::TEXT_BYTES_MAX);
        }
        FromAuthority::Unknown => {}
    }
}

fn nodes(nodes: &[Node]) {
    assert!(nodes.len() <= limits::NODES_MAX);
    for node in nodes {
        assert!(node.name.len() <= limits::LABEL_BYTES_MAX);
        assert!((1..=limits::ADDRESS_BYTES_MAX).contains(&node.address.len()));
    }
}

fn hello(bytes: &[u8]) {
    let accepted = stable(
        bytes,
        |message| {
            let hello = stream::open_hello(message).map_err(handshake::HelloError::from)?;
            handshake::decode_hello(hello, handshake::SPOKEN)
        },
        |(_, hello)| stream::encode_hello(hello),
    );
    let Some((spoken, hello)) = accepted else {
        return;
    };
    let spoken_here = handshake::SPOKEN.min..=handshake::SPOKEN.max;
    assert!(spoken_here.contains(&spoken));
    assert!((hello.protocols.min..=hello.protocols.max).contains(&spoken));
    assert!(hello.incarnation.get() > 0);
    assert!(hello.client_name.len() <= limits::LABEL_BYTES_MAX);
    assert!(hello.client_version.len() <= limits::LABEL_BYTES_MAX);
}

fn welcome(bytes: &[u8]) {
    let accepted = stable(
        bytes,
        |message| {
            let welcome = stream::open_welcome(message)?;
            handshake::decode_welcome(welcome, handshake::SPOKEN)
        },
        stream::encode_welcome,
    );
    let Some(welcome) = accepted else { return };
    assert!(usize::try_from(welcome.shards).is_ok_and(|n| (1..=limits::SHARDS_MAX).contains(&n)));
    assert!(welcome.node.len() <= limits::LABEL_BYTES_MAX);
    assert!(welcome.server_version.len() <= limits::LABEL_BYTES_MAX);
    assert!(welcome.limits.items_max > 0 && welcome.limits.keys_max > 0);
}

fn acquire(bytes: &[u8]) {
    let Some(call) = stable(bytes, unary::decode_acquire, unary::encode_acquire) else {
        return;
    };
    named(&call.bucket.policy);
    assert!(call.bucket.key.as_bytes().len() <= limits::KEY_BYTES_MAX);
    assert!(call.least.get() > 0 && call.least <= call.tokens && call.tokens <= HELD_MAX);
    assert!(call.wait <= Term::from_seconds(limits::WAIT_SECONDS_MAX));
    if let Some(retry) = call.retry {
        assert!(retry.incarnation.get() > 0);
        assert!((1..=limits::TOTAL_MAX).contains(&retry.sequence.get()));
    }
}

fn acquired(bytes: &[u8]) {
    let accepted = stable(bytes, unary::decode_acquired, unary::encode_acquired);
    let Some(response) = accepted else { return };
    assert!(response.granted.get() > 0 && response.granted <= HELD_MAX);
    if let Some(held) = response.held {
        assert!(held.lease.counter > 0 && held.incarnation.get() > 0);
    }
}

fn release(bytes: &[u8]) {
    let Some(call) = stable(bytes, unary::decode_release, unary::encode_release) else {
        return;
    };
    named(&call.bucket.policy);
    assert!(call.lease.counter > 0 && call.incarnation.get() > 0);
    assert!(call.spent.get() <= limits::TOTAL_MAX && call.returned.get() <= limits::TOTAL_MAX);
}

fn watch(bytes: &[u8]) {
    let Some(call) = stable(bytes, unary::decode_watch, unary::encode_watch) else {
        return;
    };
    assert!(call.namespaces.len() <= limits::NAMESPACES_MAX);
    for name in &call.namespaces {
        assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
    }
}

fn update(bytes: &[u8]) {
    let Ok(part) = wire::PolicyUpdate::decode(bytes) else {
        return;
    };
    let Ok(Some(update)) = UpdateParts::default().push(part) else {
        return;
    };
    assert!(update.policies.len() <= POLICIES_MAX && update.deleted.len() <= POLICIES_MAX);
    assert!(update.deleted.is_empty() || !update.complete);
    update.deleted.iter().for_each(named);
    let mut parts = UpdateParts::default();
    let mut again = None;
    for part in policy::encode_update(&update) {
        let bytes = part.encode_to_vec();
        assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX);
        let part = wire::PolicyUpdate::decode(&bytes[..]).expect("it was encoded");
        again = parts
            .push(part)
            .expect("what was accepted is accepted again");
    }
    assert_eq!(again, Some(update));
}
