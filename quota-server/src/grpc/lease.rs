//! The lease stream: one task reads a holder's messages and passes their parts to the shards; the
//! transport takes the answers from the stream's outbox when the holder has room for them.
//!
//! Reading stops while shards have no room, which is the back-pressure that a flood meets. A
//! message that breaks the schema ends its stream and changes nothing; no other stream notices.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quota_core::id::{Incarnation, ShardId};
use quota_wire::Malformed;
use quota_wire::convert::handshake::{self, SPOKEN, StreamLimits, Welcome};
use quota_wire::convert::outcomes::take_outcomes;
use quota_wire::convert::stream::{self, FromAuthority};
use quota_wire::limits::{INTRODUCTIONS_MAX, ITEMS_MAX};
use quota_wire::proto as wire;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use crate::clock;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::node::event::{Event, Part};
use crate::node::outbox::{Outbox, Parcel};
use crate::node::outcomes::Reported;
use crate::node::route::Routes;
use crate::node::shard::turn_away;
use crate::node::streams::About;

/// How long a caller may take to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// How long streams are kept from shards that have not begun their first tenure.
const START_WITHIN: Duration = Duration::from_secs(5);

/// What a holder is sent.
#[derive(Debug)]
pub(super) struct Replies {
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
    ready: VecDeque<wire::ServerMessage>,
}

/// Opens a stream. Its first message is read by the stream's own task.
pub(super) fn open(
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    message_bytes_max: usize,
    messages: Streaming<wire::ClientMessage>,
) -> Result<Replies, Status> {
    if node.readiness.is_draining() {
        return Err(quota_wire::status::draining());
    }
    let outbox = Arc::new(Outbox::new(node.answers_max));
    let replies = Replies {
        outbox: Arc::clone(&outbox),
        metrics: Arc::clone(&metrics),
        ready: VecDeque::new(),
    };
    let reader = Reader {
        node,
        metrics,
        outbox,
        messages,
        message_bytes_max,
    };
    tokio::spawn(reader.run());
    Ok(replies)
}

/// The task that reads one stream.
struct Reader {
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    outbox: Arc<Outbox>,
    messages: Streaming<wire::ClientMessage>,
    message_bytes_max: usize,
}

impl Reader {
    async fn run(mut self) {
        self.metrics.streams.inc();
        let outbox = Arc::clone(&self.outbox);
        // Also while a message waits for room: the stream may end meanwhile.
        let end = tokio::select! {
            biased;
            () = outbox.ended() => None,
            end = self.read() => Some(end),
        };
        if let Some(end) = end {
            let status = end.err();
            if status
                .as_ref()
                .is_some_and(|status| status.code() == Code::InvalidArgument)
            {
                self.metrics.messages_refused.inc();
            }
            self.outbox.end(status);
        }
        self.metrics.streams.dec();
    }

    /// Reads until the holder closes the stream.
    async fn read(&mut self) -> Result<(), Status> {
        let Some((incarnation, about, welcome)) = self.shake_hands().await? else {
            return Ok(());
        };
        // A holder that is welcome counts its earlier failures as over, so one for whom there is
        // no place must not be.
        let entered = self
            .node
            .streams
            .enter(incarnation, &self.outbox, about, || {
                self.outbox.welcome(welcome);
            })
            .inspect_err(|_| {
                self.metrics.busy.inc();
            })?;
        let routes = Routes::new(
            incarnation,
            entered.stream(),
            Arc::clone(&self.outbox),
            self.node.shard_count(),
            self.node.keys_max,
        );
        let mut leaving = Leaving {
            node: Arc::clone(&self.node),
            incarnation,
            routes,
            _entered: entered,
        };
        // A stream that reaches a shard before its first tenure ends when that begins. At start
        // all of them would, one shard after another, so what was said waits at the door.
        let _ = tokio::time::timeout(START_WITHIN, self.node.readiness.started()).await;
        let mut reported = Reported::default();
        while let Some(mut message) = self.next().await? {
            let report = take_outcomes(&mut message)?;
            if !report.is_empty() {
                let snapshot = self.node.policies.snapshot();
                for (policy, news) in reported.take(report, &snapshot) {
                    self.node.outcomes.add(&self.metrics, &policy, news);
                }
            }
            let message = stream::decode_from_holder(message)?;
            let items = message.requests.len() + message.introductions.len();
            let parts = leaving.routes.split(clock::now(), message)?;
            self.pass_on(parts, items).await?;
        }
        Ok(())
    }

    /// The handshake, and what to say once the stream has its place. `None` if the caller closes
    /// the stream instead.
    async fn shake_hands(&mut self) -> Result<Option<(Incarnation, About, Welcome)>, Status> {
        let first = tokio::time::timeout(HELLO_WITHIN, self.next())
            .await
            .map_err(|_| {
                Status::deadline_exceeded(format!("no hello came within {HELLO_WITHIN:?}"))
            })?;
        let Some(first) = first? else { return Ok(None) };
        let hello = stream::open_hello(first)?;
        let (protocol, hello) = handshake::decode_hello(hello, SPOKEN)?;
        let narrow = |limit: usize| u32::try_from(limit).expect("limits are far below 2^32");
        let welcome = Welcome {
            protocol,
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.name.clone(),
            shards: self.node.shard_count(),
            limits: StreamLimits {
                message_bytes_max: narrow(self.message_bytes_max),
                items_max: narrow(ITEMS_MAX),
                introductions_max: narrow(INTRODUCTIONS_MAX),
                keys_max: self.node.keys_max,
            },
            policy_revision: self.node.policies.snapshot().revision(),
        };
        tracing::debug!(
            incarnation = hello.incarnation.get(),
            client = hello.client_name,
            version = hello.client_version,
            "a holder said hello"
        );
        let about = About {
            client_name: hello.client_name,
            client_version: hello.client_version,
            protocol,
            since: clock::now(),
        };
        Ok(Some((hello.incarnation, about, welcome)))
    }

    /// The next message; `None` once the holder has closed the stream.
    async fn next(&mut self) -> Result<Option<wire::ClientMessage>, Status> {
        let next = self
            .messages
            .message()
            .await
            .map_err(|status| self.unreadable(status))?;
        if let Some(message) = &next {
            self.metrics.messages_in.inc();
            self.metrics.bytes_in.inc_by(bytes(message));
        }
        Ok(next)
    }

    /// What the transport says of bytes that are no message of ours, in the words of the schema.
    fn unreadable(&self, status: Status) -> Status {
        let allowed = match status.code() {
            Code::OutOfRange => format!("at most {} bytes", self.message_bytes_max),
            Code::Internal => "an encoded quota.v1.ClientMessage".to_owned(),
            _ => return status,
        };
        Malformed::new("message", status.message(), allowed).into()
    }

    /// Passes the parts of a message to their shards, waiting for room.
    async fn pass_on(&self, parts: Vec<(ShardId, Part)>, items: usize) -> Result<(), Status> {
        let count = u32::try_from(items).expect("a message has few items");
        let room = Arc::clone(&self.node.items).acquire_many_owned(count).await;
        let mut room = room.map_err(|_| quota_wire::status::draining())?;
        for (shard, mut part) in parts {
            part.place = room.split(part.requests.len() + part.introductions.len());
            let event = Event::Part(Box::new(part));
            let Err(refused) = self.node.inbox(shard).send(event).await else {
                continue;
            };
            // The shard's task is gone. Its requests are answered, and the others go on.
            if let Event::Part(part) = refused.0 {
                turn_away(&self.outbox, part.number, &part.requests);
            }
        }
        Ok(())
    }
}

/// Tells every shard that the stream touched that it has ended, however it ended.
struct Leaving {
    node: Arc<Node>,
    incarnation: Incarnation,
    routes: Routes,
    _entered: crate::node::streams::Entered,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (node, incarnation) = (Arc::clone(&self.node), self.incarnation);
        let stream = self.routes.stream();
        let shards: Vec<ShardId> = self.routes.connected().collect();
        if shards.is_empty() {
            return;
        }
        let leave = async move {
            for shard in shards {
                // A shard that is gone has forgotten the stream.
                let _ = node
                    .inbox(shard)
                    .send(Event::Leave {
                        incarnation,
                        stream,
                    })
                    .await;
            }
        };
        // Outside a runtime everything is over anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(leave);
        }
    }
}

impl Replies {
    fn unpack(&mut self, parcel: Parcel) {
        let welcome = parcel.welcome.as_ref().map(stream::encode_welcome);
        let said = [
            parcel.answers.map(FromAuthority::Answers),
            parcel.policies.map(FromAuthority::Policies),
            parcel.go_away.map(FromAuthority::GoAway),
        ];
        self.ready.extend(welcome);
        for message in said.iter().flatten() {
            self.ready.extend(stream::encode_from_authority(message));
        }
    }
}

impl Stream for Replies {
    type Item = Result<wire::ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                self.metrics.messages_out.inc();
                self.metrics.bytes_out.inc_by(bytes(&message));
                return Poll::Ready(Some(Ok(message)));
            }
            match ready!(self.outbox.poll_parcel(context)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(parcel)) => self.unpack(parcel),
            }
        }
    }
}

/// How long a message is. Nearly free: its columns are packed numbers.
fn bytes(message: &impl prost::Message) -> u64 {
    u64::try_from(message.encoded_len()).expect("a message is short")
}

impl Drop for Replies {
    /// The transport drops it when the holder is gone.
    fn drop(&mut self) {
        self.outbox.end(None);
    }
}
