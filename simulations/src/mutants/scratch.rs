//! A copy of the code that may be broken: copying, building, and running what was built.
//!
//! Building is what takes the time. The copy keeps its build directory from mutant to mutant, so
//! that only the changed crate and what rests on it is built again, incrementally and hardly
//! optimised: a second or a few each, after half a minute for the first.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Catcher, Mutant, Outcome, Seeds};

/// A build, or a run of the directed schedules, that takes longer hangs.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TEST_LIMIT: Duration = Duration::from_secs(120);
/// So does a round of seeds.
const SEEDS_LIMIT: Duration = Duration::from_secs(300);
/// Seeds of the first round; each further one is twice as long, up to the last number.
const FIRST_ROUND: u64 = 20;
const LONGEST_ROUND: u64 = 320;

/// Release settings would build for a minute; without any optimisation seeds are slow.
const PROFILE: &str = "\n[profile.dev]\nopt-level = 1\ndebug = false\nincremental = true\n";

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The core and the world.
    Core,
    /// The drivers too.
    Everything,
}

impl Kind {
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["proto/core", "simulations"],
            Self::Everything => &[
                "proto/core",
                "proto/wire",
                "quota-client",
                "quota-server",
                "simulations",
            ],
        }
    }
}

/// The copy; removed in the end.
pub(super) struct Scratch {
    kind: Kind,
    directory: PathBuf,
    threads: usize,
}

/// What was built in a copy.
pub(super) struct Built {
    directed: PathBuf,
    simulations: PathBuf,
    threads: usize,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory of temporary files that stays costs nothing but room.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Scratch {
    pub(super) fn new(root: &Path, kind: Kind, threads: usize) -> anyhow::Result<Self> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("quota-mutants-{}-{copy}", std::process::id());
        let scratch = Self {
            kind,
            directory: std::env::temp_dir().join(name),
            threads,
        };
        fs::create_dir_all(&scratch.directory)?;
        for package in kind.packages() {
            copy_tree(&root.join(package), &scratch.directory.join(package))?;
        }
        fs::copy(
            root.join("Cargo.lock"),
            scratch.directory.join("Cargo.lock"),
        )?;
        let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
        let manifest = reduced(&manifest, kind.packages())?;
        fs::write(scratch.directory.join("Cargo.toml"), manifest)?;
        if kind == Kind::Core {
            // Nothing that runs here needs them, and they take longer to build than all the rest.
            for package in kind.packages() {
                let path = scratch.directory.join(package).join("Cargo.toml");
                let manifest = fs::read_to_string(&path)?;
                fs::write(&path, without_section(&manifest, "[dev-dependencies]"))?;
            }
        }
        Ok(scratch)
    }

    /// Another copy, which starts from what this one has built of other people's packages.
    pub(super) fn another(&self, root: &Path) -> anyhow::Result<Self> {
        let other = Self::new(root, self.kind, self.threads)?;
        let target = other.directory.join("target");
        copy_tree(&self.directory.join("target"), &target)?;
        Ok(other)
    }

    /// Puts the mistake in, looks who notices, and takes it out again.
    pub(super) fn judge(&self, mutant: Mutant) -> anyhow::Result<Outcome> {
        let changed = mutant.applied(&self.directory)?;
        let mut originals = Vec::new();
        for (path, text) in changed {
            let path = self.directory.join(path);
            originals.push((path.clone(), fs::read_to_string(&path)?));
            fs::write(&path, text)?;
        }
        let outcome = match &mutant.catcher {
            Catcher::Directed { .. } => self.by_schedules(&mutant),
            Catcher::Package { arguments, .. } => self.by_package(&mutant, arguments),
        };
        for (path, text) in originals {
            fs::write(path, text)?;
        }
        let (tests, seeds, missed) = match outcome {
            Ok(outcome) => outcome,
            // It does not build, or hangs: nobody caught anything.
            Err(error) => (Vec::new(), None, Some(format!("{error:#}"))),
        };
        Ok(Outcome {
            mutant,
            tests,
            seeds,
            missed,
        })
    }

    fn by_schedules(&self, mutant: &Mutant) -> anyhow::Result<Judged> {
        let built = self.build()?;
        let tests = built.directed()?;
        let seeds = match mutant.seeds.most() {
            0 => None,
            most => built.seeds(most)?,
        };
        let mut missed = missed_test(mutant, &tests);
        if let (Seeds::Within(most), None) = (&mutant.seeds, &seeds) {
            missed = missed.or(Some(format!("{most} seeds broke no invariant")));
        }
        Ok((tests, seeds, missed))
    }

    fn by_package(&self, mutant: &Mutant, arguments: &[String]) -> anyhow::Result<Judged> {
        let mut build = self.cargo("test");
        build.args(["--quiet", "--no-run"]).args(arguments);
        let built = output(build, BUILD_LIMIT)?;
        ensure!(built.success, "it does not build:\n{}", built.errors);
        // Not quietly: the tests that fail are to be named.
        let mut run = self.cargo("test");
        run.args(arguments);
        let ran = output(run, TEST_LIMIT)?;
        let tests = failed_tests(&ran.text);
        let missed = missed_test(mutant, &tests);
        Ok((tests, None, missed))
    }

    /// Builds the directed schedules and the program that runs seeds.
    pub(super) fn build(&self) -> anyhow::Result<Built> {
        let mut command = self.cargo("build");
        command.args(["--quiet", "-p", "simulations", "--bin", "simulations"]);
        command.args(["--test", "directed", "--message-format", "json"]);
        let built = output(command, BUILD_LIMIT)?;
        ensure!(built.success, "it does not build:\n{}", errors_of(&built));
        let executable = |kind: &str, name: &str| {
            let messages = built.text.lines().filter_map(|line| {
                let message: Value = serde_json::from_str(line).ok()?;
                let target = &message["target"];
                let wanted = target["name"] == name && target["kind"][0] == kind;
                wanted.then(|| message["executable"].as_str().map(PathBuf::from))?
            });
            let path = { messages }.next();
            path.with_context(|| format!("cargo built no {kind} {name}"))
        };
        Ok(Built {
            directed: executable("test", "directed")?,
            simulations: executable("bin", "simulations")?,
            threads: self.threads,
        })
    }

    fn cargo(&self, verb: &str) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.arg(verb).arg("--offline");
        command.current_dir(&self.directory);
        // Never the tree's own build directory: stale artefacts of two trees look alike.
        command.env("CARGO_TARGET_DIR", self.directory.join("target"));
        command
    }
}

type Judged = (Vec<String>, Option<(u64, String)>, Option<String>);

fn missed_test(mutant: &Mutant, failed: &[String]) -> Option<String> {
    let test = mutant.catcher.test()?;
    if failed.iter().any(|name| name == test) {
        return None;
    }
    Some(format!("`{test}` passed; failed were: {failed:?}"))
}

impl Built {
    /// The directed schedules that fail.
    pub(super) fn directed(&self) -> anyhow::Result<Vec<String>> {
        let ran = output(Command::new(&self.directed), TEST_LIMIT)?;
        let failed = failed_tests(&ran.text);
        ensure!(
            ran.success || !failed.is_empty(),
            "the directed schedules ended without naming a failure: {}",
            ran.errors
        );
        Ok(failed)
    }

    /// Runs seeds until an invariant breaks, `most` at the most: how many it took, and which.
    pub(super) fn seeds(&self, most: u64) -> anyhow::Result<Option<(u64, String)>> {
        let (mut first, mut round) = (0, FIRST_ROUND);
        while first < most {
            let count = round.min(most - first);
            let mut command = Command::new(&self.simulations);
            command.args(["safety", "--json"]);
            command.args(["--first", &first.to_string()]);
            command.args(["--seeds", &count.to_string()]);
            command.args(["--threads", &self.threads.to_string()]);
            let ran = output(command, SEEDS_LIMIT)?;
            let last = ran.text.lines().last().unwrap_or_default();
            let verdict: Value = serde_json::from_str(last)
                .with_context(|| format!("seeds {first} to {} gave no verdict", first + count))?;
            let broken = &verdict["violations"][0];
            if let (Some(seed), Some(invariant)) =
                (broken["seed"].as_u64(), broken["invariant"].as_str())
            {
                return Ok(Some((seed + 1, invariant.to_owned())));
            }
            ensure!(ran.success, "seeds failed without a violation: {last}");
            first += count;
            round = (round * 2).min(LONGEST_ROUND);
        }
        Ok(None)
    }
}

/// The names after `test` on the lines of a test program that end in `FAILED`, without modules.
fn failed_tests(text: &str) -> Vec<String> {
    let failed = text.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.rsplit("::").next().unwrap_or(name).to_owned())
    });
    failed.collect()
}

/// How a program ended.
struct Ran {
    success: bool,
    text: String,
    errors: String,
}

/// Runs a program to its end, and kills it if it takes too long.
fn output(mut command: Command, limit: Duration) -> anyhow::Result<Ran> {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    let (ended, end) = mpsc::channel();
    let errors = child.stderr.take().map(|pipe| read(pipe, ended.clone()));
    let text = child.stdout.take().map(|pipe| read(pipe, ended));
    // Both pipes close when the program ends.
    let in_time = (0..2).all(|_| end.recv_timeout(limit).is_ok());
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    if !in_time {
        bail!("{command:?} was stopped after {} s", limit.as_secs());
    }
    let join = |reader: Option<std::thread::JoinHandle<String>>| {
        let text = reader.map(|reader| reader.join().expect("reading does not panic"));
        text.unwrap_or_default()
    };
    Ok(Ran {
        success: status.success(),
        text: join(text),
        errors: join(errors),
    })
}

fn read(
    mut pipe: impl Read + Send + 'static,
    ended: mpsc::Sender<()>,
) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks ends like any other.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = ended.send(());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// What the compiler said, from cargo's messages.
fn errors_of(ran: &Ran) -> String {
    let rendered = ran.text.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let message = &message["message"];
        let error = message["level"] == "error";
        error.then(|| message["rendered"].as_str().map(String::from))?
    });
    let rendered: String = rendered.collect();
    if rendered.is_empty() {
        ran.errors.clone()
    } else {
        rendered
    }
}

/// Copies a directory with the times of its files, by which cargo knows what is built.
fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let target = to.join(name);
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
            let changed = fs::metadata(&path)?.modified()?;
            let copy = fs::File::options().write(true).open(&target)?;
            copy.set_modified(changed)?;
        }
    }
    Ok(())
}

/// The root manifest with these members only and the profile of this module.
fn reduced(manifest: &str, packages: &[&str]) -> anyhow::Result<String> {
    let shared = manifest
        .find("[workspace.package]")
        .context("the root manifest has a [workspace.package]")?;
    let profiles = manifest.find("[profile.").unwrap_or(manifest.len());
    let members = packages.iter().map(|package| format!("\"{package}\""));
    let members: Vec<String> = members.collect();
    let head = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n",
        members.join(", ")
    );
    Ok(head + &manifest[shared..profiles] + PROFILE)
}

fn without_section(manifest: &str, section: &str) -> String {
    let mut skipping = false;
    let kept = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            skipping = *line == section;
        }
        !skipping
    });
    kept.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let mut hanging = Command::new("tail");
        hanging.args(["-f", "/dev/null"]);
        assert!(output(hanging, Duration::from_millis(50)).is_err());
        let mut fine = Command::new("echo");
        fine.arg("said");
        let ran = output(fine, TEST_LIMIT).expect("it ends");
        assert!(ran.success && ran.text == "said\n");
    }

    #[test]
    fn failed_tests_are_named_without_their_modules() {
        let text = "test a::b ... ok\ntest c::d_e ... FAILED\n\nfailures:\n    c::d_e\n";
        assert_eq!(failed_tests(text), ["d_e"]);
    }

    #[test]
    fn a_reduced_manifest_has_only_its_members_and_one_profile() {
        let manifest = "[workspace]\nmembers = [\"a\", \"b\"]\n[workspace.package]\nversion = \
                        \"1\"\n[profile.release]\nlto = true\n";
        let reduced = reduced(manifest, &["a"]).expect("a manifest");
        assert!(reduced.contains("members = [\"a\"]") && !reduced.contains("lto"));
        let stripped = without_section(
            "[a]\nx\n[dev-dependencies]\ny\n[c]\nz\n",
            "[dev-dependencies]",
        );
        assert_eq!(stripped, "[a]\nx\n[c]\nz\n");
    }
}
