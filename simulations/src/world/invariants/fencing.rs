//! One owner: nobody decides once another tenure was claimed, and the store takes no record of an
//! owner that was replaced.

use quota_core::id::Epoch;

use super::{FENCING, ONE_OWNER, World};

impl World {
    /// A node is about to decide a batch.
    pub(in crate::world) fn check_owner(&mut self, node: usize) {
        let (epoch, newest) = (self.epoch_of(node), self.newest_claim);
        if epoch != newest {
            let text = format!("node {node} decides in epoch {epoch} after {newest} was claimed");
            self.fail(ONE_OWNER, text);
        }
    }

    /// The store has answered a write.
    pub(in crate::world) fn check_fence(&mut self, epoch: Epoch, applied: bool) {
        let newest = self.newest_claim;
        if applied && epoch != newest {
            let text = format!("a record of epoch {epoch} was applied after {newest} was claimed");
            self.fail(FENCING, text);
        }
    }
}
