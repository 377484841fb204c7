//! The `sizing` command: the targets of lease sizing, each with what was measured.

use std::process::ExitCode;

use serde_json::json;
use simulations::capacity::targets::{self, Measured, SEEDS};

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure only targets whose names contain this; may be given more than once.
    #[arg(long)]
    only: Vec<String>,
    /// Print one JSON object on the last line of standard output.
    #[arg(long)]
    json: bool,
}

/// Measures and prints; exits with 0 only if every target is reached.
pub(crate) fn run(options: &Options) -> ExitCode {
    println!(
        "worst of the seeds {}-{}; utilisation is against one un-split bucket, messages are a \
         second and gateway, both ways",
        SEEDS.start(),
        SEEDS.end()
    );
    println!(
        "{:>15} {:>11} {:>9} {:>14} {:>7} {:>10} {:>9} {:>9}",
        "",
        "utilisation",
        "messages",
        "false refusals",
        "Jain",
        "unfairness",
        "stranded",
        "overshoot"
    );
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let mut all = Vec::new();
    for target in targets::targets() {
        if !wanted(&target.name) {
            continue;
        }
        let measured = targets::measure(&target);
        print(&measured);
        all.push(measured);
    }
    let missed = all.iter().filter(|m| !m.missed.is_empty()).count();
    println!("{} of {} reached", all.len() - missed, all.len());
    if options.json {
        println!("{}", json!({ "targets": all, "missed": missed }));
    }
    if missed == 0 && !all.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(measured: &Measured) {
    println!(
        "{:>15} {:>11.4} {:>9.2} {:>14.5} {:>7.4} {:>10.4} {:>9.4} {:>9} {}",
        measured.name,
        measured.utilisation,
        measured.messages,
        measured.false_refusals,
        measured.jain,
        measured.unfairness,
        measured.stranded,
        measured.overshoot,
        measured.missed.join("; ")
    );
}
