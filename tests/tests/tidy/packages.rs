//! Dependency arrows, over `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::{expect_none, root};

/// Which packages of ours each package may name, in any role. No arrow runs between client and
/// server, from the core to anything, or from what is shipped to the simulations or the tests.
const ARROWS: [(&str, &[&str]); 6] = [
    ("quota-core", &[]),
    ("quota-wire", &["quota-core"]),
    ("quota-client", &["quota-core", "quota-wire"]),
    ("quota-server", &["quota-core", "quota-wire"]),
    ("simulations", &["quota-core"]),
    (
        "quota-tests",
        &[
            "quota-core",
            "quota-wire",
            "quota-client",
            "quota-server",
            "simulations",
        ],
    ),
];

/// What the core may use from outside: a hash table, keyed hashing and serialisation, none of
/// which reads a clock, does I/O or draws random numbers. `loom` only under its own flag.
const CORE_USES: [&str; 4] = ["hashbrown", "loom", "serde", "siphasher"];

/// The names of the top level. Anything else belongs inside one of the packages.
const TOP_LEVEL: [&str; 16] = [
    ".ci",
    ".git",
    ".gitignore",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "proto",
    "quota-client",
    "quota-server",
    "rustfmt.toml",
];
const TOP_LEVEL_MORE: [&str; 5] = [
    "simulations",
    "tests",
    "target",
    "quota-data",
    "bench-results",
];

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo runs, since it runs this test");
    assert!(
        output.status.success(),
        "cargo {arguments:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// Everything that cargo knows of the workspace and its dependencies.
pub(crate) fn metadata() -> Value {
    metadata_of("Cargo.toml")
}

/// The same for the workspace of this manifest.
pub(crate) fn metadata_of(manifest: &str) -> Value {
    let json = cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--manifest-path",
        manifest,
    ]);
    serde_json::from_str(&json).expect("cargo prints JSON")
}

/// The packages of the workspace with the names of their dependencies, by kind.
fn members(metadata: &Value) -> BTreeMap<String, Vec<(String, Option<String>)>> {
    let packages = metadata["packages"].as_array().expect("a list");
    let ours = packages
        .iter()
        .filter(|package| package["source"].is_null());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    ours.map(|package| {
        let dependencies = package["dependencies"].as_array().expect("a list").iter();
        let dependencies =
            dependencies.map(|d| (text(&d["name"]).expect("a name"), text(&d["kind"])));
        (
            text(&package["name"]).expect("a name"),
            dependencies.collect(),
        )
    })
    .collect()
}

#[test]
fn arrows_run_only_where_the_architecture_has_them() {
    let members = members(&metadata());
    let names: BTreeSet<&str> = members.keys().map(String::as_str).collect();
    let known: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, known, "a new package needs its arrows listed here");
    let mut findings = Vec::new();
    for (name, allowed) in ARROWS {
        for (dependency, kind) in &members[name] {
            if names.contains(dependency.as_str()) && !allowed.contains(&dependency.as_str()) {
                let kind = kind.as_deref().unwrap_or("normal");
                findings.push(format!("{name} -> {dependency} ({kind})"));
            }
        }
    }
    expect_none("arrows that must not be", &findings);
}

#[test]
fn the_core_uses_nearly_nothing() {
    let members = members(&metadata());
    let shipped = members["quota-core"].iter();
    let shipped = shipped.filter(|(_, kind)| kind.as_deref() != Some("dev"));
    let findings: Vec<String> = shipped
        .filter(|(name, _)| !CORE_USES.contains(&name.as_str()))
        .map(|(name, _)| name.clone())
        .collect();
    expect_none("the core must not depend on", &findings);
}

#[test]
fn nothing_under_the_core_brings_in_the_standard_library() {
    let tree = cargo(&[
        "tree",
        "--locked",
        "-p",
        "quota-core",
        "-e",
        "normal,features",
        "--prefix",
        "none",
    ]);
    assert!(
        tree.contains("hashbrown"),
        "the tree lists the core's dependencies:\n{tree}"
    );
    // `default` of each of them implies `std`, so the one word finds both.
    let with_std = tree.lines().filter(|line| line.contains("feature \"std\""));
    let findings: Vec<String> = with_std.map(str::to_owned).collect();
    expect_none("features that need an operating system", &findings);
}

#[test]
fn the_top_level_is_as_it_was_laid_out() {
    let entries = std::fs::read_dir(root()).expect("the root can be read");
    let names = entries.map(|e| {
        e.expect("an entry")
            .file_name()
            .into_string()
            .expect("UTF-8")
    });
    let stray: Vec<String> = names
        .filter(|name| !TOP_LEVEL.contains(&name.as_str()))
        .filter(|name| !TOP_LEVEL_MORE.contains(&name.as_str()))
        .collect();
    expect_none("top-level names that belong elsewhere", &stray);
    let absent: Vec<String> = TOP_LEVEL
        .iter()
        .chain(&TOP_LEVEL_MORE[..2])
        .filter(|name| **name != ".git" && !root().join(name).exists())
        .map(|name| (*name).to_owned())
        .collect();
    expect_none("top-level names that are missing", &absent);
}
