//! What dies, and who goes on: streams, holders and owners, with writes done, lost or in doubt.

use std::collections::BTreeSet;

use quota_core::authority::{Authority, Input, StreamId};
use quota_core::record::{HandOver, ReservationWrite};

use super::holder::Holder;
use super::world::{MILLI, World, config};

impl World {
    pub(crate) fn connect(&mut self, holder: usize) {
        let holder = &self.holders[holder];
        let (incarnation, stream) = (holder.incarnation, holder.stream);
        self.feed(Input::Connect {
            incarnation,
            stream,
        });
    }

    pub(crate) fn reconnect(&mut self, place: usize) {
        self.streams += 1;
        let stream = StreamId::new(self.streams);
        let (incarnation, old) = (self.holders[place].incarnation, self.holders[place].stream);
        let politely = self.dice.chance(50);
        if politely {
            self.feed(Input::Disconnect {
                incarnation,
                stream: old,
            });
        }
        let holder = &mut self.holders[place];
        holder.stream = stream;
        holder.numbers.clear();
        self.connect(place);
        if !politely {
            self.feed(Input::Disconnect {
                incarnation,
                stream: old,
            });
        }
    }

    /// The process of a holder dies, with all that it held, and another begins.
    pub(crate) fn restart_holder(&mut self, place: usize) {
        self.incarnations += 1;
        self.streams += 1;
        let old = &self.holders[place];
        let (incarnation, stream) = (old.incarnation, old.stream);
        self.feed(Input::Disconnect {
            incarnation,
            stream,
        });
        self.holders[place] = Holder::new(self.incarnations, self.streams);
        self.connect(place);
    }

    /// The process dies. A write in flight may have been done.
    pub(crate) fn crash(&mut self) {
        self.tally.crashes += 1;
        if self.storm {
            // Everybody takes all that there is first.
            let key = usize::try_from(self.first).unwrap();
            for place in 0..self.holders.len() {
                self.ask(place, key);
                self.finish_write();
            }
        }
        if let Some((_, records)) = self.write.take()
            && self.dice.chance(50)
        {
            self.store(records);
        }
        self.take_over(None);
    }

    pub(crate) fn hand_over(&mut self) {
        self.tally.hand_overs += 1;
        while self.write.is_some() {
            self.finish_write();
        }
        let rows = self.authority.hand_over(self.time());
        let mut named = BTreeSet::new();
        assert!(
            rows.buckets.iter().all(|row| named.insert(&row.bucket)),
            "a bucket has two rows"
        );
        self.take_over(Some(rows));
    }

    fn take_over(&mut self, rows: Option<HandOver>) {
        if self.dice.chance(50) {
            self.settle_asked = false;
        }
        self.finish_settle();
        if self.dice.chance(30) {
            self.boot += 1;
            self.origin = self.dice.below(100_000) * MILLI;
        }
        let pause = self.dice.pick(&[0, 1, 50, 1_000, 10_000]) * MILLI;
        self.now += self.dice.below(pause + 1);
        if self.pending {
            self.applied_at = self.now;
        }
        self.in_force(true);
        self.epoch += 1;
        let before = self.tenures;
        self.tenures += 1;
        let records = self.records.clone().into_iter().collect();
        self.authority = Authority::new(
            self.time(),
            config(self.epoch, before, false, self.boot),
            self.history.iter().cloned().collect(),
            records,
            rows,
        );
        for place in 0..self.holders.len() {
            self.streams += 1;
            let holder = &mut self.holders[place];
            holder.stream = StreamId::new(self.streams);
            holder.numbers.clear();
            self.connect(place);
        }
    }

    pub(crate) fn finish_write(&mut self) {
        if let Some((write, records)) = self.write.take() {
            self.store(records);
            self.feed(Input::Written { write });
        }
    }

    fn store(&mut self, records: Vec<ReservationWrite>) {
        for record in records {
            match record.reservation {
                Some(reservation) => self.records.insert(record.bucket, reservation),
                None => self.records.remove(&record.bucket),
            };
        }
    }

    pub(crate) fn finish_settle(&mut self) {
        if std::mem::take(&mut self.settle_asked) {
            self.tenures = 1;
        }
    }
}
