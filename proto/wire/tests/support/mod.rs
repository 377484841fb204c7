//! Legal values of every message, for the tests of the conversions.
#![allow(dead_code, reason = "each test file uses some of them")]

pub(crate) mod policies;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quota_core::holder::HolderMessage;
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence, ShardId,
};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{
    Answer, DEMAND_MAX, Grant, HELD_MAX, Introduction, LeaseRequest, Refusal, Status,
};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::answers::AuthorityMessage;
use quota_wire::convert::handshake::{Hello, Protocols, SPOKEN, StreamLimits, Welcome};
use quota_wire::convert::notice::{GoAway, GoAwayReason, Node, NotOwner, PolicyNotice, ShardMap};
use quota_wire::convert::unary::{Acquire, Acquired, Held, Release, Retry, WatchPolicies};
use quota_wire::limits::TOTAL_MAX;

/// Small numbers, large ones and the ends of the range, all of them often.
pub(crate) fn number(min: u64, max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => min..=max.min(min.saturating_add(300)),
        2 => min..=max,
        1 => Just(min),
        1 => Just(max),
    ]
}

pub(crate) fn tokens(max: u64) -> impl Strategy<Value = Tokens> {
    number(0, max).prop_map(Tokens::new)
}

pub(crate) fn term() -> impl Strategy<Value = Term> {
    number(0, u64::MAX).prop_map(Term::from_nanos)
}

pub(crate) fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", Just("n".repeat(128)), "\\PC{1,20}"]
}

pub(crate) fn policy_id() -> impl Strategy<Value = PolicyId> {
    (name(), name()).prop_map(|(namespace, name)| PolicyId { namespace, name })
}

pub(crate) fn key() -> impl Strategy<Value = Key> {
    vec(vec(any::<u8>(), 0..=256), 0..=8).prop_map(|v| Key::from_values(&v).expect("legal"))
}

pub(crate) fn bucket() -> impl Strategy<Value = BucketAddress> {
    (policy_id(), key()).prop_map(|(policy, key)| BucketAddress { policy, key })
}

pub(crate) fn lease_id() -> impl Strategy<Value = LeaseId> {
    (number(0, u64::MAX), number(1, u64::MAX)).prop_map(|(epoch, counter)| LeaseId {
        epoch: Epoch::new(epoch),
        counter,
    })
}

pub(crate) fn request() -> impl Strategy<Value = LeaseRequest> {
    let identity = (any::<u32>(), number(1, TOTAL_MAX), option::of(lease_id()));
    let totals = (tokens(TOTAL_MAX), tokens(TOTAL_MAX));
    let wish = number(0, HELD_MAX.get())
        .prop_flat_map(|want| (Just(want), prop_oneof![Just(want.min(1)), number(0, want)]));
    (identity, totals, wish, number(0, DEMAND_MAX), any::<bool>()).prop_map(
        |((key, sequence, lease), (spent, returned), (want, least), demand, release)| {
            LeaseRequest {
                key: KeyNumber::new(key),
                sequence: Sequence::new(sequence),
                lease,
                spent,
                returned,
                want: Tokens::new(want),
                least: Tokens::new(least),
                demand,
                release,
            }
        },
    )
}

/// Messages without repeated numbers, some with one policy in a row and some without.
pub(crate) fn holder_message() -> impl Strategy<Value = HolderMessage> {
    let introductions = vec((any::<u32>(), bucket(), any::<bool>()), 0..6);
    (number(1, TOTAL_MAX), introductions, vec(request(), 0..40)).prop_map(
        |(number, mut introduced, mut requests)| {
            introduced.sort_by_key(|(number, ..)| *number);
            introduced.dedup_by_key(|(number, ..)| *number);
            for index in 1..introduced.len() {
                if introduced[index].2 {
                    introduced[index].1.policy = introduced[index - 1].1.policy.clone();
                }
            }
            let mut seen = std::collections::BTreeSet::new();
            requests.retain(|r| seen.insert((r.key, r.sequence)));
            HolderMessage {
                number: MessageNumber::new(number),
                introductions: introduced
                    .into_iter()
                    .map(|(number, bucket, _)| Introduction {
                        number: KeyNumber::new(number),
                        bucket,
                    })
                    .collect(),
                requests,
            }
        },
    )
}

pub(crate) fn status() -> impl Strategy<Value = Status> {
    prop_oneof![
        4 => Just(Status::Done),
        1 => term().prop_map(|retry_after| Status::Queued { retry_after }),
        1 => tokens(u64::MAX).prop_map(|keep| Status::Recall { keep }),
        1 => refusal().prop_map(Status::Refused),
    ]
}

pub(crate) fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::UnknownPolicy),
        Just(Refusal::UnknownKey),
        any::<u32>().prop_map(|dimensions| Refusal::KeyMismatch { dimensions }),
        tokens(u64::MAX).prop_map(|capacity| Refusal::CostAboveCapacity { capacity }),
        term().prop_map(|retry_after| Refusal::Busy { retry_after }),
    ]
}

pub(crate) fn answer() -> impl Strategy<Value = Answer> {
    let millis = number(0, u64::from(u32::MAX));
    let grant = (
        lease_id(),
        tokens(TOTAL_MAX),
        term(),
        millis,
        number(0, u64::MAX),
    )
        .prop_map(|(lease, granted, term, millis, version)| Grant {
            lease,
            granted,
            term,
            headroom: Term::from_millis(millis),
            version: PolicyVersion::new(version),
        });
    let identity = (any::<u32>(), number(1, TOTAL_MAX));
    (identity, option::of(grant), status()).prop_map(|((key, sequence), grant, status)| Answer {
        key: KeyNumber::new(key),
        sequence: Sequence::new(sequence),
        grant,
        status,
    })
}

pub(crate) fn authority_message() -> impl Strategy<Value = AuthorityMessage> {
    (number(1, TOTAL_MAX), vec(answer(), 1..40)).prop_map(|(anchor, answers)| AuthorityMessage {
        anchor: MessageNumber::new(anchor),
        answers,
    })
}

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    (number(1, u64::MAX), "\\PC{0,30}", "\\PC{0,30}", 1_u32..).prop_map(
        |(incarnation, client_name, client_version, max)| Hello {
            protocols: Protocols { min: 1, max },
            incarnation: Incarnation::new(incarnation),
            client_name,
            client_version,
        },
    )
}

pub(crate) fn welcome() -> impl Strategy<Value = Welcome> {
    let limits = (1_u32.., 1_u32.., 1_u32.., 1_u32..);
    (
        "\\PC{0,30}",
        "\\PC{0,30}",
        1_u32..=65_536,
        limits,
        any::<u64>(),
    )
        .prop_map(
            |(server_version, node, shards, limits, policy_revision)| Welcome {
                protocol: SPOKEN.max,
                server_version,
                node,
                shards,
                limits: StreamLimits {
                    message_bytes_max: limits.0,
                    items_max: limits.1,
                    introductions_max: limits.2,
                    keys_max: limits.3,
                },
                policy_revision,
            },
        )
}

pub(crate) fn policy_notice() -> impl Strategy<Value = PolicyNotice> {
    (any::<u64>(), vec(policy_id(), 0..5))
        .prop_map(|(revision, policies)| PolicyNotice { revision, policies })
}

pub(crate) fn node() -> impl Strategy<Value = Node> {
    ("\\PC{0,30}", "[a-z0-9.:]{1,30}").prop_map(|(name, address)| Node { name, address })
}

pub(crate) fn shard_map() -> impl Strategy<Value = ShardMap> {
    vec(node(), 1..5).prop_flat_map(|nodes| {
        let count = u32::try_from(nodes.len()).expect("few");
        let owners = vec(option::of(0..count), 1..70);
        (any::<u64>(), Just(nodes), owners).prop_map(|(revision, nodes, owners)| ShardMap {
            revision,
            nodes,
            owners,
        })
    })
}

pub(crate) fn not_owner() -> impl Strategy<Value = NotOwner> {
    (any::<u32>(), vec(any::<u32>(), 0..20), option::of(node())).prop_map(|(shard, keys, owner)| {
        NotOwner {
            shard: ShardId::new(shard),
            keys: keys.into_iter().map(KeyNumber::new).collect(),
            owner,
        }
    })
}

pub(crate) fn go_away() -> impl Strategy<Value = GoAway> {
    let reason = prop_oneof![
        Just(GoAwayReason::Unspecified),
        Just(GoAwayReason::Draining),
        Just(GoAwayReason::Replaced),
        Just(GoAwayReason::TooSlow),
    ];
    (reason, term(), vec(node(), 0..3), "\\PC{0,50}").prop_map(
        |(reason, grace, instead, message)| GoAway {
            reason,
            grace,
            instead,
            message,
        },
    )
}

pub(crate) fn acquire() -> impl Strategy<Value = Acquire> {
    let amount =
        number(1, HELD_MAX.get()).prop_flat_map(|tokens| (Just(tokens), number(1, tokens)));
    let retry =
        (number(1, u64::MAX), number(1, TOTAL_MAX)).prop_map(|(incarnation, sequence)| Retry {
            incarnation: Incarnation::new(incarnation),
            sequence: Sequence::new(sequence),
        });
    let wait = number(0, 60_000_000_000).prop_map(Term::from_nanos);
    (bucket(), amount, wait, any::<bool>(), option::of(retry)).prop_map(
        |(bucket, (tokens, least), wait, hold, retry)| Acquire {
            bucket,
            tokens: Tokens::new(tokens),
            least: Tokens::new(least),
            wait,
            hold,
            retry,
        },
    )
}

pub(crate) fn acquired() -> impl Strategy<Value = Acquired> {
    let held =
        (lease_id(), number(1, u64::MAX), term()).prop_map(|(lease, incarnation, term)| Held {
            lease,
            incarnation: Incarnation::new(incarnation),
            term,
        });
    (number(1, HELD_MAX.get()), option::of(held), any::<u64>()).prop_map(
        |(granted, held, version)| Acquired {
            granted: Tokens::new(granted),
            held,
            version: PolicyVersion::new(version),
        },
    )
}

pub(crate) fn release() -> impl Strategy<Value = Release> {
    let totals = (tokens(TOTAL_MAX), tokens(TOTAL_MAX));
    (bucket(), lease_id(), number(1, u64::MAX), totals).prop_map(
        |(bucket, lease, incarnation, (spent, returned))| Release {
            bucket,
            lease,
            incarnation: Incarnation::new(incarnation),
            spent,
            returned,
        },
    )
}

pub(crate) fn watch() -> impl Strategy<Value = WatchPolicies> {
    (vec(name(), 0..5), any::<u64>()).prop_map(|(namespaces, known_revision)| WatchPolicies {
        namespaces,
        known_revision,
    })
}
