//! What must come about once the faults are over: everyone is served, and all is forgotten.

use quota_core::authority::Input;
use quota_core::id::{KeyNumber, Sequence};
use quota_core::message::LeaseRequest;
use quota_core::tokens::Tokens;

use super::holder::Message;
use super::specs::{CAPACITY_MOST, KEYS, address};
use super::world::{MILLI, World};

impl World {
    /// Without faults everything that was held ends, everyone is served, and all is forgotten.
    pub(crate) fn recover(&mut self) {
        self.network.clear();
        self.spend(true);
        for place in 0..self.holders.len() {
            self.restart_holder(place);
        }
        if self.history.as_ref().is_none_or(|h| h.current().is_none()) {
            return;
        }
        if self.pending {
            self.apply_policy();
        }
        let rates = self.ideals.iter().flatten().map(|ideal| ideal.last().rate);
        let slowest = rates.map(|rate| rate.time_for(CAPACITY_MOST).as_nanos());
        let full = slowest.max().unwrap() + 2 * self.longest + 30_000 * MILLI;
        self.quiet(self.now + full);
        self.settled();
        for key in 0..KEYS.len() {
            for place in 0..self.holders.len() {
                self.served(place, key, 1);
            }
        }
        for place in 0..self.holders.len() {
            self.restart_holder(place);
        }
        self.quiet(self.now + full);
        // One pass deletes the record of a full bucket, the next forgets the bucket.
        for _ in 0..3 {
            self.quiet(self.now + 30_000 * MILLI);
        }
        let stats = self.authority.stats();
        let counts = (stats.buckets, stats.leases, stats.waiting);
        assert_eq!(counts, (0, 0, 0), "something is remembered for ever");
    }

    fn settled(&mut self) {
        assert!(self.authority.next_deadline().is_none() || self.write.is_none());
        self.finish_settle();
    }

    fn quiet(&mut self, until: u64) {
        let mut rounds = 0;
        while let Some(due) = self
            .next_deadline()
            .filter(|due| *due <= until && rounds < 60)
        {
            rounds += 1;
            self.now = self.now.max(due);
            self.feed(Input::Tick);
            while self.write.is_some() {
                self.finish_write();
            }
        }
        // What is left of the way is one long sleep; a pass follows it.
        self.now = self.now.max(until);
        for _ in 0..12 {
            self.now += 1_000 * MILLI;
            self.feed(Input::Tick);
            while self.write.is_some() {
                self.finish_write();
            }
        }
    }

    /// One token is granted within a term and the time that it takes to refill.
    fn served(&mut self, place: usize, key: usize, least: u64) {
        let holder = &mut self.holders[place];
        holder.sequences[key] += 1;
        let request = LeaseRequest {
            key: KeyNumber::new(0),
            sequence: Sequence::new(holder.sequences[key]),
            lease: None,
            spent: Tokens::ZERO,
            returned: Tokens::ZERO,
            want: Tokens::new(least),
            least: Tokens::new(least),
            demand: 1,
            release: false,
        };
        let rate = self.ideals[key].as_ref().unwrap().last().rate;
        let patience = rate.time_for(Tokens::new(2)).as_nanos() + 2 * self.longest;
        let end = self.now + patience;
        let before = self.tally.grants;
        while self.tally.grants == before {
            let view = self.authority.inspect(self.time(), &address(key));
            assert!(self.now <= end, "nothing was granted in time: {view:?}");
            let holder = &mut self.holders[place];
            holder.sent.push(self.now);
            let number = holder.sent.len() as u64;
            holder.named += 1;
            let name = KeyNumber::new(holder.named);
            holder.numbers.insert(key, name);
            let message = Message {
                holder: place,
                incarnation: holder.incarnation,
                stream: holder.stream,
                number,
                introduce: Some((name, key)),
                request: Some(LeaseRequest {
                    key: name,
                    ..request
                }),
            };
            self.deliver(message);
            while self.write.is_some() {
                self.finish_write();
            }
            if self.tally.grants == before {
                self.now += patience / 64 + 1;
                self.feed(Input::Tick);
            }
        }
    }
}
