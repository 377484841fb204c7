//! What is wrong with a message, by field.

use std::borrow::Cow;
use std::fmt;

/// Most characters of a found value that an error repeats.
const FOUND_CHARS_MAX: usize = 80;

/// A message breaks a rule of the schema. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}; allowed: {allowed}")]
pub struct Malformed {
    /// The path of the field, as in `requests.want[3]`.
    pub field: String,
    /// What was found there, shortened.
    pub found: String,
    /// What is allowed there.
    pub allowed: Cow<'static, str>,
}

impl Malformed {
    /// `field` holds `found`, where only `allowed` may be.
    #[must_use]
    pub fn new(
        field: impl Into<String>,
        found: impl fmt::Display,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Self {
        let found = found.to_string();
        let found = match found.char_indices().nth(FOUND_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &found[..end]),
            None => found,
        };
        Self {
            field: field.into(),
            found,
            allowed: allowed.into(),
        }
    }

    /// A message or value that must be there is not.
    #[must_use]
    pub fn missing(field: impl Into<String>) -> Self {
        Self::new(field, "absent", "it is required")
    }
}
