//! The crash campaign's command line; `./tests/crash` builds and runs it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use quota_tests::crash::{Clocks, Edge, Report, Settings, run};
use tokio::signal::unix::{SignalKind, signal};

/// Kills, pauses and cuts off real servers and gateways under load, and judges what was admitted.
///
/// Exits with 0 only if nothing was violated. Ends only processes that it started, and uses
/// loopback only.
#[derive(Debug, Parser)]
#[command(name = "crash")]
struct Arguments {
    /// How many rounds of faults, each with a fresh data directory.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// The seed of the first round; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Begin no round after so many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Rounds at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// End with the first round that shows a violation.
    #[arg(long)]
    stop_at_first: bool,
    /// Print one JSON object on the last line of standard output.
    #[arg(long)]
    json: bool,
    /// Where the logs of rounds with a violation are kept [default: a new directory under that of
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let fresh = || std::env::temp_dir().join(format!("quota-crash-{}", std::process::id()));
    let settings = Settings {
        rounds: arguments.rounds,
        seed: arguments.seed,
        limit: arguments
            .minutes
            .map(|minutes| Duration::from_secs(60 * minutes)),
        jobs: arguments.jobs,
        stop_at_first: arguments.stop_at_first,
        keep: arguments.keep.unwrap_or_else(fresh),
    };
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    // A campaign that is dropped kills what it started.
    let report = tokio::select! {
        report = run(&settings, progress) => report?,
        _ = interrupt.recv() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("interrupted"),
    };
    print(&report);
    if report.broken.is_empty() {
        // Nothing is left in it but what was there before.
        let _ = std::fs::remove_dir(&settings.keep);
    }
    if arguments.json {
        println!("{}", report.json());
    }
    if report.tally.rounds == 0 {
        return Err(anyhow::anyhow!("no round was played")).context("nothing to judge");
    }
    Ok(if report.broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn progress(report: &Report) {
    let tally = &report.tally;
    let mut text = format!(
        "{:>5} s  {} rounds, {} kills, {} admissions, {} violations\n",
        report.took.as_secs(),
        tally.rounds,
        tally.server_kills + tally.gateway_kills,
        tally.admissions(),
        report.broken.len(),
    );
    if let Some(latest) = report.broken.last() {
        let _infallible = writeln!(
            text,
            "         the latest violation, seed {}: {}",
            latest.seed, latest.what[0]
        );
    }
    // Whoever cannot read it still wants the verdict.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn print(report: &Report) {
    let tally = &report.tally;
    for (name, count) in &tally.faults {
        println!("{count:>8}  {name}");
    }
    println!(
        "{:>8}  kills came right after a write; {} records were read back after restarts\n\
         {:>8}  connections cut; {} duplicated, of which the server answered {}",
        tally.kills_at_writes,
        tally.records_read,
        tally.cuts,
        tally.replays,
        tally.replays_answered,
    );
    println!("the lowest level of the ideal buckets, of the late-most reading of the logs:");
    for (policy, edge) in &tally.policies {
        println!("  {policy:<8} {}", line(edge));
    }
    if report.clocks == Clocks::Shared {
        println!(
            "time namespaces are not permitted here: all processes shared one clock and boot id \
             (the virtual world gives each its own)"
        );
    }
    for broken in &report.broken {
        println!("VIOLATED by seed {}:", broken.seed);
        for what in &broken.what {
            println!("    {what}");
        }
        println!(
            "    logs: {}\n    again: {}",
            broken.logs.display(),
            broken.again()
        );
    }
    println!(
        "{} rounds, {} kills -9 ({} of servers), {} pauses, {} cuts, {} admissions, {} violations \
         in {} s",
        tally.rounds,
        tally.server_kills + tally.gateway_kills,
        tally.server_kills,
        tally.pauses,
        tally.cuts,
        tally.admissions(),
        report.broken.len(),
        report.took.as_secs(),
    );
}

fn line(edge: &Edge) -> String {
    let level = |level: Option<i128>| level.map_or_else(|| "-".to_owned(), |l| l.to_string());
    format!(
        "{:>4} after a kill, {:>4} at all; {} of {} buckets within 5 % of empty after a kill; \
         {} % of what was allowed, {} admissions",
        level(edge.lowest_after_kill),
        level(edge.lowest),
        edge.at_the_edge,
        edge.buckets,
        edge.utilisation_percent(),
        edge.admissions,
    )
}
