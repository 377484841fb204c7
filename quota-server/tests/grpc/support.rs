//! A server on port 0 with a directory of its own, and the other ends of its streams.

use std::path::Path;
use std::time::Duration;

use quota_core::holder::HolderMessage;
use quota_core::id::{Incarnation, KeyNumber, LeaseId, MessageNumber, Sequence};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Grant, Introduction, LeaseRequest};
use quota_core::tokens::Tokens;
use quota_server::config::Config;
use quota_server::server::{RunningServer, Server};
use quota_wire::convert::common::encode_bucket;
use quota_wire::convert::handshake::{Hello, SPOKEN};
use quota_wire::convert::stream::{self, FromAuthority};
use quota_wire::proto as wire;
use quota_wire::proto::admin_client::AdminClient;
use quota_wire::proto::allocator_client::AllocatorClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longer than anything that works ever takes: a test that waits for this has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that has to happen.
pub(crate) async fn patiently<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it happens in time")
}

/// Asks again until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(mut ask: impl FnMut() -> F) {
    patiently(async {
        while !ask().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The settings of a server on port 0, with few shards.
pub(crate) fn config(dir: &Path, flags: &[&str]) -> Config {
    let dir = dir.to_str().expect("a readable path");
    let args = ["quota-server", "--data-dir", dir, "--shards", "4"];
    let ports = [
        "--grpc-listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
    ];
    let args = args.iter().chain(&ports).chain(flags);
    Config::load(args.map(Into::into), |_| None).expect("legal settings")
}

/// A server that is ready.
pub(crate) async fn start(dir: &Path) -> RunningServer {
    start_with(dir, &[]).await
}

/// A server with these flags that is ready.
pub(crate) async fn start_with(dir: &Path, flags: &[&str]) -> RunningServer {
    let server = Server::start(config(dir, flags)).await.expect("it starts");
    patiently(server.ready()).await;
    server
}

/// A connection.
pub(crate) async fn connect(server: &RunningServer) -> Channel {
    endpoint(server).connect().await.expect("it connects")
}

pub(crate) fn endpoint(server: &RunningServer) -> Endpoint {
    Endpoint::from_shared(format!("http://{}", server.grpc_addr)).expect("an address")
}

/// The administrator's end.
pub(crate) async fn admin(server: &RunningServer) -> AdminClient<Channel> {
    AdminClient::new(connect(server).await)
}

/// A single caller's end.
pub(crate) async fn caller(server: &RunningServer) -> AllocatorClient<Channel> {
    AllocatorClient::new(connect(server).await)
}

pub(crate) fn policy(name: &str) -> PolicyId {
    PolicyId {
        namespace: "default".into(),
        name: name.into(),
    }
}

pub(crate) fn bucket<V: AsRef<[u8]>>(name: &str, values: &[V]) -> BucketAddress {
    BucketAddress {
        policy: policy(name),
        key: Key::from_values(values).expect("legal"),
    }
}

/// A bucket as its authority sees it.
pub(crate) async fn inspect(
    server: &RunningServer,
    bucket: &BucketAddress,
) -> wire::InspectBucketResponse {
    let request = wire::InspectBucketRequest {
        bucket: Some(encode_bucket(bucket)),
    };
    admin(server)
        .await
        .inspect_bucket(request)
        .await
        .expect("it is served")
        .into_inner()
}

pub(crate) async fn stats(server: &RunningServer) -> wire::StatsResponse {
    admin(server)
        .await
        .stats(wire::StatsRequest {})
        .await
        .expect("it is served")
        .into_inner()
}

/// One line of the metrics, as its number.
pub(crate) fn metric(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no metric {name} in\n{text}"));
    line.rsplit(' ')
        .next()
        .expect("a number")
        .parse()
        .expect("a whole number")
}

/// What a path of the HTTP port says: the status and the whole response.
pub(crate) async fn http(server: &RunningServer, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(server.http_addr)
        .await
        .expect("it connects");
    let request = format!("GET {path} HTTP/1.1\r\nhost: q\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("it asks");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("it answers");
    let status = text
        .split(' ')
        .nth(1)
        .expect("a status line")
        .parse()
        .expect("a number");
    (status, text)
}

/// A holder's end of a stream, driven by hand.
pub(crate) struct Holder {
    pub(crate) incarnation: Incarnation,
    sender: mpsc::Sender<wire::ClientMessage>,
    replies: Streaming<wire::ServerMessage>,
    pub(crate) number: u64,
    answers: std::collections::VecDeque<(MessageNumber, Answer)>,
    introductions: Vec<Introduction>,
}

impl Holder {
    /// A stream on which nothing was said yet.
    pub(crate) async fn silent(channel: Channel, incarnation: u64) -> Self {
        let (sender, messages) = mpsc::channel(64);
        let mut client = AllocatorClient::new(channel);
        let replies = client
            .lease(ReceiverStream::new(messages))
            .await
            .expect("it opens");
        Self {
            incarnation: Incarnation::new(incarnation),
            sender,
            replies: replies.into_inner(),
            number: 0,
            answers: std::collections::VecDeque::new(),
            introductions: Vec::new(),
        }
    }

    /// A stream after its handshake.
    pub(crate) async fn connect(server: &RunningServer, incarnation: u64) -> Self {
        Self::greeted(connect(server).await, incarnation).await
    }

    pub(crate) async fn greeted(channel: Channel, incarnation: u64) -> Self {
        let mut holder = Self::silent(channel, incarnation).await;
        let hello = Hello {
            protocols: SPOKEN,
            incarnation: holder.incarnation,
            client_name: "test".into(),
            client_version: "0".into(),
        };
        holder.say(stream::encode_hello(&hello)).await;
        let welcome = holder.hear().await.expect("a welcome").expect("a welcome");
        stream::open_welcome(welcome).expect("a welcome first");
        holder
    }

    /// Sends any message. False if the server no longer listens.
    pub(crate) async fn say(&mut self, message: wire::ClientMessage) -> bool {
        patiently(self.sender.send(message)).await.is_ok()
    }

    /// What sends any message.
    pub(crate) fn sender(&self) -> mpsc::Sender<wire::ClientMessage> {
        self.sender.clone()
    }

    /// The next message; `None` at an orderly end.
    pub(crate) async fn hear(&mut self) -> Result<Option<wire::ServerMessage>, Status> {
        patiently(self.replies.message()).await
    }

    /// Reads to the end of the stream; how it ended.
    pub(crate) async fn end(&mut self) -> Result<(), Status> {
        loop {
            if self.hear().await?.is_none() {
                return Ok(());
            }
        }
    }

    /// Sends the next message with these items.
    pub(crate) async fn send(
        &mut self,
        mut introductions: Vec<Introduction>,
        requests: Vec<LeaseRequest>,
    ) {
        introductions.append(&mut self.introductions);
        self.number += 1;
        let number = MessageNumber::new(self.number);
        let message = HolderMessage {
            number,
            introductions,
            requests,
        };
        self.say(stream::encode_requests(&message)).await;
    }

    /// Introduces a bucket under a number, in the next message: a bucket that is introduced and
    /// not used may be forgotten again.
    pub(crate) fn introduce(&mut self, number: u32, bucket: BucketAddress) {
        self.introductions.push(introduction(number, bucket));
    }

    /// Asks and takes the next answer.
    pub(crate) async fn ask(&mut self, request: LeaseRequest) -> Answer {
        self.send(Vec::new(), vec![request]).await;
        self.answer().await.1
    }

    /// The next answer, with its anchor; anything else is skipped.
    pub(crate) async fn answer(&mut self) -> (MessageNumber, Answer) {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return answer;
            }
            let message = self
                .hear()
                .await
                .expect("the stream is open")
                .expect("it goes on");
            let message = stream::decode_from_authority(message).expect("a legal message");
            if let FromAuthority::Answers(message) = message {
                let anchor = message.anchor;
                self.answers
                    .extend(message.answers.into_iter().map(|answer| (anchor, answer)));
            }
        }
    }

    /// The next message that is not about leases.
    pub(crate) async fn notice(&mut self) -> FromAuthority {
        loop {
            let message = self
                .hear()
                .await
                .expect("the stream is open")
                .expect("it goes on");
            match stream::decode_from_authority(message).expect("a legal message") {
                FromAuthority::Answers(_) => {}
                other => return other,
            }
        }
    }

    /// Closes this side.
    pub(crate) async fn close(self) -> Result<(), Status> {
        let Self {
            sender,
            mut replies,
            ..
        } = self;
        drop(sender);
        while patiently(replies.message()).await?.is_some() {}
        Ok(())
    }
}

pub(crate) fn introduction(number: u32, bucket: BucketAddress) -> Introduction {
    Introduction {
        number: KeyNumber::new(number),
        bucket,
    }
}

/// A request for tokens, without a lease.
pub(crate) fn want(key: u32, sequence: u64, tokens: u64) -> LeaseRequest {
    LeaseRequest {
        key: KeyNumber::new(key),
        sequence: Sequence::new(sequence),
        lease: None,
        spent: Tokens::ZERO,
        returned: Tokens::ZERO,
        want: Tokens::new(tokens),
        least: Tokens::new(tokens.min(1)),
        demand: 1,
        release: false,
    }
}

/// The same for a lease that is held, with its report.
pub(crate) fn renew(
    request: LeaseRequest,
    lease: LeaseId,
    spent: u64,
    returned: u64,
) -> LeaseRequest {
    LeaseRequest {
        lease: Some(lease),
        spent: Tokens::new(spent),
        returned: Tokens::new(returned),
        ..request
    }
}

/// The grant of an answer that must have one.
pub(crate) fn granted(answer: &Answer) -> Grant {
    answer
        .grant
        .unwrap_or_else(|| panic!("a grant in {answer:?}"))
}

/// The detail that every error of ours carries.
pub(crate) fn detail(status: &Status) -> wire::ErrorDetail {
    quota_wire::status::detail(status).unwrap_or_else(|| panic!("a detail in {status:?}"))
}
