//! The `capacity` command: leases beside what people do instead, and the targets of lease sizing.

use std::process::ExitCode;

use serde_json::json;
use simulations::capacity::alternatives::WAYS;
use simulations::capacity::figures::Figures;
use simulations::capacity::run;
use simulations::capacity::targets::{self, Measured, SEEDS};

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure the targets of sizing instead, with seeds 1 to 5; exits with 0 only if all are
    /// reached.
    #[arg(long)]
    check: bool,
    /// Measure only workloads whose names contain this; may be given more than once.
    #[arg(long)]
    only: Vec<String>,
    /// Print one JSON object on the last line of standard output.
    #[arg(long)]
    json: bool,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Measures and prints what the options ask for.
pub(crate) fn measure(options: &Options) -> ExitCode {
    if options.check {
        check(options)
    } else {
        compare(options)
    }
}

/// The seed of the comparison; none that the settings were chosen by.
const SEED: u64 = 77;

/// Every way of limiting on the workload of every target.
fn compare(options: &Options) -> ExitCode {
    println!(
        "utilisation is against one un-split bucket; overshoot is in tokens, over the worst window; \
         stranded is of the capacity, harmful while others were refused; the rest is for 1,000 \
         requests; waits in ms; seed {SEED}"
    );
    let mut all = Vec::new();
    for target in targets::targets() {
        if !options.wants(&target.name) {
            continue;
        }
        println!(
            "\n{:<18} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>9} {:>8} {:>9} {:>8}",
            target.name,
            "utilised",
            "overshoot",
            "stranded",
            "p99",
            "harmful",
            "Jain",
            "messages",
            "items",
            "bytes",
            "wait p99"
        );
        for way in WAYS {
            eprint!("{} {} \r", target.name, way.name);
            let mut limiter = way.limiter(&target.workload);
            let figures = run(&target.workload, SEED, &mut *limiter);
            row(way.name, &figures);
            all.push(json!({ "workload": target.name, "way": way.name, "figures": figures }));
        }
    }
    if options.json {
        println!("{}", json!({ "runs": all }));
    }
    if all.is_empty() {
        eprintln!("simulations: no workload has such a name; without --only all are listed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn row(name: &str, figures: &Figures) {
    println!(
        "{name:<18} {:>8.4} {:>9} {:>8.4} {:>8.4} {:>8.4} {:>7.4} {:>9.1} {:>8.1} {:>9.0} {:>8.1}",
        figures.utilisation,
        figures.overshoot,
        figures.stranded_mean,
        figures.stranded_p99,
        figures.stranded_harmful,
        figures.jain,
        figures.messages_per_1000,
        figures.items_per_1000,
        figures.bytes_per_1000,
        figures.wait_p99
    );
}

/// Measures the targets and prints; exits with 0 only if every target is reached.
fn check(options: &Options) -> ExitCode {
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
    let mut all = Vec::new();
    for target in targets::targets() {
        if !options.wants(&target.name) {
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
