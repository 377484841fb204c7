//! The authority server: it owns buckets, grants leases and keeps reservations.
//!
//! - [`store`]: what is kept durably, and the stores that keep it
pub mod store;
