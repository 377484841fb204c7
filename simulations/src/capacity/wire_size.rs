//! How many bytes a message takes on the wire, without encoding it.
//!
//! For leases this is the size of the `quota.v1` message as the schema lays it out: columns of numbers, each a
//! base and, unless all are the same, an offset for each item, in protobuf's variable-length
//! integers. A test of the package `quota-tests`, which may use both ends, compares it with what is
//! really encoded. For counters, [`COUNTER`] stands for an item.
//!
//! Around each message come gRPC's five bytes and nine of an HTTP/2 frame.

use quota_core::holder::HolderMessage;
use quota_core::id::MessageNumber;
use quota_core::message::{Answer, Grant, LeaseRequest, Refusal, Status};
use quota_core::tokens::Tokens;

/// Bytes around a message.
pub const FRAME: u64 = 5 + 9;
/// An item of a counter: a key of about ten bytes with its field header, and two numbers.
pub const COUNTER: u64 = 20;

/// Payload bytes of a holder's message.
#[must_use]
pub fn requests(message: &HolderMessage) -> u64 {
    let items = &message.requests[..];
    let lease = |r: &LeaseRequest| r.lease;
    let least = |r: &LeaseRequest| {
        let usual = Tokens::ONE.min(r.want);
        if r.least == usual {
            0
        } else {
            r.least.get() + 1
        }
    };
    let mut size = field(message.number.get());
    let mut before = None;
    for introduction in &message.introductions {
        let id = &introduction.bucket.policy;
        let mut inner = field(u64::from(introduction.number.get()));
        if before != Some(id) {
            inner += bytes(id.namespace.len()) + bytes(id.name.len());
        }
        before = Some(id);
        inner += bytes(introduction.bucket.key.as_bytes().len());
        size += 1 + varint(inner) + inner;
    }
    size += keys(items.iter().map(|r| r.key.get()));
    size += column(items, |r| Some(r.sequence.get()));
    size += column(items, |r| Some(lease(r).map_or(0, |l| l.counter)));
    size += column(items, |r| lease(r).map(|l| l.epoch.get()));
    size += column(items, |r| Some(r.spent.get()));
    size += column(items, |r| Some(r.returned.get()));
    size += column(items, |r| Some(r.want.get()));
    size += column(items, |r| Some(least(r)));
    size += column(items, |r| Some(r.demand));
    size += column(items, |r| Some(u64::from(r.release)));
    envelope(size)
}

/// Payload bytes of an authority's message.
#[must_use]
pub fn answers(anchor: MessageNumber, items: &[Answer]) -> u64 {
    let of_grant = |of: fn(&Grant) -> u64| column(items, |a| a.grant.as_ref().map(of));
    let mut size = field(anchor.get());
    size += keys(items.iter().map(|a| a.key.get()));
    size += column(items, |a| Some(a.sequence.get()));
    size += column(items, |a| Some(a.grant.map_or(0, |g| g.lease.counter)));
    size += of_grant(|g| g.lease.epoch.get());
    size += of_grant(|g| g.granted.get());
    size += of_grant(|g| g.term.as_nanos());
    size += of_grant(|g| g.version.get());
    size += column(items, |a| Some(status(a.status).0));
    size += column(items, |a| Some(status(a.status).1));
    size += of_grant(|g| g.headroom.as_nanos() / 1_000_000);
    envelope(size)
}

/// The status and its detail as they are numbered in the schema.
fn status(status: Status) -> (u64, u64) {
    match status {
        Status::Done => (0, 0),
        Status::Queued { retry_after } => (1, retry_after.as_nanos()),
        Status::Recall { keep } => (2, keep.get()),
        Status::Refused(Refusal::UnknownPolicy) => (3, 0),
        Status::Refused(Refusal::UnknownKey) => (4, 0),
        Status::Refused(Refusal::CostAboveCapacity { capacity }) => (5, capacity.get()),
        Status::Refused(Refusal::Busy { retry_after }) => (6, retry_after.as_nanos()),
        Status::Refused(Refusal::KeyMismatch { dimensions }) => (7, u64::from(dimensions)),
    }
}

fn envelope(size: u64) -> u64 {
    1 + varint(size) + size
}

fn varint(value: u64) -> u64 {
    u64::from((64 - (value | 1).leading_zeros()).div_ceil(7))
}

/// A number with its field header; zero does not travel.
fn field(value: u64) -> u64 {
    if value == 0 { 0 } else { 1 + varint(value) }
}

fn bytes(length: usize) -> u64 {
    let length = u64::try_from(length).expect("a length fits 64 bits");
    if length == 0 {
        0
    } else {
        1 + varint(length) + length
    }
}

fn keys(numbers: impl Iterator<Item = u32>) -> u64 {
    let mut before = 0_i64;
    let mut packed = 0;
    for number in numbers {
        let delta = i64::from(number) - before;
        before = i64::from(number);
        // Zigzag.
        packed += varint(((delta << 1) ^ (delta >> 63)).cast_unsigned());
    }
    if packed == 0 {
        0
    } else {
        1 + varint(packed) + packed
    }
}

fn column<T>(items: &[T], of: impl Fn(&T) -> Option<u64>) -> u64 {
    let values = || items.iter().filter_map(&of);
    let (Some(base), Some(top)) = (values().min(), values().max()) else {
        return 0;
    };
    if top == 0 {
        return 0;
    }
    let mut inner = field(base);
    if base != top {
        let offset = |item| of(item).map_or(0, |value| value - base);
        let packed: u64 = items.iter().map(|item| varint(offset(item))).sum();
        inner += 1 + varint(packed) + packed;
    }
    1 + varint(inner) + inner
}
