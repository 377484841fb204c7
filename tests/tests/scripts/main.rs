//! Stories: text in, text out, one story per file in `tests/scripts`.
//!
//! A story drives the authority of one shard, the holders that talk to it and its store, with the
//! clock in its hand. Every token that a holder spends also goes to an ideal bucket outside the
//! system; a story in which that bucket would go below zero fails whatever it expects.
//!
//! A file is a list of steps, each some commands, a line `----` and what they print. Lines that
//! begin with `#` are comments. `REWRITE=1 cargo test -p quota-tests --test scripts` writes what
//! is printed into the files; read the difference before you keep it. The commands are listed in
//! `tests/scripts/README.md`.

mod acts;
mod holder;
mod story;
mod words;
mod world;

use std::path::{Path, PathBuf};

fn stories() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = std::fs::read_dir(&directory).expect("the stories can be listed");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    paths.sort();
    assert!(
        !paths.is_empty(),
        "there are stories in {}",
        directory.display()
    );
    paths
}

#[test]
fn every_story_ends_as_it_is_written() {
    let rewrite = std::env::var("REWRITE").is_ok_and(|value| value == "1");
    let mut failures = Vec::new();
    for path in stories() {
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default()
            .to_owned();
        let text = std::fs::read_to_string(&path).expect("a story can be read");
        let told = story::tell(&text);
        println!("{name}: {} steps", told.steps);
        if rewrite && told.text != text {
            std::fs::write(&path, &told.text).expect("a story can be written");
        } else if told.text != text {
            failures.push(format!("{name}:\n{}", story::difference(&text, &told.text)));
        }
        failures.extend(told.broken.iter().map(|broken| format!("{name}: {broken}")));
    }
    assert!(
        failures.is_empty(),
        "{}\n(REWRITE=1 writes what is printed into the files)",
        failures.join("\n")
    );
}

#[test]
fn a_story_that_spends_too_much_fails_whatever_it_expects() {
    let text =
        "policy api 10/10s burst 10 share 1000\nh1 asks api/k want 5\nh1 cheats api/k 11\n----\n";
    let told = story::tell(text);
    assert!(
        told.broken.iter().any(|b| b.contains("passed by 1 token")),
        "{:?}",
        told.broken
    );
}
