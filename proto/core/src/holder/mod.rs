//! The holder machine: keeps the leases of one client incarnation supplied through one stream.
//!
//! It owns when to ask, for how much, what to report, when to give back, and the running totals of
//! every lease; the tokens themselves sit in [`LeaseCell`]s that the driver's table owns and the
//! requests spend from. It knows no sockets, clocks or randomness, and nothing about which request
//! matches which policy.
//!
//! A driver calls [`Holder::handle`] for everything that happens, then drains
//! [`Holder::poll_transmit`] while its stream has room and [`Holder::poll_event`] always, and
//! calls `handle` with [`Input::Tick`] at [`Holder::next_deadline`].

mod types;

pub use types::{Cause, Cells, Event, HolderConfig, HolderMessage, Input, Slot, SlotSettings};
