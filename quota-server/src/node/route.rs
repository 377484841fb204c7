//! Which shard each key number of a stream belongs to, and the parts of a message by shard.

use std::collections::HashMap;
use std::sync::Arc;

use quota_core::authority::StreamId;
use quota_core::holder::HolderMessage;
use quota_core::id::{Incarnation, KeyNumber, MessageNumber, ShardId};
use quota_core::message::{Introduction, LeaseRequest};
use quota_core::time::{Term, Timestamp};
use quota_wire::Malformed;

use super::event::Part;
use super::outbox::Outbox;

/// At most this long after a message its number reaches every shard that the stream has touched,
/// also those that the message has no items for: a quarter of the shortest term that a policy may
/// have. Requests carry their number to their own shard at once. An anchor that a shard hears
/// late only makes terms end earlier.
const ANCHOR_EVERY: Term = Term::from_millis(25);

/// The routes of one stream.
#[derive(Debug)]
pub(crate) struct Routes {
    incarnation: Incarnation,
    stream: StreamId,
    outbox: Arc<Outbox>,
    shards: u32,
    keys_max: usize,
    shard_of: HashMap<KeyNumber, ShardId>,
    /// Shards that the stream has touched, with the items of the message at hand.
    touched: Vec<Touched>,
    /// For each shard its place in `touched`.
    place_of: Vec<Option<u32>>,
    anchored_at: Timestamp,
}

#[derive(Debug)]
struct Touched {
    shard: ShardId,
    connected: bool,
    introductions: Vec<Introduction>,
    requests: Vec<LeaseRequest>,
}

impl Routes {
    /// No keys and no shards touched yet.
    pub(crate) fn new(
        incarnation: Incarnation,
        stream: StreamId,
        outbox: Arc<Outbox>,
        shards: u32,
        keys_max: u32,
    ) -> Self {
        let count = usize::try_from(shards).expect("32 bits fit a usize");
        Self {
            incarnation,
            stream,
            outbox,
            shards,
            keys_max: usize::try_from(keys_max).expect("32 bits fit a usize"),
            shard_of: HashMap::new(),
            touched: Vec::new(),
            place_of: vec![None; count],
            anchored_at: Timestamp::ZERO,
        }
    }

    /// The parts of a message, by shard.
    ///
    /// # Errors
    /// [`Malformed`] if a number is introduced twice or there are too many; nothing is sent then.
    pub(crate) fn split(
        &mut self,
        now: Timestamp,
        message: HolderMessage,
    ) -> Result<Vec<(ShardId, Part)>, Malformed> {
        let heartbeat = message.requests.is_empty() && message.introductions.is_empty();
        self.check(&message.introductions)?;
        for introduction in message.introductions {
            let shard = introduction.bucket.shard(self.shards);
            self.shard_of.insert(introduction.number, shard);
            self.touch(shard).introductions.push(introduction);
        }
        for request in message.requests {
            // Every shard knows to refuse a number that was never introduced to it.
            let shard = self.shard_of.get(&request.key).copied().unwrap_or_default();
            self.touch(shard).requests.push(request);
        }
        let everyone = heartbeat || now.since(self.anchored_at) >= ANCHOR_EVERY;
        if everyone {
            self.anchored_at = now;
        }
        Ok(self.parts(message.number, everyone))
    }

    fn check(&self, introductions: &[Introduction]) -> Result<(), Malformed> {
        for (index, introduction) in introductions.iter().enumerate() {
            if self.shard_of.contains_key(&introduction.number) {
                return Err(Malformed::new(
                    format!("requests.introductions[{index}].number"),
                    format!(
                        "{}, which this stream has introduced before",
                        introduction.number
                    ),
                    "a number that was not used before in this stream",
                ));
            }
        }
        if self.shard_of.len() + introductions.len() > self.keys_max {
            return Err(Malformed::new(
                "requests.introductions",
                format!("the introduction of more than {} keys", self.keys_max),
                "as many keys as `welcome.limits.keys_max` says; connect again to begin anew",
            ));
        }
        Ok(())
    }

    fn touch(&mut self, shard: ShardId) -> &mut Touched {
        let slot = &mut self.place_of[usize::try_from(shard.get()).expect("32 bits fit a usize")];
        let place = *slot.get_or_insert_with(|| {
            self.touched.push(Touched {
                shard,
                connected: false,
                introductions: Vec::new(),
                requests: Vec::new(),
            });
            u32::try_from(self.touched.len() - 1).expect("fewer than 2^32 shards")
        });
        &mut self.touched[usize::try_from(place).expect("32 bits fit a usize")]
    }

    fn parts(&mut self, number: MessageNumber, everyone: bool) -> Vec<(ShardId, Part)> {
        let (incarnation, stream, outbox) = (self.incarnation, self.stream, &self.outbox);
        let concerned = self.touched.iter_mut().filter(|touched| {
            everyone || !touched.requests.is_empty() || !touched.introductions.is_empty()
        });
        let parts = concerned.map(|touched| {
            let first = !std::mem::replace(&mut touched.connected, true);
            let part = Part {
                incarnation,
                stream,
                connect: first.then(|| Arc::clone(outbox)),
                number,
                introductions: std::mem::take(&mut touched.introductions),
                requests: std::mem::take(&mut touched.requests),
                place: None,
                done: None,
            };
            (touched.shard, part)
        });
        parts.collect()
    }

    /// The stream.
    pub(crate) const fn stream(&self) -> StreamId {
        self.stream
    }

    /// Every shard that has heard of this stream.
    pub(crate) fn connected(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.touched
            .iter()
            .filter(|touched| touched.connected)
            .map(|touched| touched.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::Sequence;
    use quota_core::key::{BucketAddress, Key, PolicyId};
    use quota_core::tokens::Tokens;

    const SHARDS: u32 = 8;

    fn routes(keys_max: u32) -> Routes {
        let outbox = Arc::new(Outbox::new(1));
        Routes::new(
            Incarnation::new(1),
            StreamId::new(1),
            outbox,
            SHARDS,
            keys_max,
        )
    }

    fn bucket(name: &str) -> BucketAddress {
        BucketAddress {
            policy: PolicyId {
                namespace: "default".into(),
                name: "api".into(),
            },
            key: Key::from_values(&[name]).expect("legal"),
        }
    }

    fn message(number: u64, introduced: &[u32], asked: &[u32]) -> HolderMessage {
        let introduction = |number: &u32| Introduction {
            number: KeyNumber::new(*number),
            bucket: bucket(&format!("k{number}")),
        };
        let request = |number: &u32| LeaseRequest {
            key: KeyNumber::new(*number),
            sequence: Sequence::new(1),
            lease: None,
            spent: Tokens::ZERO,
            returned: Tokens::ZERO,
            want: Tokens::ONE,
            least: Tokens::ONE,
            demand: 0,
            release: false,
        };
        HolderMessage {
            number: MessageNumber::new(number),
            introductions: introduced.iter().map(introduction).collect(),
            requests: asked.iter().map(request).collect(),
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Term::from_millis(millis)
    }

    #[test]
    fn items_go_to_the_shard_of_their_bucket_and_connect_it_once() {
        let mut routes = routes(100);
        let keys: Vec<u32> = (1..=50).collect();
        let parts = routes
            .split(at(1000), message(1, &keys, &keys))
            .expect("legal");
        assert!(parts.iter().all(|(_, part)| part.connect.is_some()));
        for (shard, part) in &parts {
            for introduction in &part.introductions {
                assert_eq!(introduction.bucket.shard(SHARDS), *shard);
            }
            let introduced: Vec<_> = part.introductions.iter().map(|i| i.number).collect();
            let asked: Vec<_> = part.requests.iter().map(|r| r.key).collect();
            assert_eq!(introduced, asked, "a request follows its introduction");
        }
        let again = routes
            .split(at(1001), message(2, &[], &[7]))
            .expect("legal");
        let [(shard, part)] = &again[..] else {
            panic!("one shard is concerned: {again:?}")
        };
        assert_eq!(*shard, bucket("k7").shard(SHARDS));
        assert!(part.connect.is_none());
    }

    #[test]
    fn heartbeats_reach_every_touched_shard_and_busy_streams_anchor_them_in_time() {
        let mut routes = routes(100);
        let keys: Vec<u32> = (1..=50).collect();
        let touched = routes
            .split(at(1000), message(1, &keys, &[]))
            .expect("legal")
            .len();
        assert!(touched > 1);
        assert_eq!(
            routes
                .split(at(1001), message(2, &[], &[]))
                .expect("legal")
                .len(),
            touched
        );
        assert_eq!(
            routes
                .split(at(1025), message(3, &[], &[7]))
                .expect("legal")
                .len(),
            1
        );
        assert_eq!(
            routes
                .split(at(1026), message(4, &[], &[7]))
                .expect("legal")
                .len(),
            touched
        );
    }

    #[test]
    fn a_number_is_introduced_once_and_keys_are_bounded() {
        let mut routes = routes(2);
        routes.split(at(1), message(1, &[1], &[])).expect("legal");
        let again = routes
            .split(at(1), message(2, &[1], &[]))
            .expect_err("used");
        assert_eq!(again.field, "requests.introductions[0].number");
        let many = routes
            .split(at(1), message(2, &[2, 3], &[]))
            .expect_err("too many");
        assert_eq!(many.field, "requests.introductions");
        routes
            .split(at(1), message(2, &[2], &[]))
            .expect("the refused message changed nothing");
    }

    #[test]
    fn a_number_that_was_never_introduced_reaches_an_authority_all_the_same() {
        let parts = routes(2)
            .split(at(1), message(1, &[], &[9]))
            .expect("legal");
        assert_eq!(parts.len(), 1);
        assert!(parts[0].1.connect.is_some());
    }
}
