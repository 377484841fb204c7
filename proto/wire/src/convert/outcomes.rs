//! What policies decided at gateways beside the ledger.

use quota_core::key::PolicyId;
use quota_core::outcomes::Outcomes;

use super::common::{check_count, decode_policy_id, encode_policy_id};
use crate::limits::OUTCOMES_MAX;
use crate::malformed::Malformed;
use crate::proto as wire;

/// The counts of one policy.
#[must_use]
pub fn encode_outcomes(policy: &PolicyId, outcomes: &Outcomes) -> wire::PolicyOutcomes {
    wire::PolicyOutcomes {
        policy: Some(encode_policy_id(policy)),
        shadow_admitted: outcomes.shadow_admitted,
        shadow_refused: outcomes.shadow_refused,
        shadow_undecided: outcomes.shadow_undecided,
        switch_admitted: outcomes.switch_admitted,
        switch_refused: outcomes.switch_refused,
        outage_open: outcomes.outage_open,
        outage_listed: outcomes.outage_listed,
        outage_refused: outcomes.outage_refused,
    }
}

/// The counts of one policy, from the field `path`.
///
/// # Errors
/// [`Malformed`] if the policy is absent or has no proper name.
pub fn decode_outcomes(
    path: &str,
    outcomes: wire::PolicyOutcomes,
) -> Result<(PolicyId, Outcomes), Malformed> {
    let path = format!("{path}.policy");
    let policy = outcomes.policy.ok_or_else(|| Malformed::missing(&path))?;
    let counts = Outcomes {
        shadow_admitted: outcomes.shadow_admitted,
        shadow_refused: outcomes.shadow_refused,
        shadow_undecided: outcomes.shadow_undecided,
        switch_admitted: outcomes.switch_admitted,
        switch_refused: outcomes.switch_refused,
        outage_open: outcomes.outage_open,
        outage_listed: outcomes.outage_listed,
        outage_refused: outcomes.outage_refused,
    };
    Ok((decode_policy_id(&path, policy)?, counts))
}

/// The counts that came with a batch, whose other fields are left as they are.
///
/// # Errors
/// [`Malformed`] if there are too many, or one has no proper policy.
pub fn take_outcomes(
    message: &mut wire::ClientMessage,
) -> Result<Vec<(PolicyId, Outcomes)>, Malformed> {
    let Some(wire::client_message::Body::Requests(batch)) = &mut message.body else {
        return Ok(Vec::new());
    };
    let outcomes = std::mem::take(&mut batch.outcomes);
    check_count("requests.outcomes", outcomes.len(), OUTCOMES_MAX)?;
    let decoded = outcomes
        .into_iter()
        .enumerate()
        .map(|(index, one)| decode_outcomes(&format!("requests.outcomes[{index}]"), one));
    decoded.collect()
}

/// Sends counts with a batch: at most [`OUTCOMES_MAX`], so that the message stays within its bounds.
pub fn put_outcomes(message: &mut wire::ClientMessage, outcomes: Vec<wire::PolicyOutcomes>) {
    assert!(outcomes.len() <= OUTCOMES_MAX, "the caller counts them");
    if let Some(wire::client_message::Body::Requests(batch)) = &mut message.body {
        batch.outcomes = outcomes;
    }
}
