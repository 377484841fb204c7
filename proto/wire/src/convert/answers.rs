//! An authority's batch: grants, refusals, places in the queue and recalls.

use quota_core::id::{Epoch, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence};
use quota_core::message::{Answer, Grant, Refusal, Status};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use super::column::{self, Column};
use super::common::decode_number;
use crate::limits::{ITEMS_MAX, TOTAL_MAX};
use crate::malformed::Malformed;
use crate::proto as wire;
use crate::proto::AnswerStatus as Code;

/// Nanoseconds in the unit of the column of head rooms.
const MILLI: u64 = 1_000_000;
/// The longest head room that is told, in milliseconds.
const HEADROOM_MAX: u64 = 4_294_967_295;

/// One message of an authority about leases: replies and pushes that share an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityMessage {
    /// The message of the holder from whose sending every term below counts. Of answers that were
    /// decided on several, the lowest: an older anchor is always safe.
    pub anchor: MessageNumber,
    /// The answers, to be applied in order.
    pub answers: Vec<Answer>,
}

/// The batches that carry `answers`, in order: one for each
/// [`ITEMS_MAX`] of them.
pub fn encode(
    anchor: MessageNumber,
    answers: &[Answer],
) -> impl Iterator<Item = wire::AnswerBatch> + '_ {
    answers
        .chunks(ITEMS_MAX)
        .map(move |answers| encode_batch(anchor, answers))
}

fn encode_batch(anchor: MessageNumber, answers: &[Answer]) -> wire::AnswerBatch {
    let of_grant = |of: fn(&Grant) -> u64| {
        column::encode(answers, move |answer| answer.grant.as_ref().map(of))
    };
    wire::AnswerBatch {
        anchor: anchor.get(),
        key_deltas: column::encode_keys(answers.iter().map(|a| a.key)),
        sequence: column::encode(answers, |a| Some(a.sequence.get())),
        lease_counter: column::encode(answers, |a| Some(a.grant.map_or(0, |g| g.lease.counter))),
        lease_epoch: of_grant(|g| g.lease.epoch.get()),
        granted: of_grant(|g| g.granted.get()),
        term_nanos: of_grant(|g| g.term.as_nanos()),
        version: of_grant(|g| g.version.get()),
        status: column::encode(answers, |a| Some(encode_status(a.status).0)),
        detail: column::encode(answers, |a| Some(encode_status(a.status).1)),
        headroom_millis: of_grant(|g| g.headroom.as_nanos() / MILLI),
    }
}

/// The message in `batch`.
///
/// # Errors
/// [`Malformed`] at the first field that breaks a rule of the schema.
pub fn decode(batch: &wire::AnswerBatch) -> Result<AuthorityMessage, Malformed> {
    let anchor = decode_number("answers.anchor", batch.anchor, 1, TOTAL_MAX)?;
    let keys = column::decode_keys("answers.key_deltas", &batch.key_deltas)?;
    let read = |path, column| Column::decode(path, column, keys.len());
    let columns = Columns {
        sequence: read("answers.sequence", batch.sequence.as_ref())?,
        lease_counter: read("answers.lease_counter", batch.lease_counter.as_ref())?,
        lease_epoch: read("answers.lease_epoch", batch.lease_epoch.as_ref())?,
        granted: read("answers.granted", batch.granted.as_ref())?,
        term_nanos: read("answers.term_nanos", batch.term_nanos.as_ref())?,
        version: read("answers.version", batch.version.as_ref())?,
        status: read("answers.status", batch.status.as_ref())?,
        detail: read("answers.detail", batch.detail.as_ref())?,
        headroom_millis: read("answers.headroom_millis", batch.headroom_millis.as_ref())?,
    };
    let answers = keys
        .iter()
        .enumerate()
        .map(|(index, key)| columns.answer(index, *key))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(AuthorityMessage {
        anchor: MessageNumber::new(anchor),
        answers,
    })
}

struct Columns<'a> {
    sequence: Column<'a>,
    lease_counter: Column<'a>,
    lease_epoch: Column<'a>,
    granted: Column<'a>,
    term_nanos: Column<'a>,
    version: Column<'a>,
    status: Column<'a>,
    detail: Column<'a>,
    headroom_millis: Column<'a>,
}

impl Columns<'_> {
    fn answer(&self, index: usize, key: KeyNumber) -> Result<Answer, Malformed> {
        Ok(Answer {
            key,
            sequence: Sequence::new(self.sequence.within(index, 1, TOTAL_MAX)?),
            grant: self.grant(index)?,
            status: self.status(index)?,
        })
    }

    fn grant(&self, index: usize) -> Result<Option<Grant>, Malformed> {
        let counter = self.lease_counter.at(index);
        if counter == 0 {
            return Ok(None);
        }
        Ok(Some(Grant {
            lease: LeaseId {
                epoch: Epoch::new(self.lease_epoch.at(index)),
                counter,
            },
            granted: Tokens::new(self.granted.within(index, 0, TOTAL_MAX)?),
            term: Term::from_nanos(self.term_nanos.at(index)),
            headroom: Term::from_millis(self.headroom_millis.within(index, 0, HEADROOM_MAX)?),
            version: PolicyVersion::new(self.version.at(index)),
        }))
    }

    fn status(&self, index: usize) -> Result<Status, Malformed> {
        let raw = self.status.at(index);
        let code = i32::try_from(raw)
            .ok()
            .and_then(|code| Code::try_from(code).ok())
            .ok_or_else(|| self.status.refuse(index, raw, "a status of this protocol"))?;
        let detail = self.detail.at(index);
        let retry_after = Term::from_nanos(detail);
        let status = match code {
            Code::Done => Status::Done,
            Code::Queued => Status::Queued { retry_after },
            Code::Recall => Status::Recall {
                keep: Tokens::new(detail),
            },
            Code::UnknownPolicy => Status::Refused(Refusal::UnknownPolicy),
            Code::UnknownKey => Status::Refused(Refusal::UnknownKey),
            Code::CostAboveCapacity => Status::Refused(Refusal::CostAboveCapacity {
                capacity: Tokens::new(detail),
            }),
            Code::Busy => Status::Refused(Refusal::Busy { retry_after }),
            Code::KeyMismatch => Status::Refused(Refusal::KeyMismatch {
                // More than fits is refused below: it does not encode to the same detail.
                dimensions: u32::try_from(detail).unwrap_or(u32::MAX),
            }),
        };
        if encode_status(status).1 != detail {
            let most = encode_status(status).1;
            let allowed = format!("at most {most} with the status {}", code.as_str_name());
            return Err(self.detail.refuse(index, detail, allowed));
        }
        Ok(status)
    }
}

/// A status and its detail.
fn encode_status(status: Status) -> (u64, u64) {
    let (code, detail) = match status {
        Status::Done => (Code::Done, 0),
        Status::Queued { retry_after } => (Code::Queued, retry_after.as_nanos()),
        Status::Recall { keep } => (Code::Recall, keep.get()),
        Status::Refused(Refusal::UnknownPolicy) => (Code::UnknownPolicy, 0),
        Status::Refused(Refusal::UnknownKey) => (Code::UnknownKey, 0),
        Status::Refused(Refusal::CostAboveCapacity { capacity }) => {
            (Code::CostAboveCapacity, capacity.get())
        }
        Status::Refused(Refusal::Busy { retry_after }) => (Code::Busy, retry_after.as_nanos()),
        Status::Refused(Refusal::KeyMismatch { dimensions }) => {
            (Code::KeyMismatch, u64::from(dimensions))
        }
    };
    let code = u64::try_from(i32::from(code)).expect("codes are not negative");
    (code, detail)
}
