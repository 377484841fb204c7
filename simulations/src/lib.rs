//! A virtual world that tries to break the promise, and the ideal bucket that judges it.
//!
//! - [`oracle`]: the ideal bucket, the promise itself
//! - [`admission_log`]: logs of real processes, judged by the same bucket
//! - [`world`]: the shipped core, driven through the schedules of a seed
//! - [`shape`]: what a seed decides in advance
//! - [`coverage`]: which situations were really reached
//! - [`campaign`]: many seeds, one verdict
//! - [`clock`], [`network`], [`store`], [`server`], [`client`], [`random`], [`trace`]: its parts

pub mod admission_log;
pub mod campaign;
pub mod capacity;
pub mod client;
pub mod clock;
pub mod coverage;
pub mod network;
pub mod oracle;
pub mod random;
pub mod server;
pub mod shape;
pub mod store;
pub mod trace;
pub mod world;
