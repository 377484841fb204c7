//! Reads a story, tells it again and says where the two differ.

use std::fmt::Write;

use crate::world::World;

/// A story told once.
pub(crate) struct Told {
    /// The story with what its commands printed.
    pub(crate) text: String,
    pub(crate) steps: usize,
    /// Where the ideal bucket went below zero.
    pub(crate) broken: Vec<String>,
}

/// Runs a story's commands in one world, step by step.
pub(crate) fn tell(text: &str) -> Told {
    let mut world = World::new();
    let mut told = Told {
        text: String::new(),
        steps: 0,
        broken: Vec::new(),
    };
    let mut lines = text.lines().peekable();
    let mut printed = String::new();
    while let Some(line) = lines.next() {
        if line == "----" {
            // What the file expects ends at an empty line or at its own end.
            while lines.peek().is_some_and(|line| !line.is_empty()) {
                lines.next();
            }
            let _ = write!(told.text, "----\n{printed}");
            printed.clear();
            told.steps += 1;
            continue;
        }
        let _ = writeln!(told.text, "{line}");
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(error) = world.run(line) {
            let _ = writeln!(printed, "error: {line}: {error}");
        }
        printed.push_str(&world.take_output());
    }
    if !printed.is_empty() {
        let _ = write!(told.text, "----\n{printed}");
    }
    told.broken = world.take_broken();
    told
}

/// The lines in which two texts differ, with a little of what is around them.
pub(crate) fn difference(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old.iter().rev().zip(new.iter().rev());
    let tail = tail.take_while(|(a, b)| a == b).count();
    let tail = tail.min(old.len() - same).min(new.len() - same);
    let mut out = String::new();
    for line in &old[same.saturating_sub(4)..same] {
        let _ = writeln!(out, "    {line}");
    }
    for line in &old[same..old.len() - tail] {
        let _ = writeln!(out, "  - {line}");
    }
    for line in &new[same..new.len() - tail] {
        let _ = writeln!(out, "  + {line}");
    }
    out
}
