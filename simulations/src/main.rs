//! Runs the virtual world: `simulations safety --seeds 10000`, or one seed to replay it, and
//! `simulations capacity`.

mod mutants;
mod planning;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use serde_json::json;
use simulations::campaign::{self, Verdict};
use simulations::shape::{FAULTS, Fault};
use simulations::world::{self, Plan, Sabotage};

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
    Safety(Safety),
    /// How much of a limit a fleet can use and what that costs: leases beside what people do instead.
    ///
    /// A world without faults, one key, Poisson arrivals, deterministic. With --check, the targets
    /// of lease sizing.
    Capacity(planning::Options),
}

/// What `safety` runs.
#[derive(Debug, clap::Args)]
struct Safety {
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
    part: Part,
    #[command(flatten)]
    mutants: mutants::Options,
}

/// What of a seed's world is run; the commands that replay a shrunk seed use it.
#[derive(Debug, clap::Args)]
struct Part {
    /// Look for a short trace of the seed's failure and print the command that replays it.
    #[arg(long, requires = "seed", conflicts_with = "trace")]
    shrink: bool,
    /// Another course of events in the seed's world.
    #[arg(long, requires = "seed", default_value_t = 0)]
    salt: u64,
    /// Faults that do not strike, separated by commas; their names are those of the report, with
    /// hyphens.
    #[arg(long, requires = "seed", value_delimiter = ',', value_parser = fault)]
    without: Vec<Fault>,
    /// At most so many holders.
    #[arg(long, requires = "seed")]
    clients: Option<u64>,
    /// At most so many policies.
    #[arg(long, requires = "seed")]
    policies: Option<usize>,
    /// No message is lost, doubled or slow; nobody is preempted; no request needs two buckets.
    #[arg(long, requires = "seed")]
    calm: bool,
    /// End the run at this moment, in nanoseconds of virtual time.
    #[arg(long, requires = "seed")]
    until: Option<u64>,
}

impl Part {
    fn plan(self, seed: u64) -> Plan {
        Plan {
            salt: self.salt,
            without: self.without,
            clients: self.clients,
            policies: self.policies,
            calm: self.calm,
            until: self.until,
            ..Plan::of_seed(seed, Sabotage::None)
        }
    }
}

fn fault(flag: &str) -> Result<Fault, String> {
    let known = FAULTS.iter().find(|fault| fault.flag() == flag);
    known.copied().ok_or_else(|| {
        let flags: Vec<String> = FAULTS.iter().map(|fault| fault.flag()).collect();
        format!("no fault has this name; they are: {}", flags.join(", "))
    })
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Safety(options) => safety(options),
        Command::Capacity(options) => Ok(planning::measure(&options)),
    }
}

fn safety(options: Safety) -> anyhow::Result<ExitCode> {
    let Safety {
        seeds,
        first,
        seed,
        trace,
        json,
        threads,
        part,
        mutants,
    } = options;
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if mutants.mutants {
        return mutants::run(&mutants, threads.unwrap_or(available), json, clock);
    }
    // A panic of the core is a verdict, reported with its seed.
    if !trace {
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(seed) = seed {
        let shrinks = part.shrink;
        let plan = part.plan(seed);
        if shrinks {
            return Ok(shrink(&plan));
        }
        if trace || plan != Plan::of_seed(seed, Sabotage::None) {
            return Ok(replay(Plan {
                print: trace,
                ..plan
            }));
        }
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

fn replay(plan: Plan) -> ExitCode {
    let outcome = world::run_plan(&plan);
    println!(
        "seed {}: {} events, trace hash {:016x}",
        plan.seed, outcome.events, outcome.hash
    );
    match &outcome.failure {
        Some(failure) => {
            println!("VIOLATED: {} ({})", failure.invariant, failure.what);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn shrink(plan: &Plan) -> ExitCode {
    let Some(shrunk) = campaign::shrink::shrink(plan) else {
        println!("seed {} violates nothing", plan.seed);
        return ExitCode::SUCCESS;
    };
    println!(
        "VIOLATED: {} ({})",
        shrunk.failure.invariant, shrunk.failure.what
    );
    println!(
        "{} events instead of {}, after {} runs:",
        shrunk.events, shrunk.events_before, shrunk.runs
    );
    println!("    {}", campaign::replay_plan(&shrunk.plan));
    ExitCode::FAILURE
}

/// Only the report's speed needs the machine's clock; no run ever sees it.
#[expect(clippy::disallowed_methods, reason = "the one clock of this program")]
fn clock() -> Instant {
    Instant::now()
}

/// So many seeds should reach every situation: one that they do not is a hole in the world.
const REACHED_AFTER: u64 = 1_000;

fn report(verdict: &Verdict, seconds: f64, threads: usize) {
    println!("{:>12}  times reached", "");
    for (name, count) in verdict.coverage.iter() {
        println!("{count:>12}  {name}");
    }
    for (name, count) in &verdict.faults {
        println!("{count:>12}  fault: {name}");
    }
    let unreached: Vec<&str> = verdict.coverage.unreached().collect();
    if !unreached.is_empty() && verdict.seeds >= REACHED_AFTER {
        println!("NEVER REACHED: {}", unreached.join("; "));
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
        "unreached": verdict.coverage.unreached().collect::<Vec<_>>(),
        "violations": verdict.violations,
        "hash": format!("{:016x}", verdict.hash),
    })
}
