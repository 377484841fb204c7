//! Tidiness that a compiler does not check: who may depend on whom, what may come in from
//! outside, and what no file may contain.
//!
//! A rule that needs an exception has a list of exceptions with a reason each, here in the test.

mod files;
mod licences;
mod packages;

use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests is in the workspace")
        .to_owned()
}

/// Fails with all findings at once, one a line.
#[track_caller]
fn expect_none(rule: &str, findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{rule}:\n  {}\n",
        findings.join("\n  ")
    );
}
