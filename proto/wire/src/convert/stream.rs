//! The two envelopes of the `Lease` stream after its first message.

use quota_core::holder::HolderMessage;

use super::answers::{self, AuthorityMessage};
use super::notice::{self, GoAway, NotOwner, PolicyNotice, ShardMap};
use super::requests;
use crate::malformed::Malformed;
use crate::proto as wire;
use wire::client_message::Body as ClientBody;
use wire::server_message::Body as ServerBody;

/// What an authority says after its `Welcome`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromAuthority {
    /// Replies and pushes.
    Answers(AuthorityMessage),
    /// Policies changed.
    Policies(PolicyNotice),
    /// Shards changed hands.
    ShardMap(ShardMap),
    /// Keys belong elsewhere.
    NotOwner(NotOwner),
    /// The stream is about to end.
    GoAway(GoAway),
    /// Something that a newer server says and this version may skip.
    Unknown,
}

/// A holder's batch in its envelope.
#[must_use]
pub fn encode_requests(message: &HolderMessage) -> wire::ClientMessage {
    wire::ClientMessage {
        body: Some(ClientBody::Requests(requests::encode(message))),
    }
}

/// A `Hello` in its envelope.
#[must_use]
pub fn encode_hello(hello: &super::handshake::Hello) -> wire::ClientMessage {
    wire::ClientMessage {
        body: Some(ClientBody::Hello(super::handshake::encode_hello(hello))),
    }
}

/// A `Welcome` in its envelope.
#[must_use]
pub fn encode_welcome(welcome: &super::handshake::Welcome) -> wire::ServerMessage {
    wire::ServerMessage {
        body: Some(ServerBody::Welcome(super::handshake::encode_welcome(
            welcome,
        ))),
    }
}

/// The `Hello` in a stream's first message.
///
/// # Errors
/// [`Malformed`] if it is something else. Its fields are for
/// [`decode_hello`](super::handshake::decode_hello) to check.
pub fn open_hello(message: wire::ClientMessage) -> Result<wire::Hello, Malformed> {
    match message.body {
        Some(ClientBody::Hello(hello)) => Ok(hello),
        Some(ClientBody::Requests(_)) => Err(Malformed::new(
            "body",
            "requests",
            "hello as the first message of a stream",
        )),
        None => Err(Malformed::missing("body")),
    }
}

/// The `Welcome` in a stream's first message.
///
/// # Errors
/// [`Malformed`] if it is something else. Its fields are for
/// [`decode_welcome`](super::handshake::decode_welcome) to check.
pub fn open_welcome(message: wire::ServerMessage) -> Result<wire::Welcome, Malformed> {
    match message.body {
        Some(ServerBody::Welcome(welcome)) => Ok(welcome),
        _ => Err(Malformed::new(
            "body",
            "not a welcome",
            "welcome as the first message of a stream",
        )),
    }
}

/// A holder's batch, from any message of a stream but its first.
///
/// # Errors
/// [`Malformed`] if it is something else, or at the first field that breaks a rule.
pub fn decode_from_holder(message: wire::ClientMessage) -> Result<HolderMessage, Malformed> {
    match message.body {
        Some(ClientBody::Requests(batch)) => requests::decode(batch),
        Some(ClientBody::Hello(_)) => Err(Malformed::new(
            "body",
            "hello",
            "requests after the first message of a stream",
        )),
        None => Err(Malformed::missing("body")),
    }
}

/// What an authority says, in its envelopes: one, or more if there are more answers than one
/// batch may have.
#[must_use]
pub fn encode_from_authority(message: &FromAuthority) -> Vec<wire::ServerMessage> {
    let body = match message {
        FromAuthority::Answers(message) => {
            return answers::encode(message.anchor, &message.answers)
                .map(|batch| wire::ServerMessage {
                    body: Some(ServerBody::Answers(batch)),
                })
                .collect();
        }
        FromAuthority::Policies(notice) => ServerBody::Policies(notice::encode_policies(notice)),
        FromAuthority::ShardMap(map) => ServerBody::ShardMap(notice::encode_shard_map(map)),
        FromAuthority::NotOwner(hint) => ServerBody::NotOwner(notice::encode_not_owner(hint)),
        FromAuthority::GoAway(farewell) => ServerBody::GoAway(notice::encode_go_away(farewell)),
        FromAuthority::Unknown => return Vec::new(),
    };
    vec![wire::ServerMessage { body: Some(body) }]
}

/// What an authority says, from any message of a stream but its first.
///
/// # Errors
/// [`Malformed`] if it is a second welcome, or at the first field that breaks a rule.
pub fn decode_from_authority(message: wire::ServerMessage) -> Result<FromAuthority, Malformed> {
    match message.body {
        Some(ServerBody::Answers(batch)) => answers::decode(&batch).map(FromAuthority::Answers),
        Some(ServerBody::Policies(notice)) => {
            notice::decode_policies(notice).map(FromAuthority::Policies)
        }
        Some(ServerBody::ShardMap(map)) => {
            notice::decode_shard_map(map).map(FromAuthority::ShardMap)
        }
        Some(ServerBody::NotOwner(hint)) => {
            notice::decode_not_owner(hint).map(FromAuthority::NotOwner)
        }
        Some(ServerBody::GoAway(farewell)) => {
            notice::decode_go_away(farewell).map(FromAuthority::GoAway)
        }
        Some(ServerBody::Welcome(_)) => Err(Malformed::new(
            "body",
            "welcome",
            "anything else after the first message of a stream",
        )),
        None => Ok(FromAuthority::Unknown),
    }
}
