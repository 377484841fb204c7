//! What a grant costs an authority with a million buckets and three holders, and what each bucket
//! costs in memory.
//!
//! `KEYS=100000 cargo bench -p quota-tests --bench engine` for another number of buckets.

use quota_core::authority::{Authority, AuthorityConfig, Effect, Input, StreamId};
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Introduction, LeaseRequest};
use quota_core::policy::PolicyHistory;
use quota_core::time::{DriftAllowance, Term, Timestamp};
use quota_core::tokens::Tokens;
use quota_tests::bench::{nanos, resident_bytes, setting, thread_time};
use quota_tests::local::plenty;

const HOLDERS: u64 = 3;
const BATCH: usize = 1_000;
const BATCHES: usize = 400;
const WANT: u64 = 10;

/// A holder's side of one lease.
#[derive(Clone, Copy, Default)]
struct Side {
    lease: Option<LeaseId>,
    granted: u64,
    sequence: u64,
}

struct World {
    authority: Authority,
    policy: PolicyId,
    now: Timestamp,
    message: u64,
    sides: Vec<Side>,
    keys: u32,
    effects: Vec<Effect>,
}

impl World {
    fn new(keys: u32) -> Self {
        let policy = PolicyHistory::create(plenty("one", "k"), PolicyVersion::new(1));
        let config = AuthorityConfig {
            epoch: Epoch::new(1),
            tenures_before: 0,
            first_tenure: true,
            drift: DriftAllowance::DEFAULT,
            boot: 1,
            hash_seed: (1, 2),
            buckets_max: u32::MAX,
        };
        let now = Timestamp::from_nanos(1_000_000_000);
        let histories = vec![policy.expect("a legal policy")];
        let sides = usize::try_from(u64::from(keys) * HOLDERS).expect("fits");
        let mut world = Self {
            authority: Authority::new(now, config, histories, Vec::new(), None),
            policy: plenty("one", "k").id(),
            now,
            message: 0,
            sides: vec![
                Side {
                    sequence: 1,
                    ..Side::default()
                };
                sides
            ],
            keys,
            effects: Vec::with_capacity(BATCH * 2),
        };
        for holder in 1..=HOLDERS {
            let (incarnation, stream) = (Incarnation::new(holder), StreamId::new(holder));
            world.authority.handle(
                now,
                Input::Connect {
                    incarnation,
                    stream,
                },
                &mut world.effects,
            );
        }
        world
    }

    fn introduce(&mut self, holder: u64, place: u32) {
        let key = Key::from_values(&[format!("customer-{place:018}")]).expect("a legal key");
        let introduction = Introduction {
            number: KeyNumber::new(place + 1),
            bucket: BucketAddress {
                policy: self.policy.clone(),
                key,
            },
        };
        let input = Input::Introduce {
            incarnation: Incarnation::new(holder),
            stream: StreamId::new(holder),
            introduction: Box::new(introduction),
        };
        self.authority.handle(self.now, input, &mut self.effects);
    }

    fn side(&self, holder: u64, place: u32) -> usize {
        usize::try_from((holder - 1) * u64::from(self.keys) + u64::from(place)).expect("fits")
    }

    /// A report of all that was granted, and a wish for more.
    fn request(&mut self, holder: u64, place: u32) -> Input {
        let at = self.side(holder, place);
        let side = &mut self.sides[at];
        side.sequence += 1;
        self.message += 1;
        let request = LeaseRequest {
            key: KeyNumber::new(place + 1),
            sequence: Sequence::new(side.sequence),
            lease: side.lease,
            spent: Tokens::new(side.granted),
            returned: Tokens::ZERO,
            want: Tokens::new(WANT),
            least: Tokens::ONE,
            demand: 20,
            release: false,
        };
        Input::Request {
            incarnation: Incarnation::new(holder),
            stream: StreamId::new(holder),
            number: MessageNumber::new(self.message),
            request,
        }
    }

    /// Feeds requests for these places; returns the nanoseconds that the authority took.
    fn feed(&mut self, asked: &[(u64, u32)]) -> f64 {
        let inputs: Vec<Input> = asked
            .iter()
            .map(|(holder, place)| self.request(*holder, *place))
            .collect();
        self.effects.clear();
        let begin = thread_time();
        for input in inputs {
            self.authority.handle(self.now, input, &mut self.effects);
        }
        let took = nanos(begin);
        for effect in std::mem::take(&mut self.effects) {
            let Effect::Answer {
                incarnation,
                answer,
                ..
            } = effect
            else {
                continue;
            };
            let grant = answer.grant.expect("there is plenty");
            let at = self.side(incarnation.get(), answer.key.get() - 1);
            self.sides[at].lease = Some(grant.lease);
            self.sides[at].granted = grant.granted.get();
        }
        took
    }
}

fn per(bytes: Option<u64>, count: u32) -> String {
    bytes.map_or("unknown".to_owned(), |bytes| {
        (bytes / u64::from(count)).to_string()
    })
}

fn grown(before: Option<u64>) -> Option<u64> {
    Some(resident_bytes()?.saturating_sub(before?))
}

fn main() {
    let keys = u32::try_from(setting("KEYS", 1_000_000)).expect("fits");
    let mut world = World::new(keys);
    println!("{keys} buckets, {HOLDERS} holders, one core");

    let before = resident_bytes();
    let begin = thread_time();
    (0..keys).for_each(|place| world.introduce(1, place));
    println!(
        "  a new bucket, introduced: {:.0} ns",
        nanos(begin) / f64::from(keys)
    );
    println!(
        "  memory of a bucket and one holder's number for it: {} bytes",
        per(grown(before), keys)
    );

    let before = resident_bytes();
    for holder in 2..=HOLDERS {
        (0..keys).for_each(|place| world.introduce(holder, place));
    }
    println!(
        "  memory of two more holders' numbers for it: {} bytes",
        per(grown(before), keys)
    );

    let before = resident_bytes();
    let (mut took, mut asked) = (0.0, Vec::with_capacity(BATCH));
    for place in 0..keys {
        for holder in 1..=HOLDERS {
            asked.push((holder, place));
        }
        if asked.len() >= BATCH || place + 1 == keys {
            took += world.feed(&asked);
            asked.clear();
        }
    }
    let leases = f64::from(keys) * f64::from(u32::try_from(HOLDERS).expect("fits"));
    println!(
        "  a first grant, which opens a lease: {:.0} ns",
        took / leases
    );
    println!(
        "  memory of three leases: {} bytes",
        per(grown(before), keys)
    );

    // Renewals of leases drawn at random, so that each finds its bucket outside of the caches.
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        world.now += Term::from_millis(1);
        let batch = (0..BATCH).map(|_| {
            let place = u32::try_from(draw(u64::from(keys))).expect("fits");
            (1 + draw(HOLDERS), place)
        });
        let batch: Vec<(u64, u32)> = batch.collect();
        times.push(world.feed(&batch) / 1_000.0);
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "  a renewal, uniform: {median:.0} ns (10 % below {:.0}, 10 % above {:.0}): {:.1} million a second",
        times[times.len() / 10],
        times[times.len() * 9 / 10],
        1_000.0 / median
    );
}
