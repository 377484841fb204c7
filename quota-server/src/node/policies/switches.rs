//! Kill switches: stored like a policy, and told to every gateway with the policies.

use std::sync::Arc;

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{SWITCHES_MAX, SwitchMode, SwitchScope};
use quota_core::time::Term;
use quota_wire::convert::notice::PolicyNotice;
use quota_wire::convert::switch::{Switch, Switches};
use tokio::sync::oneshot;

use super::change::ChangeRefused;
use super::{PolicySnapshot, PolicyTask};
use crate::clock;
use crate::store::{SwitchRecord, SwitchesRecord};

/// What a caller wants of a kill switch.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRequest {
    pub(crate) scope: SwitchScope,
    /// `None` sets it back to off.
    pub(crate) mode: Option<SwitchMode>,
    pub(crate) expires_after: Option<Term>,
    pub(crate) reason: String,
}

/// A kill switch that was set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchChanged {
    pub(crate) revision: u64,
    /// False if it was so already.
    pub(crate) changed: bool,
}

#[derive(Debug)]
pub(super) struct SwitchAsk {
    pub(super) request: SwitchRequest,
    pub(super) reply: oneshot::Sender<Result<SwitchChanged, ChangeRefused>>,
}

impl PolicyTask {
    pub(super) async fn switch(
        &mut self,
        request: SwitchRequest,
    ) -> Result<SwitchChanged, ChangeRefused> {
        let before = Arc::clone(self.snapshots.borrow().switches());
        let mut after = SwitchesRecord::clone(&before);
        let SwitchRequest {
            scope,
            mode,
            expires_after,
            reason,
        } = request;
        match mode {
            None => drop(after.switches.remove(&scope)),
            Some(mode) => {
                let expires_at = expires_after
                    .map(|term| wall_millis().saturating_add(term.as_nanos() / 1_000_000));
                let switch = SwitchRecord {
                    mode,
                    expires_at,
                    reason: reason.clone(),
                };
                after.switches.insert(scope.clone(), switch);
            }
        }
        if after == *before {
            let revision = self.snapshots.borrow().revision();
            return Ok(SwitchChanged {
                revision,
                changed: false,
            });
        }
        if after.switches.len() > SWITCHES_MAX.max(before.switches.len()) {
            return Err(ChangeRefused::TooManySwitches);
        }
        let revision = self.put_switches(after).await?;
        match mode {
            None => tracing::warn!(%scope, revision, reason, "kill switch set back"),
            Some(mode) => tracing::warn!(%scope, %mode, revision, reason, "kill switch set"),
        }
        Ok(SwitchChanged {
            revision,
            changed: true,
        })
    }

    /// Sets back the switches whose time is over.
    pub(super) async fn clear_switches(&mut self) {
        let before = Arc::clone(self.snapshots.borrow().switches());
        let now = wall_millis();
        if !before.switches.values().any(|switch| is_over(switch, now)) {
            return;
        }
        let mut after = SwitchesRecord::clone(&before);
        after.switches.retain(|scope, switch| {
            let over = is_over(switch, now);
            if over {
                tracing::warn!(%scope, mode = %switch.mode, "kill switch is over");
            }
            !over
        });
        // Whoever was told of them knows when they are over; the store is tried again.
        if let Err(error) = self.put_switches(after).await {
            tracing::warn!(%error, "kill switches that are over were not set back");
        }
    }

    /// Stores all switches, then shows them to everyone.
    async fn put_switches(&mut self, switches: SwitchesRecord) -> Result<u64, ChangeRefused> {
        let revision = match self.store.put_switches(switches.clone()).await {
            Ok(revision) => revision,
            Err(error) => self.find_switches(&switches, error.to_string()).await?,
        };
        let mut snapshot = PolicySnapshot::clone(&self.snapshots.borrow());
        snapshot.revision = revision.get();
        snapshot.switches = Arc::new(switches);
        self.snapshots.send_replace(Arc::new(snapshot));
        self.count();
        self.streams.notice(&PolicyNotice {
            revision: revision.get(),
            policies: Vec::<PolicyId>::new(),
        });
        Ok(revision.get())
    }

    /// Finds out what became of a write whose outcome is unknown.
    async fn find_switches(
        &self,
        wanted: &SwitchesRecord,
        error: String,
    ) -> Result<PolicyVersion, ChangeRefused> {
        match PolicySnapshot::load(&self.store).await {
            Ok(found) if **found.switches() == *wanted => Ok(PolicyVersion::new(found.revision())),
            Ok(_) => Err(ChangeRefused::Store(error)),
            Err(_) => Err(ChangeRefused::Unsure(error)),
        }
    }
}

/// True once a switch is back to off by itself.
pub(super) fn is_over(switch: &SwitchRecord, now: u64) -> bool {
    switch.expires_at.is_some_and(|at| at <= now)
}

/// Milliseconds since 1970.
pub(super) fn wall_millis() -> u64 {
    u64::try_from(clock::wall_nanos() / 1_000_000).unwrap_or(0)
}

/// The switches that are not over, with the time that is left to each.
pub(crate) fn in_force(record: &SwitchesRecord) -> Switches {
    let now = wall_millis();
    let running = record.switches.iter().filter(|(_, one)| !is_over(one, now));
    let left = |at: u64| Term::from_millis(at.saturating_sub(now));
    running
        .map(|(scope, one)| {
            let switch = Switch {
                mode: one.mode,
                expires_in: one.expires_at.map(left),
                reason: one.reason.clone(),
            };
            (scope.clone(), switch)
        })
        .collect()
}
