//! Why a policy is refused.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// The longest piece of a value that an error repeats.
const QUOTED_CHARS_MAX: usize = 60;

/// Why a policy is refused: which field, what it held, and what is allowed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    policy: String,
    field: String,
    value: String,
    allowed: String,
}

impl PolicyError {
    /// `field` held `value`, where only `allowed` is.
    pub(super) fn new(
        field: impl Into<String>,
        value: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self {
            policy: String::new(),
            field: field.into(),
            value: format!("{value}"),
            allowed: allowed.into(),
        }
    }

    /// The same for a value that is text, which is quoted, escaped and cut to a readable length.
    pub(super) fn of_text(
        field: impl Into<String>,
        value: &str,
        allowed: impl Into<String>,
    ) -> Self {
        Self::new(field, quoted(value), allowed)
    }

    /// Says which policy it was.
    pub(super) fn in_policy(mut self, namespace: &str, name: &str) -> Self {
        self.policy = format!("{}/{}", cut(namespace), cut(name));
        self
    }

    /// The policy, as `namespace/name`, escaped and cut to a readable length.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The field, as a path in the spec such as `limit.tokens`.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What the field held.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What the field may hold.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "policy `{}`: `{}` is {}; {}",
            self.policy, self.field, self.value, self.allowed
        )
    }
}

impl core::error::Error for PolicyError {}

/// `text` in quotes, with unprintable characters escaped, cut to a readable length.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(text))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        None => format!("{}", text.escape_debug()),
        Some((end, _)) => {
            let head = text.get(..end).expect("an index of a character");
            format!("{}..", head.escape_debug())
        }
    }
}
