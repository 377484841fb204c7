//! Kill switches, and what gateways decided beside the ledger.

use quota_core::key::PolicyId;
use quota_core::outcomes::Outcomes;
use quota_core::policy::{SwitchMode, SwitchScope, switch_of};
use quota_wire::convert::common::encode_term;
use quota_wire::convert::outcomes::decode_outcomes;
use quota_wire::convert::switch::{Switch, Switches, decode_switches, encode_mode, encode_scope};
use quota_wire::proto as wire;
use serde_json::{Map, Value, json};

use super::args::{Scope, SwitchCommand};
use super::failure::Failure;
use super::output::{Output, span, table};
use super::{Admin, connect};

pub(crate) async fn run(command: SwitchCommand, server: &str) -> Result<Output, Failure> {
    match command {
        SwitchCommand::Admit(set) => {
            let mode = Some(SwitchMode::AdmitAll);
            change(server, set.scope, mode, set.within, set.reason).await
        }
        SwitchCommand::Refuse(set) => {
            let mode = Some(SwitchMode::RefuseAll);
            change(server, set.scope, mode, set.within, set.reason).await
        }
        SwitchCommand::Off { scope, reason } => change(server, scope, None, None, reason).await,
        SwitchCommand::List => list(server).await,
    }
}

async fn change(
    server: &str,
    scope: Scope,
    mode: Option<SwitchMode>,
    within: Option<quota_core::policy::Span>,
    reason: Option<String>,
) -> Result<Output, Failure> {
    let scope = scope_of(scope);
    let request = wire::SetKillSwitchRequest {
        scope: encode_scope(&scope),
        mode: encode_mode(mode).into(),
        expires_after: within.map(|span| encode_term(span.term())),
        reason: reason.unwrap_or_default(),
    };
    let mut admin = connect(server).await?;
    let done = admin.set_kill_switch(request).await?.into_inner();
    let what = mode.map_or_else(|| "off".to_owned(), |mode| mode.to_string());
    let text = match done.changed {
        true => format!(
            "{scope}: {what}, revision {}; every connected gateway has been told\n",
            done.revision
        ),
        false => format!("{scope}: {what} already, revision {}\n", done.revision),
    };
    let json = json!({
        "scope": scope.to_string(),
        "mode": mode.map_or(json!("off"), |mode| json!(mode)),
        "revision": done.revision,
        "changed": done.changed,
    });
    Ok(Output::new(text, json))
}

async fn list(server: &str) -> Result<Output, Failure> {
    let mut admin = connect(server).await?;
    let (switches, revision) = switches(&mut admin).await?;
    let row = |(scope, switch): (&SwitchScope, &Switch)| {
        vec![
            scope.to_string(),
            switch.mode.to_string(),
            switch
                .expires_in
                .map_or_else(|| "-".to_owned(), |left| span(Some(encode_term(left)))),
            switch.reason.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = switches.iter().map(row).collect();
    let text = match rows.is_empty() {
        true => "no kill switch is set\n".to_owned(),
        false => table(&["SCOPE", "MODE", "ENDS IN", "REASON"], &rows),
    };
    let list = switches.iter().map(|(scope, switch)| {
        json!({
            "scope": scope.to_string(),
            "mode": switch.mode,
            "ends_in_ms": switch.expires_in.map(|left| left.as_nanos() / 1_000_000),
            "reason": switch.reason,
        })
    });
    let list: Vec<Value> = list.collect();
    Ok(Output::new(
        text,
        json!({ "revision": revision, "switches": list }),
    ))
}

/// The switches that are set.
async fn switches(admin: &mut Admin) -> Result<(Switches, u64), Failure> {
    let answer = admin.list_kill_switches(wire::ListKillSwitchesRequest {});
    let answer = answer.await?.into_inner();
    let switches = wire::KillSwitches {
        switches: answer.switches,
    };
    Ok((decode_switches("answer", switches)?, answer.revision))
}

/// What holds for one policy beside what it says.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) switch: Option<Switch>,
    pub(crate) outcomes: Outcomes,
}

/// Switches and outcomes of all policies.
#[derive(Debug)]
pub(crate) struct All {
    switches: Switches,
    outcomes: Vec<(PolicyId, Outcomes)>,
}

impl All {
    pub(crate) async fn of(admin: &mut Admin) -> Result<Self, Failure> {
        let (switches, _) = switches(admin).await?;
        let stats = admin.stats(wire::StatsRequest {}).await?.into_inner();
        Ok(Self {
            switches,
            outcomes: outcomes(stats.outcomes)?,
        })
    }

    pub(crate) fn of_policy(&self, id: &PolicyId) -> Beside {
        let found = self.outcomes.iter().find(|(policy, _)| policy == id);
        Beside {
            switch: switch_of(&self.switches, id).cloned(),
            outcomes: found.map(|(_, outcomes)| *outcomes).unwrap_or_default(),
        }
    }
}

/// The outcomes of a reply, by policy.
pub(crate) fn outcomes(
    found: Vec<wire::PolicyOutcomes>,
) -> Result<Vec<(PolicyId, Outcomes)>, Failure> {
    let found = found.into_iter();
    let decoded = found.map(|one| decode_outcomes("outcomes", one));
    Ok(decoded.collect::<Result<_, _>>()?)
}

/// The counts that are not zero, as `name=count`.
pub(crate) fn counts(outcomes: Outcomes) -> String {
    let named = outcomes.named().into_iter();
    let shown = named.filter(|(_, count)| *count > 0);
    let shown: Vec<String> = shown
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    shown.join(" ")
}

/// All counts, by name.
pub(crate) fn counts_json(outcomes: Outcomes) -> Value {
    let named = outcomes.named().into_iter();
    let named = named.map(|(name, count)| (name.to_owned(), count.into()));
    Value::Object(named.collect::<Map<String, Value>>())
}

fn scope_of(scope: Scope) -> SwitchScope {
    match (scope.policy, scope.namespace) {
        (Some(policy), _) => SwitchScope::Policy(policy),
        (None, Some(namespace)) => SwitchScope::Namespace(namespace),
        // The command line has one of the three.
        (None, None) => SwitchScope::Everything,
    }
}
