//! The authority against adversaries, by random schedules.
//!
//! One shard, a few buckets, holders that spend at the last moment, hoard, report late or wrongly,
//! repeat, reorder and reconnect; an authority that crashes with writes lost or in doubt, hands
//! over, and changes policies. Outside of it all stands the exact ideal bucket, fed with what the
//! holders really spend.
//!
//! Time is the authority's. Its clock may run a tenth fast and a holder's a tenth slow, so a term
//! lasts eleven ninths of itself for a holder.
//!
//! Seeds are printed on failure. `QUOTA_SEED` (the first) and `QUOTA_CASES` (how many) replay and
//! widen.

mod authority_random {
    mod changes;
    mod checks;
    mod dice;
    mod faults;
    mod holder;
    mod ideal;
    mod recovery;
    mod specs;
    mod traffic;
    pub(crate) mod world;
}

use authority_random::world::{Tally, World};

const STEPS: u64 = 250;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn no_schedule_spends_more_than_the_ideal_bucket_holds() {
    struct Shown(u64);
    impl Drop for Shown {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with QUOTA_SEED={} QUOTA_CASES=1", self.0);
            }
        }
    }
    let first = number("QUOTA_SEED", 1);
    let cases = number("QUOTA_CASES", 2_000);
    let mut sum = Tally::default();
    for seed in first..first + cases {
        let _shown = Shown(seed);
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.recover();
        sum.grants += world.tally.grants;
        sum.admitted += world.tally.admitted;
        sum.crashes += world.tally.crashes;
        sum.hand_overs += world.tally.hand_overs;
        sum.changes += world.tally.changes;
        sum.clears += world.tally.clears;
        sum.forgets += world.tally.forgets;
    }
    if cases >= 100 {
        // What never happens proves nothing.
        let happened = [
            sum.grants,
            sum.admitted,
            sum.crashes,
            sum.hand_overs,
            sum.changes,
            sum.clears,
            sum.forgets,
        ];
        assert!(happened.iter().all(|n| *n > 0), "{happened:?}");
        println!("{happened:?}");
    }
}
