//! What went wrong, and the exit code for it.

use std::error::Error;

use quota_wire::status;
use serde_json::json;
use tonic::{Code, Status};

use super::output::Output;

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    /// What was done or found before, to be shown all the same.
    pub(crate) done: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The server said no.
    Refused,
    /// The command line or a file is wrong; nothing was sent.
    Usage,
    /// The server cannot be reached, or cannot answer now.
    Unreachable,
}

impl Failure {
    pub(crate) fn refused(message: String) -> Self {
        Self::new(Kind::Refused, message)
    }

    pub(crate) fn usage(message: String) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub(crate) fn unreachable(message: String) -> Self {
        Self::new(Kind::Unreachable, message)
    }

    fn new(kind: Kind, message: String) -> Self {
        Self {
            kind,
            message,
            done: None,
        }
    }

    /// The same after `done`, and with what it is about in front.
    pub(crate) fn after(mut self, done: Output) -> Self {
        self.done = Some(done);
        self
    }

    /// The same with a place or a name in front.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The exit code, as the help text has it.
    pub(crate) const fn code(&self) -> u8 {
        match self.kind {
            Kind::Refused => 1,
            Kind::Usage => 2,
            Kind::Unreachable => 3,
        }
    }

    /// For standard error.
    pub(crate) fn render(&self, json: bool) -> String {
        if json {
            let error = json!({ "error": self.message, "exit_code": self.code() });
            return format!("{error}\n");
        }
        format!("quotactl: {}\n", self.message)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let kind = match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Kind::Unreachable,
            _ => Kind::Refused,
        };
        Self::new(kind, said(&status))
    }
}

/// A server's answer that breaks the schema: another version, most likely.
impl From<quota_wire::Malformed> for Failure {
    fn from(error: quota_wire::Malformed) -> Self {
        Self::refused(format!(
            "the server's answer cannot be read ({error}); is it of the same version?"
        ))
    }
}

/// What the server said, in its words; with its code if it is not one of ours.
fn said(status: &Status) -> String {
    match (status::detail(status), status.source()) {
        (Some(_), _) => status.message().to_owned(),
        (None, Some(source)) => format!("{}: {}", status.code(), causes(source)),
        (None, None) => format!("{}: {}", status.code(), status.message()),
    }
}

/// An error and what it came from, in one line.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}
