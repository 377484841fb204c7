//! What end-to-end tests and benchmarks stand on: real processes that are always reaped, load over
//! real connections, and the judgement of what was admitted.
//!
//! - [`process`]: start, watch, stop and kill a process
//! - [`mod@bench`]: timing loops that compare
//! - [`binaries`]: where the built programs are
//! - [`cluster`]: an authority and its gateways
//! - [`crash`]: a campaign of faults against real processes
//! - [`http`]: a small HTTP client that keeps its connection
//! - [`load`]: requests at a steady pace, counted by their answers
//! - [`local`]: a server in this process
//! - [`metrics`]: figures from a `/metrics` page
//! - [`verdict`]: admission logs against the ideal bucket
//! - [`wait`]: waiting for conditions

pub mod bench;
pub mod binaries;
pub mod cluster;
pub mod crash;
pub mod http;
pub mod load;
pub mod local;
pub mod metrics;
pub mod process;
pub mod verdict;
pub mod wait;
