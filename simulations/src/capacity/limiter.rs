//! What every way of limiting a fleet looks like from outside.

use quota_core::tokens::Tokens;

use super::workload::Request;

/// A request that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The request.
    pub request: Request,
    /// When it was decided, in nanoseconds.
    pub at: u64,
    /// Whether it was admitted.
    pub admitted: bool,
}

/// What a limiter sent and received, in both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, heartbeats included.
    pub messages: u64,
    /// Buckets mentioned in them.
    pub items: u64,
}

/// A way of limiting a fleet. Time is virtual and in nanoseconds; calls come in its order.
pub trait Limiter {
    /// When the limiter has something to do by itself next.
    fn next_event(&self) -> Option<u64>;

    /// Does what is due at `at`, as [`Limiter::next_event`] named it.
    fn step(&mut self, at: u64, decided: &mut Vec<Decided>);

    /// A request arrives. It is decided now or later, once.
    fn offer(&mut self, request: Request, decided: &mut Vec<Decided>);

    /// The traffic so far.
    fn traffic(&self) -> Traffic;

    /// Tokens of one key that lie with the gateways, and could be spent there.
    fn held(&self, key: u32) -> Tokens;
}
