//! What waits to be sent to one holder: bounded, and never waited for by a shard.
//!
//! Shards put answers in; the transport takes everything that is there, so answers of several
//! shards travel in one message. A holder that does not read fills its outbox, and then its stream
//! ends: its memory is bounded, no shard waits for it, and its leases stay as they are.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quota_core::id::MessageNumber;
use quota_core::message::Answer;
use quota_wire::convert::answers::AuthorityMessage;
use quota_wire::convert::handshake::Welcome;
use quota_wire::convert::notice::{GoAway, PolicyNotice};
use tokio::sync::Notify;
use tonic::Status;

/// The outbox of one stream or of one single call.
#[derive(Debug)]
pub(crate) struct Outbox {
    answers_max: usize,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    answers: Vec<Answer>,
    /// The lowest anchor of `answers`: an older anchor only ends terms earlier.
    anchor: MessageNumber,
    welcome: Option<Welcome>,
    policies: Option<PolicyNotice>,
    go_away: Option<GoAway>,
    end: Option<End>,
    reader: Option<Waker>,
}

/// How a stream ends.
#[derive(Clone, Debug)]
enum End {
    /// The holder closed it, or is gone.
    Closed,
    /// This side ends it.
    Refused(Box<Status>),
}

/// What there is to send.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    /// The first message of a stream.
    pub(crate) welcome: Option<Welcome>,
    /// Answers under their lowest anchor.
    pub(crate) answers: Option<AuthorityMessage>,
    /// Policies that changed.
    pub(crate) policies: Option<PolicyNotice>,
    /// A farewell.
    pub(crate) go_away: Option<GoAway>,
}

/// Why an outbox takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl Outbox {
    /// An empty outbox for at most `answers_max` unsent answers.
    pub(crate) fn new(answers_max: usize) -> Self {
        Self {
            answers_max,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Accepts the stream. Called before anyone else knows of it.
    pub(crate) fn welcome(&self, welcome: Welcome) {
        let mut state = self.state();
        state.welcome = Some(welcome);
        wake(state);
    }

    /// Adds answers that were decided under `anchor`, and leaves `answers` empty. At the bound
    /// the stream ends.
    pub(crate) fn push(
        &self,
        anchor: MessageNumber,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Over> {
        let mut state = self.state();
        if state.end.is_some() {
            answers.clear();
            return Err(Over);
        }
        if state.answers.len() + answers.len() > self.answers_max {
            answers.clear();
            // What it has not read it asks for again, under the same sequence numbers.
            state.answers = Vec::new();
            let message = format!(
                "{} answers wait to be read: read faster, then connect again and repeat what was \
                 not answered",
                self.answers_max
            );
            self.end_with(
                state,
                End::Refused(Box::new(Status::resource_exhausted(message))),
            );
            return Err(Over);
        }
        state.anchor = match state.answers.is_empty() {
            true => anchor,
            false => state.anchor.min(anchor),
        };
        state.answers.append(answers);
        wake(state);
        Ok(())
    }

    /// Tells the holder that policies changed; notices that wait are merged.
    pub(crate) fn notice(&self, notice: &PolicyNotice) {
        let mut state = self.state();
        match &mut state.policies {
            Some(waiting) if !waiting.policies.is_empty() && !notice.policies.is_empty() => {
                waiting.revision = waiting.revision.max(notice.revision);
                waiting.policies.extend_from_slice(&notice.policies);
                waiting.policies.sort_unstable();
                waiting.policies.dedup();
            }
            // A notice without names says that any policy may have changed.
            Some(waiting) => {
                waiting.revision = waiting.revision.max(notice.revision);
                waiting.policies.clear();
            }
            none => *none = Some(notice.clone()),
        }
        wake(state);
    }

    /// Tells the holder that the node is about to end the stream.
    pub(crate) fn go_away(&self, farewell: GoAway) {
        let mut state = self.state();
        state.go_away.get_or_insert(farewell);
        wake(state);
    }

    /// Ends the stream after what waits to be sent; the first end stays. `None` is an end that
    /// the holder wanted.
    pub(crate) fn end(&self, status: Option<Status>) {
        let end = status.map_or(End::Closed, |status| End::Refused(Box::new(status)));
        self.end_with(self.state(), end);
    }

    fn end_with(&self, mut state: MutexGuard<'_, State>, end: End) {
        if state.end.is_none() {
            state.end = Some(end);
            wake(state);
            self.ended.notify_waiters();
        }
    }

    /// Waits until the stream has ended.
    pub(crate) async fn ended(&self) {
        let mut ended = pin!(self.ended.notified());
        // Registered before the look, so that an end in between is not missed.
        ended.as_mut().enable();
        if self.state().end.is_none() {
            ended.await;
        }
    }

    /// Takes everything that waits. `Ready(None)` or an error once the stream has ended and
    /// nothing waits any more. For one reader.
    pub(crate) fn poll_parcel(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Parcel, Status>>> {
        let mut state = self.state();
        let nothing = state.answers.is_empty()
            && state.welcome.is_none()
            && state.policies.is_none()
            && state.go_away.is_none();
        if nothing {
            return match &state.end {
                Some(End::Closed) => Poll::Ready(None),
                Some(End::Refused(status)) => {
                    let status = Status::clone(status);
                    state.end = Some(End::Closed);
                    Poll::Ready(Some(Err(status)))
                }
                None => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        }
        let answers = std::mem::take(&mut state.answers);
        let anchor = state.anchor;
        Poll::Ready(Some(Ok(Parcel {
            welcome: state.welcome.take(),
            answers: (!answers.is_empty()).then_some(AuthorityMessage { anchor, answers }),
            policies: state.policies.take(),
            go_away: state.go_away.take(),
        })))
    }

    /// The next answers, for a single call. `None` or an error as in [`Self::poll_parcel`].
    pub(crate) async fn parcel(&self) -> Option<Result<Parcel, Status>> {
        std::future::poll_fn(|context| self.poll_parcel(context)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the reader once the lock is released.
fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::{KeyNumber, Sequence};
    use quota_core::key::PolicyId;
    use quota_core::message::Status as Outcome;

    fn answers(count: u32) -> Vec<Answer> {
        let answer = |key| Answer {
            key: KeyNumber::new(key),
            sequence: Sequence::new(1),
            grant: None,
            status: Outcome::Done,
        };
        (0..count).map(answer).collect()
    }

    fn number(raw: u64) -> MessageNumber {
        MessageNumber::new(raw)
    }

    #[tokio::test]
    async fn answers_that_wait_share_the_lowest_anchor() {
        let outbox = Outbox::new(10);
        outbox.push(number(7), &mut answers(2)).expect("room");
        outbox.push(number(5), &mut answers(1)).expect("room");
        outbox.push(number(9), &mut answers(1)).expect("room");
        let parcel = outbox.parcel().await.expect("open").expect("no error");
        let sent = parcel.answers.expect("answers");
        assert_eq!((sent.anchor, sent.answers.len()), (number(5), 4));

        outbox.push(number(9), &mut answers(1)).expect("room");
        let parcel = outbox.parcel().await.expect("open").expect("no error");
        assert_eq!(
            parcel.answers.expect("answers").anchor,
            number(9),
            "5 has been sent"
        );
    }

    #[tokio::test]
    async fn a_full_outbox_ends_its_stream_and_holds_nothing() {
        let outbox = Outbox::new(3);
        outbox.push(number(1), &mut answers(3)).expect("room");
        assert_eq!(outbox.push(number(1), &mut answers(1)), Err(Over));
        outbox.ended().await;
        assert_eq!(
            outbox.push(number(1), &mut answers(1)),
            Err(Over),
            "over stays over"
        );
        let status = outbox
            .parcel()
            .await
            .expect("an end")
            .expect_err("an error");
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(outbox.parcel().await.is_none());
    }

    #[tokio::test]
    async fn what_waits_is_sent_before_the_end() {
        let outbox = Outbox::new(3);
        outbox.push(number(1), &mut answers(1)).expect("room");
        outbox.end(Some(Status::unavailable("first")));
        outbox.end(Some(Status::unavailable("second")));
        assert!(
            outbox
                .parcel()
                .await
                .expect("open")
                .expect("no error")
                .answers
                .is_some()
        );
        let status = outbox
            .parcel()
            .await
            .expect("an end")
            .expect_err("an error");
        assert_eq!(status.message(), "first");
    }

    #[tokio::test]
    async fn notices_merge_and_an_unnamed_one_covers_all() {
        let outbox = Outbox::new(3);
        let notice = |revision, names: &[&str]| PolicyNotice {
            revision,
            policies: names
                .iter()
                .map(|name| PolicyId {
                    namespace: "d".into(),
                    name: (*name).into(),
                })
                .collect(),
        };
        outbox.notice(&notice(4, &["b"]));
        outbox.notice(&notice(5, &["a", "b"]));
        let parcel = outbox.parcel().await.expect("open").expect("no error");
        assert_eq!(parcel.policies, Some(notice(5, &["a", "b"])));
        outbox.notice(&notice(6, &["b"]));
        outbox.notice(&notice(7, &[]));
        outbox.notice(&notice(8, &["a"]));
        let parcel = outbox.parcel().await.expect("open").expect("no error");
        assert_eq!(parcel.policies, Some(notice(8, &[])));
    }
}
