//! The single calls.

use quota_wire::Malformed;
use quota_wire::convert::unary;
use quota_wire::proto as wire;

use super::{duration, policy_id, refuses};

fn bucket() -> Option<wire::Bucket> {
    Some(wire::Bucket {
        policy: Some(policy_id()),
        key: Some(wire::Key {
            values: vec![b"k".to_vec()],
        }),
    })
}

#[test]
fn single_calls_are_refused_by_field() {
    fn bucket_of(request: &mut wire::AcquireRequest) -> &mut wire::Bucket {
        request.bucket.as_mut().expect("there")
    }
    let acquire = wire::AcquireRequest {
        bucket: bucket(),
        tokens: 5,
        ..wire::AcquireRequest::default()
    };
    let span = "no less than zero, at most 584 years, with 0 to 999,999,999 ns";
    refuses(
        &acquire,
        unary::decode_acquire,
        &[
            (
                |r| r.bucket = None,
                "bucket is absent; allowed: it is required",
            ),
            (
                |r| bucket_of(r).policy = None,
                "bucket.policy is absent; allowed: it is required",
            ),
            (
                |r| bucket_of(r).policy = Some(wire::PolicyId::default()),
                "bucket.policy.namespace is empty; allowed: 1 to 128 bytes",
            ),
            (
                |r| bucket_of(r).key.as_mut().expect("there").values = vec![vec![]; 9],
                "bucket.key is 9 values; allowed: at most 8 values",
            ),
            (
                |r| bucket_of(r).key.as_mut().expect("there").values = vec![vec![0; 257]],
                "bucket.key.values[0] is 257 bytes long; allowed: at most 256 bytes: hash or \
                 shorten it",
            ),
            (|r| r.tokens = 0, "tokens is 0; allowed: 1 to 268435455"),
            (
                |r| r.tokens = 1 << 63,
                "tokens is 9223372036854775808; allowed: 1 to 268435455",
            ),
            (|r| r.least = 6, "least is 6; allowed: 0 to 5"),
            (
                |r| r.wait = duration(60, 1),
                "wait is 61 s; allowed: at most 60 s",
            ),
            (
                |r| r.incarnation = 1,
                "sequence is 0; allowed: not zero with an incarnation",
            ),
            (
                |r| r.sequence = 1,
                "incarnation is 0; allowed: not zero with a sequence",
            ),
            (
                |r| (r.incarnation, r.sequence) = (1, u64::MAX),
                "sequence is 18446744073709551615; allowed: 0 to 4611686018427387904",
            ),
        ],
    );
    for (bad, found) in [
        (duration(-1, 0), "-1 s and 0 ns"),
        (duration(0, -1), "0 s and -1 ns"),
        (duration(0, 1_000_000_000), "0 s and 1000000000 ns"),
        (duration(i64::MAX, 0), "9223372036854775807 s and 0 ns"),
    ] {
        let request = wire::AcquireRequest {
            wait: bad,
            ..acquire.clone()
        };
        let error = unary::decode_acquire(request).expect_err("not a span");
        assert_eq!(error, Malformed::new("wait", found, span));
    }
    let lease = Some(wire::LeaseId {
        epoch: 1,
        counter: 1,
    });
    let acquired = wire::AcquireResponse {
        granted: 1,
        lease,
        incarnation: 1,
        term: duration(1, 0),
        policy_version: 1,
    };
    refuses(
        &acquired,
        unary::decode_acquired,
        &[
            (|r| r.granted = 0, "granted is 0; allowed: 1 to 268435455"),
            (
                |r| r.lease = Some(wire::LeaseId::default()),
                "lease.counter is 0; allowed: 1 or more",
            ),
            (
                |r| r.incarnation = 0,
                "incarnation is 0; allowed: a random number other than zero, drawn at start",
            ),
            (|r| r.term = None, "term is absent; allowed: it is required"),
        ],
    );
    let release = wire::ReleaseRequest {
        bucket: bucket(),
        lease,
        incarnation: 1,
        spent: 1,
        returned: 1,
    };
    refuses(
        &release,
        unary::decode_release,
        &[
            (
                |r| r.bucket = None,
                "bucket is absent; allowed: it is required",
            ),
            (
                |r| r.lease = None,
                "lease is absent; allowed: it is required",
            ),
            (
                |r| r.lease = Some(wire::LeaseId::default()),
                "lease.counter is 0; allowed: 1 or more",
            ),
            (
                |r| r.incarnation = 0,
                "incarnation is 0; allowed: a random number other than zero, drawn at start",
            ),
            (
                |r| r.spent = u64::MAX,
                "spent is 18446744073709551615; allowed: 0 to 4611686018427387904",
            ),
            (
                |r| r.returned = u64::MAX,
                "returned is 18446744073709551615; allowed: 0 to 4611686018427387904",
            ),
        ],
    );
    let watch = wire::WatchPoliciesRequest {
        namespaces: vec!["a".to_owned()],
        known_revision: 0,
    };
    refuses(
        &watch,
        unary::decode_watch,
        &[
            (
                |w| w.namespaces = vec!["a".to_owned(); 65],
                "namespaces is 65 entries long; allowed: at most 64 entries",
            ),
            (
                |w| w.namespaces[0].clear(),
                "namespaces[0] is empty; allowed: 1 to 128 bytes",
            ),
        ],
    );
}
