//! The authority server: it owns buckets, grants leases and keeps reservations.
//!
//! - [`clock`]: the one place where a clock is read
//! - [`random`]: the one place where random numbers are drawn
//! - [`store`]: what is kept durably, and the stores that keep it

pub mod clock;
pub mod random;
pub mod store;
