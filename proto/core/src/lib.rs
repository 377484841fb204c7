//! Quota's pure core: what a lease is, who may hold how much of it, and until when.
//!
//! No clock, no I/O, no randomness, no threads: time is an argument and every schedule can be
//! replayed. The server, the client and the simulator all drive this code unchanged.
//!
//! - [`time`], [`tokens`], [`rate`], [`level`], [`id`], [`key`]: the words everything is said in
//! - [`authority`]: owns buckets and decides every grant
//! - [`policy`]: the rules that buckets follow
//! - [`cell`]: the lock-free word that requests spend from
//! - [`holder`]: the state machine that keeps a client's cells supplied
//! - [`message`]: what holders and authorities say to each other
//! - [`outcomes`]: what gateways decide beside the ledger, counted
//! - [`record`]: what a shard keeps durably
#![no_std]
#![deny(
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::unwrap_used
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::unwrap_used
    )
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod authority;
pub mod cell;
pub mod holder;
pub mod id;
pub mod key;
pub mod level;
pub mod message;
pub mod outcomes;
pub mod policy;
pub mod rate;
pub mod record;
pub mod time;
pub mod tokens;
