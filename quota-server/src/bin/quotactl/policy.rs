//! Listing, showing, changing and deleting policies.

use std::path::Path;

use quota_core::key::PolicyId;
use quota_core::policy::{Durability, LimitSpec, PolicySpec};
use quota_wire::convert::common::encode_policy_id;
use quota_wire::convert::policy::{VersionedSpec, decode_policy, encode_spec};
use quota_wire::proto as wire;
use quota_wire::status;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::args::{PolicyCommand, Put};
use super::diff::{Difference, differences};
use super::failure::Failure;
use super::file::PolicyFile;
use super::output::{Output, table};
use super::switch::{All, Beside, counts, counts_json};
use super::{Admin, connect};

pub(crate) async fn run(command: PolicyCommand, server: &str) -> Result<Output, Failure> {
    match command {
        PolicyCommand::List { namespace } => list(server, namespace.unwrap_or_default()).await,
        PolicyCommand::Get { policy } => get(server, &policy).await,
        PolicyCommand::Put(wish) => put(server, wish).await,
        PolicyCommand::Delete { policy, expect } => delete(server, &policy, expect).await,
        PolicyCommand::Apply { file, dry_run } => apply(server, &file, dry_run).await,
    }
}

async fn list(server: &str, namespace: String) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let mut request = wire::ListPoliciesRequest {
        namespace,
        ..wire::ListPoliciesRequest::default()
    };
    let (found, revision) = pages(&mut admin, &mut request).await?;
    let mut policies = Vec::new();
    for policy in found {
        policies.push(decode_policy("policy", policy)?);
    }
    let beside = All::of(&mut admin).await?;
    let beside = |policy: &VersionedSpec| beside.of_policy(&policy.spec.id());
    let rows = policies.iter().map(|policy| row(policy, &beside(policy)));
    let rows: Vec<Vec<String>> = rows.collect();
    let heading = [
        "POLICY", "VERSION", "LIMIT", "BURST", "KEY", "MATCH", "NOTES",
    ];
    let json = policies.iter().map(|one| policy_json(one, &beside(one)));
    let json = json.collect::<Vec<Value>>();
    let json = json!({ "revision": revision, "policies": json });
    Ok(Output::new(table(&heading, &rows), json))
}

async fn pages(
    admin: &mut Admin,
    request: &mut wire::ListPoliciesRequest,
) -> Result<(Vec<wire::Policy>, u64), Failure> {
    let mut policies = Vec::new();
    loop {
        let page = admin.list_policies(request.clone()).await?.into_inner();
        policies.extend(page.policies);
        if page.next_page_token.is_empty() {
            return Ok((policies, page.revision));
        }
        request.page_token = page.next_page_token;
    }
}

fn row(policy: &VersionedSpec, beside: &Beside) -> Vec<String> {
    let spec = &policy.spec;
    let conditions = spec.conditions.iter().map(|(dimension, condition)| {
        let condition = serde_json::to_value(condition).unwrap_or_default();
        match condition {
            Value::String(literal) => format!("{dimension}={literal}"),
            other => format!("{dimension}={other}"),
        }
    });
    let mut notes = Vec::new();
    if let Some(switch) = &beside.switch {
        notes.push(format!("SWITCHED TO {}", switch.mode).to_uppercase());
    }
    if spec.disabled {
        notes.push("disabled".to_owned());
    }
    if spec.shadow {
        notes.push(match spec.shadow_percent {
            Some(percent) => format!("shadow {percent}%"),
            None => "shadow".to_owned(),
        });
    }
    if spec.durability != Durability::Auto {
        let durability = serde_json::to_value(spec.durability).unwrap_or_default();
        notes.push(durability.as_str().unwrap_or_default().to_owned());
    }
    for (what, count) in [
        ("plans", spec.plans.len()),
        ("overrides", spec.overrides.len()),
    ] {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    }
    vec![
        spec.id().to_string(),
        policy.version.to_string(),
        limit(&spec.limit),
        spec.limit
            .burst
            .map_or_else(|| "-".to_owned(), |burst| burst.to_string()),
        spec.key.join(" "),
        conditions.collect::<Vec<String>>().join(" "),
        notes.join(", "),
    ]
}

/// A limit's rate, in the words that it is written in.
fn limit(limit: &LimitSpec) -> String {
    match (limit.tokens, limit.period, limit.emission_interval) {
        (Some(tokens), Some(period), _) => format!("{tokens} per {period}"),
        (_, _, Some(interval)) => format!("1 per {interval}"),
        (Some(tokens), None, None) => format!("{tokens} at once"),
        (None, _, None) => String::new(),
    }
}

fn policy_json(policy: &VersionedSpec, beside: &Beside) -> Value {
    json!({
        "version": policy.version.get(),
        "spec": policy.spec,
        "kill_switch": beside.switch.as_ref().map(|switch| switch.mode),
        "gateway_decisions": counts_json(beside.outcomes),
    })
}

async fn get(server: &str, id: &PolicyId) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let policy = current(&mut admin, id).await?;
    let policy = policy.ok_or_else(|| Failure::from(status::unknown_policy(Some(id))))?;
    let toml = toml::to_string(&policy.spec)
        .map_err(|error| Failure::refused(format!("policy {id} cannot be written: {error}")))?;
    let beside = All::of(&mut admin).await?.of_policy(id);
    let mut text = format!("# version {}\n", policy.version);
    // Comments, so that `apply` takes the text as it is.
    if let Some(switch) = &beside.switch {
        let reason = switch.reason.replace(char::is_control, " ");
        text.push_str(&format!("# kill switch: {}; {reason}\n", switch.mode));
    }
    if !beside.outcomes.is_zero() {
        let counts = counts(beside.outcomes);
        text.push_str(&format!("# gateways decided beside the ledger: {counts}\n"));
    }
    text.push_str(&toml);
    Ok(Output::new(text, policy_json(&policy, &beside)))
}

/// The policy in force; `None` if there is none.
async fn current(admin: &mut Admin, id: &PolicyId) -> Result<Option<VersionedSpec>, Failure> {
    let request = wire::GetPolicyRequest {
        id: Some(encode_policy_id(id)),
    };
    match admin.get_policy(request).await {
        Ok(policy) => Ok(Some(decode_policy("policy", policy.into_inner())?)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status.into()),
    }
}

async fn delete(server: &str, id: &PolicyId, expect: Option<u64>) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let request = wire::DeletePolicyRequest {
        id: Some(encode_policy_id(id)),
        expected_version: expect,
    };
    let deleted = admin.delete_policy(request).await?.into_inner();
    let out = deleted.outstanding_before;
    let text = format!("{id} is deleted; {out} tokens are still out\n");
    let json = json!({
        "policy": id.to_string(), "revision": deleted.revision, "outstanding_before": out,
    });
    Ok(Output::new(text, json))
}

/// One policy to be put in the place of what is there.
struct Change {
    before: Option<VersionedSpec>,
    after: PolicySpec,
}

/// What became of a change, or would.
struct Made {
    differences: Vec<Difference>,
    id: PolicyId,
    action: &'static str,
    reply: wire::PutPolicyResponse,
}

impl Change {
    async fn find(admin: &mut Admin, after: PolicySpec) -> Result<Self, Failure> {
        let before = current(admin, &after.id()).await?;
        Ok(Self { before, after })
    }

    /// Sends it, on the condition that what it was compared with is still in force.
    async fn send(
        &self,
        admin: &mut Admin,
        expect: Option<u64>,
        dry: bool,
    ) -> Result<Made, Status> {
        let version = self
            .before
            .as_ref()
            .map_or(0, |policy| policy.version.get());
        let request = wire::PutPolicyRequest {
            spec: Some(encode_spec(&self.after)),
            expected_version: Some(expect.unwrap_or(version)),
            dry_run: dry,
        };
        let reply = admin.put_policy(request).await?.into_inner();
        let action = match (&self.before, reply.changed) {
            (_, false) => "unchanged",
            (None, true) => "created",
            (Some(_), true) => "changed",
        };
        let before = self.before.as_ref().map(|policy| &policy.spec);
        Ok(Made {
            differences: differences(before, &self.after),
            id: self.after.id(),
            action,
            reply,
        })
    }
}

impl Made {
    fn text(&self, dry: bool) -> String {
        let Self {
            id, action, reply, ..
        } = self;
        let would = if dry { "would be " } else { "" };
        let mut text = match *action {
            "unchanged" => format!("{id} unchanged, version {}\n", reply.version),
            _ if dry => format!("{id} {would}{action}\n"),
            _ => format!("{id} {action}, version {}\n", reply.version),
        };
        for difference in &self.differences {
            text.push_str(&difference.line());
            text.push('\n');
        }
        if *action == "changed" {
            let tense = if dry { "would be" } else { "are" };
            text.push_str(&format!(
                "    {} tokens {tense} out under the version before, {} owed\n",
                reply.outstanding_before, reply.owed
            ));
        }
        text
    }

    fn json(&self) -> Value {
        let differences: Vec<Value> = self.differences.iter().map(Difference::json).collect();
        json!({
            "policy": self.id.to_string(),
            "action": self.action,
            "version": self.reply.version,
            "outstanding_before": self.reply.outstanding_before,
            "owed": self.reply.owed,
            "differences": differences,
        })
    }
}

fn report(made: &[Made], dry: bool) -> Output {
    let text = made.iter().map(|one| one.text(dry)).collect::<String>();
    let policies: Vec<Value> = made.iter().map(Made::json).collect();
    Output::new(text, json!({ "dry_run": dry, "policies": policies }))
}

async fn put(server: &str, wish: Put) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let before = current(&mut admin, &wish.policy).await?;
    let mut after = match &before {
        Some(policy) => policy.spec.clone(),
        None => PolicySpec {
            namespace: wish.policy.namespace.clone(),
            limit: LimitSpec {
                tokens: None,
                period: None,
                burst: None,
                emission_interval: None,
            },
            ..PolicySpec::new(
                &wish.policy.name,
                &[],
                LimitSpec::new(1, quota_core::time::Term::from_seconds(1)),
            )
        },
    };
    if let Some(tokens) = wish.tokens {
        after.limit.tokens = Some(tokens);
    }
    if let Some(period) = wish.period {
        after.limit.period = Some(period.term().into());
    }
    if let Some(burst) = wish.burst {
        after.limit.burst = Some(burst);
    }
    if !wish.key.is_empty() {
        after.key = wish.key;
    }
    let change = Change { before, after };
    let made = change.send(&mut admin, wish.expect, wish.dry_run).await?;
    Ok(report(&[made], wish.dry_run))
}

async fn apply(server: &str, path: &Path, dry_run: bool) -> Result<Output, Failure> {
    // Before anything is said to anyone.
    let file = PolicyFile::read(path)?;
    let mut admin = connect(server).await?;
    let mut changes = Vec::new();
    let mut made = Vec::new();
    for (spec, place) in &file.policies {
        let change = Change::find(&mut admin, spec.clone()).await?;
        let checked = change.send(&mut admin, None, true).await;
        made.push(checked.map_err(|status| refused(&file, place, spec, status))?);
        changes.push((change, spec, place));
    }
    if dry_run {
        return Ok(report(&made, true));
    }
    made.clear();
    for (change, spec, place) in &changes {
        match change.send(&mut admin, None, false).await {
            Ok(one) => made.push(one),
            Err(status) => {
                let failure = refused(&file, place, spec, status);
                return Err(failure.after(report(&made, false)));
            }
        }
    }
    Ok(report(&made, false))
}

/// A server's refusal, at the field of the file that it is about.
fn refused(
    file: &PolicyFile,
    place: &super::place::Place,
    spec: &PolicySpec,
    status: Status,
) -> Failure {
    let detail = status::detail(&status);
    let field = detail.and_then(|detail| detail.fields.into_iter().next());
    let field = field.map_or_else(String::new, |field| field.field);
    let field = field.strip_prefix("spec.").unwrap_or(&field);
    let at = file.at(place, if field.is_empty() { "name" } else { field });
    let failure = Failure::from(status);
    failure.at(&format!("{at}: policy {}", spec.id()))
}
