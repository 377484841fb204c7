//! What must hold at every moment: of each answer, of each token spent, and of what is left.

use quota_core::id::{Incarnation, MessageNumber};
use quota_core::message::{Answer, Status};
use quota_core::time::Term;

use super::specs::{KEYS, address};
use super::world::World;

impl World {
    pub(crate) fn answered(
        &mut self,
        incarnation: Incarnation,
        anchor: MessageNumber,
        answer: Answer,
    ) {
        let Some(grant) = answer.grant else { return };
        let serving = self.history.as_ref().and_then(|h| h.current());
        let is_serving = self.pending || serving.is_some_and(|p| p.version() == grant.version);
        let total = self.granted.entry(grant.lease).or_insert((incarnation, 0));
        assert_eq!(total.0, incarnation, "a lease changed hands");
        assert!(
            is_serving || grant.granted.get() <= total.1,
            "a lease of another version was extended"
        );
        total.1 = total.1.max(grant.granted.get());
        let Some(holder) = self
            .holders
            .iter_mut()
            .find(|h| h.incarnation == incarnation)
        else {
            return;
        };
        let key = holder
            .numbers
            .iter()
            .find(|(_, n)| **n == answer.key)
            .map(|(k, _)| *k);
        // An answer on a stream that is gone by now reaches nobody.
        let Some(key) = key else { return };
        if !is_serving {
            assert_eq!(
                grant.term,
                Term::ZERO,
                "a lease got a longer term under another version"
            );
        }
        let index = usize::try_from(anchor.get()).unwrap() - 1;
        let sent = holder.sent[index];
        let lasts = grant.term.scale_down(11, 9).as_nanos();
        let held = holder.leases.entry((key, grant.lease)).or_default();
        if grant.granted.get() > held.granted {
            self.tally.grants += 1;
        }
        held.granted = held.granted.max(grant.granted.get());
        held.deadline = held.deadline.max(sent + lasts);
        if self.dice.chance(85) && answer.sequence.get() == holder.sequences[key] {
            holder.current[key] = Some(grant.lease);
        }
        if answer.status == Status::Done {
            let decided = (key, answer.sequence.get(), grant.lease);
            let before = holder.decided.entry(decided).or_insert(grant.granted.get());
            assert_eq!(
                *before,
                grant.granted.get(),
                "a retry was granted once more"
            );
        }
    }

    pub(crate) fn spend(&mut self, everything: bool) {
        let now = self.now;
        for place in 0..self.holders.len() {
            let held: Vec<_> = self.holders[place].leases.keys().copied().collect();
            for at in held {
                let lease = self.holders[place].leases.get_mut(&at).unwrap();
                let rest = lease.spendable(now);
                let part = if everything || self.dice.chance(30) {
                    rest
                } else if self.dice.chance(40) {
                    self.dice.below(rest + 1)
                } else {
                    0
                };
                if part > 0 {
                    lease.spent += part;
                    self.tally.admitted += part;
                    let ideal = self.ideals[at.0].as_mut().unwrap();
                    ideal.admit(now, part, self.longest);
                }
            }
        }
    }

    /// `available + live ≤ ideal`, and conservation.
    pub(crate) fn look(&mut self) {
        for key in 0..KEYS.len() {
            let live = self.live(key);
            let now = self.time();
            let Some(view) = self.authority.inspect(now, &address(key)) else {
                continue;
            };
            let Some(ideal) = self.ideals[key].as_mut() else {
                continue;
            };
            ideal.settle(self.now);
            let level = ideal.level.tokens(ideal.last().rate);
            assert!(
                view.available + i128::from(live) <= level,
                "{live} tokens are live and the ideal bucket holds {level}: {view:?}"
            );
            let out = view.outstanding.get() + view.ghost.get();
            assert!(
                view.available.max(0) + i128::from(out) <= i128::from(view.capacity.get())
                    || view.available <= 0,
                "{view:?}"
            );
        }
    }

    /// What may still be spent of a bucket.
    fn live(&self, key: usize) -> u64 {
        let leases = self.holders.iter().flat_map(|h| &h.leases);
        let of_key = leases.filter(|((k, _), _)| *k == key);
        of_key.map(|(_, held)| held.spendable(self.now)).sum()
    }
}
