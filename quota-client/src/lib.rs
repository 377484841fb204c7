//! Quota's embedded client.

pub mod clock;

mod client;
mod config;
mod decide;
mod decision;
mod driver;
mod fingerprint;
mod handle;
mod names;
mod policies;
mod rules;
mod shared;
mod stats;
mod stream;
mod table;
mod wait;
mod waiters;

pub use client::QuotaClient;
pub use config::{Config, ConfigError};
pub use decision::{Decision, LimitView, Outcome, Reason};
pub use handle::Handle;
pub use shared::Link;
pub use stats::Stats;
