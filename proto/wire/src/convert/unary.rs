//! The single calls of the allocator.

use quota_core::id::{Incarnation, LeaseId, PolicyVersion, Sequence};
use quota_core::key::BucketAddress;
use quota_core::message::HELD_MAX;
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use super::common::{
    check_count, decode_bucket, decode_incarnation, decode_lease, decode_name, decode_number,
    decode_term, decode_total, encode_bucket, encode_lease, encode_term,
};
use crate::limits::{NAMESPACES_MAX, TOTAL_MAX, WAIT_SECONDS_MAX};
use crate::malformed::Malformed;
use crate::proto as wire;

/// Who repeats a call, so that a retry takes no further tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The caller. Never zero.
    pub incarnation: Incarnation,
    /// Grows with every new call for a bucket. Never zero.
    pub sequence: Sequence,
}

/// Takes tokens from one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The bucket.
    pub bucket: BucketAddress,
    /// Tokens asked for, at least one.
    pub tokens: Tokens,
    /// The smallest grant that is of use, from one to `tokens`.
    pub least: Tokens,
    /// How long to wait for them.
    pub wait: Term,
    /// Whether the tokens are a lease, to be released, rather than spent at once.
    pub hold: bool,
    /// What makes a retry safe, if the caller cares.
    pub retry: Option<Retry>,
}

/// The call.
#[must_use]
pub fn encode_acquire(acquire: &Acquire) -> wire::AcquireRequest {
    wire::AcquireRequest {
        bucket: Some(encode_bucket(&acquire.bucket)),
        tokens: acquire.tokens.get(),
        least: acquire.least.get(),
        wait: Some(encode_term(acquire.wait)),
        hold: acquire.hold,
        incarnation: acquire.retry.map_or(0, |retry| retry.incarnation.get()),
        sequence: acquire.retry.map_or(0, |retry| retry.sequence.get()),
    }
}

/// The call.
///
/// # Errors
/// [`Malformed`] at the first field that breaks a rule of the schema.
pub fn decode_acquire(request: wire::AcquireRequest) -> Result<Acquire, Malformed> {
    let tokens = decode_number("tokens", request.tokens, 1, HELD_MAX.get())?;
    let least = match decode_number("least", request.least, 0, tokens)? {
        0 => tokens,
        least => least,
    };
    let wait = decode_term("wait", request.wait.unwrap_or_default())?;
    if wait > Term::from_seconds(WAIT_SECONDS_MAX) {
        return Err(Malformed::new(
            "wait",
            format!("{} s", wait.as_seconds_ceil()),
            format!("at most {WAIT_SECONDS_MAX} s"),
        ));
    }
    let sequence = decode_total("sequence", request.sequence)?;
    let retry = match (request.incarnation, sequence) {
        (0, 0) => None,
        (0, _) => return Err(Malformed::new("incarnation", 0, "not zero with a sequence")),
        (_, 0) => {
            return Err(Malformed::new(
                "sequence",
                0,
                "not zero with an incarnation",
            ));
        }
        (incarnation, sequence) => Some(Retry {
            incarnation: Incarnation::new(incarnation),
            sequence: Sequence::new(sequence),
        }),
    };
    Ok(Acquire {
        bucket: decode_bucket("bucket", request.bucket)?,
        tokens: Tokens::new(tokens),
        least: Tokens::new(least),
        wait,
        hold: request.hold,
        retry,
    })
}

/// A lease that a single call opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lease.
    pub lease: LeaseId,
    /// Whom it is bound to.
    pub incarnation: Incarnation,
    /// How long it lasts, counted from when the request was sent.
    pub term: Term,
}

/// Tokens taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// How many.
    pub granted: Tokens,
    /// The lease, if they are to be held.
    pub held: Option<Held>,
    /// The version of the policy applied.
    pub version: PolicyVersion,
}

/// The response.
#[must_use]
pub fn encode_acquired(acquired: &Acquired) -> wire::AcquireResponse {
    wire::AcquireResponse {
        granted: acquired.granted.get(),
        lease: acquired.held.map(|held| encode_lease(held.lease)),
        incarnation: acquired.held.map_or(0, |held| held.incarnation.get()),
        term: acquired.held.map(|held| encode_term(held.term)),
        policy_version: acquired.version.get(),
    }
}

/// The response.
///
/// # Errors
/// [`Malformed`] at the first field that breaks a rule of the schema.
pub fn decode_acquired(response: wire::AcquireResponse) -> Result<Acquired, Malformed> {
    let held = match response.lease {
        None => None,
        Some(lease) => Some(Held {
            lease: decode_lease("lease", lease)?,
            incarnation: decode_incarnation("incarnation", response.incarnation)?,
            term: decode_term(
                "term",
                response.term.ok_or_else(|| Malformed::missing("term"))?,
            )?,
        }),
    };
    Ok(Acquired {
        granted: Tokens::new(decode_number(
            "granted",
            response.granted,
            1,
            HELD_MAX.get(),
        )?),
        held,
        version: PolicyVersion::new(response.policy_version),
    })
}

/// Ends a lease that a single call opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The bucket.
    pub bucket: BucketAddress,
    /// The lease.
    pub lease: LeaseId,
    /// Whom it is bound to.
    pub incarnation: Incarnation,
    /// Tokens of it that were spent.
    pub spent: Tokens,
    /// Tokens of it that were not and never will be.
    pub returned: Tokens,
}

/// The call.
#[must_use]
pub fn encode_release(release: &Release) -> wire::ReleaseRequest {
    wire::ReleaseRequest {
        bucket: Some(encode_bucket(&release.bucket)),
        lease: Some(encode_lease(release.lease)),
        incarnation: release.incarnation.get(),
        spent: release.spent.get(),
        returned: release.returned.get(),
    }
}

/// The call.
///
/// # Errors
/// [`Malformed`] at the first field that breaks a rule of the schema.
pub fn decode_release(request: wire::ReleaseRequest) -> Result<Release, Malformed> {
    let lease = request.lease.ok_or_else(|| Malformed::missing("lease"))?;
    Ok(Release {
        bucket: decode_bucket("bucket", request.bucket)?,
        lease: decode_lease("lease", lease)?,
        incarnation: decode_incarnation("incarnation", request.incarnation)?,
        spent: Tokens::new(decode_number("spent", request.spent, 0, TOTAL_MAX)?),
        returned: Tokens::new(decode_number("returned", request.returned, 0, TOTAL_MAX)?),
    })
}

/// Which policies to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchPolicies {
    /// Only these namespaces; empty for all.
    pub namespaces: Vec<String>,
    /// The revision that the caller has; zero for none.
    pub known_revision: u64,
}

/// The call.
#[must_use]
pub fn encode_watch(watch: &WatchPolicies) -> wire::WatchPoliciesRequest {
    wire::WatchPoliciesRequest {
        namespaces: watch.namespaces.clone(),
        known_revision: watch.known_revision,
    }
}

/// The call.
///
/// # Errors
/// [`Malformed`] if there are too many namespaces, or one is empty or too long.
pub fn decode_watch(request: wire::WatchPoliciesRequest) -> Result<WatchPolicies, Malformed> {
    check_count("namespaces", request.namespaces.len(), NAMESPACES_MAX)?;
    let namespaces = request
        .namespaces
        .into_iter()
        .enumerate()
        .map(|(index, name)| decode_name(&format!("namespaces[{index}]"), name))
        .collect::<Result<_, _>>()?;
    Ok(WatchPolicies {
        namespaces,
        known_revision: request.known_revision,
    })
}
