//! Handled twice is handled once: a message whose copy comes at once, and an answer.

use quota_core::authority::{Input, PolicyStats};
use quota_core::holder::{Cells, Input as HolderInput, Slot};
use quota_core::id::MessageNumber;
use quota_core::message::Answer;

use super::{IDEMPOTENCE, World};
use crate::coverage::Sometimes;

impl World {
    /// The totals of a node's tenure, with every bucket settled, so that what time alone brings
    /// about is in them.
    pub(in crate::world) fn settled_totals(&mut self, node: usize) -> PolicyStats {
        for bucket in 0..self.buckets.len() {
            self.look(bucket);
        }
        let mut totals = PolicyStats::default();
        if let Some(tenure) = &self.servers[node].tenure {
            for (_, stats) in tenure.authority.policy_stats() {
                totals.merge(stats);
            }
        }
        totals
    }

    /// Handles a message again. `before`: the totals before it was handled for the first time.
    pub(in crate::world) fn repeat_inputs(
        &mut self,
        node: usize,
        inputs: Vec<Input>,
        before: PolicyStats,
    ) {
        let first = self.settled_totals(node);
        let retries = |world: &Self| {
            let tenure = world.servers[node].tenure.as_ref();
            tenure.map_or(0, |t| t.authority.stats().retries)
        };
        let answered_before = retries(self);
        self.server_inputs(node, inputs);
        let second = self.settled_totals(node);
        let ledger = |s: &PolicyStats| (s.granted, s.spent, s.returned, s.reclaimed);
        self.hit(Sometimes::MessageRepeated);
        let again = retries(self) > answered_before && first.granted > before.granted;
        self.coverage.hit_if(again, Sometimes::RetryOfGranted);
        // A crash that the grant set off ends the tenure, and its totals.
        if second.granted >= first.granted && ledger(&first) != ledger(&second) {
            let text = format!("a message handled twice: {first:?} became {second:?}");
            self.fail(IDEMPOTENCE, text);
        }
    }

    /// A holder handles an answer, and the same one again.
    pub(in crate::world) fn repeat_answer(
        &mut self,
        client: usize,
        anchor: MessageNumber,
        answer: Answer,
    ) {
        let now = self.client_now(client);
        let node = &mut self.clients[client];
        let look = |node: &crate::client::Client| {
            let slots = (0..node.uses.len()).filter_map(|n| u32::try_from(n).ok());
            let slots = slots.map(Slot::new);
            let all = slots.map(|slot| {
                let cell = node.table.cell(slot).view();
                (cell.tokens, cell.deadline, node.holder.lease(slot))
            });
            all.collect::<Vec<_>>()
        };
        let input = HolderInput::Answer { anchor, answer };
        node.holder.handle(now, input.clone(), &node.table);
        let first = look(node);
        node.holder.handle(now, input, &node.table);
        let second = look(node);
        self.events += 2;
        self.hit(Sometimes::AnswerRepeated);
        if first != second {
            let text = format!("{answer:?} handled twice: {first:?} became {second:?}");
            self.fail(IDEMPOTENCE, text);
        }
        self.pump(client);
    }
}
