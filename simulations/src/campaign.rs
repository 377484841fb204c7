//! Many seeds: spread over threads, gathered into one verdict; and a failing one, shrunk.

pub mod shrink;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::coverage::Coverage;
use crate::world::{self, Failure, Plan, Sabotage};

/// The command that replays a seed.
#[must_use]
pub fn replay_command(seed: u64) -> String {
    replay_plan(&Plan::of_seed(seed, Sabotage::None))
}

/// The command that replays a plan.
#[must_use]
pub fn replay_plan(plan: &Plan) -> String {
    let mut command = format!(
        "cargo run --release -p simulations -- safety --seed {}",
        plan.seed
    );
    let mut add = |argument: String| {
        command.push(' ');
        command.push_str(&argument);
    };
    if plan.salt > 0 {
        add(format!("--salt {}", plan.salt));
    }
    if !plan.without.is_empty() {
        let flags: Vec<String> = plan.without.iter().map(|fault| fault.flag()).collect();
        add(format!("--without {}", flags.join(",")));
    }
    if let Some(clients) = plan.clients {
        add(format!("--clients {clients}"));
    }
    if let Some(policies) = plan.policies {
        add(format!("--policies {policies}"));
    }
    if plan.calm {
        add("--calm".to_owned());
    }
    if let Some(until) = plan.until {
        add(format!("--until {until}"));
    }
    add("--trace".to_owned());
    command
}

/// One seed that broke something.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// The seed.
    pub seed: u64,
    /// The invariant.
    pub invariant: &'static str,
    /// True nanoseconds since the world's beginning.
    pub at: u64,
    /// The numbers.
    pub what: String,
    /// The command that replays it.
    pub replay: String,
}

/// What all seeds showed together.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Seeds run.
    pub seeds: u64,
    /// Inputs handled by the shipped core.
    pub events: u64,
    /// Faults that struck, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Situations reached.
    pub coverage: Coverage,
    /// What broke, by seed.
    pub violations: Vec<Broken>,
    /// The hashes of all runs together, in whatever order they ended.
    pub hash: u64,
}

/// Runs the seeds on so many threads. `progress` is called with the number of seeds done, now and
/// then.
pub fn run(
    seeds: Range<u64>,
    threads: usize,
    sabotage: Sabotage,
    progress: impl Fn(u64) + Sync,
) -> Verdict {
    let next = AtomicU64::new(seeds.start);
    let verdict = Mutex::new(Verdict::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = world::run(seed, sabotage, false);
                    let mut verdict = verdict.lock().expect("no thread panics with the lock held");
                    verdict.add(seed, outcome);
                    if verdict.seeds % 100 == 0 {
                        progress(verdict.seeds);
                    }
                }
            });
        }
    });
    let mut verdict = verdict
        .into_inner()
        .expect("no thread panics with the lock held");
    verdict.violations.sort_by_key(|broken| broken.seed);
    verdict
}

impl Verdict {
    fn add(&mut self, seed: u64, outcome: world::Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        for (fault, count) in outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.coverage.merge(&outcome.coverage);
        self.hash = self.hash.wrapping_add(outcome.hash);
        if let Some(Failure {
            invariant,
            at,
            what,
        }) = outcome.failure
        {
            let replay = replay_command(seed);
            self.violations.push(Broken {
                seed,
                invariant,
                at,
                what,
                replay,
            });
        }
    }
}
