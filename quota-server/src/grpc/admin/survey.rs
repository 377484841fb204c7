//! The buckets that stand out, and the holders that are connected.

use std::collections::BTreeSet;

use quota_core::authority::{TopBucket, TopOrder, TopQuery};
use quota_core::id::Incarnation;
use quota_wire::convert::common::{decode_policy_id, encode_bucket, encode_term};
use quota_wire::proto as wire;
use quota_wire::{Malformed, status};
use tonic::Status;

use super::page_size;
use crate::clock;
use crate::node::Node;

const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = 1000;

pub(super) async fn top_buckets(
    node: &Node,
    call: wire::TopBucketsRequest,
) -> Result<wire::TopBucketsResponse, Status> {
    let order = match call.order() {
        wire::TopBucketsOrder::Demand => TopOrder::Demand,
        wire::TopBucketsOrder::Refusals => TopOrder::Refusals,
        wire::TopBucketsOrder::Stranded => TopOrder::Stranded,
        wire::TopBucketsOrder::Messages => TopOrder::Messages,
        wire::TopBucketsOrder::Unspecified => {
            let allowed = "DEMAND (1), REFUSALS (2), STRANDED (3) or MESSAGES (4)";
            return Err(Malformed::new("order", call.order, allowed).into());
        }
    };
    let policy = call.policy.map(|id| decode_policy_id("policy", id));
    let policy = policy.transpose()?;
    if let Some(id) = &policy
        && node.policies.snapshot().get(id).is_none()
    {
        return Err(status::unknown_policy(Some(id)));
    }
    let most = match usize::try_from(call.limit).unwrap_or(usize::MAX) {
        0 => TOP_DEFAULT,
        most if most <= TOP_MAX => most,
        _ => {
            let allowed = format!("at most {TOP_MAX}");
            return Err(Malformed::new("limit", call.limit, allowed).into());
        }
    };
    let query = TopQuery {
        order,
        policy,
        most,
    };
    let top = node.top_buckets(&query).await;
    Ok(wire::TopBucketsResponse {
        buckets: top.found.iter().map(top_bucket).collect(),
        shards_missing: top.missing,
    })
}

fn top_bucket(top: &TopBucket) -> wire::TopBucket {
    wire::TopBucket {
        bucket: Some(encode_bucket(&top.bucket)),
        amount: top.amount,
        amount_error: top.error,
        demand: top.demand,
        outstanding: top.outstanding.get(),
        queued: u32::try_from(top.waiting).unwrap_or(u32::MAX),
    }
}

pub(super) async fn list_holders(
    node: &Node,
    call: &wire::ListHoldersRequest,
) -> Result<wire::ListHoldersResponse, Status> {
    let after = page_token(&call.page_token)?;
    let (page, more) = node.streams.page(after, page_size(call.page_size));
    let of: BTreeSet<Incarnation> = page.iter().map(|(incarnation, _)| *incarnation).collect();
    let holdings = node.holdings(of).await;
    let now = clock::now();
    let next = page.last().filter(|_| more).map(|(last, _)| last.get());
    let holders = page.into_iter().map(|(incarnation, about)| {
        let holding = holdings.found.get(&incarnation);
        wire::HolderView {
            incarnation: incarnation.get(),
            client_name: about.client_name,
            client_version: about.client_version,
            protocol: about.protocol,
            leases: holding.map_or(0, |holding| holding.leases),
            outstanding: holding.map_or(0, |holding| holding.outstanding.get()),
            connected: Some(encode_term(now.since(about.since))),
            demand: holding.map_or(0, |holding| holding.demand),
        }
    });
    Ok(wire::ListHoldersResponse {
        holders: holders.collect(),
        next_page_token: next.map_or_else(String::new, |next| next.to_string()),
        shards_missing: holdings.missing,
    })
}

/// The last holder of the page before.
fn page_token(token: &str) -> Result<Option<Incarnation>, Malformed> {
    if token.is_empty() {
        return Ok(None);
    }
    let number = token
        .parse()
        .map_err(|_| Malformed::new("page_token", token, "the token of the response before"))?;
    Ok(Some(Incarnation::new(number)))
}
