//! Every rule of the schema, broken one at a time: each case says which field the error names and
//! what it says is allowed there.

mod batches;
mod calls;
mod policies;
mod streams;

use quota_wire::proto as wire;
use quota_wire::{Malformed, status};

/// Breaks a legal message.
pub(crate) type Break<M> = fn(&mut M);

/// Each break of `legal` must be refused with an error that reads as given; `legal` must not.
pub(crate) fn refuses<M: Clone, D: std::fmt::Debug>(
    legal: &M,
    decode: impl Fn(M) -> Result<D, Malformed>,
    cases: &[(Break<M>, &str)],
) {
    decode(legal.clone()).expect("legal before it is broken");
    for (break_, expected) in cases {
        let mut message = legal.clone();
        break_(&mut message);
        match decode(message) {
            Ok(accepted) => panic!("accepted, instead of {expected:?}: {accepted:?}"),
            Err(error) => assert_eq!(error.to_string(), *expected),
        }
    }
}

pub(crate) fn policy_id() -> wire::PolicyId {
    wire::PolicyId {
        namespace: "default".to_owned(),
        name: "api".to_owned(),
    }
}

pub(crate) fn duration(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

#[test]
fn a_malformed_message_becomes_an_invalid_argument_with_its_field() {
    let error = Malformed::new("requests.want[3]", "x".repeat(500), "less");
    let refused = tonic::Status::from(error);
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let detail = status::detail(&refused).expect("a detail");
    assert_eq!(detail.reason(), wire::ErrorReason::Malformed);
    assert_eq!(detail.fields[0].field, "requests.want[3]");
    assert_eq!(detail.fields[0].found.chars().count(), 81, "shortened");
}
