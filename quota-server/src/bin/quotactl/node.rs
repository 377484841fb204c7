//! The node that answers: who is connected, and what it has done.

use quota_wire::proto as wire;
use serde_json::{Value, json};

use super::connect;
use super::failure::Failure;
use super::output::{Output, fields, incarnation, millis, span, table};
use super::switch::{counts, counts_json, outcomes};

pub(crate) async fn holders(server: &str) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let mut request = wire::ListHoldersRequest {
        page_size: 1000,
        ..wire::ListHoldersRequest::default()
    };
    let (mut holders, mut missing) = (Vec::new(), 0);
    loop {
        let page = admin.list_holders(request.clone()).await?.into_inner();
        holders.extend(page.holders);
        missing = page.shards_missing.max(missing);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let rows = holders.iter().map(|one| {
        vec![
            incarnation(one.incarnation),
            one.client_name.clone(),
            one.client_version.clone(),
            span(one.connected),
            one.leases.to_string(),
            one.outstanding.to_string(),
            one.demand.to_string(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let heading = [
        "HOLDER",
        "CLIENT",
        "VERSION",
        "CONNECTED",
        "LEASES",
        "OUTSTANDING",
        "DEMAND",
    ];
    let mut text = match rows.is_empty() {
        true => "nobody is connected\n".to_owned(),
        false => table(&heading, &rows),
    };
    if missing > 0 {
        text.push_str(&format!(
            "{missing} shards are not served at the moment; what holders have there is missing\n"
        ));
    }
    let list = holders.iter().map(|one| {
        json!({
            "holder": incarnation(one.incarnation),
            "client_name": one.client_name,
            "client_version": one.client_version,
            "protocol": one.protocol,
            "connected_ms": millis(one.connected),
            "leases": one.leases,
            "outstanding": one.outstanding,
            "demand": one.demand,
        })
    });
    let list: Vec<Value> = list.collect();
    let json = json!({ "holders": list, "shards_missing": missing });
    Ok(Output::new(text, json))
}

pub(crate) async fn stats(server: &str) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let stats = admin.stats(wire::StatsRequest {}).await?.into_inner();
    let numbers = [
        ("shards", u64::from(stats.shards)),
        ("shards_settled", u64::from(stats.shards_settled)),
        ("buckets", stats.buckets),
        ("leases", stats.leases),
        ("streams", stats.streams),
        ("queued", stats.queued),
        ("requests", stats.requests),
        ("grants", stats.grants),
        ("granted_tokens", stats.granted_tokens),
        ("spent_tokens", stats.spent_tokens),
        ("returned_tokens", stats.returned_tokens),
        ("reclaimed_tokens", stats.reclaimed_tokens),
        ("refusals", stats.refusals),
        ("records_written", stats.records_written),
        ("store_commits", stats.store_commits),
        ("policy_revision", stats.policy_revision),
        ("policies", u64::from(stats.policies)),
        ("kill_switches", u64::from(stats.kill_switches)),
    ];
    let decided = outcomes(stats.outcomes)?;
    let mut lines = vec![
        ("node", stats.node.clone()),
        ("server_version", stats.server_version.clone()),
        ("uptime", span(stats.uptime)),
    ];
    lines.extend(numbers.map(|(name, number)| (name, number.to_string())));
    let mut json = json!({
        "node": stats.node,
        "server_version": stats.server_version,
        "uptime_ms": millis(stats.uptime),
    });
    for (name, number) in numbers {
        json[name] = number.into();
    }
    let by_policy = decided
        .iter()
        .map(|(policy, one)| (policy.to_string(), counts_json(*one)));
    json["gateway_decisions"] = Value::Object(by_policy.collect());
    let mut text = fields(&lines);
    if !decided.is_empty() {
        text.push_str("\nrequests that gateways decided beside the ledger\n");
        let rows = decided
            .iter()
            .map(|(policy, one)| vec![policy.to_string(), counts(*one)]);
        let rows: Vec<Vec<String>> = rows.collect();
        text.push_str(&table(&["POLICY", "DECISIONS"], &rows));
    }
    Ok(Output::new(text, json))
}
