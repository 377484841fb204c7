//! A virtual world that tries to break the promise, and the ideal bucket that judges it.
//!
//! - [`oracle`]: the ideal bucket, the promise itself
//! - [`admission_log`]: logs of real processes, judged by the same bucket

pub mod admission_log;
pub mod oracle;
