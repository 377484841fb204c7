//! What a command found, for people and for programs.

use std::fmt::Write as _;

use quota_core::key::BucketAddress;
use quota_core::policy::Span;
use quota_wire::convert::common::decode_term;
use serde_json::{Value, json};

/// What a command found, in both forms.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    text: String,
    /// `None`: the text is all there is.
    json: Option<Value>,
}

impl Output {
    pub(crate) fn new(text: String, json: Value) -> Self {
        Self {
            text,
            json: Some(json),
        }
    }

    /// A text that is the same for people and programs.
    pub(crate) fn script(text: String) -> Self {
        Self { text, json: None }
    }

    /// For standard output: one JSON document, or lines.
    pub(crate) fn render(&self, json: bool) -> String {
        match &self.json {
            Some(value) if json => format!("{value:#}\n"),
            _ => self.text.clone(),
        }
    }
}

/// Rows under a heading, in columns as wide as their longest cell. Cells that begin with a digit
/// or a sign are numbers and stand to the right.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|name| (*name).to_owned()).collect();
    let all = || std::iter::once(&heading).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..heading.len()).filter_map(width).collect();
    let is_number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let right: Vec<bool> = (0..heading.len())
        .map(|column| !rows.is_empty() && rows.iter().all(|row| is_number(&row[column])))
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(&widths).zip(&right) {
            let space = " ".repeat(width - cell.chars().count());
            let cell = if *right {
                format!("{space}{cell}  ")
            } else {
                format!("{cell}{space}  ")
            };
            line.push_str(&cell);
        }
        writeln!(text, "{}", line.trim_end()).expect("writing to a string does not fail");
    }
    text
}

/// Lines of a name and a value, the values below each other.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:<width$}  {value}\n");
    fields.iter().map(line).collect()
}

/// A span as people write it.
pub(crate) fn span(span: Option<prost_types::Duration>) -> String {
    let term = span.and_then(|span| decode_term("span", span).ok());
    term.map_or_else(
        || "-".to_owned(),
        |term| Span::new(rounded(term)).to_string(),
    )
}

/// Milliseconds, whole ones from a millisecond on: nobody reads nanoseconds of an age.
fn rounded(term: quota_core::time::Term) -> quota_core::time::Term {
    let millis = term.as_nanos() / 1_000_000;
    match millis {
        0 => term,
        millis => quota_core::time::Term::from_millis(millis),
    }
}

/// A span in milliseconds, for programs; null if there is none.
pub(crate) fn millis(span: Option<prost_types::Duration>) -> Value {
    let term = span.and_then(|span| decode_term("span", span).ok());
    term.map_or(Value::Null, |term| json!(term.as_nanos() / 1_000_000))
}

/// An incarnation: 64 bits are more than a JSON number carries exactly.
pub(crate) fn incarnation(number: u64) -> String {
    format!("{number:016x}")
}

/// The values of a bucket's key; bytes that are no text are escaped.
pub(crate) fn key(bucket: &BucketAddress) -> Vec<String> {
    let value = |value: &[u8]| match std::str::from_utf8(value) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => value.escape_ascii().to_string(),
    };
    bucket.key.values().map(value).collect()
}
