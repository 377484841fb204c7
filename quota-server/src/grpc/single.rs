//! Taking and releasing tokens by single calls.
//!
//! A call is a holder of its own that comes, asks and leaves. One that names an incarnation is
//! bound to a number derived from it and the bucket, so that calls for different buckets never
//! stand in each other's way, and no call in that of a stream.

use std::hash::Hasher;
use std::time::Duration;

use quota_core::id::{Incarnation, LeaseId, PolicyVersion, Sequence};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::message::{Answer, Grant, LeaseRequest, Status as Outcome};
use quota_core::outcomes::Outcomes;
use quota_core::policy::SwitchMode;
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use quota_wire::convert::unary::{Acquire, Acquired, Held, Release};
use quota_wire::status;
use siphasher::sip::SipHasher13;
use tonic::Status;

use crate::clock;
use crate::node::Node;
use crate::node::visit::{KEY, Visit};
use crate::random;

/// A report rather than a request: it is merged whatever was asked before or after it.
const REPORT: Sequence = Sequence::new(0);
/// The sequence number of a call whose incarnation is drawn for it alone.
const ONLY: Sequence = Sequence::new(1);
/// A request whose turn has come waits for nothing but its record; so long, a caller that does
/// not want to wait waits for that all the same.
const RECORD_WITHIN: Duration = Duration::from_millis(250);
/// How often a waiting call renews its anchor. Its tokens count as spent when they are granted,
/// so it does not matter from when their term counts.
const ANCHOR_EVERY: Duration = Duration::from_secs(1);

/// Takes tokens from a bucket.
pub(super) async fn acquire(node: &Node, call: Acquire) -> Result<Acquired, Status> {
    if node.readiness.is_draining() {
        return Err(status::draining());
    }
    let Acquire {
        bucket,
        tokens,
        least,
        wait,
        hold,
        retry,
    } = call;
    let policy = bucket.policy.clone();
    if let Some(version) = switched(node, &policy, hold)? {
        return Ok(Acquired {
            granted: tokens,
            held: None,
            version,
        });
    }
    let (incarnation, sequence) = match retry {
        Some(retry) => (bound(retry.incarnation, &bucket), retry.sequence),
        None => (drawn(), ONLY),
    };
    let mut visit = Visit::new(node, &bucket, incarnation)?;
    let request = LeaseRequest {
        want: tokens,
        least,
        ..report(sequence, None)
    };
    visit.ask(node.call_number(), bucket, request)?;
    // A wait that is short is told only to those who ask again, and this call must know.
    visit.report(node.call_number(), Some(request))?;

    let begun = clock::now();
    let mut deadline = begun + wait;
    loop {
        let answer = match next_answer(node, &mut visit, deadline, hold).await? {
            Ok(answer) => answer,
            Err(waited) => return Err(status::quota_exhausted(waited, Some(&policy))),
        };
        match answer.status {
            Outcome::Done => {
                let grant = answer.grant.ok_or_else(status::unknown_lease)?;
                if !hold {
                    spend(
                        node,
                        &mut visit,
                        grant.lease,
                        grant.granted,
                        retry.is_none(),
                    );
                    let before = retry.and_then(|_| {
                        let repeats = &node.repeats;
                        repeats.next(incarnation, grant.lease, grant.granted)
                    });
                    if let Some((lease, granted)) = before {
                        spend(node, &mut visit, lease, granted, true);
                    }
                }
                return Ok(acquired(&grant, incarnation, hold));
            }
            Outcome::Queued { retry_after } if wait == Term::ZERO && retry_after > Term::ZERO => {
                return Err(status::quota_exhausted(retry_after, Some(&policy)));
            }
            Outcome::Queued { retry_after } => {
                visit.told(retry_after);
                if wait == Term::ZERO {
                    deadline = begun + term(RECORD_WITHIN);
                }
            }
            Outcome::Refused(refusal) => return Err(status::refused(refusal, Some(&policy))),
            // Nothing to give back yet.
            Outcome::Recall { .. } => {}
        }
    }
}

/// What a kill switch says of a call: the version under which it is admitted without a charge.
///
/// A lease is granted and charged as usual, since its holder will report on it.
fn switched(node: &Node, policy: &PolicyId, hold: bool) -> Result<Option<PolicyVersion>, Status> {
    let snapshot = node.policies.snapshot();
    let Some(version) = snapshot.get(policy).map(|policy| policy.version()) else {
        return Ok(None);
    };
    let count = |what| node.outcomes.add(&node.metrics, policy, what);
    match snapshot.switched(policy) {
        Some(SwitchMode::RefuseAll) => {
            count(Outcomes {
                switch_refused: 1,
                ..Outcomes::default()
            });
            Err(status::switched_off(policy))
        }
        Some(SwitchMode::AdmitAll) if !hold => {
            count(Outcomes {
                switch_admitted: 1,
                ..Outcomes::default()
            });
            Ok(Some(version))
        }
        Some(SwitchMode::AdmitAll) | None => Ok(None),
    }
}

/// The next answer; the inner error is what to wait for instead, once the deadline has passed.
async fn next_answer(
    node: &Node,
    visit: &mut Visit,
    deadline: Timestamp,
    hold: bool,
) -> Result<Result<Answer, Term>, Status> {
    loop {
        let left = Duration::from_nanos(deadline.since(clock::now()).as_nanos());
        // The first answer is on its way in any case.
        let left = if visit.is_told() {
            left
        } else {
            left.max(RECORD_WITHIN)
        };
        match tokio::time::timeout(left.min(ANCHOR_EVERY), visit.answer()).await {
            Ok(answer) => return Ok(Ok(answer?)),
            Err(_) if left <= ANCHOR_EVERY => {
                return Ok(Err(visit.last_told().max(Term::from_millis(1))));
            }
            // A lease counts from when the call was sent, and waits no longer than that is of use.
            Err(_) if hold => {}
            Err(_) => drop(visit.report(node.call_number(), None)?),
        }
    }
}

/// Reports the tokens as spent. A call that can be repeated keeps its lease, empty, until the next
/// one or for its term, which is what lets a repeat find them. A report that finds no room is not made: unreported
/// means spent as well.
fn spend(node: &Node, visit: &mut Visit, lease: LeaseId, granted: Tokens, release: bool) {
    let request = LeaseRequest {
        spent: granted,
        release,
        ..report(REPORT, Some(lease))
    };
    drop(visit.report(node.call_number(), Some(request)));
}

/// Ends a lease that a call opened.
pub(super) async fn release(node: &Node, call: Release) -> Result<(), Status> {
    let Release {
        bucket,
        lease,
        incarnation,
        spent,
        returned,
    } = call;
    if node.streams.is_open(incarnation) {
        // Visiting in its name would take the shard away from its stream.
        return Err(status::unknown_lease());
    }
    let policy = bucket.policy.clone();
    let mut visit = Visit::new(node, &bucket, incarnation)?;
    let request = LeaseRequest {
        spent,
        returned,
        release: true,
        ..report(REPORT, Some(lease))
    };
    let done = visit.ask(node.call_number(), bucket, request)?;
    done.await.map_err(|_| status::not_owner(None))?;
    match visit.refusal() {
        Some(refusal) => Err(status::refused(refusal, Some(&policy))),
        None => Ok(()),
    }
}

fn report(sequence: Sequence, lease: Option<LeaseId>) -> LeaseRequest {
    LeaseRequest {
        key: KEY,
        sequence,
        lease,
        spent: Tokens::ZERO,
        returned: Tokens::ZERO,
        want: Tokens::ZERO,
        least: Tokens::ZERO,
        demand: 0,
        release: false,
    }
}

fn acquired(grant: &Grant, incarnation: Incarnation, hold: bool) -> Acquired {
    let held = Held {
        lease: grant.lease,
        incarnation,
        term: grant.term,
    };
    Acquired {
        granted: grant.granted,
        held: hold.then_some(held),
        version: grant.version,
    }
}

/// The holder that stands for a caller's incarnation at one bucket. The same after a restart.
fn bound(incarnation: Incarnation, bucket: &BucketAddress) -> Incarnation {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(incarnation.get());
    for part in [
        bucket.policy.namespace.as_bytes(),
        bucket.policy.name.as_bytes(),
        bucket.key.as_bytes(),
    ] {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    Incarnation::new(hasher.finish().max(1))
}

fn drawn() -> Incarnation {
    let low = random::number() & u128::from(u64::MAX);
    Incarnation::new(u64::try_from(low).expect("64 bits").max(1))
}

fn term(duration: Duration) -> Term {
    Term::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::key::Key;

    #[test]
    fn a_caller_is_another_holder_at_each_bucket_and_the_same_at_one() {
        let bucket = |name: &str, value: &str| BucketAddress {
            policy: PolicyId {
                namespace: "default".into(),
                name: name.into(),
            },
            key: Key::from_values(&[value]).expect("legal"),
        };
        let who = Incarnation::new(7);
        assert_eq!(
            bound(who, &bucket("api", "k")),
            bound(who, &bucket("api", "k"))
        );
        assert_ne!(
            bound(who, &bucket("api", "k")),
            bound(who, &bucket("api", "l"))
        );
        assert_ne!(
            bound(who, &bucket("api", "k")),
            bound(who, &bucket("apik", ""))
        );
        assert_ne!(
            bound(who, &bucket("api", "k")),
            bound(Incarnation::new(8), &bucket("api", "k"))
        );
        assert_ne!(bound(who, &bucket("api", "k")), who);
        assert_ne!(drawn(), drawn());
    }
}
