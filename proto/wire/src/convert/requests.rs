//! A holder's batch: introductions, reports and requests.

use quota_core::holder::HolderMessage;
use quota_core::id::{Epoch, KeyNumber, LeaseId, MessageNumber, Sequence};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{DEMAND_MAX, HELD_MAX, Introduction, LeaseRequest};
use quota_core::tokens::Tokens;

use super::column::{self, Column};
use super::common::{check_count, decode_name, decode_number, key_error};
use crate::limits::{INTRODUCED_BYTES_MAX, INTRODUCTIONS_MAX, KEY_BYTES_MAX, TOTAL_MAX};
use crate::malformed::Malformed;
use crate::proto as wire;

/// The bit of `flags` that ends a lease.
const FLAG_RELEASE: u64 = 1;

/// The batch of `message`. At most [`ITEMS_MAX`](crate::limits::ITEMS_MAX) requests and
/// [`INTRODUCTIONS_MAX`] introductions are accepted by the other side.
#[must_use]
pub fn encode(message: &HolderMessage) -> wire::RequestBatch {
    let requests = &message.requests[..];
    let lease = |request: &LeaseRequest| request.lease;
    wire::RequestBatch {
        number: message.number.get(),
        introductions: encode_introductions(&message.introductions),
        key_deltas: column::encode_keys(requests.iter().map(|r| r.key)),
        sequence: column::encode(requests, |r| Some(r.sequence.get())),
        lease_counter: column::encode(requests, |r| Some(lease(r).map_or(0, |l| l.counter))),
        lease_epoch: column::encode(requests, |r| lease(r).map(|l| l.epoch.get())),
        spent: column::encode(requests, |r| Some(r.spent.get())),
        returned: column::encode(requests, |r| Some(r.returned.get())),
        want: column::encode(requests, |r| Some(r.want.get())),
        least: column::encode(requests, |r| Some(encode_least(r.least, r.want))),
        demand: column::encode(requests, |r| Some(r.demand)),
        flags: column::encode(requests, |r| Some(if r.release { FLAG_RELEASE } else { 0 })),
        // No part of the protocol of leases: see `outcomes`.
        outcomes: Vec::new(),
    }
}

/// The message in `batch`.
///
/// # Errors
/// [`Malformed`] at the first field that breaks a rule of the schema.
pub fn decode(batch: wire::RequestBatch) -> Result<HolderMessage, Malformed> {
    let number = decode_number("requests.number", batch.number, 1, TOTAL_MAX)?;
    let introductions = decode_introductions(batch.introductions)?;
    let keys = column::decode_keys("requests.key_deltas", &batch.key_deltas)?;
    let read = |path, column| Column::decode(path, column, keys.len());
    let columns = Columns {
        sequence: read("requests.sequence", batch.sequence.as_ref())?,
        lease_counter: read("requests.lease_counter", batch.lease_counter.as_ref())?,
        lease_epoch: read("requests.lease_epoch", batch.lease_epoch.as_ref())?,
        spent: read("requests.spent", batch.spent.as_ref())?,
        returned: read("requests.returned", batch.returned.as_ref())?,
        want: read("requests.want", batch.want.as_ref())?,
        least: read("requests.least", batch.least.as_ref())?,
        demand: read("requests.demand", batch.demand.as_ref())?,
        flags: read("requests.flags", batch.flags.as_ref())?,
    };
    let requests = keys
        .iter()
        .enumerate()
        .map(|(index, key)| columns.request(index, *key))
        .collect::<Result<Vec<_>, _>>()?;
    refuse_repeats(&requests)?;
    Ok(HolderMessage {
        number: MessageNumber::new(number),
        introductions,
        requests,
    })
}

struct Columns<'a> {
    sequence: Column<'a>,
    lease_counter: Column<'a>,
    lease_epoch: Column<'a>,
    spent: Column<'a>,
    returned: Column<'a>,
    want: Column<'a>,
    least: Column<'a>,
    demand: Column<'a>,
    flags: Column<'a>,
}

impl Columns<'_> {
    fn request(&self, index: usize, key: KeyNumber) -> Result<LeaseRequest, Malformed> {
        let want = self.want.within(index, 0, HELD_MAX.get())?;
        let flags = self.flags.within(index, 0, FLAG_RELEASE)?;
        let counter = self.lease_counter.at(index);
        Ok(LeaseRequest {
            key,
            sequence: Sequence::new(self.sequence.within(index, 1, TOTAL_MAX)?),
            lease: (counter > 0).then(|| LeaseId {
                epoch: Epoch::new(self.lease_epoch.at(index)),
                counter,
            }),
            spent: Tokens::new(self.spent.within(index, 0, TOTAL_MAX)?),
            returned: Tokens::new(self.returned.within(index, 0, TOTAL_MAX)?),
            want: Tokens::new(want),
            least: self.least(index, want)?,
            demand: self.demand.at(index).min(DEMAND_MAX),
            release: flags & FLAG_RELEASE != 0,
        })
    }

    fn least(&self, index: usize, want: u64) -> Result<Tokens, Malformed> {
        let least = match self.least.at(index).checked_sub(1) {
            None => want.min(1),
            Some(least) => least,
        };
        if least > want {
            return Err(self.least.refuse(
                index,
                format!("{least} tokens"),
                format!("at most what is wanted, {want} tokens"),
            ));
        }
        Ok(Tokens::new(least))
    }
}

/// The usual case, one token or none if none is wanted, is zero, so that the column is left out.
fn encode_least(least: Tokens, want: Tokens) -> u64 {
    if least == want.min(Tokens::ONE) {
        0
    } else {
        least.plus(Tokens::ONE).get()
    }
}

/// Refuses a pair of key and sequence that occurs twice. Ascending keys, the usual case, cost one
/// comparison an item.
fn refuse_repeats(requests: &[LeaseRequest]) -> Result<(), Malformed> {
    if requests.is_sorted_by(|a, b| a.key < b.key) {
        return Ok(());
    }
    let mut pairs: Vec<_> = requests.iter().map(|r| (r.key, r.sequence)).collect();
    pairs.sort_unstable();
    match pairs.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Malformed::new(
            "requests.sequence",
            format!("{} twice for key {}", pair[0].1, pair[0].0),
            "each pair of key and sequence once in a batch",
        )),
    }
}

fn encode_introductions(introductions: &[Introduction]) -> Vec<wire::Introduction> {
    let mut before: Option<&PolicyId> = None;
    introductions
        .iter()
        .map(|introduction| {
            let policy = &introduction.bucket.policy;
            let repeated = before == Some(policy);
            before = Some(policy);
            let name = |name: &String| {
                if repeated {
                    String::new()
                } else {
                    name.clone()
                }
            };
            wire::Introduction {
                number: introduction.number.get(),
                namespace: name(&policy.namespace),
                policy: name(&policy.name),
                key: introduction.bucket.key.as_bytes().to_vec(),
            }
        })
        .collect()
}

fn decode_introductions(
    introductions: Vec<wire::Introduction>,
) -> Result<Vec<Introduction>, Malformed> {
    check_count(
        "requests.introductions",
        introductions.len(),
        INTRODUCTIONS_MAX,
    )?;
    let bytes: usize = introductions.iter().map(|i| i.key.len()).sum();
    if bytes > INTRODUCED_BYTES_MAX {
        return Err(Malformed::new(
            "requests.introductions",
            format!("{bytes} bytes of keys"),
            format!("at most {INTRODUCED_BYTES_MAX} bytes of keys in one batch"),
        ));
    }
    let mut decoded: Vec<Introduction> = Vec::with_capacity(introductions.len());
    for (index, introduction) in introductions.into_iter().enumerate() {
        let before = decoded.last().map(|before| &before.bucket.policy);
        let introduction = decode_introduction(index, introduction, before)?;
        decoded.push(introduction);
    }
    let mut numbers: Vec<_> = decoded.iter().map(|i| i.number).collect();
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(decoded),
        Some(pair) => Err(Malformed::new(
            "requests.introductions",
            format!("number {} twice", pair[0]),
            "a number for one bucket only",
        )),
    }
}

fn decode_introduction(
    index: usize,
    introduction: wire::Introduction,
    before: Option<&PolicyId>,
) -> Result<Introduction, Malformed> {
    let path = format!("requests.introductions[{index}]");
    let repeats = introduction.namespace.is_empty() && introduction.policy.is_empty();
    let policy = match before {
        Some(before) if repeats => before.clone(),
        _ => PolicyId {
            namespace: decode_name(&format!("{path}.namespace"), introduction.namespace)?,
            name: decode_name(&format!("{path}.policy"), introduction.policy)?,
        },
    };
    if introduction.key.len() > KEY_BYTES_MAX {
        return Err(Malformed::new(
            format!("{path}.key"),
            format!("{} bytes long", introduction.key.len()),
            format!("at most {KEY_BYTES_MAX} bytes"),
        ));
    }
    let key = Key::from_canonical(&introduction.key).map_err(|error| key_error(&path, error))?;
    Ok(Introduction {
        number: KeyNumber::new(introduction.number),
        bucket: BucketAddress { policy, key },
    })
}
