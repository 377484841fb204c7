//! The holder machine against a scripted authority: one story per test.
#![cfg(not(loom))]
#![allow(missing_docs)]

mod holder {
    mod closing;
    mod leases;
    mod queued;
    mod refusals;
    mod streams;
    mod wishes;
}
mod holder_rig;

use quota_core::message::Status;

const DONE: Status = Status::Done;
