//! What a patch file says, and applying it.
//!
//! ```text
//! Rule: 5
//! Mistake: tokens that were refunded although nobody reported them.
//! (Prose: what goes wrong, as many lines as it takes.)
//! Caught by: the_directed_schedule_that_fails
//! Seeds: 200
//!
//! --- a/proto/core/src/authority/ledger.rs
//! +++ b/proto/core/src/authority/ledger.rs
//! @@ -1,2 +1,2 @@
//! ...
//! ```
//!
//! Where random seeds cannot catch it: `Seeds: none, since ...`; where only they can: `Caught by:
//! none, since ...`. A mistake of a shipped driver names the target whose test catches it:
//! `Package: -p quota-server --test store_conformance`.
//!
//! Hunks are applied strictly: all of their old lines must be there, without fuzz; only their
//! place may have moved, and then the nearest one counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// Within how many seeds a mutant must be caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seeds {
    /// Within so many.
    Within(u64),
    /// Random seeds cannot catch it, for this reason.
    None(String),
}

impl Seeds {
    /// The most seeds that are tried.
    #[must_use]
    pub(super) fn most(&self) -> u64 {
        match self {
            Self::Within(most) => *most,
            Self::None(_) => 0,
        }
    }
}

/// What must catch a mutant at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Catcher {
    /// This directed schedule, by its name without the module; `None` if only seeds can.
    Directed {
        /// The schedule.
        test: Option<String>,
    },
    /// A test of the package that has the mistake.
    Package {
        /// What `cargo test` is told: `-p NAME` and so on.
        arguments: Vec<String>,
        /// Its name, without the module.
        test: String,
    },
}

impl Catcher {
    /// The test's name, if there must be one.
    pub(super) fn test(&self) -> Option<&str> {
        match self {
            Self::Directed { test } => test.as_deref(),
            Self::Package { test, .. } => Some(test),
        }
    }
}

/// One known mistake.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// The patch file's name, without its ending.
    pub(super) name: String,
    /// The rule that it breaks.
    pub(super) rule: String,
    /// The mistake in a line.
    pub(super) mistake: String,
    /// What must catch it.
    pub(super) catcher: Catcher,
    /// Within how many seeds.
    pub(super) seeds: Seeds,
    files: Vec<FilePatch>,
}

#[derive(Clone, Debug)]
struct FilePatch {
    path: String,
    hunks: Vec<Hunk>,
}

#[derive(Clone, Debug)]
struct Hunk {
    /// Where the old lines began, counted from zero.
    at: usize,
    old: Vec<String>,
    new: Vec<String>,
}

impl Mutant {
    /// Reads one patch file.
    ///
    /// # Errors
    /// If a field is missing or the patch is none.
    pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let start = text.find("\n--- a/").context("it has no `--- a/` line")?;
        let (header, patch) = text.split_at(start + 1);
        let field = |key: &str| {
            let mut lines = header.lines();
            let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            line.map(|value| value.trim().to_owned())
        };
        let need = |key: &str| field(key).with_context(|| format!("it has no line `{key}: …`"));
        let seeds = need("Seeds")?;
        let seeds = match seeds.strip_prefix("none, since ") {
            Some(reason) => Seeds::None(reason.to_owned()),
            None => Seeds::Within(
                seeds
                    .parse()
                    .context("`Seeds` is a number or `none, since`")?,
            ),
        };
        let test = need("Caught by")?;
        let catcher = match field("Package") {
            None if test.starts_with("none, since ") => {
                ensure!(seeds.most() > 0, "something must catch it");
                Catcher::Directed { test: None }
            }
            None => Catcher::Directed { test: Some(test) },
            Some(package) => Catcher::Package {
                arguments: package.split_whitespace().map(String::from).collect(),
                test,
            },
        };
        Ok(Self {
            name: name.to_owned(),
            rule: need("Rule")?,
            mistake: need("Mistake")?,
            catcher,
            seeds,
            files: parse_files(patch)?,
        })
    }

    /// The files that the mutant changes, as they are with the mistake, relative to `root`.
    ///
    /// # Errors
    /// If the patch does not apply.
    pub(super) fn applied(&self, root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
        let files = self.files.iter().map(|file| {
            let text = fs::read_to_string(root.join(&file.path))
                .with_context(|| format!("{} cannot be read", file.path))?;
            let changed = apply(&text, &file.hunks).with_context(|| file.path.clone())?;
            Ok((PathBuf::from(&file.path), changed))
        });
        files.collect()
    }
}

/// Reads all patches of a directory, by name.
pub(super) fn load(directory: &Path) -> anyhow::Result<Vec<Mutant>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("{} cannot be read", directory.display()))?;
    let mut mutants = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "patch") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path)?;
            let mutant = Mutant::parse(&name, &text);
            mutants.push(mutant.with_context(|| format!("{}", path.display()))?);
        }
    }
    ensure!(!mutants.is_empty(), "{} has no patch", directory.display());
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

fn parse_files(patch: &str) -> anyhow::Result<Vec<FilePatch>> {
    let mut files: Vec<FilePatch> = Vec::new();
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix("--- a/") {
            let path = path.to_owned();
            let hunks = Vec::new();
            files.push(FilePatch { path, hunks });
            continue;
        }
        if line.starts_with("+++ b/") {
            continue;
        }
        let file = files.last_mut().context("a hunk comes after a file")?;
        if let Some(range) = line.strip_prefix("@@ -") {
            let number: String = range.chars().take_while(char::is_ascii_digit).collect();
            let at = number.parse::<usize>().context("a hunk names its line")?;
            file.hunks.push(Hunk {
                at: at.saturating_sub(1),
                old: Vec::new(),
                new: Vec::new(),
            });
            continue;
        }
        let hunk = file.hunks.last_mut().context("lines stand in a hunk")?;
        let (sign, rest) = line.split_at_checked(1).unwrap_or((" ", ""));
        match sign {
            " " => {
                hunk.old.push(rest.to_owned());
                hunk.new.push(rest.to_owned());
            }
            "-" => hunk.old.push(rest.to_owned()),
            "+" => hunk.new.push(rest.to_owned()),
            "\\" => {}
            _ => bail!("`{line}` is no line of a patch"),
        }
    }
    Ok(files)
}

fn apply(text: &str, hunks: &[Hunk]) -> anyhow::Result<String> {
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let mut shift = 0_isize;
    for hunk in hunks {
        let length = hunk.old.len();
        ensure!(length > 0, "a hunk without old lines could go anywhere");
        let wanted = hunk.at.saturating_add_signed(shift);
        let last = lines.len().saturating_sub(length);
        let places = (0..=last).filter(|at| lines[*at..].starts_with(&hunk.old));
        let place = places
            .min_by_key(|at| at.abs_diff(wanted))
            .with_context(|| format!("these lines are not there:\n{}", hunk.old.join("\n")))?;
        lines.splice(place..place + length, hunk.new.iter().cloned());
        shift += isize::try_from(hunk.new.len())? - isize::try_from(length)?;
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "Rule: 1\nMistake: none.\nProse.\nCaught by: a_test\nSeeds: 20\n\n\
                         --- a/x.rs\n+++ b/x.rs\n@@ -3,2 +3,2 @@\n two\n-three\n+drei\n";

    #[test]
    fn a_hunk_may_have_moved_but_must_fit() {
        let mutant = Mutant::parse("m", PATCH).expect("a patch");
        assert_eq!(mutant.seeds, Seeds::Within(20));
        let hunks = &mutant.files[0].hunks;
        let changed = apply("zero\none\ntwo\nthree\ntwo\nthree\n", hunks);
        assert_eq!(
            changed.expect("it fits"),
            "zero\none\ntwo\ndrei\ntwo\nthree\n"
        );
        assert!(apply("one\ntwo\nTHREE\n", hunks).is_err());
        assert!(apply("", hunks).is_err());
    }

    #[test]
    fn a_patch_without_its_fields_is_refused() {
        for key in ["Rule", "Mistake", "Caught by", "Seeds"] {
            let text = PATCH.replace(&format!("{key}: "), "Nothing: ");
            assert!(Mutant::parse("m", &text).is_err(), "{key}");
        }
        let none = PATCH.replace(
            "Seeds: 20",
            "Seeds: none, since the world has no such thing",
        );
        let none = Mutant::parse("m", &none).expect("a patch");
        assert_eq!(none.seeds.most(), 0);
        let only_seeds = PATCH.replace("a_test", "none, since it is the world's");
        let only_seeds = Mutant::parse("m", &only_seeds).expect("a patch");
        assert_eq!(only_seeds.catcher.test(), None);
        let nobody = PATCH
            .replace("a_test", "none, since")
            .replace("20", "none, since");
        assert!(Mutant::parse("m", &nobody).is_err());
    }
}
