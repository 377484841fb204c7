//! Policy changes: stored, heard of later or never, and cleared as soon as the rules allow.

use quota_core::authority::Input;
use quota_core::id::PolicyVersion;
use quota_core::policy::PolicyHistory;

use super::ideal::Ideal;
use super::specs::{address, id, spec};
use super::world::{DRIFT, MILLI, World};

impl World {
    /// Stores a change; the owner may hear of it later.
    pub(crate) fn change_policy(&mut self) {
        let version = self.next_version();
        let new = spec(&mut self.dice, self.storm);
        let deletes = self.dice.chance(15);
        let next = match &self.history {
            None => PolicyHistory::create(new, version).ok(),
            Some(old) if old.current().is_none() => old.recreate(new, version).ok(),
            Some(old) if deletes => old.delete(version).ok(),
            Some(old) => {
                // Half of the changes touch one thing only.
                let mut spec = old.current().unwrap().spec().clone();
                match self.dice.below(6) {
                    0 => spec.limit = new.limit,
                    1 => spec.durability = new.durability,
                    2 => spec.lease = new.lease,
                    3 => {
                        spec.limit = new.limit;
                        spec.overrides.clear();
                        spec.plans.clear();
                    }
                    _ => spec = new,
                }
                old.change(spec, version).ok()
            }
        };
        let Some(next) = next else { return };
        self.tally.changes += 1;
        if let Some(policy) = next.current() {
            self.stored = policy.clone();
        }
        self.history = Some(next);
        self.pending = true;
        match self.dice.below(10) {
            // The owner dies before it hears of it.
            0..=2 if self.crashes > 5 => {
                self.spend(true);
                self.wait();
                self.crash();
            }
            0..=2 => {}
            _ => self.apply_policy(),
        }
    }

    pub(crate) fn apply_policy(&mut self) {
        let Some(history) = self.history.clone() else {
            return;
        };
        self.applied_at = self.now;
        self.in_force(false);
        self.feed(Input::ApplyPolicy {
            history: Box::new(history),
        });
    }

    /// Former versions are dropped as soon as the rules allow.
    pub(crate) fn clear_policy(&mut self) {
        let Some(history) = self.history.as_ref() else {
            return;
        };
        let over = self.applied_at + history.clearable_after(DRIFT).as_nanos();
        if self.pending || history.former().is_empty() {
            return;
        }
        if over > self.now {
            if over - self.now > 200_000 * MILLI || !self.dice.chance(30) {
                return;
            }
            self.pass(over);
        }
        let applied = self.applied_at;
        self.history = self.history.as_ref().and_then(PolicyHistory::cleared);
        if self.history.is_some() {
            self.tally.clears += 1;
            self.apply_policy();
            self.applied_at = applied;
        } else {
            self.tally.forgets += 1;
            self.feed(Input::ForgetPolicy { id: id() });
        }
    }

    /// The ideal buckets follow what the owner serves by now.
    pub(crate) fn in_force(&mut self, fresh: bool) {
        let Some(history) = &self.history else { return };
        self.pending = false;
        self.longest = self.longest.max(history.term_max(DRIFT).as_nanos());
        // A deleted policy's last limit goes on: for a new owner the last one stored.
        let policy = match history.current() {
            None if !fresh => return,
            _ => self.stored.clone(),
        };
        for (key, ideal) in self.ideals.iter_mut().enumerate() {
            let limit = policy.limit_for(&address(key).key);
            match ideal {
                None => *ideal = Some(Ideal::new(limit, self.now)),
                Some(ideal) => ideal.change(self.now, limit),
            }
        }
    }

    fn next_version(&mut self) -> PolicyVersion {
        self.version += 1;
        PolicyVersion::new(self.version)
    }
}
