//! The `quota.v1` protocol: the schema, the code generated from it, and the only conversions
//! between wire and domain.
//!
//! The schema under `proto/quota/v1` is the reference; [`proto`] is generated from it. Code that
//! uses both layers calls the generated types `wire::…`, so that the layer shows:
//! `use quota_wire::proto as wire`.
//!
//! - [`proto`]: the generated messages, clients and servers
//! - [`convert`]: wire to domain, which refuses whatever breaks a rule of the schema, and back
//! - [`limits`]: how large a message may be
//! - [`malformed`]: what is wrong with a message, by field
//! - [`status`]: errors as gRPC statuses with structured details, and back

pub mod convert;
pub mod limits;
pub mod malformed;
pub mod proto;
pub mod status;

pub use malformed::Malformed;
