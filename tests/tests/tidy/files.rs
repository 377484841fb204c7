//! What no file may contain, and how long it may be.

use std::fs;
use std::path::Path;

use crate::{expect_none, root};

/// Longest file, in lines. Beyond it a second idea has usually moved in.
const LINES_MAX: usize = 600;

/// Files that may be longer, each with what keeps it in one piece.
const LONG: [(&str, &str); 0] = [];

/// Where the operating system's clock is read, and what for; everything else is handed the time.
const CLOCKS: [(&str, &str); 3] = [
    ("quota-client/src/clock.rs", "the client's clock"),
    ("quota-server/src/clock.rs", "the server's clock"),
    ("simulations/src/main.rs", "says how long a run took"),
];

/// Directories that hold nothing of ours.
const FOREIGN: [&str; 5] = [".git", "target", "quota-data", "bench-results", ".cargo"];

struct File {
    /// Relative to the root, with `/` between the parts.
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Tests, benchmarks and examples, as opposed to what is shipped.
    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/")
    }

    /// Lines that contain `needle`, as findings.
    fn lines_with<'a>(&'a self, needle: &'a str) -> impl Iterator<Item = String> + 'a {
        let lines = self.text.lines().enumerate();
        lines
            .filter(move |(_, line)| line.contains(needle))
            .map(move |(at, line)| format!("{}:{}: {}", self.path, at + 1, line.trim()))
    }
}

/// All text files of the tree but the rules themselves, which have to name what they forbid.
fn files() -> Vec<File> {
    let mut files = Vec::new();
    gather(&root(), &mut files);
    assert!(files.len() > 20, "the walk finds the tree");
    files.retain(|file| !file.path.starts_with("tests/tests/tidy/"));
    files
}

fn gather(directory: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(directory).expect("a directory can be read") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_symlink() || FOREIGN.contains(&name) {
            continue;
        }
        if path.is_dir() {
            gather(&path, files);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let relative = path.strip_prefix(root()).expect("inside the root");
            let path = relative.to_str().expect("UTF-8").replace('\\', "/");
            files.push(File { path, text });
        }
    }
}

/// All lines of the files that `applies` picks in which one of the needles stands.
fn mentions(needles: &[&str], applies: impl Fn(&File) -> bool) -> Vec<String> {
    let files = files();
    let picked = files.iter().filter(|file| applies(file));
    picked
        .flat_map(|file| {
            needles
                .iter()
                .flat_map(move |needle| file.lines_with(needle))
        })
        .collect()
}

#[test]
fn no_file_grows_beyond_one_idea() {
    let files = files();
    let length = |file: &File| file.text.lines().count();
    let long = files
        .iter()
        .filter(|file| file.is_rust() && length(file) > LINES_MAX);
    let findings: Vec<String> = long
        .filter(|file| !LONG.iter().any(|(path, _)| *path == file.path))
        .map(|file| format!("{}: {} lines", file.path, length(file)))
        .collect();
    expect_none(
        "files over 600 lines; which second idea moved in?",
        &findings,
    );
    for (path, reason) in LONG {
        let listed = files.iter().find(|file| file.path == path);
        assert!(
            listed.is_some_and(|file| length(file) > LINES_MAX) && !reason.is_empty(),
            "{path} is listed as long and is not, or for no reason"
        );
    }
}

#[test]
fn clocks_are_read_in_the_clock_modules_only() {
    let reads = [
        "Instant::now",
        "SystemTime::now",
        "clock_gettime",
        "UNIX_EPOCH",
    ];
    let mut findings = mentions(&reads, |file| {
        file.is_rust() && !file.is_test() && !CLOCKS.iter().any(|(path, _)| *path == file.path)
    });
    // A runtime's timer is set in the runtime's own time; no decision rests on it.
    findings.retain(|line| !line.contains("tokio::time::Instant::now"));
    expect_none("clocks read outside the clock modules", &findings);
    for (clock, reason) in CLOCKS {
        let text = fs::read_to_string(root().join(clock)).expect("a clock module can be read");
        let reads_one = reads.iter().any(|read| text.contains(read));
        assert!(
            reads_one && !reason.is_empty(),
            "{clock} is listed and reads no clock"
        );
    }
}

#[test]
fn nothing_is_left_unfinished_or_switched_off() {
    let marks = ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX"];
    expect_none(
        "unfinished or switched off",
        &mentions(&marks, File::is_rust),
    );
}

#[test]
fn no_test_sleeps() {
    let naps = ["thread::sleep", "time::sleep(", "sleep_ms("];
    let findings = mentions(&naps, |file| file.is_rust() && file.is_test());
    expect_none("sleeps in tests; wait for a condition", &findings);
}

#[test]
fn no_file_speaks_of_a_machine() {
    let paths = ["/work/", "/root/", "/home/"];
    expect_none("paths of one machine", &mentions(&paths, |_| true));
}

#[test]
fn the_core_stands_without_the_standard_library() {
    let files = files();
    let core = files
        .iter()
        .filter(|file| file.path.starts_with("proto/core/src/"));
    let mut findings = Vec::new();
    for file in core {
        let lines: Vec<&str> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let for_tests = at > 0 && lines[at - 1].contains("cfg(test)");
            if line.trim_start().starts_with("extern crate std") && !for_tests {
                findings.push(format!("{}:{}: {line}", file.path, at + 1));
            }
        }
    }
    expect_none("the core names the standard library", &findings);
    let lib = files
        .iter()
        .find(|file| file.path == "proto/core/src/lib.rs");
    let lib = &lib.expect("the core has a root").text;
    for attribute in [
        "#![no_std]",
        "clippy::float_arithmetic",
        "clippy::arithmetic_side_effects",
    ] {
        assert!(lib.contains(attribute), "the core's root says {attribute}");
    }
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|file| file.path.ends_with(".md")) {
        let directory = root()
            .join(&file.path)
            .parent()
            .expect("a file is somewhere")
            .to_owned();
        for link in file.text.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            let foreign = target.contains("://") || target.is_empty();
            if !foreign && !directory.join(target).exists() {
                findings.push(format!("{}: {target}", file.path));
            }
        }
    }
    expect_none("dead links", &findings);
}
