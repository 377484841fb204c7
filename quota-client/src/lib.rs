//! Quota's embedded client: decides from leases that it holds, and keeps them supplied.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use quota_client::{Config, QuotaClient};
//!
//! let quota = QuotaClient::connect(Config::new(["http://127.0.0.1:7070"])).await?;
//! let dimensions = [("tenant", "t1"), ("route", "/search")];
//! let decision = quota.check_within(&dimensions, Duration::from_millis(50)).await;
//! if !decision.is_allowed() {
//!     println!("{} {:?}", decision.status(), decision.header_fields());
//! }
//! let handle = quota.bucket("api", &[("api_key", "k1")]);
//! if handle.try_acquire(1).is_allowed() { /* serve it */ }
//! quota.close(Duration::from_secs(2)).await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`QuotaClient`]: made once; checks requests against all policies that match them
//! - [`Handle`]: one bucket, looked up once
//! - [`Decision`]: what was decided, why, and the HTTP fields that say so
//! - [`Config`], [`Stats`], [`Link`]: making a client and watching it
//! - [`clock`]: the clock that leases are counted on
//!
//! # What it guarantees
//!
//! It never spends a token that was not granted to it for that very bucket, nor one whose term is
//! over, except where a policy says so by name; those are counted apart ([`Stats`]). A decision
//! never takes longer than its caller allows, whatever the authority does. While the authority is
//! out of reach, leases are spent until their terms end; then `on_outage` decides. An
//! authority that is merely overloaded is not out of reach: that permits nothing, and has a reason of
//! its own.
//!
//! # Memory
//!
//! At start, one 64-byte entry for each of `keys_max / 0.9` keys: 71 bytes per key, and that is
//! all that decisions touch. For each key in use the background task keeps about half a kilobyte
//! beside it, the bytes of the key twice and those of its policy's name. Waiting callers and signals are bounded.
//!
//! # Not yet
//!
//! `on_outage = "local"` acts as `closed`; `first_touch = "admit"` acts as `wait`; the action
//! `defer` acts as `reject`, with the caller's own deadline. Each is the stricter reading.

#![cfg_attr(
    loom,
    allow(dead_code, reason = "what uses the lock-free parts is not built")
)]

pub mod clock;

// Under loom the crate is what is lock-free, with its models in `interleavings`: the runtime and
// the transport do not build there.
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod decide;
#[cfg(not(loom))]
mod decision;
#[cfg(not(loom))]
mod driver;
mod fingerprint;
#[cfg(not(loom))]
mod handle;
#[cfg(all(test, loom))]
mod interleavings;
mod known;
mod names;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod policies;
#[cfg(not(loom))]
mod report;
#[cfg(not(loom))]
mod rules;
mod seats;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod stream;
mod stripes;
mod sync;
mod table;
mod tally;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
mod waiters;

#[cfg(not(loom))]
pub use client::QuotaClient;
#[cfg(not(loom))]
pub use config::{Config, ConfigError};
#[cfg(not(loom))]
pub use decision::{Decision, LimitView, Outcome, Reason};
#[cfg(not(loom))]
pub use handle::Handle;
#[cfg(not(loom))]
pub use quota_core::outcomes::Outcomes as PolicyOutcomes;
#[cfg(not(loom))]
pub use shared::Link;
#[cfg(not(loom))]
pub use stats::Stats;
