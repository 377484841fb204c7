//! A holder as stories need it: it keeps the rules of a holder but has no will of its own.

use std::collections::BTreeMap;

use quota_core::authority::StreamId;
use quota_core::id::{Incarnation, KeyNumber, LeaseId, MessageNumber, Sequence};
use quota_core::key::BucketAddress;
use quota_core::message::{Answer, LeaseRequest};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

/// A lease in a holder's hands.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) id: LeaseId,
    pub(crate) granted: Tokens,
    pub(crate) spent: Tokens,
    pub(crate) returned: Tokens,
    pub(crate) deadline: Timestamp,
}

impl Held {
    pub(crate) fn rest(&self) -> Tokens {
        self.granted.less(self.spent).less(self.returned)
    }
}

/// One life of one holder.
pub(crate) struct Holder {
    pub(crate) incarnation: Incarnation,
    pub(crate) stream: Option<StreamId>,
    number: u64,
    sent: BTreeMap<MessageNumber, Timestamp>,
    numbers: BTreeMap<BucketAddress, KeyNumber>,
    /// Never reset, so that no number is used twice in one stream or two.
    last_key: u32,
    sequences: BTreeMap<BucketAddress, u64>,
    pub(crate) leases: BTreeMap<BucketAddress, Held>,
    /// The last request of each bucket, for retries and late copies.
    pub(crate) requests: BTreeMap<BucketAddress, Vec<(MessageNumber, LeaseRequest)>>,
}

impl Holder {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            stream: None,
            number: 0,
            sent: BTreeMap::new(),
            numbers: BTreeMap::new(),
            last_key: 0,
            sequences: BTreeMap::new(),
            leases: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    pub(crate) fn connect(&mut self, stream: StreamId) {
        self.stream = Some(stream);
        self.numbers.clear();
    }

    /// The key number of a bucket in this stream, and whether it has to be introduced.
    pub(crate) fn number_of(&mut self, bucket: &BucketAddress) -> (KeyNumber, bool) {
        if let Some(number) = self.numbers.get(bucket) {
            return (*number, false);
        }
        self.last_key += 1;
        let number = KeyNumber::new(self.last_key);
        self.numbers.insert(bucket.clone(), number);
        (number, true)
    }

    pub(crate) fn bucket_of(&self, number: KeyNumber) -> Option<BucketAddress> {
        let mut numbers = self.numbers.iter();
        numbers
            .find(|(_, n)| **n == number)
            .map(|(bucket, _)| bucket.clone())
    }

    pub(crate) fn forget_number(&mut self, bucket: &BucketAddress) {
        self.numbers.remove(bucket);
    }

    pub(crate) fn next_message(&mut self, now: Timestamp) -> MessageNumber {
        self.number += 1;
        let number = MessageNumber::new(self.number);
        self.sent.insert(number, now);
        number
    }

    pub(crate) fn next_sequence(&mut self, bucket: &BucketAddress) -> Sequence {
        let sequence = self.sequences.entry(bucket.clone()).or_default();
        *sequence += 1;
        Sequence::new(*sequence)
    }

    /// Takes an answer in. Returns how many tokens it added, and how many of an older lease were
    /// given up; `None` if its anchor is unknown.
    pub(crate) fn install(
        &mut self,
        bucket: &BucketAddress,
        anchor: MessageNumber,
        answer: &Answer,
    ) -> Option<(Tokens, Tokens)> {
        let sent = *self.sent.get(&anchor)?;
        let Some(grant) = answer.grant else {
            return Some((Tokens::ZERO, Tokens::ZERO));
        };
        let deadline = sent + grant.term;
        match self.leases.get_mut(bucket) {
            Some(held) if held.id == grant.lease => {
                let added = grant.granted.less(held.granted);
                held.granted = held.granted.max(grant.granted);
                held.deadline = held.deadline.max(deadline);
                Some((added, Tokens::ZERO))
            }
            older => {
                let given_up = older.map_or(Tokens::ZERO, |held| held.rest());
                let held = Held {
                    id: grant.lease,
                    granted: grant.granted,
                    spent: Tokens::ZERO,
                    returned: Tokens::ZERO,
                    deadline,
                };
                self.leases.insert(bucket.clone(), held);
                Some((grant.granted, given_up))
            }
        }
    }
}
