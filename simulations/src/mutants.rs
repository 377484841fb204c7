//! Known mistakes, put into a copy of the code one at a time: each must be caught.
//!
//! A check that never fails proves nothing. So for each rule there are patches that break it, in
//! `simulations/mutants`; this module applies one at a time to a copy of the core and the world,
//! builds the copy, and looks whether the directed schedules fail at once and whether random seeds
//! break an invariant within the number that the patch states. The unchanged copy goes first and
//! must pass both.
//!
//! - `patch`: what a patch file says, and applying it
//! - `scratch`: the copy, building it and running what was built
//! - `report`: the table for readers and the object for machines
//!
//! It never touches the tree it runs from, nor that tree's build directory.

mod patch;
mod report;
mod scratch;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use anyhow::{Context, ensure};

use self::patch::{Catcher, Mutant, Seeds};
use self::scratch::{Kind, Scratch};

/// Mutants per copy that make another copy, with its own build, worth its while.
const MUTANTS_PER_WORKER: usize = 6;
/// Copies that are built at the same time, at the most: a build keeps about one core busy.
const WORKERS_MAX: usize = 4;

/// What to do with the mutants.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Break the code in every known way, one at a time; exits with 0 only if each is caught.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "first"])]
    pub(crate) mutants: bool,
    /// Take only this mutant; may be given more than once.
    #[arg(long, requires = "mutants", value_name = "NAME")]
    only: Vec<String>,
    /// Look only whether every patch still applies.
    #[arg(long, requires = "mutants", conflicts_with = "only")]
    check_patches: bool,
    /// Write what was measured into the table of simulations/mutants/README.md.
    #[arg(long, requires = "mutants", conflicts_with = "only")]
    write_table: bool,
}

/// What became of one mutant.
#[derive(Clone, Debug)]
struct Outcome {
    /// The mutant.
    mutant: Mutant,
    /// The directed schedules, or other tests, that failed on it.
    tests: Vec<String>,
    /// How many seeds it took, and the invariant that broke.
    seeds: Option<(u64, String)>,
    /// Why it counts as not caught; `None` if it was caught in every way that it should be.
    missed: Option<String>,
}

/// Runs what the options ask for. `clock` is the machine's clock, for estimates only.
///
/// # Errors
/// If a patch cannot be read or no longer applies, if the unchanged copy does not pass, or if
/// cargo cannot be run. A mutant that is not caught is no error but a failing exit code.
pub(crate) fn run(
    options: &Options,
    threads: usize,
    json: bool,
    clock: fn() -> Instant,
) -> anyhow::Result<ExitCode> {
    let root = root();
    let all = patch::load(&root.join("simulations/mutants"))?;
    for name in &options.only {
        let known = all.iter().any(|mutant| mutant.name == *name);
        ensure!(known, "there is no simulations/mutants/{name}.patch");
    }
    let wanted = |mutant: &Mutant| options.only.is_empty() || options.only.contains(&mutant.name);
    let stale: Vec<String> = all
        .iter()
        .filter_map(|mutant| {
            Some(format!(
                "{}: {:#}",
                mutant.name,
                mutant.applied(&root).err()?
            ))
        })
        .collect();
    ensure!(
        stale.is_empty(),
        "these patches no longer apply; make them anew against the present code:\n{}",
        stale.join("\n")
    );
    println!("{} mutants, all patches apply", all.len());
    if options.check_patches {
        return Ok(ExitCode::SUCCESS);
    }
    let chosen: Vec<Mutant> = all.into_iter().filter(wanted).collect();
    let outcomes = Run {
        root: &root,
        total: chosen.len(),
        began: clock(),
        clock,
        judging: OnceLock::new(),
        done: Mutex::new(Vec::new()),
    }
    .all(chosen, threads)?;
    report::print(&outcomes);
    if options.write_table {
        report::write_table(&root.join("simulations/mutants/README.md"), &outcomes)?;
    }
    if json {
        println!("{}", report::as_json(&outcomes));
    }
    let caught = outcomes.iter().all(|outcome| outcome.missed.is_none());
    Ok(if caught {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The tree that this program was built from.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("a package has a parent").to_owned()
}

/// One run over many mutants.
struct Run<'a> {
    root: &'a Path,
    total: usize,
    began: Instant,
    clock: fn() -> Instant,
    /// When the first mutant was begun: the unchanged copy says nothing about how long they take.
    judging: OnceLock<Instant>,
    done: Mutex<Vec<Outcome>>,
}

impl Run<'_> {
    fn all(self, mutants: Vec<Mutant>, threads: usize) -> anyhow::Result<Vec<Outcome>> {
        let (core, drivers): (Vec<_>, Vec<_>) = mutants
            .into_iter()
            .partition(|mutant| matches!(mutant.catcher, Catcher::Directed { .. }));
        self.share(core, Kind::Core, threads)?;
        self.share(drivers, Kind::Everything, 1)?;
        let mut outcomes = self.done.into_inner().expect("no worker panicked");
        outcomes.sort_by(|a, b| a.mutant.name.cmp(&b.mutant.name));
        Ok(outcomes)
    }

    /// Spreads mutants over a few copies, each with a build directory of its own.
    fn share(&self, mutants: Vec<Mutant>, kind: Kind, threads: usize) -> anyhow::Result<()> {
        if mutants.is_empty() {
            return Ok(());
        }
        let workers = (mutants.len() / MUTANTS_PER_WORKER).clamp(1, threads.clamp(1, WORKERS_MAX));
        let seeds = mutants.iter().map(|mutant| mutant.seeds.most()).max();
        let seeds = seeds.unwrap_or_default();
        // Threads that are left over run seeds.
        let spare = (threads / workers).max(1);
        let queue = Mutex::new(VecDeque::from(mutants));
        let mut copies = vec![Scratch::new(self.root, kind, spare)?];
        if kind == Kind::Core {
            copies[0].build().context("the unchanged copy")?;
        }
        for _ in 1..workers {
            copies.push(copies[0].another(self.root)?);
        }
        std::thread::scope(|scope| {
            let started: Vec<_> = copies
                .into_iter()
                .enumerate()
                .map(|(worker, scratch)| {
                    let queue = &queue;
                    scope.spawn(move || -> anyhow::Result<()> {
                        if worker == 0 && kind == Kind::Core {
                            self.baseline(&scratch, seeds)?;
                        }
                        loop {
                            let next = queue.lock().expect("no worker panicked").pop_front();
                            let Some(mutant) = next else { return Ok(()) };
                            self.judging.get_or_init(self.clock);
                            let outcome = scratch.judge(mutant)?;
                            self.note(outcome);
                        }
                    })
                })
                .collect();
            for worker in started {
                worker.join().expect("a worker does not panic")?;
            }
            Ok(())
        })
    }

    /// The unchanged copy passes everything that the mutants are judged by.
    fn baseline(&self, scratch: &Scratch, seeds: u64) -> anyhow::Result<()> {
        let built = scratch.build().context("the unchanged copy")?;
        let failed = built.directed()?;
        ensure!(
            failed.is_empty(),
            "the unchanged code fails directed schedules: {}",
            failed.join(", ")
        );
        if seeds > 0 {
            eprintln!("unchanged: directed schedules pass; {seeds} seeds follow");
            let broken = built.seeds(seeds)?;
            ensure!(
                broken.is_none(),
                "the unchanged code breaks an invariant: {broken:?}"
            );
            eprintln!("unchanged: {seeds} seeds pass ({} s)", self.seconds());
        }
        Ok(())
    }

    fn note(&self, outcome: Outcome) {
        let mut done = self.done.lock().expect("no worker panicked");
        let line = report::line(&outcome);
        done.push(outcome);
        let judging = *self.judging.get_or_init(self.clock);
        let seconds = (self.clock)().duration_since(judging).as_secs();
        let so_far = done.len();
        let left = seconds * (self.total - so_far) as u64 / so_far as u64;
        eprintln!("[{so_far}/{}, about {left} s left] {line}", self.total);
    }

    fn seconds(&self) -> u64 {
        (self.clock)().duration_since(self.began).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies_and_says_what_it_is() {
        let mutants = patch::load(&root().join("simulations/mutants")).expect("readable patches");
        for mutant in &mutants {
            let applied = mutant.applied(&root());
            let applied = applied.unwrap_or_else(|error| panic!("{}: {error:#}", mutant.name));
            assert!(!applied.is_empty(), "{} changes nothing", mutant.name);
        }
        assert!(mutants.len() >= 25, "only {} mutants", mutants.len());
    }
}
