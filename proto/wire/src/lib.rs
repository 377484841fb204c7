//! The `quota.v1` protocol: the schema, the code generated from it, and the only conversions
//! between wire and domain.
//!
//! The schema under `proto/quota/v1` is the reference; [`proto`] is generated from it. Code that
//! uses both layers calls the generated types `wire::…`, so that the layer shows:
//! `use quota_wire::proto as wire`.

pub mod proto;
