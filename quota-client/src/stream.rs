//! One connection to an authority after another.
//!
//! Attempts go through the seeds in turn and never end; pauses between them grow and are jittered,
//! so that a fleet does not come back all at once. What travels on the stream is none of this
//! module's business.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quota_core::holder::{INTRODUCTIONS_MAX, REQUESTS_MAX};
use quota_core::id::Incarnation;
use quota_core::time::Timestamp;
use quota_wire::convert::handshake::{Hello, SPOKEN, StreamLimits, Welcome, decode_welcome};
use quota_wire::convert::stream::{encode_hello, open_welcome};
use quota_wire::limits::MESSAGE_BYTES_MAX;
use quota_wire::proto as wire;
use quota_wire::proto::allocator_client::AllocatorClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::clock;
use crate::config::{Config, ConfigError};
use crate::policies;
use crate::shared::Shared;

/// Messages on their way to the transport; more wait in the holder machine, which merges them.
const OUTBOX: usize = 8;
const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// Why an attempt to connect failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("no connection")]
    Connect(#[from] tonic::transport::Error),
    #[error("the authority refused the stream: {0}")]
    Refused(#[from] Status),
    #[error("the authority ended the stream before its welcome")]
    Ended,
    #[error("the authority's welcome makes no sense")]
    Malformed(#[from] quota_wire::Malformed),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error(
        "the authority takes {0:?} on a stream, which is less than one of this client's messages"
    )]
    Limits(StreamLimits),
}

/// A stream that is up.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) seed: String,
    pub(crate) welcome: Welcome,
    pub(crate) outbox: mpsc::Sender<wire::ClientMessage>,
    pub(crate) inbox: Streaming<wire::ServerMessage>,
    channel: Channel,
    watcher: Option<JoinHandle<()>>,
}

impl Up {
    /// Follows the policies on this connection for as long as it lasts.
    pub(crate) fn watch_policies(&mut self, shared: &Arc<Shared>) {
        let watching = policies::watch(Arc::clone(shared), self.channel.clone());
        self.watcher = Some(tokio::spawn(watching));
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Up, OpenError>> + Send>>;

enum Stage {
    Pausing { until: Timestamp },
    Opening { seed: String, opening: Opening },
    Up(Box<Up>),
}

/// What came of waiting on the connection.
#[derive(Debug)]
pub(crate) enum News {
    /// The stream is up; see [`Connection::up`].
    Up,
    /// An attempt failed; another follows.
    Failed { seed: String, error: OpenError },
    /// The authority said something.
    Message(Box<wire::ServerMessage>),
    /// The stream has ended, for this reason if there was one.
    Ended(Option<Status>),
}

pub(crate) struct Connection {
    endpoints: Vec<(String, Endpoint)>,
    next: usize,
    failures: u32,
    random: u64,
    hello: Hello,
    attempt_timeout: Duration,
    backoff_max: Duration,
    stage: Stage,
}

impl Connection {
    pub(crate) fn new(
        config: &Config,
        incarnation: Incarnation,
        random: u64,
    ) -> Result<Self, ConfigError> {
        let endpoint = |seed: &String| {
            let endpoint =
                Endpoint::from_shared(seed.clone()).map_err(|source| ConfigError::Seed {
                    seed: seed.clone(),
                    source,
                })?;
            let endpoint = endpoint
                .connect_timeout(config.attempt_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(config.silence_max / 3)
                .keep_alive_timeout(config.silence_max * 2 / 3)
                .keep_alive_while_idle(true);
            Ok((seed.clone(), endpoint))
        };
        let endpoints = config
            .seeds
            .iter()
            .map(endpoint)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            next: usize::try_from(random % endpoints.len() as u64).unwrap_or(0),
            endpoints,
            failures: 0,
            random,
            hello: Hello {
                protocols: SPOKEN,
                incarnation,
                client_name: config.client_name.clone(),
                client_version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            attempt_timeout: config.attempt_timeout,
            backoff_max: config.backoff_max,
            stage: Stage::Pausing {
                until: Timestamp::ZERO,
            },
        })
    }

    pub(crate) fn up(&mut self) -> Option<&mut Up> {
        match &mut self.stage {
            Stage::Up(up) => Some(up),
            _ => None,
        }
    }

    /// How many keys may be introduced on the present stream before another should be opened, with
    /// room for the message that is under way.
    pub(crate) fn keys_max(&mut self) -> u64 {
        let keys_max = self.up().map_or(u32::MAX, |up| up.welcome.limits.keys_max);
        u64::from(keys_max).saturating_sub(INTRODUCTIONS_MAX as u64)
    }

    /// The authority has answered. Only now is the next failure the first of its row: one that
    /// welcomes and then ends every stream would else be called as fast as it hangs up.
    pub(crate) fn proved(&mut self) {
        self.failures = 0;
    }

    /// Gives the stream up, if there is one, and connects again after a short pause, to the next
    /// seed.
    pub(crate) fn drop_stream(&mut self) {
        self.pause();
    }

    /// Waits until there is news. May be dropped and called again at any time.
    pub(crate) async fn news(&mut self) -> News {
        loop {
            match &mut self.stage {
                Stage::Pausing { until } => {
                    let left = until.since(clock::now());
                    tokio::time::sleep(clock::duration(left)).await;
                    let (seed, endpoint) = self.endpoints[self.next].clone();
                    self.next = (self.next + 1) % self.endpoints.len();
                    let opening = open(seed.clone(), endpoint, self.hello.clone());
                    let opening = within(self.attempt_timeout, opening);
                    self.stage = Stage::Opening {
                        seed,
                        opening: Box::pin(opening),
                    };
                }
                Stage::Opening { seed, opening } => match opening.await {
                    Ok(up) => {
                        self.stage = Stage::Up(Box::new(up));
                        return News::Up;
                    }
                    Err(error) => {
                        let seed = std::mem::take(seed);
                        self.pause();
                        return News::Failed { seed, error };
                    }
                },
                Stage::Up(up) => {
                    let status = match up.inbox.message().await {
                        Ok(Some(message)) => return News::Message(Box::new(message)),
                        Ok(None) => None,
                        Err(status) => Some(status),
                    };
                    self.pause();
                    return News::Ended(status);
                }
            }
        }
    }

    fn pause(&mut self) {
        let ceiling = BACKOFF_FIRST
            .saturating_mul(1 << self.failures.min(20))
            .min(self.backoff_max);
        self.failures = self.failures.saturating_add(1);
        let half = ceiling / 2;
        let share = u32::try_from(self.draw() % 1_024).expect("ten bits");
        let jitter = half * share / 1_024;
        self.stage = Stage::Pausing {
            until: clock::now() + clock::term(half + jitter),
        };
    }

    /// A pseudo-random number (splitmix64); it only has to differ between clients.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

async fn within(
    limit: Duration,
    opening: impl Future<Output = Result<Up, OpenError>>,
) -> Result<Up, OpenError> {
    let outcome = tokio::time::timeout(limit, opening).await;
    outcome.unwrap_or(Err(OpenError::Timeout(limit)))
}

fn takes_full_messages(limits: &StreamLimits) -> bool {
    let least = |limit: u32, needed: usize| usize::try_from(limit).is_ok_and(|l| l >= needed);
    least(limits.items_max, REQUESTS_MAX)
        && least(limits.introductions_max, INTRODUCTIONS_MAX)
        && least(limits.keys_max, 4 * INTRODUCTIONS_MAX)
}

async fn open(seed: String, endpoint: Endpoint, hello: Hello) -> Result<Up, OpenError> {
    let channel = endpoint.connect().await?;
    let mut client =
        AllocatorClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (outbox, messages) = mpsc::channel(OUTBOX);
    // An empty channel of more than one place takes one message.
    let _sent = outbox.try_send(encode_hello(&hello)).is_ok();
    let mut inbox = client
        .lease(ReceiverStream::new(messages))
        .await?
        .into_inner();
    let first = inbox.message().await?.ok_or(OpenError::Ended)?;
    let welcome = decode_welcome(open_welcome(first)?, SPOKEN)?;
    if !takes_full_messages(&welcome.limits) {
        return Err(OpenError::Limits(welcome.limits));
    }
    Ok(Up {
        seed,
        welcome,
        outbox,
        inbox,
        channel,
        watcher: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(backoff_max: Duration) -> Connection {
        let mut config = Config::new(["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        config.backoff_max = backoff_max;
        Connection::new(&config, Incarnation::new(1), 7).expect("good seeds")
    }

    #[test]
    fn pauses_grow_to_their_longest_and_are_jittered() {
        let longest = Duration::from_secs(5);
        let mut connection = connection(longest);
        let mut pauses = Vec::new();
        for _ in 0..100 {
            let before = clock::now();
            connection.pause();
            let Stage::Pausing { until } = connection.stage else {
                panic!("it pauses")
            };
            pauses.push(clock::duration(until.since(before)));
        }
        // A little is added by the time that the call itself takes.
        let slack = Duration::from_millis(500);
        assert!(pauses[0] >= BACKOFF_FIRST / 2 && pauses[0] <= BACKOFF_FIRST + slack);
        for pause in &pauses[20..] {
            assert!((longest / 2..=longest + slack).contains(pause), "{pause:?}");
        }
        pauses[20..].sort_unstable();
        pauses.dedup();
        assert!(pauses.len() > 90, "hardly any two are alike");
    }

    #[test]
    fn a_seed_that_is_no_address_is_refused() {
        let config = Config::new(["not an address"]);
        let refused = Connection::new(&config, Incarnation::new(1), 7).map(|_| ());
        assert!(matches!(refused, Err(ConfigError::Seed { .. })));
    }

    #[test]
    fn limits_below_one_message_are_refused() {
        let good = StreamLimits::default();
        assert!(takes_full_messages(&good));
        assert!(!takes_full_messages(&StreamLimits {
            items_max: 10,
            ..good
        }));
        assert!(!takes_full_messages(&StreamLimits {
            keys_max: 10,
            ..good
        }));
    }
}
