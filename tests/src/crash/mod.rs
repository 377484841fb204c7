//! A crash campaign: the real server on its real store, real gateways, and a proxy between them,
//! through faults at random moments, judged by the ideal bucket.
//!
//! Each round has a seed, which decides its policies' leases, its loads, its clocks and its
//! faults; a data directory of its own, in which one server after the other lives; and two or
//! three gateways, each behind its own `proxy`. Every gateway logs what it admits before it
//! answers, with two readings of its clock around the debit. When all faults are over and every
//! limit admits again, the logs are merged and each bucket of each policy is fed to the same
//! oracle that judges the virtual world.
//!
//! # What a log can miss
//!
//! A gateway appends an admission to its log in one write before it answers, so what `kill -9`
//! can take from the log are requests that nobody saw answered, at most one for each connection
//! to that gateway; a kill of a process loses nothing that it has written. A lost line can only
//! hide an excess of that size, never make one up. That no answered request is missing is checked:
//! the load's count of 200s must not exceed the lines.
//!
//! # What it cannot do
//!
//! Repeat a round exactly: a seed repeats the faults and their moments, not the schedule of the
//! operating system. Lose power: a killed process keeps what it wrote to the page cache. Let a
//! clock drift or stop: see `clocks`. All of these are the virtual world's.
//!
//! - `budgets`: the policies and their load
//! - `faults`: what befalls a round
//! - `clocks`: machines with clocks of their own
//! - `proxy`: the network
//! - `scene`: what runs, and how faults are done to it
//! - `round`: from a seed to a verdict
//! - `judge`: the verdict
//! - `tally`: what was done and seen
//! - `moment`: letting time pass

mod budgets;
mod clocks;
mod faults;
mod judge;
mod moment;
mod proxy;
mod round;
mod scene;
mod tally;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use clocks::Clocks;
pub use tally::{Edge, Tally};

use crate::binaries::binaries;

/// What a campaign is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many rounds.
    pub rounds: u64,
    /// The seed of the first; the others follow.
    pub seed: u64,
    /// No round begins after this.
    pub limit: Option<Duration>,
    /// Rounds at a time. They share the machine, so that more of them make slower processes, not
    /// other verdicts.
    pub jobs: usize,
    /// End at the first violation.
    pub stop_at_first: bool,
    /// Where the logs of rounds with a violation are kept, in a directory each. Those of other
    /// rounds are removed.
    pub keep: PathBuf,
}

/// A round with something wrong in it.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its seed.
    pub seed: u64,
    /// All that is wrong.
    pub what: Vec<String>,
    /// Where its logs, its events, the processes' output and the data directory are.
    pub logs: PathBuf,
}

/// How a campaign ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it did and saw.
    pub tally: Tally,
    /// What was wrong.
    pub broken: Vec<Broken>,
    /// Whether processes had clocks of their own.
    pub clocks: Clocks,
    /// How long it took.
    pub took: Duration,
}

/// Plays rounds until they are done or the time is over; `progress` hears of each.
///
/// # Errors
/// If the programs cannot be built or directories cannot be written; never for what a round shows.
pub async fn run(settings: &Settings, progress: impl Fn(&Report)) -> anyhow::Result<Report> {
    binaries()?;
    std::fs::create_dir_all(&settings.keep)
        .with_context(|| format!("cannot create {}", settings.keep.display()))?;
    let keep = settings.keep.canonicalize()?;
    let began = Instant::now();
    let mut report = Report {
        tally: Tally::default(),
        broken: Vec::new(),
        clocks: Clocks::probe(&keep),
        took: Duration::ZERO,
    };
    let mut seeds = (0..settings.rounds).map(|number| settings.seed.wrapping_add(number));
    let mut rounds = JoinSet::new();
    loop {
        while rounds.len() < settings.jobs.max(1)
            && settings.limit.is_none_or(|limit| began.elapsed() < limit)
            && (report.broken.is_empty() || !settings.stop_at_first)
            && let Some(seed) = seeds.next()
        {
            let directory = keep.join(format!("round-{seed}"));
            // What an earlier run of the same seed left would be judged as part of this one.
            if directory.exists() {
                std::fs::remove_dir_all(&directory)?;
            }
            std::fs::create_dir(&directory)?;
            let clocks = report.clocks;
            rounds.spawn(async move {
                let (tally, what) = round::play(seed, clocks, &directory).await;
                (seed, directory, tally, what)
            });
        }
        let Some(ended) = rounds.join_next().await else {
            break;
        };
        let (seed, logs, tally, what) = ended.context("a round panicked")?;
        report.tally.add(&tally);
        if what.is_empty() {
            std::fs::remove_dir_all(&logs)?;
        } else {
            std::fs::write(logs.join("verdict"), what.join("\n") + "\n")?;
            report.broken.push(Broken { seed, what, logs });
        }
        report.took = began.elapsed();
        progress(&report);
    }
    report.took = began.elapsed();
    Ok(report)
}

impl Broken {
    /// The command that plays the round again, as far as real time can be.
    #[must_use]
    pub fn again(&self) -> String {
        format!("./tests/crash --rounds 1 --seed {}", self.seed)
    }
}

impl Report {
    /// Everything as one object.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut json = self.tally.json();
        let violations: Vec<_> = self.broken.iter().map(Broken::json).collect();
        json["violations"] = violations.into();
        json["clocks"] = match self.clocks {
            Clocks::Own => "own",
            Clocks::Shared => "shared",
        }
        .into();
        json["seconds"] = self.took.as_secs().into();
        json
    }
}

impl Broken {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "seed": self.seed,
            "what": self.what,
            "logs": self.logs,
            "replay": self.again(),
        })
    }
}
