//! What an authority tells its holders beside answers: policies, shards, and that it is leaving.

use quota_core::id::{KeyNumber, ShardId};
use quota_core::key::PolicyId;
use quota_core::time::Term;

use super::common::{check_count, decode_policy_id, decode_text, encode_policy_id};
use crate::limits::{
    ADDRESS_BYTES_MAX, ITEMS_MAX, LABEL_BYTES_MAX, NODES_MAX, NOTICE_POLICIES_MAX, SHARDS_MAX,
    TEXT_BYTES_MAX,
};
use crate::malformed::Malformed;
use crate::proto as wire;

/// Policies changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNotice {
    /// The revision that the policies have reached.
    pub revision: u64,
    /// Which changed; empty if any may have.
    pub policies: Vec<PolicyId>,
}

/// The notice. One that names more than [`NOTICE_POLICIES_MAX`] policies is sent naming none,
/// which means the same.
#[must_use]
pub fn encode_policies(notice: &PolicyNotice) -> wire::PolicyNotice {
    let policies = if notice.policies.len() > NOTICE_POLICIES_MAX {
        Vec::new()
    } else {
        notice.policies.iter().map(encode_policy_id).collect()
    };
    wire::PolicyNotice {
        revision: notice.revision,
        policies,
    }
}

/// The notice.
///
/// # Errors
/// [`Malformed`] if it names too many policies or one has no proper name.
pub fn decode_policies(notice: wire::PolicyNotice) -> Result<PolicyNotice, Malformed> {
    check_count(
        "policies.policies",
        notice.policies.len(),
        NOTICE_POLICIES_MAX,
    )?;
    let policies = notice
        .policies
        .into_iter()
        .enumerate()
        .map(|(index, id)| decode_policy_id(&format!("policies.policies[{index}]"), id))
        .collect::<Result<_, _>>()?;
    Ok(PolicyNotice {
        revision: notice.revision,
        policies,
    })
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `host:port`.
    pub address: String,
}

fn encode_node(node: &Node) -> wire::Node {
    wire::Node {
        name: node.name.clone(),
        address: node.address.clone(),
    }
}

fn decode_node(path: &str, node: wire::Node) -> Result<Node, Malformed> {
    if node.address.is_empty() {
        return Err(Malformed::new(
            format!("{path}.address"),
            "empty",
            "host:port",
        ));
    }
    Ok(Node {
        name: decode_text(&format!("{path}.name"), node.name, LABEL_BYTES_MAX)?,
        address: decode_text(&format!("{path}.address"), node.address, ADDRESS_BYTES_MAX)?,
    })
}

fn decode_nodes(path: &str, nodes: Vec<wire::Node>) -> Result<Vec<Node>, Malformed> {
    check_count(path, nodes.len(), NODES_MAX)?;
    nodes
        .into_iter()
        .enumerate()
        .map(|(index, node)| decode_node(&format!("{path}[{index}]"), node))
        .collect()
}

/// Which node serves which shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// Grows with every change.
    pub revision: u64,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// For each shard its owner as an index into `nodes`, if it has one.
    pub owners: Vec<Option<u32>>,
}

/// The map.
#[must_use]
pub fn encode_shard_map(map: &ShardMap) -> wire::ShardMap {
    wire::ShardMap {
        revision: map.revision,
        nodes: map.nodes.iter().map(encode_node).collect(),
        owners: map
            .owners
            .iter()
            .map(|owner| owner.map_or(0, |index| index.saturating_add(1)))
            .collect(),
    }
}

/// The map.
///
/// # Errors
/// [`Malformed`] if there are too many shards or nodes, no shards, or an owner is not a node.
pub fn decode_shard_map(map: wire::ShardMap) -> Result<ShardMap, Malformed> {
    let nodes = decode_nodes("shard_map.nodes", map.nodes)?;
    check_count("shard_map.owners", map.owners.len(), SHARDS_MAX)?;
    if map.owners.is_empty() {
        return Err(Malformed::new("shard_map.owners", "empty", "1 or more"));
    }
    let owner = |(index, owner): (usize, u32)| match owner.checked_sub(1) {
        None => Ok(None),
        Some(node) if usize::try_from(node).is_ok_and(|node| node < nodes.len()) => Ok(Some(node)),
        Some(_) => Err(Malformed::new(
            format!("shard_map.owners[{index}]"),
            owner,
            format!("0 to the number of nodes, {}", nodes.len()),
        )),
    };
    let owners = map
        .owners
        .into_iter()
        .enumerate()
        .map(owner)
        .collect::<Result<_, _>>()?;
    Ok(ShardMap {
        revision: map.revision,
        nodes,
        owners,
    })
}

/// Requests went to a node that does not own their shard; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotOwner {
    /// The shard.
    pub shard: ShardId,
    /// The keys asked for that fall in it.
    pub keys: Vec<KeyNumber>,
    /// Who serves it, if known.
    pub owner: Option<Node>,
}

/// The hint. At most [`ITEMS_MAX`] keys, which is what one batch can have asked for.
#[must_use]
pub fn encode_not_owner(hint: &NotOwner) -> wire::NotOwner {
    wire::NotOwner {
        shard: hint.shard.get(),
        keys: hint.keys.iter().map(|key| key.get()).collect(),
        owner: hint.owner.as_ref().map(encode_node),
    }
}

/// The hint.
///
/// # Errors
/// [`Malformed`] if it names too many keys or its owner has no proper address.
pub fn decode_not_owner(hint: wire::NotOwner) -> Result<NotOwner, Malformed> {
    check_count("not_owner.keys", hint.keys.len(), ITEMS_MAX)?;
    let owner = hint
        .owner
        .map(|node| decode_node("not_owner.owner", node))
        .transpose()?;
    Ok(NotOwner {
        shard: ShardId::new(hint.shard),
        keys: hint.keys.into_iter().map(KeyNumber::new).collect(),
        owner,
    })
}

/// Why a node ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoAwayReason {
    /// Not said, or not known to this version.
    Unspecified,
    /// It stops or hands its shards over.
    Draining,
    /// The same incarnation opened another stream.
    Replaced,
    /// The holder sends too much, or does not read.
    TooSlow,
}

/// The node is about to end the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoAway {
    /// Why.
    pub reason: GoAwayReason,
    /// For how long final reports are still read.
    pub grace: Term,
    /// Where to connect instead; empty for here again, after a pause.
    pub instead: Vec<Node>,
    /// For logs. Cut to [`TEXT_BYTES_MAX`] when it is sent.
    pub message: String,
}

/// The farewell.
#[must_use]
pub fn encode_go_away(farewell: &GoAway) -> wire::GoAway {
    let reason = match farewell.reason {
        GoAwayReason::Unspecified => wire::GoAwayReason::Unspecified,
        GoAwayReason::Draining => wire::GoAwayReason::Draining,
        GoAwayReason::Replaced => wire::GoAwayReason::Replaced,
        GoAwayReason::TooSlow => wire::GoAwayReason::TooSlow,
    };
    let fits = |end: &usize| farewell.message.is_char_boundary(*end);
    let longest = farewell.message.len().min(TEXT_BYTES_MAX);
    let end = (0..=longest).rev().find(fits).expect("zero is a boundary");
    wire::GoAway {
        reason: reason.into(),
        grace_nanos: farewell.grace.as_nanos(),
        instead: farewell.instead.iter().map(encode_node).collect(),
        message: farewell.message[..end].to_owned(),
    }
}

/// The farewell. A reason that is not known reads as unspecified: a holder leaves either way.
///
/// # Errors
/// [`Malformed`] if it names too many nodes, one without a proper address, or says too much.
pub fn decode_go_away(farewell: wire::GoAway) -> Result<GoAway, Malformed> {
    let reason = match farewell.reason() {
        wire::GoAwayReason::Unspecified => GoAwayReason::Unspecified,
        wire::GoAwayReason::Draining => GoAwayReason::Draining,
        wire::GoAwayReason::Replaced => GoAwayReason::Replaced,
        wire::GoAwayReason::TooSlow => GoAwayReason::TooSlow,
    };
    Ok(GoAway {
        reason,
        grace: Term::from_nanos(farewell.grace_nanos),
        instead: decode_nodes("go_away.instead", farewell.instead)?,
        message: decode_text("go_away.message", farewell.message, TEXT_BYTES_MAX)?,
    })
}
