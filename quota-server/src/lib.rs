//! The authority server: it owns buckets, grants leases and keeps reservations.
//!
//! - [`config`]: what it is told
//! - [`store`]: what is kept durably, and the stores that keep it
//! - [`clock`], [`random`]: the one place each where time is read and random numbers are drawn
//! - [`logging`], [`metrics`], [`http`]: what it says, counts, and serves to those who watch

pub mod clock;
pub mod config;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod random;
pub mod store;
