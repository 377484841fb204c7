//! Handing records to the store, one write at a time, and what follows when one is durable.

use alloc::vec::Vec;

use super::input::WriteId;
use super::{Authority, Effect};
use crate::key::BucketAddress;
use crate::record::{ReservationWrite, Stamp};
use crate::time::Timestamp;

impl Authority {
    /// Hands the gathered records to the store, unless a write is in flight.
    pub(super) fn flush_writes(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.writes.in_flight.is_some() || self.writes.dirty.is_empty() {
            return;
        }
        let mut slots = core::mem::take(&mut self.writes.dirty);
        slots.sort_unstable();
        slots.dedup();
        let mut records = Vec::with_capacity(slots.len());
        slots.retain(|slot| {
            let Some(record) = self.record(now, *slot) else {
                return false;
            };
            records.push(record);
            true
        });
        if records.is_empty() {
            return;
        }
        self.writes.last = self
            .writes
            .last
            .checked_add(1)
            .expect("fewer than 2^64 writes");
        let write = WriteId(self.writes.last);
        self.writes.in_flight = Some((write, slots));
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        self.stats.records_written = self.stats.records_written.saturating_add(count);
        self.stats.writes = self.stats.writes.saturating_add(1);
        effects.push(Effect::Write { write, records });
    }

    fn record(&mut self, now: Timestamp, slot: u32) -> Option<ReservationWrite> {
        self.buckets.try_get(slot)?;
        self.settle(slot, now);
        let stamp = Stamp {
            boot: self.config.boot,
            at: now,
        };
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get(bucket.policy);
        let active = !bucket.leases.is_empty() || bucket.waiting() > 0;
        let limit = &policy.class(bucket.class).limit;
        let reserve = bucket.reserve.as_mut()?;
        let record = reserve.next_record(&bucket.ledger, limit, policy.version(), stamp, active)?;
        let address = BucketAddress {
            policy: policy.id.clone(),
            key: bucket.key.clone(),
        };
        Some(ReservationWrite {
            bucket: address,
            reservation: record,
        })
    }

    /// A write is durable: what it booked may be granted.
    pub(super) fn written(&mut self, now: Timestamp, write: WriteId, effects: &mut Vec<Effect>) {
        let Some((in_flight, slots)) = self.writes.in_flight.take() else {
            return;
        };
        if in_flight != write {
            self.writes.in_flight = Some((in_flight, slots));
            return;
        }
        for slot in slots {
            let reserve = self.buckets.get_mut(slot).reserve.as_mut();
            reserve
                .expect("a bucket keeps its reserve while a record is in flight")
                .written();
            self.settle(slot, now);
            self.serve(now, slot, effects);
            self.check(slot);
        }
    }
}
