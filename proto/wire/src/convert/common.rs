//! Identities, spans and texts.

use quota_core::id::{Epoch, Incarnation, LeaseId};
use quota_core::key::{BucketAddress, Key, NAME_BYTES_MAX, PolicyId};
use quota_core::time::{NANOS_PER_SECOND, Term};

use crate::limits::TOTAL_MAX;
use crate::malformed::Malformed;
use crate::proto as wire;

/// A policy's identity.
#[must_use]
pub fn encode_policy_id(id: &PolicyId) -> wire::PolicyId {
    wire::PolicyId {
        namespace: id.namespace.clone(),
        name: id.name.clone(),
    }
}

/// A policy's identity, from the field `path`.
///
/// # Errors
/// [`Malformed`] if a name is empty or too long.
pub fn decode_policy_id(path: &str, id: wire::PolicyId) -> Result<PolicyId, Malformed> {
    Ok(PolicyId {
        namespace: decode_name(&format!("{path}.namespace"), id.namespace)?,
        name: decode_name(&format!("{path}.name"), id.name)?,
    })
}

pub(super) fn decode_name(path: &str, name: String) -> Result<String, Malformed> {
    if name.is_empty() {
        return Err(Malformed::new(
            path,
            "empty",
            format!("1 to {NAME_BYTES_MAX} bytes"),
        ));
    }
    decode_text(path, name, NAME_BYTES_MAX)
}

pub(super) fn decode_text(path: &str, text: String, bytes_max: usize) -> Result<String, Malformed> {
    if text.len() > bytes_max {
        return Err(Malformed::new(
            path,
            format!("{} bytes long", text.len()),
            format!("at most {bytes_max} bytes"),
        ));
    }
    Ok(text)
}

/// A bucket's address.
#[must_use]
pub fn encode_bucket(bucket: &BucketAddress) -> wire::Bucket {
    wire::Bucket {
        policy: Some(encode_policy_id(&bucket.policy)),
        key: Some(wire::Key {
            values: bucket.key.values().map(<[u8]>::to_vec).collect(),
        }),
    }
}

/// A bucket's address, from the required field `path`.
///
/// # Errors
/// [`Malformed`] if the field or its policy is absent, a name is empty or too long, or the values
/// are too many or too long.
pub fn decode_bucket(path: &str, bucket: Option<wire::Bucket>) -> Result<BucketAddress, Malformed> {
    let bucket = bucket.ok_or_else(|| Malformed::missing(path))?;
    let policy = bucket
        .policy
        .ok_or_else(|| Malformed::missing(format!("{path}.policy")))?;
    let values = bucket.key.map(|key| key.values).unwrap_or_default();
    Ok(BucketAddress {
        policy: decode_policy_id(&format!("{path}.policy"), policy)?,
        key: Key::from_values(&values).map_err(|error| key_error(path, error))?,
    })
}

pub(super) fn key_error(path: &str, error: quota_core::key::KeyError) -> Malformed {
    use quota_core::key::{DIMENSIONS_MAX, KeyError, VALUE_BYTES_MAX};
    match error {
        KeyError::TooManyValues { count } => Malformed::new(
            format!("{path}.key"),
            format!("{count} values"),
            format!("at most {DIMENSIONS_MAX} values"),
        ),
        KeyError::ValueTooLong { index, bytes } => Malformed::new(
            format!("{path}.key.values[{index}]"),
            format!("{bytes} bytes long"),
            format!("at most {VALUE_BYTES_MAX} bytes: hash or shorten it"),
        ),
        KeyError::NotCanonical => Malformed::new(
            format!("{path}.key"),
            "not a canonical encoding",
            "each value as a two-byte big-endian length and its bytes",
        ),
    }
}

/// A lease's identity.
#[must_use]
pub fn encode_lease(lease: LeaseId) -> wire::LeaseId {
    wire::LeaseId {
        epoch: lease.epoch.get(),
        counter: lease.counter,
    }
}

/// A lease's identity, from the field `path`.
///
/// # Errors
/// [`Malformed`] if its counter is zero, which no lease has.
pub fn decode_lease(path: &str, lease: wire::LeaseId) -> Result<LeaseId, Malformed> {
    if lease.counter == 0 {
        return Err(Malformed::new(format!("{path}.counter"), 0, "1 or more"));
    }
    Ok(LeaseId {
        epoch: Epoch::new(lease.epoch),
        counter: lease.counter,
    })
}

/// An incarnation, from the field `path`.
pub(super) fn decode_incarnation(path: &str, raw: u64) -> Result<Incarnation, Malformed> {
    if raw == 0 {
        return Err(Malformed::new(
            path,
            0,
            "a random number other than zero, drawn at start",
        ));
    }
    Ok(Incarnation::new(raw))
}

/// A span. Exact.
#[must_use]
pub fn encode_term(term: Term) -> prost_types::Duration {
    let nanos = term.as_nanos();
    prost_types::Duration {
        seconds: i64::try_from(nanos / NANOS_PER_SECOND).expect("2^64 ns are below 2^63 s"),
        nanos: i32::try_from(nanos % NANOS_PER_SECOND).expect("below 10^9"),
    }
}

/// A span, from the field `path`.
///
/// # Errors
/// [`Malformed`] if it is negative, not normalised, or 2⁶⁴ nanoseconds (584 years) or more.
pub fn decode_term(path: &str, duration: prost_types::Duration) -> Result<Term, Malformed> {
    let nanos = u64::try_from(duration.nanos)
        .ok()
        .filter(|nanos| *nanos < NANOS_PER_SECOND);
    u64::try_from(duration.seconds)
        .ok()
        .and_then(|seconds| seconds.checked_mul(NANOS_PER_SECOND))
        .and_then(|whole| whole.checked_add(nanos?))
        .map(Term::from_nanos)
        .ok_or_else(|| {
            Malformed::new(
                path,
                format!("{} s and {} ns", duration.seconds, duration.nanos),
                "no less than zero, at most 584 years, with 0 to 999,999,999 ns",
            )
        })
}

/// A number in `min..=max`, from the field `path`.
pub(super) fn decode_number<N: PartialOrd + std::fmt::Display + Copy>(
    path: &str,
    value: N,
    min: N,
    max: N,
) -> Result<N, Malformed> {
    if value < min || value > max {
        return Err(Malformed::new(path, value, format!("{min} to {max}")));
    }
    Ok(value)
}

/// A running total, from the field `path`.
pub(super) fn decode_total(path: &str, value: u64) -> Result<u64, Malformed> {
    decode_number(path, value, 0, TOTAL_MAX)
}

/// Refuses more than `max` entries in the field `path`.
pub(super) fn check_count(path: &str, count: usize, max: usize) -> Result<(), Malformed> {
    if count > max {
        return Err(Malformed::new(
            path,
            format!("{count} entries long"),
            format!("at most {max} entries"),
        ));
    }
    Ok(())
}
