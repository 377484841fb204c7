//! What administrators do: policies raised, lowered, toggled, deleted and created again while
//! leases are out, and cleared of former versions once those are over.

use quota_core::authority::Input;
use quota_core::holder::{Input as HolderInput, Slot};
use quota_core::id::PolicyVersion;
use quota_core::policy::{Policy, PolicyHistory, PolicySpec};
use quota_core::time::Term;

use super::{Event, World};
use crate::client::Use;
use crate::coverage::Sometimes;
use crate::oracle::IdealLimit;
use crate::shape::{draw_limit, redraw_lease, redraw_rest};

/// One act of an administrator.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Put this spec in force, creating the policy again if it is deleted.
    Put(Box<PolicySpec>),
    /// Delete the policy.
    Delete,
}

/// Takes back what would make a drawn spec invalid.
pub(super) fn make_legal(spec: &mut PolicySpec) {
    let version = PolicyVersion::new(1);
    if Policy::parse(spec.clone(), version).is_err() {
        spec.cost.max = None;
    }
    if Policy::parse(spec.clone(), version).is_err() {
        spec.lease.warm_floor = 0;
    }
}

impl World {
    pub(super) fn last_spec(&self, policy: usize) -> PolicySpec {
        let history = self.store.policy(&self.policies[policy].id);
        let last = history.and_then(|h| h.versions().next());
        last.map_or_else(
            || self.shape.policies[policy].clone(),
            |last| last.spec().clone(),
        )
    }

    /// A change of the limit, of the lease settings, or of both.
    pub(super) fn draw_change(&mut self, policy: usize) -> PolicySpec {
        let mut spec = self.last_spec(policy);
        let what = self.random.below(4);
        if what != 0 {
            let same_rate = self.random.chance(300);
            let drawn = draw_limit(&mut self.random);
            spec.limit = if same_rate {
                spec.limit
                    .with_burst(drawn.burst.expect("drawn with a burst"))
            } else {
                drawn
            };
        }
        if what != 1 {
            redraw_rest(&mut self.random, &mut spec, self.shape.term);
        }
        spec.cost.max = (self.shape.cost_max > 1).then_some(self.shape.cost_max);
        make_legal(&mut spec);
        spec
    }

    /// A change of nothing but the lease settings.
    pub(super) fn draw_lease_settings(&mut self, policy: usize) -> PolicySpec {
        let mut spec = self.last_spec(policy);
        redraw_lease(&mut self.random, &mut spec, self.shape.term);
        make_legal(&mut spec);
        spec
    }

    /// Two limits, to and fro.
    pub(super) fn plan_toggles(&mut self, policy: usize) {
        let old = Box::new(self.last_spec(policy));
        let new = Box::new(self.draw_change(policy));
        let mut delay = 0;
        for turn in 0..self.random.between(2, 6) {
            let spec = if turn % 2 == 0 { &new } else { &old };
            let step = Step::Put(spec.clone());
            self.after(delay, Event::PolicyStep { policy, step });
            delay += self.random.below(self.shape.term / 2);
        }
    }

    pub(super) fn plan_deletion(&mut self, policy: usize) {
        let step = Step::Delete;
        self.after(0, Event::PolicyStep { policy, step });
        let spec = if self.random.chance(500) {
            self.last_spec(policy)
        } else {
            self.draw_change(policy)
        };
        let delay = self.random.around(self.shape.term);
        let step = Step::Put(Box::new(spec));
        self.after(delay, Event::PolicyStep { policy, step });
    }

    pub(super) fn policy_step(&mut self, policy: usize, step: Step) {
        if self.healed {
            return;
        }
        self.apply_step(policy, step);
    }

    pub(super) fn apply_step(&mut self, policy: usize, step: Step) {
        let version = self.store.next_version();
        let old = self.store.policy(&self.policies[policy].id).cloned();
        let new = match (step, &old) {
            (Step::Delete, Some(old)) => old.delete(version).ok(),
            (Step::Delete, None) => None,
            (Step::Put(spec), None) => PolicyHistory::create(*spec, version).ok(),
            (Step::Put(spec), Some(old)) if old.current().is_some() => {
                old.change(*spec, version).ok()
            }
            (Step::Put(spec), Some(old)) => {
                self.hit(Sometimes::PolicyRecreated);
                old.recreate(*spec, version).ok()
            }
        };
        // A refused change (too many former versions, say) changes nothing.
        let Some(new) = new else { return };
        let now = self.time;
        self.trace.note(&[6, now, version.get()]);
        self.trace.say(now, || {
            format!("administrator: {:?}", new.current().map(|p| p.spec()))
        });
        let out = self
            .buckets_of(policy)
            .any(|bucket| self.spendable(bucket) > 0);
        self.coverage
            .hit_if(out && new.current().is_none(), Sometimes::PolicyDeleted);
        self.store.put_policy(new);
        self.tell_all(policy);
    }

    fn tell_all(&mut self, policy: usize) {
        for node in 0..self.servers.len() {
            let delay = self.random.around(self.shape.network.delay);
            let life = self.servers[node].life;
            self.after(
                delay,
                Event::PolicyTold {
                    policy,
                    client: None,
                    life,
                },
            );
        }
        for client in 0..self.clients.len() {
            let delay = self.random.around(self.shape.network.delay * 4);
            let life = self.clients[client].life;
            let client = Some(client);
            self.after(
                delay,
                Event::PolicyTold {
                    policy,
                    client,
                    life,
                },
            );
        }
    }

    pub(super) fn policy_told(&mut self, policy: usize, client: Option<usize>, life: u64) {
        if let Some(client) = client {
            return self.holder_told(policy, client, life);
        }
        let Some(node) = self.node_of(life) else {
            return;
        };
        // Who is cut off from the store is told when it hears it again.
        if self.servers[node].cut_until > self.time || !self.holds_tenure(node) {
            return;
        }
        let Some(history) = self.store.policy(&self.policies[policy].id).cloned() else {
            return;
        };
        let Some(tenure) = self.servers[node].tenure.as_mut() else {
            return;
        };
        tenure
            .applied
            .insert(history.id().clone(), history.changed_at());
        self.follow(policy);
        let history = Box::new(history);
        self.server_inputs(node, vec![Input::ApplyPolicy { history }]);
        self.schedule_clear(node, policy);
    }

    fn holder_told(&mut self, policy: usize, client: usize, life: u64) {
        if life != self.clients[client].life || !self.clients[client].alive {
            return;
        }
        for place in 0..self.clients[client].uses.len() {
            let Use::Bucket(bucket) = self.clients[client].uses[place] else {
                continue;
            };
            if self.buckets[bucket].policy == policy {
                let slot = Slot::new(u32::try_from(place).expect("small"));
                let settings = self.settings(bucket);
                self.client_input(client, HolderInput::PolicyChanged { slot, settings });
            }
        }
    }

    pub(super) fn buckets_of(&self, policy: usize) -> impl Iterator<Item = usize> + use<> {
        let all = self.buckets.iter().enumerate();
        let of = all
            .filter(|(_, b)| b.policy == policy)
            .map(|(place, _)| place);
        of.collect::<Vec<_>>().into_iter()
    }

    /// The authority has a version in force from now on, and the oracle follows. True if it is
    /// another than before.
    pub(super) fn follow(&mut self, policy: usize) -> bool {
        let Some(history) = self.store.policy(&self.policies[policy].id).cloned() else {
            return false;
        };
        let ruled = &mut self.policies[policy];
        if ruled.followed == history.changed_at() {
            return false;
        }
        ruled.followed = history.changed_at();
        let new_term = history.term_max(self.shape.drift);
        // The oracle's clock may be faster than the authority's by two tenths.
        let term = ruled.term.max(new_term).scale_up(5, 4);
        ruled.term = new_term;
        // Deletion changes nothing: the bucket goes on under its last limit.
        let Some(current) = history.current() else {
            return true;
        };
        let now = self.ideal_now();
        for bucket in self.buckets_of(policy) {
            let limit: IdealLimit = current.limit_for(&self.buckets[bucket].address.key).into();
            self.see_change(bucket, limit);
            let change = self.buckets[bucket].ideal.change(now, limit, term);
            change.expect("the oracle's time never goes back");
        }
        let volatile = history
            .versions()
            .any(|p| !p.is_reserved(p.limit_of(&quota_core::policy::LimitClass::Default)));
        let reserved = history
            .versions()
            .any(|p| p.is_reserved(p.limit_of(&quota_core::policy::LimitClass::Default)));
        self.coverage
            .hit_if(volatile && reserved, Sometimes::DurabilityChanged);
        let overridden = |p: &Policy| p.spec().overrides.len();
        let classes = history.versions().map(|p| overridden(p));
        let changed = classes.clone().min() != classes.max();
        self.coverage.hit_if(changed, Sometimes::ClassChanged);
        true
    }

    fn see_change(&mut self, bucket: usize, limit: IdealLimit) {
        let old = self.buckets[bucket].ideal.limit();
        let out = self.spendable(bucket) > 0;
        let lowered = limit.capacity < old.capacity;
        self.coverage.hit_if(lowered, Sometimes::PolicyLowered);
        self.coverage
            .hit_if(lowered && out, Sometimes::LoweredWithLeasesOut);
        self.coverage
            .hit_if(limit.capacity > old.capacity, Sometimes::PolicyRaised);
    }

    /// Former versions may be cleared when this owner, which follows the newest, has outlived
    /// them.
    pub(super) fn schedule_clear(&mut self, node: usize, policy: usize) {
        let Some(history) = self.store.policy(&self.policies[policy].id) else {
            return;
        };
        let wait = history.clearable_after(self.shape.drift);
        if history.former().is_empty() || wait == Term::ZERO {
            return;
        }
        let (version, life) = (history.changed_at(), self.servers[node].life);
        // On the owner's own clock, which may be slow.
        let wait = wait.scale_up(5, 4).as_nanos();
        self.after(
            wait,
            Event::PolicyClear {
                policy,
                version,
                life,
            },
        );
    }

    pub(super) fn policy_clear(&mut self, policy: usize, version: PolicyVersion, life: u64) {
        let id = self.policies[policy].id.clone();
        let (Some(node), Some(history)) = (self.node_of(life), self.store.policy(&id)) else {
            return;
        };
        let tenure = self.servers[node].tenure.as_ref();
        let followed = tenure.and_then(|t| t.applied.get(&id)) == Some(&version);
        // Every owner has to have applied the newest version: so this must be the owner.
        if history.changed_at() != version || !followed || self.owner() != Some(node) {
            return;
        }
        self.hit(Sometimes::FormersCleared);
        match self.store.policy(&id).and_then(PolicyHistory::cleared) {
            Some(history) => {
                self.store.put_policy(history);
                self.after(
                    1,
                    Event::PolicyTold {
                        policy,
                        client: None,
                        life,
                    },
                );
            }
            None => {
                self.hit(Sometimes::PolicyForgotten);
                self.store.forget_policy(&id);
                self.server_inputs(node, vec![Input::ForgetPolicy { id }]);
            }
        }
    }
}
