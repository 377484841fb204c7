//! Policies and inspection. Calls that are laid out for later answer UNIMPLEMENTED by default.

mod survey;
mod switch;
mod tune;

use std::sync::Arc;

use prost::Message as _;
use quota_core::authority::{BucketView, LeaseView, PolicyStats, Stats};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::policy::{LimitClass, Policy};
use quota_core::tokens::Tokens;
use quota_wire::convert::common::{
    decode_bucket, decode_policy_id, encode_bucket, encode_lease, encode_term,
};
use quota_wire::convert::outcomes::encode_outcomes;
use quota_wire::convert::policy::{decode_spec, encode_policy};
use quota_wire::limits::MESSAGE_BYTES_MAX;
use quota_wire::proto as wire;
use quota_wire::proto::admin_server::Admin;
use quota_wire::{Malformed, status};
use tonic::{Code, Request, Response, Status};

use crate::clock;
use crate::node::policies::switches::in_force;
use crate::node::policies::{Change, ChangeRefused, ChangeRequest, Changed};
use crate::node::{Node, NotServed, totals};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// Most policies whose outcomes are shown.
const OUTCOMES_SHOWN: usize = 1000;
/// Most leases of one bucket that are shown.
const LEASES_MAX: usize = 1000;

/// The administrator's calls.
#[derive(Debug)]
pub(super) struct AdminService {
    node: Arc<Node>,
}

impl AdminService {
    pub(super) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    async fn change(&self, request: ChangeRequest) -> Result<Changed, Status> {
        self.node
            .policies
            .change(request)
            .await
            .map_err(|refused| refusal(&refused))
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn put_policy(
        &self,
        request: Request<wire::PutPolicyRequest>,
    ) -> Result<Response<wire::PutPolicyResponse>, Status> {
        let call = request.into_inner();
        let spec = Box::new(decode_spec("spec", call.spec)?);
        let change = Change::Put { spec };
        let request = ChangeRequest {
            change,
            expected: call.expected_version,
            dry_run: call.dry_run,
        };
        let changed = self.change(request).await?;
        Ok(Response::new(wire::PutPolicyResponse {
            version: changed.version,
            outstanding_before: changed.applied.outstanding.get(),
            owed: changed.applied.owed.get(),
            changed: changed.changed,
        }))
    }

    async fn get_policy(
        &self,
        request: Request<wire::GetPolicyRequest>,
    ) -> Result<Response<wire::Policy>, Status> {
        let id = policy_id(request.into_inner().id)?;
        let snapshot = self.node.policies.snapshot();
        let policy = snapshot
            .get(&id)
            .ok_or_else(|| status::unknown_policy(Some(&id)))?;
        Ok(Response::new(encode_policy(
            policy.version(),
            policy.spec(),
        )))
    }

    async fn list_policies(
        &self,
        request: Request<wire::ListPoliciesRequest>,
    ) -> Result<Response<wire::ListPoliciesResponse>, Status> {
        let call = request.into_inner();
        let after = page_token(&call.page_token)?;
        let size = page_size(call.page_size);
        let snapshot = self.node.policies.snapshot();
        let wanted = snapshot.current().filter(|policy| {
            let id = policy.id();
            let in_namespace = call.namespace.is_empty() || id.namespace == call.namespace;
            in_namespace && after.as_ref().is_none_or(|after| id > after)
        });
        Ok(Response::new(page(wanted, size, snapshot.revision())))
    }

    async fn delete_policy(
        &self,
        request: Request<wire::DeletePolicyRequest>,
    ) -> Result<Response<wire::DeletePolicyResponse>, Status> {
        let call = request.into_inner();
        let change = Change::Delete {
            id: policy_id(call.id)?,
        };
        let request = ChangeRequest {
            change,
            expected: call.expected_version,
            dry_run: false,
        };
        let changed = self.change(request).await?;
        Ok(Response::new(wire::DeletePolicyResponse {
            revision: changed.version,
            outstanding_before: changed.applied.outstanding.get(),
        }))
    }

    async fn inspect_bucket(
        &self,
        request: Request<wire::InspectBucketRequest>,
    ) -> Result<Response<wire::InspectBucketResponse>, Status> {
        let bucket = decode_bucket("bucket", request.into_inner().bucket)?;
        let snapshot = self.node.policies.snapshot();
        let policy = snapshot.get(&bucket.policy);
        let policy = policy.ok_or_else(|| status::unknown_policy(Some(&bucket.policy)))?;
        if !policy.fits(&bucket.key) {
            let dimensions = policy.dimensions().len();
            let dimensions = u32::try_from(dimensions).expect("a policy has few dimensions");
            let refusal = quota_core::message::Refusal::KeyMismatch { dimensions };
            return Err(status::refused(refusal, Some(&bucket.policy)));
        }
        let view = self.node.inspect(bucket.clone()).await;
        let view = view.map_err(|NotServed| status::not_owner(None))?;
        // Deleted or changed a moment ago.
        let view = view.ok_or_else(|| status::unknown_policy(Some(&bucket.policy)))?;
        let shard = self.node.shard_of(&bucket).get();
        Ok(Response::new(inspected(&bucket, shard, policy, view)))
    }

    async fn tune_lease(
        &self,
        request: Request<wire::TuneLeaseRequest>,
    ) -> Result<Response<wire::TuneLeaseResponse>, Status> {
        tune::tune(self, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn top_buckets(
        &self,
        request: Request<wire::TopBucketsRequest>,
    ) -> Result<Response<wire::TopBucketsResponse>, Status> {
        survey::top_buckets(&self.node, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn list_holders(
        &self,
        request: Request<wire::ListHoldersRequest>,
    ) -> Result<Response<wire::ListHoldersResponse>, Status> {
        survey::list_holders(&self.node, &request.into_inner())
            .await
            .map(Response::new)
    }

    async fn set_kill_switch(
        &self,
        request: Request<wire::SetKillSwitchRequest>,
    ) -> Result<Response<wire::SetKillSwitchResponse>, Status> {
        switch::set(&self.node, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn list_kill_switches(
        &self,
        _request: Request<wire::ListKillSwitchesRequest>,
    ) -> Result<Response<wire::ListKillSwitchesResponse>, Status> {
        Ok(Response::new(switch::list(&self.node)))
    }

    async fn stats(
        &self,
        _request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::StatsResponse>, Status> {
        let (mut stats, mut policies) = (Stats::default(), PolicyStats::default());
        let (mut shards, mut settled) = (0_u32, 0_u32);
        for report in self.node.reports().await.into_iter().flatten() {
            totals::merge(&mut stats, &report.stats);
            report
                .policies
                .iter()
                .for_each(|(_, one)| policies.merge(one));
            shards += 1;
            settled += u32::from(report.settled);
        }
        let snapshot = self.node.policies.snapshot();
        let count = |n: usize| u64::try_from(n).expect("a count fits 64 bits");
        Ok(Response::new(wire::StatsResponse {
            node: self.node.name.clone(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: Some(encode_term(clock::now().since(self.node.started))),
            shards,
            shards_settled: settled,
            buckets: stats.buckets,
            leases: stats.leases,
            streams: count(self.node.streams.count()),
            queued: stats.waiting,
            requests: stats.requests,
            grants: policies.grants,
            granted_tokens: policies.granted,
            spent_tokens: policies.spent,
            returned_tokens: policies.returned,
            reclaimed_tokens: policies.reclaimed,
            refusals: policies.refused,
            records_written: stats.records_written,
            store_commits: stats.writes,
            policy_revision: snapshot.revision(),
            policies: u32::try_from(snapshot.current().count()).unwrap_or(u32::MAX),
            kill_switches: u32::try_from(in_force(snapshot.switches()).len()).unwrap_or(u32::MAX),
            outcomes: outcomes(&self.node),
        }))
    }
}

/// What gateways decided beside the ledger: of many policies those with the most requests.
fn outcomes(node: &Node) -> Vec<wire::PolicyOutcomes> {
    let mut totals = node.outcomes.totals();
    if totals.len() > OUTCOMES_SHOWN {
        totals.sort_by_key(|(_, outcomes)| std::cmp::Reverse(outcomes.requests()));
        totals.truncate(OUTCOMES_SHOWN);
        totals.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
    let totals = totals.iter();
    totals
        .map(|(policy, outcomes)| encode_outcomes(policy, outcomes))
        .collect()
}

fn policy_id(id: Option<wire::PolicyId>) -> Result<PolicyId, Malformed> {
    decode_policy_id("id", id.ok_or_else(|| Malformed::missing("id"))?)
}

/// The entries of a page, as asked for: none said, or too many, is no mistake.
fn page_size(asked: u32) -> usize {
    match usize::try_from(asked).unwrap_or(usize::MAX) {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    }
}

/// The last policy of the page before. Names have no slash.
fn page_token(token: &str) -> Result<Option<PolicyId>, Malformed> {
    if token.is_empty() {
        return Ok(None);
    }
    let (namespace, name) = token
        .split_once('/')
        .ok_or_else(|| Malformed::new("page_token", token, "the token of the response before"))?;
    Ok(Some(PolicyId {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}

fn page<'a>(
    policies: impl Iterator<Item = &'a Arc<Policy>>,
    size: usize,
    revision: u64,
) -> wire::ListPoliciesResponse {
    let mut page = wire::ListPoliciesResponse {
        revision,
        ..Default::default()
    };
    let (mut bytes, mut last) = (0, None);
    for policy in policies {
        let encoded = encode_policy(policy.version(), policy.spec());
        bytes += encoded.encoded_len() + 8;
        let full = page.policies.len() == size || bytes > MESSAGE_BYTES_MAX - 1024;
        if let (true, Some(last)) = (full, &last) {
            page.next_page_token = PolicyId::to_string(last);
            break;
        }
        page.policies.push(encoded);
        last = Some(policy.id().clone());
    }
    page
}

fn inspected(
    bucket: &BucketAddress,
    shard: u32,
    policy: &Policy,
    view: BucketView,
) -> wire::InspectBucketResponse {
    let demand = view.leases.iter().map(|lease| lease.demand);
    wire::InspectBucketResponse {
        bucket: Some(encode_bucket(bucket)),
        shard,
        policy_version: view.version.get(),
        limit_class: match policy.class_of(&bucket.key) {
            LimitClass::Default => "default".to_owned(),
            LimitClass::Plan(plan) => format!("plan:{plan}"),
            LimitClass::Override(_) => "override".to_owned(),
        },
        capacity: view.capacity.get(),
        available: i64::try_from(view.available).unwrap_or(i64::MIN),
        // Both are out as far as anyone can tell.
        outstanding: (view.outstanding + view.ghost).get(),
        ghost: view.ghost.get(),
        ghost_remaining: (view.ghost > Tokens::ZERO).then(|| encode_term(view.ghost_term)),
        block: view.booked.get(),
        demand: demand.fold(0, u64::saturating_add),
        leases: view
            .leases
            .iter()
            .take(LEASES_MAX)
            .map(lease_view)
            .collect(),
        queued: u32::try_from(view.waiting).unwrap_or(u32::MAX),
        known: !view.unseen,
    }
}

fn lease_view(lease: &LeaseView) -> wire::LeaseView {
    wire::LeaseView {
        lease: Some(encode_lease(lease.lease)),
        incarnation: lease.incarnation.get(),
        policy_version: lease.version.get(),
        granted: lease.granted.get(),
        spent: lease.spent.get(),
        returned: lease.returned.get(),
        reclaim_in: Some(encode_term(lease.reclaim_in)),
        demand: lease.demand,
        held: lease.granted.less(lease.spent + lease.returned).get(),
        anchor_age: lease.anchor_age.map(encode_term),
    }
}

/// Why a policy change was refused, as a status.
fn refusal(refused: &ChangeRefused) -> Status {
    let said = refused.to_string();
    match refused {
        ChangeRefused::Invalid(error) => status::invalid_policy(None, error),
        ChangeRefused::KindNotServed { .. } => {
            let detail = wire::ErrorDetail {
                reason: wire::ErrorReason::NotServed.into(),
                ..wire::ErrorDetail::default()
            };
            status::with_detail(Code::Unimplemented, said, &detail)
        }
        ChangeRefused::Unknown(id) => status::unknown_policy(Some(id)),
        ChangeRefused::Version {
            id,
            expected,
            current,
        } => status::version_conflict(id, *expected, *current),
        ChangeRefused::NotAllowed { id, .. } => status::change_not_allowed(id, said),
        ChangeRefused::TooMany | ChangeRefused::TooManySwitches => Status::resource_exhausted(said),
        ChangeRefused::Store(_) => Status::unavailable(said),
        ChangeRefused::Unsure(_) => Status::unknown(said),
    }
}
