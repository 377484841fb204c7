//! Requests, introductions and answers.

use quota_core::message::DEMAND_MAX;
use quota_wire::convert::{answers, requests};
use quota_wire::proto as wire;

use super::refuses;

fn column(base: u64, offsets: &[u64]) -> Option<wire::Column> {
    Some(wire::Column {
        base,
        offsets: offsets.to_vec(),
    })
}

fn introduction(number: u32) -> wire::Introduction {
    wire::Introduction {
        number,
        namespace: "default".to_owned(),
        policy: "api".to_owned(),
        key: vec![0, 1, b'k'],
    }
}

pub(crate) fn requests() -> wire::RequestBatch {
    wire::RequestBatch {
        number: 1,
        introductions: vec![introduction(3), introduction(4)],
        key_deltas: vec![3, 1],
        sequence: column(1, &[]),
        want: column(5, &[]),
        ..wire::RequestBatch::default()
    }
}

#[test]
fn requests_are_refused_by_field() {
    refuses(
        &requests(),
        requests::decode,
        &[
            (
                |b| b.number = 0,
                "requests.number is 0; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.number = u64::MAX,
                "requests.number is 18446744073709551615; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.key_deltas[0] = -1,
                "requests.key_deltas[0] is -1, after key number 0; allowed: differences between \
                 numbers from 0 to 2^32 - 1",
            ),
            (
                |b| b.key_deltas[1] = i64::MAX,
                "requests.key_deltas[1] is 9223372036854775807, after key number 3; allowed: \
                 differences between numbers from 0 to 2^32 - 1",
            ),
            (
                |b| b.key_deltas = vec![1; 4097],
                "requests.key_deltas is 4097 items long; allowed: at most 4096 items",
            ),
            (
                |b| b.sequence = column(0, &[0, 1]),
                "requests.sequence[0] is 0; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.sequence = None,
                "requests.sequence[0] is 0; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.sequence = column(u64::MAX, &[0, 1]),
                "requests.sequence.offsets[1] is 1, on a base of 18446744073709551615; allowed: \
                 sums below 2^64",
            ),
            (
                |b| b.sequence = column(1, &[0]),
                "requests.sequence.offsets is 1 numbers long; allowed: none, or one for each of \
                 the 2 items",
            ),
            (
                |b| b.lease_counter = column(1, &[0; 3]),
                "requests.lease_counter.offsets is 3 numbers long; allowed: none, or one for each \
                 of the 2 items",
            ),
            (
                |b| b.lease_epoch = column(1, &[0; 3]),
                "requests.lease_epoch.offsets is 3 numbers long; allowed: none, or one for each \
                 of the 2 items",
            ),
            (
                |b| b.spent = column(0, &[0; 3]),
                "requests.spent.offsets is 3 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.spent = column(0, &[0, 1 << 63]),
                "requests.spent[1] is 9223372036854775808; allowed: 0 to 4611686018427387904",
            ),
            (
                |b| b.returned = column(0, &[1]),
                "requests.returned.offsets is 1 numbers long; allowed: none, or one for each of \
                 the 2 items",
            ),
            (
                |b| b.returned = column(1 << 63, &[]),
                "requests.returned[0] is 9223372036854775808; allowed: 0 to 4611686018427387904",
            ),
            (
                |b| b.want = column(1 << 63, &[]),
                "requests.want[0] is 9223372036854775808; allowed: 0 to 268435455",
            ),
            (
                |b| b.want = column(5, &[0]),
                "requests.want.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.least = column(0, &[0, 7]),
                "requests.least[1] is 6 tokens; allowed: at most what is wanted, 5 tokens",
            ),
            (
                |b| b.least = column(0, &[7]),
                "requests.least.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.demand = column(0, &[7]),
                "requests.demand.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.flags = column(0, &[1, 2]),
                "requests.flags[1] is 2; allowed: 0 to 1",
            ),
            (
                |b| b.flags = column(0, &[1]),
                "requests.flags.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.key_deltas[1] = 0,
                "requests.sequence is 1 twice for key 3; allowed: each pair of key and sequence \
                 once in a batch",
            ),
        ],
    );
}

#[test]
fn columns_without_items_are_refused() {
    let mut batch = requests();
    batch.want = column(5, &[0, 1]);
    batch.key_deltas.clear();
    let error = requests::decode(batch).expect_err("no items");
    assert_eq!(error.field, "requests.want.offsets");
}

#[test]
fn introductions_are_refused_by_field() {
    refuses(
        &requests(),
        requests::decode,
        &[
            (
                |b| b.introductions = (0..1025).map(introduction).collect(),
                "requests.introductions is 1025 entries long; allowed: at most 1024 entries",
            ),
            (
                |b| {
                    b.introductions = (0..129).map(introduction).collect();
                    for introduction in &mut b.introductions {
                        introduction.key = vec![0; 2064];
                    }
                },
                "requests.introductions is 266256 bytes of keys; allowed: at most 264208 bytes of \
                 keys in one batch",
            ),
            (
                |b| b.introductions[1].number = 3,
                "requests.introductions is number 3 twice; allowed: a number for one bucket only",
            ),
            (
                |b| b.introductions[0].namespace.clear(),
                "requests.introductions[0].namespace is empty; allowed: 1 to 128 bytes",
            ),
            (
                |b| b.introductions[1].policy.clear(),
                "requests.introductions[1].policy is empty; allowed: 1 to 128 bytes",
            ),
            (
                |b| {
                    b.introductions[0].namespace.clear();
                    b.introductions[0].policy.clear();
                },
                "requests.introductions[0].namespace is empty; allowed: 1 to 128 bytes",
            ),
            (
                |b| b.introductions[1].policy = "p".repeat(129),
                "requests.introductions[1].policy is 129 bytes long; allowed: at most 128 bytes",
            ),
            (
                |b| b.introductions[1].key = vec![0, 2, b'k'],
                "requests.introductions[1].key is not a canonical encoding; allowed: each value \
                 as a two-byte big-endian length and its bytes",
            ),
            (
                |b| b.introductions[1].key = vec![0; 2065],
                "requests.introductions[1].key is 2065 bytes long; allowed: at most 2064 bytes",
            ),
            (
                |b| b.introductions[1].key = vec![0; 18],
                "requests.introductions[1].key is 9 values; allowed: at most 8 values",
            ),
            (
                |b| b.introductions[1].key = [&[1, 1][..], &[7; 257]].concat(),
                "requests.introductions[1].key.values[0] is 257 bytes long; allowed: at most 256 \
                 bytes: hash or shorten it",
            ),
        ],
    );
}

#[test]
fn absurd_demand_is_read_as_the_most_there_is() {
    let mut batch = requests();
    batch.demand = column(u64::MAX, &[]);
    let message = requests::decode(batch).expect("not an error");
    assert_eq!(message.requests[0].demand, DEMAND_MAX);
}

#[test]
fn an_introduction_without_names_repeats_the_policy_before_it() {
    let mut batch = requests();
    batch.introductions[1].namespace.clear();
    batch.introductions[1].policy.clear();
    let message = requests::decode(batch).expect("legal");
    assert_eq!(message.introductions[1].bucket.policy.name, "api");
}

#[test]
fn answers_are_refused_by_field() {
    let legal = wire::AnswerBatch {
        anchor: 1,
        key_deltas: vec![3, 1],
        sequence: column(1, &[]),
        lease_counter: column(1, &[0, 1]),
        ..wire::AnswerBatch::default()
    };
    refuses(
        &legal,
        |batch| answers::decode(&batch),
        &[
            (
                |b| b.anchor = 0,
                "answers.anchor is 0; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.key_deltas[1] = -4,
                "answers.key_deltas[1] is -4, after key number 3; allowed: differences between \
                 numbers from 0 to 2^32 - 1",
            ),
            (
                |b| b.key_deltas = vec![1; 4097],
                "answers.key_deltas is 4097 items long; allowed: at most 4096 items",
            ),
            (
                |b| b.sequence = None,
                "answers.sequence[0] is 0; allowed: 1 to 4611686018427387904",
            ),
            (
                |b| b.sequence = column(1, &[1]),
                "answers.sequence.offsets is 1 numbers long; allowed: none, or one for each of \
                 the 2 items",
            ),
            (
                |b| b.lease_counter = column(1, &[1]),
                "answers.lease_counter.offsets is 1 numbers long; allowed: none, or one for each \
                 of the 2 items",
            ),
            (
                |b| b.lease_epoch = column(1, &[1]),
                "answers.lease_epoch.offsets is 1 numbers long; allowed: none, or one for each of \
                 the 2 items",
            ),
            (
                |b| b.granted = column(1, &[1]),
                "answers.granted.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.granted = column(u64::MAX, &[]),
                "answers.granted[0] is 18446744073709551615; allowed: 0 to 4611686018427387904",
            ),
            (
                |b| b.term_nanos = column(1, &[1]),
                "answers.term_nanos.offsets is 1 numbers long; allowed: none, or one for each of \
                 the 2 items",
            ),
            (
                |b| b.version = column(1, &[1]),
                "answers.version.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.status = column(0, &[1]),
                "answers.status.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.status = column(0, &[0, 99]),
                "answers.status[1] is 99; allowed: a status of this protocol",
            ),
            (
                |b| b.status = column(u64::MAX, &[]),
                "answers.status[0] is 18446744073709551615; allowed: a status of this protocol",
            ),
            (
                |b| b.detail = column(1, &[1]),
                "answers.detail.offsets is 1 numbers long; allowed: none, or one for each of the \
                 2 items",
            ),
            (
                |b| b.detail = column(0, &[0, 9]),
                "answers.detail[1] is 9; allowed: at most 0 with the status ANSWER_STATUS_DONE",
            ),
            (
                |b| {
                    b.status = column(7, &[]);
                    b.detail = column(1 << 32, &[]);
                },
                "answers.detail[0] is 4294967296; allowed: at most 4294967295 with the status \
                 ANSWER_STATUS_KEY_MISMATCH",
            ),
        ],
    );
}
