//! Runs the virtual world: `simulations safety --seeds 10000`, or one seed to replay it.

mod mutants;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use serde_json::json;
use simulations::campaign::{self, Verdict};
use simulations::world::{self, Sabotage};

/// Drives the shipped core through a virtual world that tries to break its promise.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Random fault schedules, judged by the ideal bucket and the invariants, then liveness.
    ///
    /// Exits with 0 only if nothing was violated. Every violation prints the command that replays
    /// it.
    Safety {
        /// How many seeds to run, from --first on.
        #[arg(long, default_value_t = 1_000, conflicts_with = "seed")]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0, conflicts_with = "seed")]
        first: u64,
        /// Run this seed alone.
        #[arg(long)]
        seed: Option<u64>,
        /// Print everything that happens in it.
        #[arg(long, requires = "seed")]
        trace: bool,
        /// Print one JSON object on the last line of standard output.
        #[arg(long)]
        json: bool,
        /// Threads; default: as many as the machine runs at once.
        #[arg(long)]
        threads: Option<usize>,
        #[command(flatten)]
        mutants: mutants::Options,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let Command::Safety {
        seeds,
        first,
        seed,
        trace,
        json,
        threads,
        mutants,
    } = Arguments::parse().command;
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if mutants.mutants {
        return mutants::run(&mutants, threads.unwrap_or(available), json, clock);
    }
    // A panic of the core is a verdict, reported with its seed.
    if !trace {
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(seed) = seed.filter(|_| trace) {
        let outcome = world::run(seed, Sabotage::None, true);
        println!(
            "seed {seed}: {} events, trace hash {:016x}",
            outcome.events, outcome.hash
        );
        if let Some(failure) = &outcome.failure {
            println!("VIOLATED: {} ({})", failure.invariant, failure.what);
            return Ok(ExitCode::FAILURE);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let range = seed.map_or(first..first.saturating_add(seeds), |seed| seed..seed + 1);
    let threads = threads.unwrap_or(available);
    let began = clock();
    let verdict = campaign::run(range, threads, Sabotage::None, |done| {
        eprint!("\r{done} seeds");
        let _ = std::io::stderr().flush();
    });
    eprint!("\r");
    let seconds = began.elapsed().as_secs_f64();
    report(&verdict, seconds, threads);
    if json {
        println!("{}", as_json(&verdict));
    }
    Ok(if verdict.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Only the report's speed needs the machine's clock; no run ever sees it.
#[expect(clippy::disallowed_methods, reason = "the one clock of this program")]
fn clock() -> Instant {
    Instant::now()
}

fn report(verdict: &Verdict, seconds: f64, threads: usize) {
    println!("{:>12}  times reached", "");
    for (name, count) in verdict.coverage.iter() {
        println!("{count:>12}  {name}");
    }
    for (name, count) in &verdict.faults {
        println!("{count:>12}  fault: {name}");
    }
    for broken in &verdict.violations {
        println!(
            "VIOLATED by seed {}: {}: {}",
            broken.seed, broken.invariant, broken.what
        );
        println!("    {}", broken.replay);
    }
    let per_second = verdict.events as f64 / seconds;
    println!(
        "{} seeds, {} events, {} violations; {per_second:.0} events/s on {threads} threads; hash \
         {:016x}",
        verdict.seeds,
        verdict.events,
        verdict.violations.len(),
        verdict.hash,
    );
}

fn as_json(verdict: &Verdict) -> serde_json::Value {
    let coverage: serde_json::Map<_, _> = verdict
        .coverage
        .iter()
        .map(|(name, count)| (name.into(), count.into()))
        .collect();
    json!({
        "seeds": verdict.seeds,
        "events": verdict.events,
        "faults": verdict.faults,
        "coverage": coverage,
        "violations": verdict.violations,
        "hash": format!("{:016x}", verdict.hash),
    })
}
