//! Kill switches.

use quota_core::time::Term;
use quota_wire::Malformed;
use quota_wire::convert::common::decode_term;
use quota_wire::convert::switch::{decode_mode, decode_reason, decode_scope, encode_switches};
use quota_wire::proto as wire;
use tonic::Status;

use super::refusal;
use crate::node::Node;
use crate::node::policies::switches::{SwitchRequest, in_force};

/// A switch that is over sooner would be so before the last gateway has heard of it.
const EXPIRES_MIN: Term = Term::from_seconds(1);

/// Sets a switch.
pub(super) async fn set(
    node: &Node,
    call: wire::SetKillSwitchRequest,
) -> Result<wire::SetKillSwitchResponse, Status> {
    let mode = decode_mode("mode", call.mode)?;
    let expires_after = call
        .expires_after
        .map(|span| decode_term("expires_after", span))
        .transpose()?;
    if expires_after.is_some_and(|term| term < EXPIRES_MIN) {
        return Err(
            Malformed::new("expires_after", "less than 1 s", "1 s or more, or absent").into(),
        );
    }
    if mode.is_none() && expires_after.is_some() {
        return Err(Malformed::new("expires_after", "set", "absent with the mode OFF").into());
    }
    let request = SwitchRequest {
        scope: decode_scope("scope", call.scope)?,
        mode,
        expires_after,
        reason: decode_reason("reason", call.reason)?,
    };
    let changed = node.policies.switch(request).await;
    let changed = changed.map_err(|refused| refusal(&refused))?;
    Ok(wire::SetKillSwitchResponse {
        revision: changed.revision,
        changed: changed.changed,
    })
}

/// The switches that are set.
pub(super) fn list(node: &Node) -> wire::ListKillSwitchesResponse {
    let snapshot = node.policies.snapshot();
    wire::ListKillSwitchesResponse {
        switches: encode_switches(&in_force(snapshot.switches())).switches,
        revision: snapshot.revision(),
    }
}
