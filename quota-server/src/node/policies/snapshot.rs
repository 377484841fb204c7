//! The policies and kill switches as they are stored, at one revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{Policy, PolicyHistory, SwitchMode, switch_of};

use super::switches::{is_over, wall_millis};
use crate::store::handle::StoreHandle;
use crate::store::{StoreError, SwitchesRecord};

/// The policies as they are stored, at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicySnapshot {
    pub(super) revision: u64,
    pub(super) entries: BTreeMap<PolicyId, Entry>,
    pub(super) switches: Arc<SwitchesRecord>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The revision of the stored record, which a change has to name.
    pub(super) stored: PolicyVersion,
    pub(super) history: PolicyHistory,
}

impl PolicySnapshot {
    /// Reads all policies.
    pub(crate) async fn load(store: &StoreHandle) -> Result<Self, StoreError> {
        let policies = store.policies().await?;
        let switches = store.switches().await?;
        let next = store.next_revision().await?;
        let entry = |policy: crate::store::StoredPolicy| {
            (
                policy.history.id().clone(),
                Entry {
                    stored: policy.revision,
                    history: policy.history,
                },
            )
        };
        Ok(Self {
            revision: next.get().saturating_sub(1),
            entries: policies.into_iter().map(entry).collect(),
            switches: Arc::new(switches),
        })
    }

    /// Zero as long as nothing was ever stored.
    pub(crate) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Every policy, deleted ones whose exposure may be live included.
    pub(crate) fn histories(&self) -> Vec<PolicyHistory> {
        self.entries
            .values()
            .map(|entry| entry.history.clone())
            .collect()
    }

    /// The policies in force, by identity.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Arc<Policy>> + Clone {
        self.entries
            .values()
            .filter_map(|entry| entry.history.current())
    }

    /// The policy in force under this identity.
    pub(crate) fn get(&self, id: &PolicyId) -> Option<&Arc<Policy>> {
        self.entries.get(id)?.history.current()
    }

    /// The kill switches that are set, some of which may be over.
    pub(crate) const fn switches(&self) -> &Arc<SwitchesRecord> {
        &self.switches
    }

    /// What a kill switch says of a policy now.
    pub(crate) fn switched(&self, id: &PolicyId) -> Option<SwitchMode> {
        let switch = switch_of(&self.switches.switches, id)?;
        (!is_over(switch, wall_millis())).then_some(switch.mode)
    }

    pub(super) fn version(&self, id: &PolicyId) -> Option<PolicyVersion> {
        self.get(id).map(|policy| policy.version())
    }
}
