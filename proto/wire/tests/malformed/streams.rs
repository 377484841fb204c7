//! The handshake, the envelopes and the pushes of a stream.

use quota_wire::convert::handshake::{HelloError, NotSpoken, Protocols, SPOKEN};
use quota_wire::convert::{handshake, notice, stream};
use quota_wire::proto as wire;
use quota_wire::status;
use wire::client_message::Body as ClientBody;
use wire::server_message::Body as ServerBody;

use super::batches::requests;
use super::{policy_id, refuses};

#[test]
fn the_handshake_is_refused_by_field() {
    let hello = wire::Hello {
        protocol_min: 1,
        protocol_max: 1,
        incarnation: 7,
        ..wire::Hello::default()
    };
    let read = |hello| match handshake::decode_hello(hello, SPOKEN) {
        Err(HelloError::Malformed(error)) => Err(error),
        other => Ok(other),
    };
    refuses(
        &hello,
        read,
        &[
            (
                |h| h.protocol_min = 0,
                "hello.protocol_min is 0; allowed: 1 to 4294967295",
            ),
            (
                |h| h.protocol_max = 0,
                "hello.protocol_max is 0; allowed: 1 to 4294967295",
            ),
            (
                |h| h.incarnation = 0,
                "hello.incarnation is 0; allowed: a random number other than zero, drawn at start",
            ),
            (
                |h| h.client_name = "n".repeat(129),
                "hello.client_name is 129 bytes long; allowed: at most 128 bytes",
            ),
            (
                |h| h.client_version = "n".repeat(129),
                "hello.client_version is 129 bytes long; allowed: at most 128 bytes",
            ),
        ],
    );
    let limits = wire::StreamLimits {
        message_bytes_max: 1,
        items_max: 1,
        introductions_max: 1,
        keys_max: 1,
    };
    let welcome = wire::Welcome {
        protocol: 1,
        shards: 64,
        limits: Some(limits),
        ..wire::Welcome::default()
    };
    fn limits_of(welcome: &mut wire::Welcome) -> &mut wire::StreamLimits {
        welcome.limits.as_mut().expect("there")
    }
    refuses(
        &welcome,
        |welcome| handshake::decode_welcome(welcome, SPOKEN),
        &[
            (|w| w.protocol = 2, "welcome.protocol is 2; allowed: 1 to 1"),
            (
                |w| w.server_version = "v".repeat(129),
                "welcome.server_version is 129 bytes long; allowed: at most 128 bytes",
            ),
            (
                |w| w.node = "v".repeat(129),
                "welcome.node is 129 bytes long; allowed: at most 128 bytes",
            ),
            (|w| w.shards = 0, "welcome.shards is 0; allowed: 1 to 65536"),
            (
                |w| w.shards = 65_537,
                "welcome.shards is 65537; allowed: 1 to 65536",
            ),
            (
                |w| w.limits = None,
                "welcome.limits is absent; allowed: it is required",
            ),
            (
                |w| limits_of(w).message_bytes_max = 0,
                "welcome.limits.message_bytes_max is 0; allowed: 1 to 4294967295",
            ),
            (
                |w| limits_of(w).items_max = 0,
                "welcome.limits.items_max is 0; allowed: 1 to 4294967295",
            ),
            (
                |w| limits_of(w).introductions_max = 0,
                "welcome.limits.introductions_max is 0; allowed: 1 to 4294967295",
            ),
            (
                |w| limits_of(w).keys_max = 0,
                "welcome.limits.keys_max is 0; allowed: 1 to 4294967295",
            ),
        ],
    );
}

#[test]
fn sides_without_a_common_version_part_politely() {
    let newer = wire::Hello {
        protocol_min: 8,
        protocol_max: 9,
        // What else a version 8 says is not for this side to judge.
        incarnation: 0,
        ..wire::Hello::default()
    };
    let error = handshake::decode_hello(newer, SPOKEN).expect_err("no common version");
    assert_eq!(
        error,
        HelloError::NotSpoken(NotSpoken {
            client: Protocols { min: 8, max: 9 },
            server: SPOKEN,
        })
    );
    let refused = tonic::Status::from(error);
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let detail = status::detail(&refused).expect("a detail");
    assert_eq!(detail.reason(), wire::ErrorReason::ProtocolNotSpoken);
    assert_eq!(
        detail.protocols,
        Some(wire::ProtocolRange { min: 1, max: 1 })
    );
}

#[test]
fn envelopes_out_of_place_are_refused() {
    let hello = wire::ClientMessage {
        body: Some(ClientBody::Hello(wire::Hello::default())),
    };
    let batch = wire::ClientMessage {
        body: Some(ClientBody::Requests(requests())),
    };
    let welcome = wire::ServerMessage {
        body: Some(ServerBody::Welcome(wire::Welcome::default())),
    };
    let nothing = wire::ClientMessage { body: None };
    assert!(stream::open_hello(batch).is_err());
    assert!(stream::open_hello(nothing.clone()).is_err());
    assert!(stream::decode_from_holder(hello).is_err());
    assert!(stream::decode_from_holder(nothing).is_err());
    assert!(stream::decode_from_authority(welcome).is_err());
    assert!(stream::open_welcome(wire::ServerMessage { body: None }).is_err());
    assert_eq!(
        stream::decode_from_authority(wire::ServerMessage { body: None }),
        Ok(stream::FromAuthority::Unknown),
        "a client skips what a newer server says"
    );
}

fn node(address: &str) -> wire::Node {
    wire::Node {
        name: "n".to_owned(),
        address: address.to_owned(),
    }
}

#[test]
fn pushes_are_refused_by_field() {
    let notice = wire::PolicyNotice {
        revision: 1,
        policies: vec![policy_id()],
    };
    refuses(
        &notice,
        notice::decode_policies,
        &[
            (
                |n| n.policies = vec![policy_id(); 1025],
                "policies.policies is 1025 entries long; allowed: at most 1024 entries",
            ),
            (
                |n| n.policies[0].name.clear(),
                "policies.policies[0].name is empty; allowed: 1 to 128 bytes",
            ),
        ],
    );
    let map = wire::ShardMap {
        revision: 1,
        nodes: vec![node("a:1")],
        owners: vec![0, 1],
    };
    refuses(
        &map,
        notice::decode_shard_map,
        &[
            (
                |m| m.owners[0] = 2,
                "shard_map.owners[0] is 2; allowed: 0 to the number of nodes, 1",
            ),
            (
                |m| m.owners.clear(),
                "shard_map.owners is empty; allowed: 1 or more",
            ),
            (
                |m| m.owners = vec![0; 65_537],
                "shard_map.owners is 65537 entries long; allowed: at most 65536 entries",
            ),
            (
                |m| m.nodes = vec![node("a:1"); 1025],
                "shard_map.nodes is 1025 entries long; allowed: at most 1024 entries",
            ),
            (
                |m| m.nodes[0].address.clear(),
                "shard_map.nodes[0].address is empty; allowed: host:port",
            ),
            (
                |m| m.nodes[0].address = "a".repeat(257),
                "shard_map.nodes[0].address is 257 bytes long; allowed: at most 256 bytes",
            ),
            (
                |m| m.nodes[0].name = "a".repeat(129),
                "shard_map.nodes[0].name is 129 bytes long; allowed: at most 128 bytes",
            ),
        ],
    );
    let hint = wire::NotOwner {
        shard: 1,
        keys: vec![1],
        owner: Some(node("a:1")),
    };
    refuses(
        &hint,
        notice::decode_not_owner,
        &[
            (
                |h| h.keys = vec![1; 4097],
                "not_owner.keys is 4097 entries long; allowed: at most 4096 entries",
            ),
            (
                |h| h.owner = Some(node("")),
                "not_owner.owner.address is empty; allowed: host:port",
            ),
        ],
    );
    let farewell = wire::GoAway {
        instead: vec![node("a:1")],
        ..wire::GoAway::default()
    };
    refuses(
        &farewell,
        notice::decode_go_away,
        &[
            (
                |g| g.instead[0].address.clear(),
                "go_away.instead[0].address is empty; allowed: host:port",
            ),
            (
                |g| g.message = "m".repeat(1025),
                "go_away.message is 1025 bytes long; allowed: at most 1024 bytes",
            ),
        ],
    );
}
