//! Errors as gRPC statuses with structured details, and back.
//!
//! Every status built here carries exactly one [`wire::ErrorDetail`], packed the way gRPC tools
//! look for it; [`detail`] reads it again.

use prost::Message as _;
use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::message::Refusal;
use quota_core::policy::PolicyError;
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use tonic::{Code, Status};

use crate::convert::common::{decode_term, encode_policy_id, encode_term};
use crate::convert::handshake::{HelloError, NotSpoken};
use crate::malformed::Malformed;
use crate::proto as wire;
use crate::proto::ErrorReason as Reason;

const DETAIL_TYPE_URL: &str = "type.googleapis.com/quota.v1.ErrorDetail";

/// A status with `detail`.
#[must_use]
pub fn with_detail(code: Code, message: impl Into<String>, detail: &wire::ErrorDetail) -> Status {
    let message = message.into();
    let packed = wire::RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![prost_types::Any {
            type_url: DETAIL_TYPE_URL.to_owned(),
            value: detail.encode_to_vec(),
        }],
    };
    Status::with_details(code, message, packed.encode_to_vec().into())
}

/// The detail of a status that a server of this API sent; `None` if it has none that can be read,
/// as for errors made by the transport or a proxy.
#[must_use]
pub fn detail(status: &Status) -> Option<wire::ErrorDetail> {
    let packed = wire::RpcStatus::decode(status.details()).ok()?;
    let detail = packed
        .details
        .iter()
        .find(|detail| detail.type_url == DETAIL_TYPE_URL)?;
    wire::ErrorDetail::decode(&detail.value[..]).ok()
}

/// The time after which a status says to ask again, if it says so.
#[must_use]
pub fn retry_after(detail: &wire::ErrorDetail) -> Option<Term> {
    decode_term("retry_after", detail.retry_after?).ok()
}

fn reason(reason: Reason) -> wire::ErrorDetail {
    wire::ErrorDetail {
        reason: reason.into(),
        ..wire::ErrorDetail::default()
    }
}

fn about(reason_: Reason, policy: Option<&PolicyId>) -> wire::ErrorDetail {
    wire::ErrorDetail {
        policy: policy.map(encode_policy_id),
        ..reason(reason_)
    }
}

/// "policy api/search", or as much of it as is known.
fn named(policy: Option<&PolicyId>) -> String {
    policy.map_or_else(|| "the policy".to_owned(), |id| format!("policy {id}"))
}

/// INVALID_ARGUMENT: a message breaks a rule of the schema.
#[must_use]
pub fn malformed(error: &Malformed) -> Status {
    let detail = wire::ErrorDetail {
        fields: vec![wire::FieldViolation {
            field: error.field.clone(),
            found: error.found.clone(),
            allowed: error.allowed.clone().into_owned(),
        }],
        ..reason(Reason::Malformed)
    };
    with_detail(Code::InvalidArgument, error.to_string(), &detail)
}

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Self {
        malformed(&error)
    }
}

/// FAILED_PRECONDITION: no common protocol version.
#[must_use]
pub fn not_spoken(error: &NotSpoken) -> Status {
    let detail = wire::ErrorDetail {
        protocols: Some(wire::ProtocolRange {
            min: error.server.min,
            max: error.server.max,
        }),
        ..reason(Reason::ProtocolNotSpoken)
    };
    with_detail(Code::FailedPrecondition, error.to_string(), &detail)
}

impl From<HelloError> for Status {
    fn from(error: HelloError) -> Self {
        match error {
            HelloError::NotSpoken(error) => not_spoken(&error),
            HelloError::Malformed(error) => malformed(&error),
        }
    }
}

/// A refusal of the core, for a single call: NOT_FOUND, OUT_OF_RANGE or UNAVAILABLE.
#[must_use]
pub fn refused(refusal: Refusal, policy: Option<&PolicyId>) -> Status {
    match refusal {
        Refusal::UnknownPolicy => unknown_policy(policy),
        Refusal::UnknownKey => with_detail(
            Code::NotFound,
            "the key number is not known in this stream: introduce it under a new number",
            &about(Reason::UnknownKey, policy),
        ),
        Refusal::KeyMismatch { dimensions } => with_detail(
            Code::FailedPrecondition,
            format!(
                "{} has {dimensions} key dimensions: give as many values",
                named(policy)
            ),
            &about(Reason::KeyMismatch, policy),
        ),
        Refusal::CostAboveCapacity { capacity } => cost_above_capacity(capacity, policy),
        Refusal::Busy { retry_after } => {
            let detail = wire::ErrorDetail {
                retry_after: Some(encode_term(retry_after)),
                ..about(Reason::Busy, policy)
            };
            let wait = retry_after.as_millis_ceil();
            let message = format!("the authority cannot take more work; ask again in {wait} ms");
            with_detail(Code::Unavailable, message, &detail)
        }
    }
}

/// NOT_FOUND: no such policy.
#[must_use]
pub fn unknown_policy(policy: Option<&PolicyId>) -> Status {
    let message = format!("{} is not known here", named(policy));
    with_detail(
        Code::NotFound,
        message,
        &about(Reason::UnknownPolicy, policy),
    )
}

/// OUT_OF_RANGE: more than the bucket can ever grant at once.
#[must_use]
pub fn cost_above_capacity(capacity: Tokens, policy: Option<&PolicyId>) -> Status {
    let detail = wire::ErrorDetail {
        capacity: Some(capacity.get()),
        ..about(Reason::CostAboveCapacity, policy)
    };
    let message = format!(
        "{} can never grant more than {capacity} tokens at once: waiting does not help",
        named(policy)
    );
    with_detail(Code::OutOfRange, message, &detail)
}

/// RESOURCE_EXHAUSTED: the quota is used up for now.
#[must_use]
pub fn quota_exhausted(retry_after: Term, policy: Option<&PolicyId>) -> Status {
    let detail = wire::ErrorDetail {
        retry_after: Some(encode_term(retry_after)),
        ..about(Reason::QuotaExhausted, policy)
    };
    let message = format!(
        "the quota of {} is exhausted; ask again in {} ms",
        named(policy),
        retry_after.as_millis_ceil()
    );
    with_detail(Code::ResourceExhausted, message, &detail)
}

/// ABORTED: the policy has another version than expected; `None` if there is no such policy.
#[must_use]
pub fn version_conflict(
    policy: &PolicyId,
    expected: PolicyVersion,
    current: Option<PolicyVersion>,
) -> Status {
    let detail = wire::ErrorDetail {
        version: Some(current.map_or(0, PolicyVersion::get)),
        ..about(Reason::VersionConflict, Some(policy))
    };
    let is = match current {
        Some(current) => format!("has version {current}"),
        None => "does not exist".to_owned(),
    };
    let message = format!(
        "policy {policy} {is}, where version {expected} was expected: read it again, then repeat"
    );
    with_detail(Code::Aborted, message, &detail)
}

/// INVALID_ARGUMENT: a policy breaks a rule of its schema.
#[must_use]
pub fn invalid_policy(policy: Option<&PolicyId>, error: &PolicyError) -> Status {
    let detail = wire::ErrorDetail {
        fields: vec![wire::FieldViolation {
            field: error.field().to_owned(),
            found: error.value().to_owned(),
            allowed: error.allowed().to_owned(),
        }],
        ..about(Reason::InvalidPolicy, policy)
    };
    with_detail(Code::InvalidArgument, error.to_string(), &detail)
}

/// FAILED_PRECONDITION: a living policy cannot be changed like this, or its kind is not served.
#[must_use]
pub fn change_not_allowed(policy: &PolicyId, why: impl Into<String>) -> Status {
    let detail = about(Reason::ChangeNotAllowed, Some(policy));
    with_detail(Code::FailedPrecondition, why, &detail)
}

/// FAILED_PRECONDITION: the lease is closed, another incarnation's, or never was.
#[must_use]
pub fn unknown_lease() -> Status {
    with_detail(
        Code::FailedPrecondition,
        "the lease is not open for this incarnation",
        &reason(Reason::UnknownLease),
    )
}

/// UNAVAILABLE: this node does not own the bucket's shard; `owner` is `host:port`, if known.
#[must_use]
pub fn not_owner(owner: Option<&str>) -> Status {
    let detail = wire::ErrorDetail {
        owner: owner.unwrap_or_default().to_owned(),
        ..reason(Reason::NotOwner)
    };
    let message = match owner {
        Some(owner) => format!("the bucket is served by {owner}"),
        None => "the bucket has no owner at the moment; try again".to_owned(),
    };
    with_detail(Code::Unavailable, message, &detail)
}

/// UNAVAILABLE: the node is stopping.
#[must_use]
pub fn draining() -> Status {
    with_detail(
        Code::Unavailable,
        "the node is stopping; connect to another one, or again in a moment",
        &reason(Reason::Draining),
    )
}

/// UNIMPLEMENTED: the call is laid out but not served yet.
#[must_use]
pub fn not_served(call: &str) -> Status {
    let message = format!("{call} is not served by this version");
    with_detail(Code::Unimplemented, message, &reason(Reason::NotServed))
}

/// UNAVAILABLE: an operator has switched the policy to refuse everything.
#[must_use]
pub fn switched_off(policy: &PolicyId) -> Status {
    let message = format!("an operator has switched policy {policy} to refuse everything for now");
    let detail = about(Reason::KillSwitch, Some(policy));
    with_detail(Code::Unavailable, message, &detail)
}
