//! Looking into buckets.

use quota_core::key::{BucketAddress, Key};
use quota_wire::convert::common::{decode_bucket, encode_bucket, encode_policy_id};
use quota_wire::proto as wire;
use quota_wire::proto::TopBucketsOrder;
use serde_json::{Value, json};

use super::args::{BucketCommand, Order};
use super::connect;
use super::failure::Failure;
use super::output::{Output, fields, incarnation, key, millis, span, table};

pub(crate) async fn run(command: BucketCommand, server: &str) -> Result<Output, Failure> {
    match command {
        BucketCommand::Inspect { policy, key } => {
            let key = Key::from_values(&key).map_err(|error| Failure::usage(error.to_string()))?;
            inspect(server, BucketAddress { policy, key }).await
        }
        BucketCommand::Top { by, policy, limit } => {
            let order = match by {
                Order::Demand => TopBucketsOrder::Demand,
                Order::Refused => TopBucketsOrder::Refusals,
                Order::Stranded => TopBucketsOrder::Stranded,
                Order::Messages => TopBucketsOrder::Messages,
            };
            let request = wire::TopBucketsRequest {
                order: order.into(),
                policy: policy.as_ref().map(encode_policy_id),
                limit,
            };
            top(server, request, by).await
        }
    }
}

async fn inspect(server: &str, bucket: BucketAddress) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let request = wire::InspectBucketRequest {
        bucket: Some(encode_bucket(&bucket)),
    };
    let seen = admin.inspect_bucket(request).await?.into_inner();
    let of_ghost = match seen.ghost {
        0 => String::new(),
        ghost => format!(
            " ({ghost} of it by earlier tenures, for {})",
            span(seen.ghost_remaining)
        ),
    };
    let mut text = fields(&[
        (
            "bucket",
            format!("{} {}", bucket.policy, key(&bucket).join(" ")),
        ),
        ("policy version", seen.policy_version.to_string()),
        ("limit", seen.limit_class.clone()),
        ("capacity", seen.capacity.to_string()),
        ("available", seen.available.to_string()),
        ("outstanding", format!("{}{of_ghost}", seen.outstanding)),
        ("demand", format!("{} per second", seen.demand)),
        ("waiting", seen.queued.to_string()),
        ("shard", seen.shard.to_string()),
    ]);
    if !seen.known {
        text.push_str("It was not used lately: this is what a first request would find.\n");
    }
    if !seen.leases.is_empty() {
        let heading = [
            "HOLDER",
            "LEASE",
            "VERSION",
            "GRANTED",
            "SPENT",
            "RETURNED",
            "HELD",
            "DEMAND",
            "ANCHOR AGE",
            "RECLAIM IN",
        ];
        let rows: Vec<Vec<String>> = seen.leases.iter().map(lease_row).collect();
        text.push('\n');
        text.push_str(&table(&heading, &rows));
    }
    let json = json!({
        "policy": bucket.policy.to_string(),
        "key": key(&bucket),
        "shard": seen.shard,
        "policy_version": seen.policy_version,
        "limit_class": seen.limit_class,
        "capacity": seen.capacity,
        "available": seen.available,
        "outstanding": seen.outstanding,
        "ghost": seen.ghost,
        "ghost_remaining_ms": millis(seen.ghost_remaining),
        "block": seen.block,
        "demand": seen.demand,
        "queued": seen.queued,
        "known": seen.known,
        "leases": seen.leases.iter().map(lease_json).collect::<Vec<Value>>(),
    });
    Ok(Output::new(text, json))
}

fn lease_row(lease: &wire::LeaseView) -> Vec<String> {
    vec![
        incarnation(lease.incarnation),
        lease_id(lease),
        lease.policy_version.to_string(),
        lease.granted.to_string(),
        lease.spent.to_string(),
        lease.returned.to_string(),
        lease.held.to_string(),
        lease.demand.to_string(),
        span(lease.anchor_age),
        span(lease.reclaim_in),
    ]
}

fn lease_id(lease: &wire::LeaseView) -> String {
    let id = lease.lease.unwrap_or_default();
    format!("{}.{}", id.epoch, id.counter)
}

fn lease_json(lease: &wire::LeaseView) -> Value {
    json!({
        "holder": incarnation(lease.incarnation),
        "lease": lease_id(lease),
        "policy_version": lease.policy_version,
        "granted": lease.granted,
        "spent": lease.spent,
        "returned": lease.returned,
        "held": lease.held,
        "demand": lease.demand,
        "anchor_age_ms": millis(lease.anchor_age),
        "reclaim_in_ms": millis(lease.reclaim_in),
    })
}

async fn top(server: &str, request: wire::TopBucketsRequest, by: Order) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let found = admin.top_buckets(request).await?.into_inner();
    let mut buckets = Vec::new();
    for one in found.buckets {
        let bucket = decode_bucket("bucket", one.bucket.clone())?;
        buckets.push((bucket, one));
    }
    let by = match by {
        Order::Demand => "demand",
        Order::Refused => "refused",
        Order::Stranded => "stranded",
        Order::Messages => "messages",
    };
    let heading = by.to_uppercase();
    let mut columns = vec![
        "POLICY",
        "KEY",
        &heading[..],
        "DEMAND",
        "OUTSTANDING",
        "WAITING",
    ];
    // The amount is the demand, once.
    let once = by == "demand";
    if once {
        columns.remove(2);
    }
    let rows = buckets.iter().map(|(bucket, one)| {
        let amount = match one.amount_error {
            0 => one.amount.to_string(),
            error => format!("{} (-{error})", one.amount),
        };
        let mut row = vec![
            bucket.policy.to_string(),
            key(bucket).join(" "),
            amount,
            one.demand.to_string(),
            one.outstanding.to_string(),
            one.queued.to_string(),
        ];
        if once {
            row.remove(2);
        }
        row
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let mut text = match rows.is_empty() {
        true => "no bucket stands out\n".to_owned(),
        false => table(&columns, &rows),
    };
    if found.shards_missing > 0 {
        text.push_str(&format!(
            "{} shards are not served at the moment and missing here\n",
            found.shards_missing
        ));
    }
    let list = buckets.iter().map(|(bucket, one)| {
        json!({
            "policy": bucket.policy.to_string(),
            "key": key(bucket),
            "amount": one.amount,
            "amount_error": one.amount_error,
            "demand": one.demand,
            "outstanding": one.outstanding,
            "queued": one.queued,
        })
    });
    let list: Vec<Value> = list.collect();
    let json = json!({ "by": by, "buckets": list, "shards_missing": found.shards_missing });
    Ok(Output::new(text, json))
}
