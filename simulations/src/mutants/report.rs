//! What a run over the mutants has to show.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::{Catcher, Outcome, Seeds};

const BEGIN: &str = "<!-- measured: begin -->";
const END: &str = "<!-- measured: end -->";

/// One outcome in a line.
pub(super) fn line(outcome: &Outcome) -> String {
    let name = &outcome.mutant.name;
    if let Some(why) = &outcome.missed {
        return format!("{name}: NOT CAUGHT: {why}");
    }
    let test = outcome.mutant.catcher.test().unwrap_or("no schedule");
    let others = outcome.tests.len().saturating_sub(1);
    let seeds = match &outcome.seeds {
        Some((seeds, invariant)) => format!("seeds {seeds}: {invariant}"),
        None => "no seeds".into(),
    };
    format!("{name}: `{test}` and {others} more; {seeds}")
}

/// Prints every outcome and a verdict.
pub(super) fn print(outcomes: &[Outcome]) {
    for outcome in outcomes {
        println!("{}", line(outcome));
    }
    let missed = outcomes.iter().filter(|o| o.missed.is_some()).count();
    println!("{} mutants, {missed} not caught", outcomes.len());
}

/// The run for machines.
pub(super) fn as_json(outcomes: &[Outcome]) -> serde_json::Value {
    let mutants = outcomes.iter().map(|outcome| {
        let found = outcome.seeds.as_ref();
        json!({
            "name": outcome.mutant.name,
            "rule": outcome.mutant.rule,
            "caught": outcome.missed.is_none(),
            "seeds": found.map(|(seeds, _)| seeds),
            "invariant": found.map(|(_, invariant)| invariant),
            "test": outcome.mutant.catcher.test(),
            "tests_failed": outcome.tests,
            "missed": outcome.missed,
        })
    });
    json!({ "mutants": mutants.collect::<Vec<_>>() })
}

/// Replaces the measured table of a document.
pub(super) fn write_table(path: &Path, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).context("the table's begin mark")?;
    let (_, after) = rest.split_once(END).context("the table's end mark")?;
    let rows: String = outcomes.iter().map(row).collect();
    let table = format!(
        "{BEGIN}\n\n| mutant | rule | mistake | caught at once by | seeds | invariant |\n\
         |---|---|---|---|---|---|\n{rows}\n{END}"
    );
    fs::write(path, format!("{before}{table}{after}"))?;
    Ok(())
}

fn row(outcome: &Outcome) -> String {
    let mutant = &outcome.mutant;
    let test = match &mutant.catcher {
        Catcher::Directed { test: None } => "seeds only".into(),
        Catcher::Directed { test: Some(test) } => format!("`{test}`"),
        Catcher::Package { arguments, test } => format!("`{test}` of {}", arguments.join(" ")),
    };
    let (seeds, invariant) = match (&outcome.seeds, &mutant.seeds) {
        (Some((seeds, invariant)), Seeds::Within(most)) => {
            (format!("{seeds} of {most}"), invariant.clone())
        }
        (_, Seeds::None(reason)) => ("none".into(), format!("none, since {reason}")),
        (None, Seeds::Within(most)) => (format!("not within {most}"), "**missed**".into()),
    };
    format!(
        "| {} | {} | {} | {test} | {seeds} | {invariant} |\n",
        mutant.name, mutant.rule, mutant.mistake
    )
}
