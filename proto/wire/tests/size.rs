//! What an item costs on the wire, for a batch of a thousand. These bounds are what the column
//! layout is for; a change of layout that loses them should be noticed.

use prost::Message;
use quota_core::holder::HolderMessage;
use quota_core::id::{Epoch, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence};
use quota_core::message::{Answer, Grant, LeaseRequest, Status};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::answers::AuthorityMessage;
use quota_wire::convert::stream::{self, FromAuthority};
use quota_wire::limits::{INTRODUCED_BYTES_MAX, INTRODUCTIONS_MAX, ITEMS_MAX, MESSAGE_BYTES_MAX};

const ITEMS: u64 = 1000;

/// Numbers that look random and are the same in each run, up to and without `below`.
fn spread(item: u64, salt: u64, below: u64) -> u64 {
    (item + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17 + salt as u32)
        % below
}

/// How long the leases have lived: their sequence numbers, their counters within a shard and
/// epoch, and their running totals go up to these.
struct Age {
    sequence: u64,
    counter: u64,
    total: u64,
}

/// The first minutes of a gateway with a thousand hot keys, beside twenty others, on 64 shards.
const YOUNG: Age = Age {
    sequence: 120,
    counter: 350,
    total: 16_000,
};
/// The same after weeks of work: a million renewals and leases, 2^40 tokens.
const OLD: Age = Age {
    sequence: 1 << 20,
    counter: 1 << 20,
    total: 1 << 40,
};

fn lease(item: u64, age: &Age) -> LeaseId {
    LeaseId {
        epoch: Epoch::new(3),
        counter: 1 + spread(item, 1, age.counter),
    }
}

/// Hot keys were introduced early and stay: every seventh of them renews.
fn key(item: u64) -> KeyNumber {
    KeyNumber::new(u32::try_from(item * 7).expect("small"))
}

fn asked_bytes_per_item(age: &Age) -> f64 {
    let requests = (0..ITEMS)
        .map(|item| LeaseRequest {
            key: key(item),
            sequence: Sequence::new(1 + spread(item, 2, age.sequence)),
            lease: Some(lease(item, age)),
            spent: Tokens::new(spread(item, 3, age.total)),
            returned: Tokens::ZERO,
            want: Tokens::new(1 + spread(item, 4, 500)),
            least: Tokens::ONE,
            demand: spread(item, 5, 1000),
            release: false,
        })
        .collect();
    let message = stream::encode_requests(&HolderMessage {
        number: MessageNumber::new(123_456),
        introductions: Vec::new(),
        requests,
    });
    message.encoded_len() as f64 / ITEMS as f64
}

fn granted_bytes_per_item(age: &Age) -> f64 {
    let answers = (0..ITEMS)
        .map(|item| Answer {
            key: key(item),
            sequence: Sequence::new(1 + spread(item, 2, age.sequence)),
            grant: Some(Grant {
                lease: lease(item, age),
                granted: Tokens::new(1 + spread(item, 3, age.total)),
                term: Term::from_seconds(10),
                headroom: Term::ZERO,
                version: PolicyVersion::new(17),
            }),
            status: Status::Done,
        })
        .collect();
    let messages = stream::encode_from_authority(&FromAuthority::Answers(AuthorityMessage {
        anchor: MessageNumber::new(123_456),
        answers,
    }));
    assert_eq!(messages.len(), 1);
    messages[0].encoded_len() as f64 / ITEMS as f64
}

#[test]
fn a_usual_item_takes_few_bytes() {
    let (asked, granted) = (asked_bytes_per_item(&YOUNG), granted_bytes_per_item(&YOUNG));
    println!("young: {asked:.2} bytes asked, {granted:.2} granted per item");
    assert!(asked <= 10.0, "{asked} bytes asked per item");
    assert!(granted <= 6.0, "{granted} bytes granted per item");
}

#[test]
fn an_item_of_an_old_lease_is_not_much_larger() {
    let (asked, granted) = (asked_bytes_per_item(&OLD), granted_bytes_per_item(&OLD));
    println!("old: {asked:.2} bytes asked, {granted:.2} granted per item");
    assert!(asked <= 17.0, "{asked} bytes asked per item");
    assert!(granted <= 13.0, "{granted} bytes granted per item");
}

/// The constant assertion in `limits` counts bytes on paper; this builds the largest messages.
#[test]
fn the_largest_messages_fit() {
    use quota_core::key::{BucketAddress, Key, PolicyId};
    use quota_core::message::{DEMAND_MAX, HELD_MAX, Introduction};
    let large = |item: usize| if item == 0 { 1 } else { u64::MAX };
    let lease = |item| LeaseId {
        epoch: Epoch::new(large(item)),
        counter: large(item),
    };
    // Far apart, so that no difference is short.
    let key = |item: usize| {
        let number = u32::try_from(item).expect("small");
        KeyNumber::new(if item.is_multiple_of(2) {
            number
        } else {
            u32::MAX - number
        })
    };
    let introductions = (0..INTRODUCTIONS_MAX)
        .map(|item| Introduction {
            number: key(item),
            bucket: BucketAddress {
                policy: PolicyId {
                    namespace: format!("{item:0>128}"),
                    name: "n".repeat(128),
                },
                key: Key::from_values(&[vec![7_u8; INTRODUCED_BYTES_MAX / INTRODUCTIONS_MAX - 2]])
                    .expect("legal"),
            },
        })
        .collect();
    let requests = (0..ITEMS_MAX)
        .map(|item| LeaseRequest {
            key: key(item),
            sequence: Sequence::new(large(item)),
            lease: Some(lease(item)),
            spent: Tokens::new(large(item)),
            returned: Tokens::new(large(item)),
            want: HELD_MAX.min(Tokens::new(large(item) - 1)),
            least: HELD_MAX.min(Tokens::new(large(item) - 1)),
            demand: DEMAND_MAX.min(large(item)),
            release: item > 0,
        })
        .collect();
    let asked = stream::encode_requests(&HolderMessage {
        number: MessageNumber::new(u64::MAX),
        introductions,
        requests,
    });
    let answers = (0..ITEMS_MAX)
        .map(|item| Answer {
            key: key(item),
            sequence: Sequence::new(large(item)),
            grant: Some(Grant {
                lease: lease(item),
                granted: Tokens::new(large(item)),
                term: Term::from_nanos(large(item)),
                headroom: Term::from_millis(u64::from(u32::MAX) - (item as u64 & 1)),
                version: PolicyVersion::new(large(item)),
            }),
            status: Status::Queued {
                retry_after: Term::from_nanos(large(item)),
            },
        })
        .collect();
    let granted = stream::encode_from_authority(&FromAuthority::Answers(AuthorityMessage {
        anchor: MessageNumber::new(u64::MAX),
        answers,
    }));
    let (asked, granted) = (asked.encoded_len(), granted[0].encoded_len());
    println!("largest: {asked} bytes asked, {granted} granted of {MESSAGE_BYTES_MAX}");
    assert!(asked <= MESSAGE_BYTES_MAX && granted <= MESSAGE_BYTES_MAX);
}
