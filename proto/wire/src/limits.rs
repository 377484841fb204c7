//! How large a message may be.
//!
//! Every message within the limits on counts and keys is also within the limit on bytes, so whoever
//! builds a message only has to count. The assertions below prove it, and that the core's holder
//! stays within them.

use quota_core::key::{DIMENSIONS_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};

/// Longest encoded message, in bytes, to be set as the decoding limit on both sides.
///
/// While decoding, a packed column takes up to eight bytes of memory for each byte of the message;
/// this limit is what bounds that before any count is known.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most items in one batch. Costs per item stop falling at about a thousand.
pub const ITEMS_MAX: usize = 4096;
/// Most introductions in one batch.
pub const INTRODUCTIONS_MAX: usize = 1024;
/// Most bytes of keys that the introductions of one batch have together. A holder that closes a
/// batch once it has reached 256 KiB stays below it.
pub const INTRODUCED_BYTES_MAX: usize = 256 * 1024 + KEY_BYTES_MAX;
/// Most keys that one stream may introduce; a server may allow fewer.
pub const KEYS_MAX: usize = 1 << 20;
/// Longest canonical encoding of a key, in bytes.
pub const KEY_BYTES_MAX: usize = DIMENSIONS_MAX * (2 + VALUE_BYTES_MAX);
/// Longest name of a client, a node or a version, in bytes.
pub const LABEL_BYTES_MAX: usize = 128;
/// Longest network address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Longest free text, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Most shards of a cluster.
pub const SHARDS_MAX: usize = 1 << 16;
/// Most nodes in a shard map.
pub const NODES_MAX: usize = 1024;
/// Most policies named in one notice; a notice about more names none.
pub const NOTICE_POLICIES_MAX: usize = 1024;
/// Most namespaces in one watch.
pub const NAMESPACES_MAX: usize = 64;
/// Most policies whose outcomes travel in one batch.
pub const OUTCOMES_MAX: usize = 64;
/// Highest running total, message number and sequence number. No honest peer reaches it, and sums
/// of two stay within 64 bits.
pub const TOTAL_MAX: u64 = 1 << 62;
/// Longest wait of a single call, in seconds.
pub const WAIT_SECONDS_MAX: u64 = 60;

/// Bytes of one item of a request at the worst: a key, five 64-bit numbers, `want`, `least`,
/// `demand` and flags.
const REQUEST_BYTES_MAX: usize = 5 + 5 * 10 + 4 + 5 + 6 + 1;
/// Bytes of one item of an answer at the worst: a key, seven 64-bit numbers and a status.
const ANSWER_BYTES_MAX: usize = 5 + 7 * 10 + 1;
/// Bytes of one introduction at the worst, with tags and lengths, but without its key.
const INTRODUCTION_BYTES_MAX: usize = 4 + (1 + 5) + 2 * (1 + 2 + NAME_BYTES_MAX) + (1 + 2);
/// Bytes of the outcomes of one policy at the worst: its name, and eight 64-bit numbers.
const OUTCOMES_BYTES_MAX: usize = 2 * (1 + 2) + 2 * (1 + 2 + NAME_BYTES_MAX) + 8 * (1 + 10);
/// Bytes of a batch beside its items: tags, lengths and bases of at most 16 fields.
const OVERHEAD_BYTES_MAX: usize = 16 * 32;

const _: () = {
    let introductions = INTRODUCTIONS_MAX * INTRODUCTION_BYTES_MAX + INTRODUCED_BYTES_MAX;
    let requests = ITEMS_MAX * REQUEST_BYTES_MAX;
    let outcomes = OUTCOMES_MAX * OUTCOMES_BYTES_MAX;
    assert!(introductions + requests + outcomes + OVERHEAD_BYTES_MAX <= MESSAGE_BYTES_MAX);
    assert!(ITEMS_MAX * ANSWER_BYTES_MAX + OVERHEAD_BYTES_MAX <= MESSAGE_BYTES_MAX);
    assert!(quota_core::holder::REQUESTS_MAX <= ITEMS_MAX);
    assert!(quota_core::holder::INTRODUCTIONS_MAX <= INTRODUCTIONS_MAX);
};
