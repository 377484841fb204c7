//! A single call as a holder of its own: it connects to one shard, asks, and leaves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quota_core::authority::StreamId;
use quota_core::id::{Incarnation, KeyNumber, MessageNumber};
use quota_core::key::BucketAddress;
use quota_core::message::{Answer, Introduction, LeaseRequest, Refusal, Status};
use quota_core::time::Term;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::Node;
use super::event::{Event, Part};
use super::outbox::Outbox;

/// The number of the one key of a visit.
pub(crate) const KEY: KeyNumber = KeyNumber::new(1);
/// Answers that a visit waits for: a place in the queue, a grant, and those to its reports.
const ANSWERS_MAX: usize = 8;

/// A visit. Dropping it withdraws what still waits at the authority.
#[derive(Debug)]
pub(crate) struct Visit {
    shard: mpsc::Sender<Event>,
    incarnation: Incarnation,
    stream: StreamId,
    outbox: Arc<Outbox>,
    /// Answers that came along with one that was taken.
    waiting: VecDeque<Answer>,
    connected: bool,
    /// What the authority last said to wait, if it has said anything.
    told: Option<Term>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    /// Prepares a visit to the shard of `bucket`.
    ///
    /// # Errors
    /// UNAVAILABLE if too many calls are under way.
    pub(crate) fn new(
        node: &Node,
        bucket: &BucketAddress,
        incarnation: Incarnation,
    ) -> Result<Self, tonic::Status> {
        let place = Arc::clone(&node.calls)
            .try_acquire_owned()
            .map_err(|_| busy())?;
        Ok(Self {
            shard: node.inbox(node.shard_of(bucket)).clone(),
            incarnation,
            stream: node.streams.next_id(),
            outbox: Arc::new(Outbox::new(ANSWERS_MAX)),
            waiting: VecDeque::new(),
            connected: false,
            told: None,
            _place: place,
        })
    }

    /// Introduces the bucket and asks.
    ///
    /// # Errors
    /// UNAVAILABLE if the shard has no room.
    pub(crate) fn ask(
        &mut self,
        number: MessageNumber,
        bucket: BucketAddress,
        request: LeaseRequest,
    ) -> Result<oneshot::Receiver<()>, tonic::Status> {
        let introduction = Introduction {
            number: KEY,
            bucket,
        };
        self.send(number, vec![introduction], vec![request])
    }

    /// Reports on the bucket, or moves the anchor if there is nothing to report.
    ///
    /// # Errors
    /// UNAVAILABLE if the shard has no room.
    pub(crate) fn report(
        &mut self,
        number: MessageNumber,
        request: Option<LeaseRequest>,
    ) -> Result<oneshot::Receiver<()>, tonic::Status> {
        self.send(number, Vec::new(), request.into_iter().collect())
    }

    fn send(
        &mut self,
        number: MessageNumber,
        introductions: Vec<Introduction>,
        requests: Vec<LeaseRequest>,
    ) -> Result<oneshot::Receiver<()>, tonic::Status> {
        let (done, is_done) = oneshot::channel();
        let part = Part {
            incarnation: self.incarnation,
            stream: self.stream,
            connect: (!self.connected).then(|| Arc::clone(&self.outbox)),
            number,
            introductions,
            requests,
            place: None,
            done: Some(done),
        };
        self.shard
            .try_send(Event::Part(Box::new(part)))
            .map_err(|_| busy())?;
        self.connected = true;
        Ok(is_done)
    }

    /// The next answer; of several that are there, one with a grant comes first, because it ends
    /// the waiting whatever was said before it. Dropping this future loses no answer.
    ///
    /// # Errors
    /// UNAVAILABLE if the shard's tenure ends.
    pub(crate) async fn answer(&mut self) -> Result<Answer, tonic::Status> {
        loop {
            let grant = self
                .waiting
                .iter()
                .position(|answer| answer.status == Status::Done && answer.grant.is_some());
            if let Some(answer) = self.waiting.remove(grant.unwrap_or(0)) {
                return Ok(answer);
            }
            let parcel = self.outbox.parcel().await.unwrap_or_else(|| Err(busy()))?;
            let answers = parcel.answers.map(|message| message.answers);
            self.waiting.extend(answers.unwrap_or_default());
        }
    }

    /// A refusal among the answers that are there already.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(parcel))) = self.outbox.poll_parcel(&mut context) else {
            return None;
        };
        let answers = parcel
            .answers
            .map(|message| message.answers)
            .unwrap_or_default();
        answers.into_iter().find_map(|answer| match answer.status {
            Status::Refused(refusal) => Some(refusal),
            Status::Done | Status::Queued { .. } | Status::Recall { .. } => None,
        })
    }

    /// The authority said when the turn of the request comes.
    pub(crate) fn told(&mut self, retry_after: Term) {
        self.told = Some(retry_after);
    }

    /// Whether it has said so.
    pub(crate) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// What it said last.
    pub(crate) fn last_told(&self) -> Term {
        self.told.unwrap_or_default()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.connected {
            return;
        }
        let leave = Event::Leave {
            incarnation: self.incarnation,
            stream: self.stream,
        };
        let Err(mpsc::error::TrySendError::Full(leave)) = self.shard.try_send(leave) else {
            return;
        };
        // The shard is at its bound; it has to hear of it all the same, or its list would grow.
        let shard = self.shard.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { shard.send(leave).await });
        }
    }
}

fn busy() -> tonic::Status {
    let retry_after = Term::from_millis(100);
    quota_wire::status::refused(Refusal::Busy { retry_after }, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::{Epoch, LeaseId, PolicyVersion, Sequence};
    use quota_core::message::Grant;
    use quota_core::tokens::Tokens;
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn a_grant_in_the_same_parcel_as_its_place_in_the_queue_is_not_lost() {
        let room = Arc::new(Semaphore::new(1));
        let (shard, _inbox) = mpsc::channel(1);
        let mut visit = Visit {
            shard,
            incarnation: Incarnation::new(7),
            stream: StreamId::new(1),
            outbox: Arc::new(Outbox::new(ANSWERS_MAX)),
            waiting: VecDeque::new(),
            connected: false,
            told: None,
            _place: room.try_acquire_owned().expect("room"),
        };
        let queued = Answer {
            key: KEY,
            sequence: Sequence::new(1),
            grant: None,
            status: Status::Queued {
                retry_after: Term::ZERO,
            },
        };
        let done = Answer {
            grant: Some(grant()),
            status: Status::Done,
            ..queued
        };
        let number = MessageNumber::new(1);
        for answer in [queued, done] {
            visit
                .outbox
                .push(number, &mut vec![answer])
                .expect("it is open");
        }
        assert_eq!(visit.answer().await.expect("open"), done);
        assert_eq!(visit.answer().await.expect("open"), queued);
    }

    fn grant() -> Grant {
        let lease = LeaseId {
            epoch: Epoch::new(1),
            counter: 1,
        };
        Grant {
            lease,
            granted: Tokens::new(1),
            term: Term::from_seconds(1),
            headroom: Term::ZERO,
            version: PolicyVersion::new(1),
        }
    }
}
