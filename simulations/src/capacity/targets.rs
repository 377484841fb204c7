//! The figures that sizing must reach: each target with the run that measures it.

use serde::Serialize;

use super::figures::Figures;
use super::leases::Fleet;
use super::run;
use super::workload::{Pattern, SECOND, Workload};

/// Seeds that every target is measured with.
pub const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// One row: a workload, and what it must reach at worst over the seeds.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name on the command line and in the table.
    pub name: String,
    /// What is run.
    pub workload: Workload,
    /// Least share of what the ideal bucket admits.
    pub utilisation: f64,
    /// Most messages per second and gateway, if bounded.
    pub messages: Option<f64>,
    /// Most requests refused though the ideal bucket admits them, as a share of all.
    pub false_refusals: Option<f64>,
    /// Least Jain index, for equal demand.
    pub jain: Option<f64>,
    /// Most distance from max–min fair shares.
    pub unfairness: Option<f64>,
}

/// What a target measured: the worst over the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The target's name.
    pub name: String,
    /// Least utilisation.
    pub utilisation: f64,
    /// Most messages per second and gateway.
    pub messages: f64,
    /// Most false refusals.
    pub false_refusals: f64,
    /// Least Jain index.
    pub jain: f64,
    /// Most distance of a gateway from its max–min fair share.
    pub unfairness: f64,
    /// Most overshoot in tokens.
    pub overshoot: u64,
    /// Most harmful stranding, as a share of the capacity.
    pub stranded: f64,
    /// Longest 99th percentile of waits, in ms.
    pub wait_p99: f64,
    /// What is not reached, in words; empty if all is.
    pub missed: Vec<String>,
}

/// All targets.
#[must_use]
pub fn targets() -> Vec<Target> {
    let patterns = [
        ("steady", Pattern::Equal, 1_200),
        ("under", Pattern::Equal, 700),
        ("skewed", Pattern::Skewed, 1_200),
        ("shifting", Pattern::Shifting(5 * SECOND), 1_200),
        ("on-off", Pattern::OnOff(SECOND), 2_000),
    ];
    let mut targets = Vec::new();
    for burst in [1_000, 200] {
        for (name, pattern, load) in patterns {
            let on_off = matches!(pattern, Pattern::OnOff(_));
            targets.push(Target {
                name: format!("{name}-{burst}"),
                workload: Workload::new(20, 1_000, burst).spread(pattern).loaded(load),
                utilisation: match (burst, on_off) {
                    (1_000, false) => 0.995,
                    (1_000, true) => 0.98,
                    (_, false) => 0.99,
                    (_, true) => 0.96,
                },
                messages: Some(if burst == 1_000 { 8.0 } else { 20.0 }),
                false_refusals: (name == "under").then_some(0.002),
                jain: (name == "steady").then_some(0.99),
                unfairness: None,
            });
        }
    }
    let mut small = Workload::new(100, 5, 5).loaded(1_200);
    small.patience = 60 * SECOND;
    for (name, load) in [("small", 1_200), ("small-rush", 20_000)] {
        targets.push(Target {
            name: name.into(),
            workload: small.clone().loaded(load),
            utilisation: 0.98,
            messages: None,
            false_refusals: None,
            jain: None,
            unfairness: None,
        });
    }
    targets.push(Target {
        name: "unequal-1000".into(),
        workload: Workload::new(20, 1_000, 1_000).spread(Pattern::Unequal),
        utilisation: 0.995,
        messages: Some(8.0),
        false_refusals: None,
        jain: None,
        unfairness: Some(0.02),
    });
    targets
}

/// Runs a target over all seeds.
#[must_use]
pub fn measure(target: &Target) -> Measured {
    let figures: Vec<Figures> = SEEDS
        .map(|seed| {
            let mut fleet = Fleet::new(&target.workload, None);
            run(&target.workload, seed, &mut fleet)
        })
        .collect();
    let least = |of: fn(&Figures) -> f64| figures.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Figures) -> f64| figures.iter().map(of).fold(0.0, f64::max);
    let mut measured = Measured {
        name: target.name.clone(),
        utilisation: least(|f| f.utilisation),
        messages: most(|f| f.messages),
        false_refusals: most(|f| f.false_refusals),
        jain: least(|f| f.jain),
        unfairness: most(|f| f.unfairness),
        overshoot: figures.iter().map(|f| f.overshoot).max().unwrap_or(0),
        stranded: most(|f| f.stranded_harmful),
        wait_p99: most(|f| f.wait_p99),
        missed: Vec::new(),
    };
    let mut miss = |missed: bool, what: String| {
        if missed {
            measured.missed.push(what);
        }
    };
    let (used, wanted) = (measured.utilisation, target.utilisation);
    miss(used < wanted, format!("utilisation below {wanted}"));
    if let Some(most) = target.messages {
        miss(measured.messages > most, format!("messages above {most}"));
    }
    if let Some(most) = target.false_refusals {
        let over = measured.false_refusals > most;
        miss(over, format!("false refusals above {most}"));
    }
    if let Some(least) = target.jain {
        miss(measured.jain < least, format!("Jain's index below {least}"));
    }
    if let Some(most) = target.unfairness {
        let over = measured.unfairness > most;
        miss(over, format!("off fair shares by more than {most}"));
    }
    miss(measured.overshoot > 0, "overshoot".into());
    measured
}
