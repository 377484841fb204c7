//! The verdict of one round: the ideal bucket over every admission log, and what must not be
//! found beside it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use quota_core::time::Timestamp;
use simulations::admission_log::{Admission, check_log};
use simulations::oracle::{IdealBucket, IdealLimit};

use super::scene::Scene;
use super::tally::Edge;
use crate::load::Counts;
use crate::verdict::{self, Admissions};

/// Judges all logs. Returns how close each policy came, and everything that is wrong.
pub(super) fn judge(
    scene: &Scene,
    limits: &[(String, IdealLimit)],
    answers: &[(&'static [&'static str], Arc<Counts>)],
) -> anyhow::Result<(BTreeMap<String, Edge>, Vec<String>)> {
    let mut admissions = Admissions::new();
    for (log, machine) in scene.places.iter().flat_map(|place| &place.logs) {
        // The log is there from the gateway's start.
        verdict::read_log(log, |at| machine.here(at), &mut admissions)?;
    }
    let first_kill = scene.kills.first().copied();
    let mut edges = BTreeMap::new();
    let mut wrong = Vec::new();
    for (name, limit) in limits {
        let policy = format!("default/{name}");
        let mut edge = Edge::default();
        for ((_, key), log) in admissions
            .iter_mut()
            .filter(|((named, _), _)| *named == policy)
        {
            match check_log(*limit, log) {
                Ok(_) => {}
                Err(violation) => wrong.push(format!("policy {name}, key {key}: {violation}")),
            }
            edge.add(&of_bucket(*limit, log, first_kill));
        }
        let answered: u64 = answers
            .iter()
            .filter(|(charged, _)| charged.contains(&name.as_str()))
            .map(|(_, counts)| counts.admitted())
            .sum();
        // An admission is logged before it is answered, so each answer must be in a log. Without
        // this a log that loses lines would let any server pass.
        if answered > edge.admissions {
            wrong.push(format!(
                "policy {name}: {answered} requests were answered with 200, but only {} are logged",
                edge.admissions
            ));
        }
        edges.insert(name.clone(), edge);
    }
    wrong.extend(panics(&scene.directory)?);
    Ok((edges, wrong))
}

/// How close one bucket came, each admission taken at its latest moment.
fn of_bucket(limit: IdealLimit, log: &[Admission], kill: Option<Timestamp>) -> Edge {
    let mut ends: Vec<_> = log.iter().map(|a| (a.latest, a.cost)).collect();
    ends.sort_unstable();
    let mut ideal = IdealBucket::new(limit);
    let mut after = None;
    for (at, cost) in &ends {
        // A level below zero is the oracle's affair, which knows the intervals.
        let _ = ideal.admit(*at, *cost);
        if kill.is_some_and(|kill| *at > kill)
            && let Ok(level) = ideal.level(*at)
        {
            after = Some(after.map_or(level, |lowest: i128| lowest.min(level)));
        }
    }
    let (first, last) = (ends.first(), ends.last());
    let span = match (first, last) {
        (Some((first, _)), Some((last, _))) => last.since(*first),
        _ => quota_core::time::Term::ZERO,
    };
    let edge = i128::from(limit.capacity.get()) / 20;
    Edge {
        buckets: 1,
        admissions: u64::try_from(ends.len()).unwrap_or(u64::MAX),
        admitted: ideal.admitted().get(),
        allowed: (limit.capacity + limit.rate.tokens_in(span)).get(),
        lowest: Some(ideal.lowest()),
        lowest_after_kill: after,
        at_the_edge: u64::from(after.is_some_and(|level| level <= edge)),
    }
}

/// Panics that a process survived.
fn panics(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "output") {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let lines = text.lines().filter(|line| line.contains("panicked at"));
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }
    Ok(found)
}
