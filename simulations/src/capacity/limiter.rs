//! What every way of limiting a fleet looks like from outside.

use serde::Serialize;

use super::workload::{Change, Request};

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

impl Decided {
    /// `request` is decided at `at`.
    #[must_use]
    pub const fn new(request: Request, at: u64, admitted: bool) -> Self {
        Self {
            request,
            at,
            admitted,
        }
    }
}

/// What a limiter sent and received, in both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Messages, heartbeats included.
    pub messages: u64,
    /// Mentions of a key in them.
    pub items: u64,
    /// Of the items, those from gateways to whoever decides: requests, reports, returns.
    pub asked: u64,
    /// Bytes of payload and of the frames around it; see [`super::wire_size`].
    pub bytes: u64,
}

impl Traffic {
    /// A question and its answer about one key each, between a gateway and a store.
    pub fn round_trip(&mut self) {
        self.messages += 2;
        self.items += 2;
        self.asked += 1;
        self.bytes += 2 * (super::wire_size::FRAME + super::wire_size::COUNTER);
    }
}

/// What a limiter remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Keys remembered at gateways, each gateway counted.
    pub at_gateways: u64,
    /// Keys, sub-counters, time stamps and leases remembered where it is decided.
    pub at_centre: u64,
    /// Bytes of both, about.
    pub bytes: u64,
}

/// One key at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// Tokens that whoever decides could still give.
    pub available: i64,
    /// Tokens given and not known to be spent or back.
    pub outstanding: u64,
}

/// A way of limiting a fleet. Time is virtual and in nanoseconds; calls come in its order.
pub trait Limiter {
    /// When the limiter has something to do by itself next.
    fn next_event(&self) -> Option<u64>;

    /// Does what is due at `at`, as [`Limiter::next_event`] named it.
    fn step(&mut self, at: u64, decided: &mut Vec<Decided>);

    /// A request arrives. It is decided now or later, once.
    fn offer(&mut self, request: Request, decided: &mut Vec<Decided>);

    /// Something becomes of a gateway.
    fn change(&mut self, now: u64, gateway: u32, change: Change, decided: &mut Vec<Decided>);

    /// The traffic so far.
    fn traffic(&self) -> Traffic;

    /// Tokens of all keys that lie with gateways or in shares and could be spent there alone.
    fn held(&mut self, now: u64) -> u64;

    /// Tokens of one key that could be spent now, but by none of the gateways in `refusing`.
    fn out_of_reach(&mut self, now: u64, key: u32, refusing: &[u32]) -> u64;

    /// One key as whoever decides sees it; `None` if nobody does.
    fn key_state(&mut self, now: u64, key: u32) -> Option<KeyState>;

    /// What is remembered at this moment.
    fn footprint(&self) -> Footprint;
}
