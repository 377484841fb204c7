//! Tuning how a policy's leases are sized and timed.

use quota_core::policy::Span;
use quota_wire::convert::common::{encode_policy_id, encode_term};
use quota_wire::convert::policy::decode_lease_spec;
use quota_wire::proto as wire;
use serde_json::{Map, Value, json};

use super::args::Tune;
use super::connect;
use super::failure::Failure;
use super::output::{Output, table};

pub(crate) async fn tune(wish: Tune, server: &str) -> Result<Output, Failure> {
    let span = |span: Option<Span>| span.map(|span| encode_term(span.term()));
    let lease = wire::LeaseSpec {
        share_per_mille: wish.share,
        horizon: span(wish.horizon),
        term_max: span(wish.term_max),
        idle_return: span(wish.idle_return),
        warm_floor: wish.warm_floor,
    };
    if lease == wire::LeaseSpec::default() {
        return Err(Failure::usage(
            "say what to change: --horizon, --share, --term-max, --idle-return or --warm-floor"
                .to_owned(),
        ));
    }
    let mut admin = connect(server).await?;
    let request = wire::TuneLeaseRequest {
        id: Some(encode_policy_id(&wish.policy)),
        lease: Some(lease),
        expected_version: wish.expect,
        dry_run: wish.dry_run,
    };
    let tuned = admin.tune_lease(request).await?.into_inner();
    let (before, after) = (section(tuned.before)?, section(tuned.after)?);

    let id = &wish.policy;
    let mut text = match (tuned.changed, wish.dry_run) {
        (false, _) => format!("{id} says this already, version {}\n", tuned.version),
        (true, true) => format!("{id} would be changed\n"),
        (true, false) => format!("{id} changed, version {}\n", tuned.version),
    };
    let plain = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "-".to_owned(),
    };
    let rows = after.iter().map(|(field, value)| {
        let before = before.get(field);
        let mark = if before == Some(value) { "" } else { "<-" };
        vec![
            field.clone(),
            plain(before),
            plain(Some(value)),
            mark.to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    text.push_str(&table(&["FIELD", "BEFORE", "AFTER", ""], &rows));
    if tuned.changed {
        text.push_str(&format!(
            "{} tokens are out under the version before\n",
            tuned.outstanding_before
        ));
    }
    let json = json!({
        "policy": id.to_string(),
        "dry_run": wish.dry_run,
        "changed": tuned.changed,
        "version": tuned.version,
        "outstanding_before": tuned.outstanding_before,
        "before": before,
        "after": after,
    });
    Ok(Output::new(text, json))
}

/// The section as people write it, every field with its value.
fn section(lease: Option<wire::LeaseSpec>) -> Result<Map<String, Value>, Failure> {
    let spec = decode_lease_spec("lease", lease)?;
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => Ok(fields),
        other => unreachable!("a section is a table, not {other:?}"),
    }
}
