//! The state of a holder, and what it sends.
//!
//! It keeps every lease that it ever had, to the last moment that it may be spent.

use std::collections::BTreeMap;

use quota_core::authority::StreamId;
use quota_core::id::{Incarnation, KeyNumber, LeaseId};
use quota_core::message::LeaseRequest;

/// A lease as its holder has it, at its most adverse.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    /// In the authority's time.
    pub(crate) deadline: u64,
    /// Out of the holder's own reach: released, or reported as spent without being so.
    pub(crate) burned: bool,
}

impl Held {
    pub(crate) fn spendable(&self, now: u64) -> u64 {
        if self.burned || now >= self.deadline {
            return 0;
        }
        (self.granted).saturating_sub(self.spent + self.returned)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) holder: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
    pub(crate) introduce: Option<(KeyNumber, usize)>,
    pub(crate) request: Option<LeaseRequest>,
}

pub(crate) struct Holder {
    pub(crate) incarnation: Incarnation,
    pub(crate) stream: StreamId,
    pub(crate) sent: Vec<u64>,
    pub(crate) numbers: BTreeMap<usize, KeyNumber>,
    pub(crate) named: u32,
    pub(crate) sequences: [u64; 3],
    pub(crate) last: [Option<(usize, LeaseRequest)>; 3],
    pub(crate) current: [Option<LeaseId>; 3],
    pub(crate) leases: BTreeMap<(usize, LeaseId), Held>,
    /// What a sequence was answered with, by lease.
    pub(crate) decided: BTreeMap<(usize, u64, LeaseId), u64>,
}

impl Holder {
    pub(crate) fn new(incarnation: u64, stream: u64) -> Self {
        Self {
            incarnation: Incarnation::new(incarnation),
            stream: StreamId::new(stream),
            sent: Vec::new(),
            numbers: BTreeMap::new(),
            named: 0,
            sequences: [0; 3],
            last: [None; 3],
            current: [None; 3],
            leases: BTreeMap::new(),
            decided: BTreeMap::new(),
        }
    }
}
