//! The open streams of this node: one for each incarnation, and a bound on their number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quota_core::authority::StreamId;
use quota_core::id::Incarnation;
use quota_core::time::{Term, Timestamp};
use quota_wire::convert::notice::{GoAway, GoAwayReason, PolicyNotice};
use tokio::sync::Notify;
use tonic::Status;

use super::outbox::Outbox;

/// The open streams.
#[derive(Debug)]
pub(crate) struct Streams {
    streams_max: usize,
    last: AtomicU64,
    open: Mutex<HashMap<Incarnation, Open>>,
    closed: Notify,
}

/// One open stream.
#[derive(Debug)]
struct Open {
    stream: StreamId,
    outbox: Arc<Outbox>,
    about: About,
}

/// Who is at the other end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// As it named itself.
    pub(crate) client_name: String,
    /// As it named itself.
    pub(crate) client_version: String,
    /// The protocol version that is spoken.
    pub(crate) protocol: u32,
    /// When it connected.
    pub(crate) since: Timestamp,
}

/// An entry in the list of open streams, which ends with it.
#[derive(Debug)]
pub(crate) struct Entered {
    streams: Arc<Streams>,
    incarnation: Incarnation,
    stream: StreamId,
}

impl Streams {
    /// No stream yet, and never more than `streams_max`.
    pub(crate) fn new(streams_max: usize) -> Self {
        Self {
            streams_max,
            last: AtomicU64::new(0),
            open: Mutex::default(),
            closed: Notify::new(),
        }
    }

    /// A number that no stream or call has had before.
    pub(crate) fn next_id(&self) -> StreamId {
        StreamId::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Enters a stream. One that the same incarnation had open is replaced: it ends. `accept` is
    /// called once its place is certain, and before anything else can be said on it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too many.
    pub(crate) fn enter(
        self: &Arc<Self>,
        incarnation: Incarnation,
        outbox: &Arc<Outbox>,
        about: About,
        accept: impl FnOnce(),
    ) -> Result<Entered, Status> {
        let mut open = self.open();
        if open.len() >= self.streams_max && !open.contains_key(&incarnation) {
            return Err(Status::resource_exhausted(format!(
                "{} streams are open, the most that this node takes: connect to another node, or \
                 raise the limit",
                open.len()
            )));
        }
        accept();
        // Drawn under the lock, so that of two streams the one that stays has the higher number.
        let stream = self.next_id();
        let entry = Open {
            stream,
            outbox: Arc::clone(outbox),
            about,
        };
        let before = open.insert(incarnation, entry);
        drop(open);
        if let Some(Open {
            outbox: replaced, ..
        }) = before
        {
            let message = "the same incarnation opened another stream";
            replaced.go_away(GoAway {
                reason: GoAwayReason::Replaced,
                grace: Term::ZERO,
                instead: Vec::new(),
                message: message.to_owned(),
            });
            replaced.end(Some(Status::aborted(message)));
        }
        Ok(Entered {
            streams: Arc::clone(self),
            incarnation,
            stream,
        })
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    /// The holders after this one by incarnation, at most so many, and whether there are more.
    /// Costs a look at every stream.
    pub(crate) fn page(
        &self,
        after: Option<Incarnation>,
        most: usize,
    ) -> (Vec<(Incarnation, About)>, bool) {
        let open = self.open();
        let mut later: Vec<Incarnation> = open
            .keys()
            .copied()
            .filter(|incarnation| after.is_none_or(|after| *incarnation > after))
            .collect();
        later.sort_unstable();
        let more = later.len() > most;
        later.truncate(most);
        let about = |incarnation| (incarnation, open[&incarnation].about.clone());
        (later.into_iter().map(about).collect(), more)
    }

    /// True if the incarnation has a stream open here.
    pub(crate) fn is_open(&self, incarnation: Incarnation) -> bool {
        self.open().contains_key(&incarnation)
    }

    /// Tells every stream that policies changed.
    pub(crate) fn notice(&self, notice: &PolicyNotice) {
        for outbox in self.outboxes() {
            outbox.notice(notice);
        }
    }

    /// Tells every stream that the node is about to stop.
    pub(crate) fn go_away(&self, farewell: &GoAway) {
        for outbox in self.outboxes() {
            outbox.go_away(farewell.clone());
        }
    }

    /// Ends every stream.
    pub(crate) fn end(&self, status: &Status) {
        for outbox in self.outboxes() {
            outbox.end(Some(status.clone()));
        }
    }

    /// Waits until no stream is open.
    pub(crate) async fn all_closed(&self) {
        loop {
            let closed = self.closed.notified();
            if self.count() == 0 {
                return;
            }
            closed.await;
        }
    }

    fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.open()
            .values()
            .map(|open| Arc::clone(&open.outbox))
            .collect()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Incarnation, Open>> {
        // Nothing in here panics half-way.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entered {
    /// The stream's number.
    pub(crate) const fn stream(&self) -> StreamId {
        self.stream
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        // A newer stream of the same incarnation may have taken the place.
        if open
            .get(&self.incarnation)
            .is_some_and(|open| open.stream == self.stream)
        {
            open.remove(&self.incarnation);
        }
        drop(open);
        self.streams.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_stream_of_an_incarnation_replaces_the_older() {
        let streams = Arc::new(Streams::new(1));
        let (old, new) = (Arc::new(Outbox::new(1)), Arc::new(Outbox::new(1)));
        let first = streams
            .enter(Incarnation::new(7), &old, About::default(), || ())
            .expect("room");
        let second = streams
            .enter(Incarnation::new(7), &new, About::default(), || ())
            .expect("its own place");
        assert!(second.stream() > first.stream());
        old.ended().await;
        drop(first);
        assert!(streams.is_open(Incarnation::new(7)), "the newer one stays");
        drop(second);
        assert_eq!(streams.count(), 0);
        streams.all_closed().await;
    }

    #[test]
    fn there_is_a_most_of_streams() {
        let streams = Arc::new(Streams::new(1));
        let outbox = Arc::new(Outbox::new(1));
        let _first = streams
            .enter(Incarnation::new(7), &outbox, About::default(), || ())
            .expect("room");
        let refused = streams
            .enter(Incarnation::new(8), &outbox, About::default(), || ())
            .expect_err("full");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn holders_are_paged_by_incarnation() {
        let streams = Arc::new(Streams::new(10));
        let outbox = Arc::new(Outbox::new(1));
        let enter = |number| {
            let about = About {
                client_name: format!("gateway {number}"),
                ..About::default()
            };
            let incarnation = Incarnation::new(number);
            streams
                .enter(incarnation, &outbox, about, || ())
                .expect("room")
        };
        let _open: Vec<Entered> = [9, 3, 7, 5].map(enter).into();
        let numbers = |after, most| {
            let (page, more) = streams.page(after, most);
            let numbers: Vec<u64> = page.iter().map(|(number, _)| number.get()).collect();
            (numbers, more)
        };
        assert_eq!(numbers(None, 2), (vec![3, 5], true));
        assert_eq!(numbers(Some(Incarnation::new(5)), 2), (vec![7, 9], false));
        assert_eq!(numbers(Some(Incarnation::new(9)), 2), (vec![], false));
        assert_eq!(streams.page(None, 1).0[0].1.client_name, "gateway 3");
    }
}
