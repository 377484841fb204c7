//! The authority server: it owns buckets, grants leases and keeps reservations.
//!
//! - [`config`]: what it is told
//! - [`server`]: the whole of it, to be started and stopped
//! - `node`: shards as tasks, the streams of holders, the policies
//! - `grpc`: what clients and administrators call
//! - [`demo`]: what a new store begins with
//! - [`store`]: what is kept durably, and the stores that keep it
//! - [`clock`], [`random`]: the one place each where time is read and random numbers are drawn
//! - [`logging`], [`metrics`], [`http`]: what it says, counts, and serves to those who watch

pub mod clock;
pub mod config;
pub mod demo;
mod grpc;
pub mod http;
pub mod logging;
pub mod metrics;
mod node;
pub mod random;
pub mod server;
pub mod store;
