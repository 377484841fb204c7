//! The only conversions between wire and domain.
//!
//! Each module has a pair of functions a message. `encode` takes any legal domain value and cannot
//! fail. `decode` trusts nothing: lengths of columns, counts, ranges, enum values, canonical
//! encodings and duplicates are checked, a violation is a [`Malformed`](crate::Malformed) that
//! names the field, and what is allocated is bounded by [`limits`](crate::limits).

pub mod answers;
mod column;
pub mod common;
pub mod handshake;
pub mod notice;
pub mod outcomes;
pub mod policy;
pub mod requests;
pub mod stream;
pub mod switch;
pub mod unary;
