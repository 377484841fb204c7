//! Changing the `lease` section of a policy live.
//!
//! The caller names fields, the policy task stores whole policies. So the section is read, changed
//! and put back under the version that it was read at; if another change comes between, this one
//! is made again on top of it, unless the caller insists on a version.

use quota_core::policy::{LeaseSpec, PolicySpec};
use quota_wire::convert::policy::{encode_lease_spec, tune_lease_spec};
use quota_wire::proto as wire;
use quota_wire::{Malformed, status};
use tonic::Status;

use super::{AdminService, policy_id, refusal};
use crate::node::policies::{Change, ChangeRefused, ChangeRequest};

/// How often other changes may come between. Changes wait for a durable write each, so whoever
/// loses that often is told to try again.
const ATTEMPTS: usize = 16;

pub(super) async fn tune(
    service: &AdminService,
    call: wire::TuneLeaseRequest,
) -> Result<wire::TuneLeaseResponse, Status> {
    let id = policy_id(call.id)?;
    let lease = call.lease.unwrap_or_default();
    if lease == wire::LeaseSpec::default() {
        return Err(Malformed::new("lease", "empty", fields()).into());
    }
    let mut attempts = ATTEMPTS;
    loop {
        let snapshot = service.node.policies.snapshot();
        let policy = snapshot
            .get(&id)
            .ok_or_else(|| status::unknown_policy(Some(&id)))?;
        let before = policy.spec().lease;
        let after = tune_lease_spec("lease", lease, &before)?;
        let spec = PolicySpec {
            lease: after,
            ..policy.spec().clone()
        };
        let expected = call.expected_version;
        let request = ChangeRequest {
            change: Change::Put {
                spec: Box::new(spec),
            },
            expected: Some(expected.unwrap_or(policy.version().get())),
            dry_run: call.dry_run,
        };
        attempts -= 1;
        let changed = match service.node.policies.change(request).await {
            Err(ChangeRefused::Version { .. }) if expected.is_none() && attempts > 0 => continue,
            Err(refused) => return Err(refusal(&refused)),
            Ok(changed) => changed,
        };
        return Ok(wire::TuneLeaseResponse {
            version: changed.version,
            outstanding_before: changed.applied.outstanding.get(),
            owed: changed.applied.owed.get(),
            changed: changed.changed,
            before: Some(encode_lease_spec(&before)),
            after: Some(encode_lease_spec(&after)),
        });
    }
}

/// What can be set, read off the section itself so that a new field is not forgotten here.
fn fields() -> String {
    let section = serde_json::to_value(LeaseSpec::default()).unwrap_or_default();
    let names = section.as_object().into_iter().flat_map(|map| map.keys());
    let names: Vec<&str> = names.map(String::as_str).collect();
    format!("at least one of {}", names.join(", "))
}
