//! Licences, bans and sources of `deny.toml`, checked without cargo-deny.

use std::collections::{BTreeMap, BTreeSet};

use crate::packages::metadata_of;
use crate::{expect_none, root};

fn deny() -> toml::Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml can be read");
    text.parse().expect("deny.toml is TOML")
}

/// The workspaces of this tree. The fuzzer has its own, since its builds have other flags.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "tests/fuzz/Cargo.toml"];

fn list<'a>(table: &'a toml::Table, section: &str, name: &str) -> &'a [toml::Value] {
    table[section][name].as_array().expect("a list")
}

/// Whether an SPDX expression can be met with the allowed licences alone. `/` is an old way to
/// write `OR`; `WITH` binds to the licence before it, `AND` tighter than `OR`.
fn is_met(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at, allowed);
    assert_eq!(
        at,
        words.len(),
        "a licence expression is read to its end: {expression}"
    );
    met
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut met = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let first = words
        .get(*at)
        .expect("an expression does not end with an operator");
    *at += 1;
    if *first == "(" {
        let met = any(words, at, allowed);
        assert_eq!(words.get(*at), Some(&")"), "parentheses close");
        *at += 1;
        return met;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).expect("WITH names an exception");
        *at += 2;
        return allowed.contains(format!("{first} WITH {exception}").as_str());
    }
    allowed.contains(first)
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
    for met in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-3.0) AND Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "GPL-3.0 OR MIT AND BSD-3-Clause",
        "MIT WITH LLVM-exception",
    ] {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source_and_is_not_banned() {
    let deny = deny();
    let text = |value: &toml::Value| value.as_str().expect("a text").to_owned();
    let allowed: Vec<String> = list(&deny, "licenses", "allow").iter().map(text).collect();
    let allowed: BTreeSet<&str> = allowed.iter().map(String::as_str).collect();
    let banned: Vec<String> = list(&deny, "bans", "deny")
        .iter()
        .map(|ban| text(&ban["crate"]))
        .collect();
    let registries: Vec<String> = list(&deny, "sources", "allow-registry")
        .iter()
        .map(|url| format!("registry+{}", url.as_str().expect("a text")))
        .collect();
    assert!(
        !banned.is_empty() && !registries.is_empty(),
        "the lists are not empty"
    );

    let excepted: BTreeMap<String, Vec<String>> = list(&deny, "licenses", "exceptions")
        .iter()
        .map(|exception| {
            let licences = exception["allow"].as_array().expect("a list").iter();
            (text(&exception["crate"]), licences.map(text).collect())
        })
        .collect();
    let mut packages = Vec::new();
    for workspace in WORKSPACES {
        let mut metadata = metadata_of(workspace);
        let more = metadata["packages"].as_array_mut().expect("a list");
        packages.append(more);
    }
    let mut findings = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("none");
        let mut allowed = allowed.clone();
        allowed.extend(excepted.get(name).into_iter().flatten().map(String::as_str));
        if !is_met(licence, &allowed) {
            findings.push(format!(
                "{name}: {licence} is not among the allowed licences"
            ));
        }
        if banned.iter().any(|ban| ban == name) {
            findings.push(format!("{name}: banned in deny.toml"));
        }
        let source = package["source"].as_str();
        if source.is_some_and(|source| !registries.iter().any(|registry| registry == source)) {
            findings.push(format!("{name}: comes from {source:?}"));
        }
    }
    let used = |name: &String| packages.iter().any(|package| package["name"] == **name);
    for name in excepted.keys().filter(|name| !used(name)) {
        findings.push(format!("{name}: an exception for no dependency"));
    }
    expect_none("dependencies that deny.toml does not allow", &findings);
}

#[test]
fn every_exception_to_an_advisory_has_a_reason_and_a_package_in_the_tree() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock can be read");
    let deny = deny();
    let mut findings = Vec::new();
    for exception in list(&deny, "advisories", "ignore") {
        let id = exception["id"].as_str().expect("an id");
        let reason = exception
            .get("reason")
            .and_then(toml::Value::as_str)
            .unwrap_or_default();
        let package = reason.split_whitespace().next().unwrap_or_default();
        if !lock.contains(&format!("name = \"{package}\"\n")) {
            findings.push(format!(
                "{id}: the reason begins with the name of the package, and \"{package}\" is none"
            ));
        }
    }
    expect_none("exceptions that are not needed or not explained", &findings);
}
