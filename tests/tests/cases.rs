//! Keeps `tests/CASES.md` honest: every line is complete, and every test that it names exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Lines of the table.
const CASES: usize = 50;

struct Case {
    number: String,
    texts: Vec<String>,
    /// Files, each with a function in it unless it is a story.
    tests: Vec<(String, Option<String>)>,
    /// What is not yet there.
    missing: Option<String>,
}

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests is in the workspace")
        .to_owned()
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(root().join("tests/CASES.md")).expect("the table is there");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter(|row| row.starts_with(|first: char| first.is_ascii_digit()))
        .map(case)
        .collect()
}

fn case(row: &str) -> Case {
    let cells: Vec<&str> = row
        .trim_end_matches('|')
        .split(" | ")
        .map(str::trim)
        .collect();
    let (covered, texts) = cells.split_last().expect("a row has cells");
    let mut case = Case {
        number: cells[0].to_owned(),
        texts: texts.iter().map(|&text| text.to_owned()).collect(),
        tests: Vec::new(),
        missing: None,
    };
    for item in covered.split("<br>") {
        if let Some(missing) = item.strip_prefix("not yet: ") {
            case.missing = Some(missing.to_owned());
            continue;
        }
        let name = item.trim_matches('`');
        case.tests.push(match name.split_once("::") {
            Some((file, function)) => (file.to_owned(), Some(function.to_owned())),
            None => (name.to_owned(), None),
        });
    }
    case
}

/// True if `text` has a function of that name that runs as a test, be it in a property, under loom
/// or in a list of conformance cases.
fn has_test(text: &str, name: &str) -> bool {
    let definition = format!("fn {name}");
    let defined = text.match_indices(&definition);
    let defined = defined.map(|(at, found)| &text[at + found.len()..]);
    let runs = ["#[test]", "#[tokio::test", "proptest!"]
        .iter()
        .any(|mark| text.contains(mark));
    runs && defined.into_iter().any(|rest| rest.starts_with(['(', '<']))
}

fn exists(file: &str, function: Option<&str>) -> bool {
    let Ok(text) = std::fs::read_to_string(root().join(file)) else {
        return false;
    };
    match function {
        Some(name) => has_test(&text, name),
        None => file.ends_with(".txt") && text.contains("\n----\n"),
    }
}

#[test]
fn every_case_names_tests_that_exist_or_says_what_is_missing() {
    let mut findings = Vec::new();
    for case in cases() {
        let Case {
            number,
            texts,
            tests,
            missing,
        } = case;
        if texts.len() != 4 || texts.iter().any(String::is_empty) {
            findings.push(format!(
                "case {number}: four cells of text before the tests"
            ));
        }
        if tests.is_empty() && missing.as_deref().unwrap_or_default().is_empty() {
            findings.push(format!("case {number}: neither a test nor a reason"));
        }
        for (file, function) in tests {
            if !exists(&file, function.as_deref()) {
                findings.push(format!("case {number}: there is no {function:?} in {file}"));
            }
        }
    }
    assert!(findings.is_empty(), "\n  {}\n", findings.join("\n  "));
}

#[test]
fn the_cases_are_there_once_each() {
    let numbers: Vec<String> = cases().into_iter().map(|case| case.number).collect();
    let expected: Vec<String> = (1..=CASES).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    let told: BTreeSet<String> = cases()
        .into_iter()
        .map(|case| case.texts[2].clone())
        .collect();
    assert_eq!(told.len(), CASES, "no case is told twice");
}

#[test]
fn a_name_that_is_no_test_is_noticed() {
    assert!(has_test("#[test]\nfn a_fact() {}", "a_fact"));
    assert!(!has_test("#[test]\nfn a_fact_and_more() {}", "a_fact"));
    assert!(
        !has_test("fn a_fact() {}", "a_fact"),
        "a function that never runs"
    );
    assert!(
        !exists("tests/scripts/README.md", None),
        "a text that is no story"
    );
    assert!(!exists("tests/scripts/nowhere.txt", None));
}
