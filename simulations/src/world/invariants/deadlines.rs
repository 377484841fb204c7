//! The holder stops first: in true time, each lease ends at its holder no later than at the
//! authority, and one that the authority does not know no later than the ghost that covers it.

use quota_core::authority::BucketView;
use quota_core::cell::Tick;
use quota_core::holder::{Cells, Slot};
use quota_core::time::Timestamp;

use super::{HOLDER_FIRST, World};
use crate::client::Use;

impl World {
    pub(super) fn check_deadlines(&mut self, bucket: usize, now: Timestamp, view: &BucketView) {
        let Some(node) = self.owner() else { return };
        for client in 0..self.clients.len() {
            let holder = &self.clients[client];
            if !holder.alive {
                continue;
            }
            let here = holder.clock.read(self.time);
            for (place, used) in holder.uses.iter().enumerate() {
                if !matches!(used, Use::Bucket(b) | Use::Closing(b) if *b == bucket) {
                    continue;
                }
                let slot = Slot::new(u32::try_from(place).expect("small"));
                let cell = holder.table.cell(slot).view();
                let Some(lease) = holder.holder.lease(slot) else {
                    continue;
                };
                if !lease.live || cell.tokens.is_zero() || !cell.live(Tick::at(here)) {
                    continue;
                }
                let known = view.leases.iter().find(|l| l.lease == lease.id);
                let end = match known {
                    Some(known) => now + known.reclaim_in,
                    None => now + view.ghost_term,
                };
                let (at_holder, at_authority) = (
                    holder.clock.moment(lease.deadline),
                    self.servers[node].clock.moment(end),
                );
                if at_holder > at_authority {
                    let text = format!(
                        "{}: holder {client} may spend lease {:?} until {at_holder} ns, the \
                         authority counts it until {at_authority} ns: {known:?}, ghost for {:?}",
                        view.bucket, lease.id, view.ghost_term
                    );
                    return self.fail(HOLDER_FIRST, text);
                }
            }
        }
    }
}
