//! The first message each way: who is calling, and which protocol version both speak.

use quota_core::id::Incarnation;

use super::common::{decode_incarnation, decode_number, decode_text};
use crate::limits::{
    INTRODUCTIONS_MAX, ITEMS_MAX, KEYS_MAX, LABEL_BYTES_MAX, MESSAGE_BYTES_MAX, SHARDS_MAX,
};
use crate::malformed::Malformed;
use crate::proto as wire;

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// The oldest.
    pub min: u32,
    /// The newest, at least `min`.
    pub max: u32,
}

/// What this build speaks.
pub const SPOKEN: Protocols = Protocols { min: 1, max: 1 };

impl Protocols {
    /// The newest version that both sides speak, if there is one.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// The two sides have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client speaks protocol versions {} to {}, this server {} to {}: upgrade the older side",
    client.min, client.max, server.min, server.max
)]
pub struct NotSpoken {
    /// What the caller speaks.
    pub client: Protocols,
    /// What this side speaks.
    pub server: Protocols,
}

/// Why a `Hello` is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// No common version.
    #[error(transparent)]
    NotSpoken(#[from] NotSpoken),
    /// A field breaks a rule.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Who is calling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the caller speaks.
    pub protocols: Protocols,
    /// One life of the caller. Never zero.
    pub incarnation: Incarnation,
    /// The calling program.
    pub client_name: String,
    /// Its version.
    pub client_version: String,
}

/// The opening message.
#[must_use]
pub fn encode_hello(hello: &Hello) -> wire::Hello {
    wire::Hello {
        protocol_min: hello.protocols.min,
        protocol_max: hello.protocols.max,
        incarnation: hello.incarnation.get(),
        client_name: hello.client_name.clone(),
        client_version: hello.client_version.clone(),
    }
}

/// Who is calling, and the version to speak with them on a server that speaks `server`.
///
/// The versions are looked at first: the rest of a message in a version that this side does not
/// speak may well break rules that it knows nothing of.
///
/// # Errors
/// [`HelloError`] if there is no common version or a field breaks a rule.
pub fn decode_hello(hello: wire::Hello, server: Protocols) -> Result<(u32, Hello), HelloError> {
    let min = decode_number("hello.protocol_min", hello.protocol_min, 1, u32::MAX)?;
    let max = decode_number("hello.protocol_max", hello.protocol_max, min, u32::MAX)?;
    let protocols = Protocols { min, max };
    let spoken = server.common(protocols).ok_or(NotSpoken {
        client: protocols,
        server,
    })?;
    let label = |path, text| decode_text(path, text, LABEL_BYTES_MAX);
    let hello = Hello {
        protocols,
        incarnation: decode_incarnation("hello.incarnation", hello.incarnation)?,
        client_name: label("hello.client_name", hello.client_name)?,
        client_version: label("hello.client_version", hello.client_version)?,
    };
    Ok((spoken, hello))
}

/// What a server accepts on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Longest encoded message, in bytes.
    pub message_bytes_max: u32,
    /// Most items in one batch.
    pub items_max: u32,
    /// Most introductions in one batch.
    pub introductions_max: u32,
    /// Most keys that one stream may introduce.
    pub keys_max: u32,
}

impl Default for StreamLimits {
    /// The limits of [`crate::limits`].
    fn default() -> Self {
        let narrow = |limit: usize| u32::try_from(limit).expect("limits are far below 2^32");
        Self {
            message_bytes_max: narrow(MESSAGE_BYTES_MAX),
            items_max: narrow(ITEMS_MAX),
            introductions_max: narrow(INTRODUCTIONS_MAX),
            keys_max: narrow(KEYS_MAX),
        }
    }
}

/// A server's acceptance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version to speak from here on.
    pub protocol: u32,
    /// The server's version.
    pub server_version: String,
    /// The node's name.
    pub node: String,
    /// Number of shards of the cluster.
    pub shards: u32,
    /// What the server accepts on this stream.
    pub limits: StreamLimits,
    /// Newest revision of the policies.
    pub policy_revision: u64,
}

/// The answer to a `Hello`.
#[must_use]
pub fn encode_welcome(welcome: &Welcome) -> wire::Welcome {
    let limits = welcome.limits;
    wire::Welcome {
        protocol: welcome.protocol,
        server_version: welcome.server_version.clone(),
        node: welcome.node.clone(),
        shards: welcome.shards,
        limits: Some(wire::StreamLimits {
            message_bytes_max: limits.message_bytes_max,
            items_max: limits.items_max,
            introductions_max: limits.introductions_max,
            keys_max: limits.keys_max,
        }),
        policy_revision: welcome.policy_revision,
    }
}

/// A server's answer to a client that said it speaks `client`.
///
/// # Errors
/// [`Malformed`] if the version was not offered or a field breaks a rule.
pub fn decode_welcome(welcome: wire::Welcome, client: Protocols) -> Result<Welcome, Malformed> {
    let protocol = decode_number("welcome.protocol", welcome.protocol, client.min, client.max)?;
    let label = |path, text| decode_text(path, text, LABEL_BYTES_MAX);
    let shards_max = u32::try_from(SHARDS_MAX).expect("far below 2^32");
    let limits = welcome
        .limits
        .ok_or_else(|| Malformed::missing("welcome.limits"))?;
    let positive =
        |name: &str, limit| decode_number(&format!("welcome.limits.{name}"), limit, 1, u32::MAX);
    Ok(Welcome {
        protocol,
        server_version: label("welcome.server_version", welcome.server_version)?,
        node: label("welcome.node", welcome.node)?,
        shards: decode_number("welcome.shards", welcome.shards, 1, shards_max)?,
        limits: StreamLimits {
            message_bytes_max: positive("message_bytes_max", limits.message_bytes_max)?,
            items_max: positive("items_max", limits.items_max)?,
            introductions_max: positive("introductions_max", limits.introductions_max)?,
            keys_max: positive("keys_max", limits.keys_max)?,
        },
        policy_revision: welcome.policy_revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let range = |min, max| Protocols { min, max };
        assert_eq!(range(1, 3).common(range(2, 9)), Some(3));
        assert_eq!(range(2, 9).common(range(1, 3)), Some(3));
        assert_eq!(range(1, 1).common(range(2, 3)), None);
        assert_eq!(range(4, 4).common(range(2, 3)), None);
    }
}
