//! Kill switches.

use std::collections::BTreeMap;

use quota_core::key::PolicyId;
use quota_core::policy::{SWITCH_REASON_BYTES_MAX, SWITCHES_MAX, SwitchMode, SwitchScope};
use quota_core::time::Term;

use super::common::{check_count, decode_name, decode_term, decode_text, encode_term};
use crate::malformed::Malformed;
use crate::proto as wire;

/// A kill switch as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// What it does.
    pub mode: SwitchMode,
    /// For how much longer, from when it is received; `None` until it is set back.
    pub expires_in: Option<Term>,
    /// Why, as its setter said.
    pub reason: String,
}

/// Kill switches by scope.
pub type Switches = BTreeMap<SwitchScope, Switch>;

/// A scope: absent for everything, without a name for a namespace.
#[must_use]
pub fn encode_scope(scope: &SwitchScope) -> Option<wire::PolicyId> {
    let (namespace, name) = match scope {
        SwitchScope::Everything => return None,
        SwitchScope::Namespace(namespace) => (namespace.clone(), String::new()),
        SwitchScope::Policy(policy) => (policy.namespace.clone(), policy.name.clone()),
    };
    Some(wire::PolicyId { namespace, name })
}

/// A scope, from the field `path`.
///
/// # Errors
/// [`Malformed`] if the namespace is empty, or a name too long.
pub fn decode_scope(path: &str, scope: Option<wire::PolicyId>) -> Result<SwitchScope, Malformed> {
    let Some(wire::PolicyId { namespace, name }) = scope else {
        return Ok(SwitchScope::Everything);
    };
    let namespace = decode_name(&format!("{path}.namespace"), namespace)?;
    if name.is_empty() {
        return Ok(SwitchScope::Namespace(namespace));
    }
    Ok(SwitchScope::Policy(PolicyId {
        namespace,
        name: decode_name(&format!("{path}.name"), name)?,
    }))
}

/// A mode; `None` for off.
#[must_use]
pub const fn encode_mode(mode: Option<SwitchMode>) -> wire::KillSwitchMode {
    match mode {
        None => wire::KillSwitchMode::Off,
        Some(SwitchMode::AdmitAll) => wire::KillSwitchMode::AdmitAll,
        Some(SwitchMode::RefuseAll) => wire::KillSwitchMode::RefuseAll,
    }
}

/// A mode, from the field `path`; `None` for off.
///
/// # Errors
/// [`Malformed`] if it is not said, or not known to this version.
pub fn decode_mode(path: &str, mode: i32) -> Result<Option<SwitchMode>, Malformed> {
    match wire::KillSwitchMode::try_from(mode) {
        Ok(wire::KillSwitchMode::Off) => Ok(None),
        Ok(wire::KillSwitchMode::AdmitAll) => Ok(Some(SwitchMode::AdmitAll)),
        Ok(wire::KillSwitchMode::RefuseAll) => Ok(Some(SwitchMode::RefuseAll)),
        Ok(wire::KillSwitchMode::Unspecified) | Err(_) => {
            let allowed = "OFF (1), ADMIT_ALL (2) or REFUSE_ALL (3)";
            Err(Malformed::new(path, mode, allowed))
        }
    }
}

/// A reason, from the field `path`.
///
/// # Errors
/// [`Malformed`] if it is too long.
pub fn decode_reason(path: &str, reason: String) -> Result<String, Malformed> {
    decode_text(path, reason, SWITCH_REASON_BYTES_MAX)
}

/// The switches.
#[must_use]
pub fn encode_switches(switches: &Switches) -> wire::KillSwitches {
    let switches = switches.iter().map(|(scope, switch)| wire::KillSwitch {
        scope: encode_scope(scope),
        mode: encode_mode(Some(switch.mode)).into(),
        expires_in: switch.expires_in.map(encode_term),
        reason: switch.reason.clone(),
    });
    wire::KillSwitches {
        switches: switches.collect(),
    }
}

/// The switches, from the field `path`.
///
/// # Errors
/// [`Malformed`] if there are too many, a scope is named twice, or one makes no sense.
pub fn decode_switches(path: &str, switches: wire::KillSwitches) -> Result<Switches, Malformed> {
    let path = format!("{path}.switches");
    check_count(&path, switches.switches.len(), SWITCHES_MAX)?;
    let mut decoded = Switches::new();
    for (index, switch) in switches.switches.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let scope = decode_scope(&format!("{path}.scope"), switch.scope)?;
        let mode_path = format!("{path}.mode");
        let mode = decode_mode(&mode_path, switch.mode)?
            .ok_or_else(|| Malformed::new(&mode_path, "OFF", "a switch that is set"))?;
        let expires_in = switch
            .expires_in
            .map(|span| decode_term(&format!("{path}.expires_in"), span))
            .transpose()?;
        let reason = decode_reason(&format!("{path}.reason"), switch.reason)?;
        let switch = Switch {
            mode,
            expires_in,
            reason,
        };
        if decoded.insert(scope.clone(), switch).is_some() {
            let path = format!("{path}.scope");
            return Err(Malformed::new(path, scope, "no scope twice"));
        }
    }
    Ok(decoded)
}
