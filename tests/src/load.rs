//! Requests at a steady pace over real connections, counted by their answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::http::Connection;

/// Requests under way at a time from one load; one that waits holds up no other.
const CONNECTIONS: usize = 16;
/// How often requests that have become due are sent.
const BATCH_EVERY: Duration = Duration::from_millis(5);

/// What is asked, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The path, which is the route.
    pub path: String,
    /// The tenant. A `#` in it stands for a number that goes round below `keys`.
    pub tenant: String,
    /// The API key, with the same number for a `#`.
    pub api_key: String,
    /// How many API keys or tenants take turns.
    pub keys: u64,
    /// Requests a second.
    pub rate: u64,
}

/// Answers so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests sent.
    pub sent: AtomicU64,
    /// 200.
    pub admitted: AtomicU64,
    /// 429.
    pub exhausted: AtomicU64,
    /// 503.
    pub unavailable: AtomicU64,
    /// Any other answer.
    pub other: AtomicU64,
    /// No answer, because the gateway is gone.
    pub lost: AtomicU64,
}

impl Counts {
    /// Requests that were admitted so far.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    fn count(&self, status: Option<u16>) {
        let counter = match status {
            Some(200) => &self.admitted,
            Some(429) => &self.exhausted,
            Some(503) => &self.unavailable,
            Some(_) => &self.other,
            None => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A load that runs until it is stopped.
#[derive(Debug)]
pub struct Load {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    /// Where requests go; changes when a gateway is replaced.
    address: Arc<Mutex<SocketAddr>>,
    /// Requests a second from now on.
    rate: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Begins to send requests to a gateway.
    #[must_use]
    pub fn start(gateway: SocketAddr, plan: Plan) -> Self {
        let counts = Arc::new(Counts::default());
        let stop = Arc::new(AtomicBool::new(false));
        let address = Arc::new(Mutex::new(gateway));
        let due = Arc::new(Due::default());
        let mut tasks = JoinSet::new();
        let pace = Arc::clone(&due);
        let rate = Arc::new(AtomicU64::new(plan.rate));
        let (now, stopped) = (Arc::clone(&rate), Arc::clone(&stop));
        tasks.spawn(async move {
            pace.keep(&now, &stopped).await;
        });
        let plan = Arc::new(plan);
        for _ in 0..CONNECTIONS {
            let worker = Worker {
                plan: Arc::clone(&plan),
                counts: Arc::clone(&counts),
                stop: Arc::clone(&stop),
                address: Arc::clone(&address),
                due: Arc::clone(&due),
            };
            tasks.spawn(worker.run());
        }
        Self {
            counts,
            stop,
            address,
            rate,
            tasks,
        }
    }

    /// Requests a second from now on; none at zero. Whoever has it changes the pace.
    #[must_use]
    pub fn rate(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rate)
    }

    /// What was answered so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sends what comes from now on to another gateway.
    pub async fn redirect(&self, gateway: SocketAddr) {
        *self.address.lock().await = gateway;
    }

    /// Stops, waits for the last answers and returns all counts.
    ///
    /// # Errors
    /// If a worker panicked.
    pub async fn stop(mut self) -> anyhow::Result<Arc<Counts>> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a load worker failed")?;
        }
        Ok(self.counts)
    }

    /// Stops at once and returns all counts; requests under way stay without an answer.
    #[must_use]
    pub fn abandon(self) -> Arc<Counts> {
        self.counts
    }
}

/// Requests that are due and not yet sent.
#[derive(Debug, Default)]
struct Due {
    numbers: AtomicU64,
    taken: AtomicU64,
    wake: tokio::sync::Notify,
}

impl Due {
    /// Makes `rate` requests a second due. A machine that is late catches up, by a second's worth
    /// at most: one that cannot keep up is not to be buried.
    async fn keep(&self, rate: &AtomicU64, stop: &AtomicBool) {
        let mut ticks = interval(BATCH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let tick_micros = u64::try_from(BATCH_EVERY.as_micros()).unwrap_or(1);
        let mut owed = 0;
        while !stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            let rate = rate.load(Ordering::Relaxed);
            owed += tick_micros * rate;
            let waiting = self.numbers.load(Ordering::Relaxed) - self.taken.load(Ordering::Relaxed);
            if waiting <= rate {
                self.numbers.fetch_add(owed / 1_000_000, Ordering::Relaxed);
            }
            owed %= 1_000_000;
            self.wake.notify_waiters();
        }
        self.wake.notify_waiters();
    }

    /// The number of the next request that is due, if one is.
    fn take(&self) -> Option<u64> {
        let due = self.numbers.load(Ordering::Relaxed);
        let take = |taken: u64| (taken < due).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()
    }
}

struct Worker {
    plan: Arc<Plan>,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    address: Arc<Mutex<SocketAddr>>,
    due: Arc<Due>,
}

impl Worker {
    async fn run(self) {
        let mut connection: Option<(SocketAddr, Connection)> = None;
        loop {
            let woken = self.due.wake.notified();
            let Some(number) = self.due.take() else {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                woken.await;
                continue;
            };
            let address = *self.address.lock().await;
            connection = connection.filter(|(to, _)| *to == address);
            if connection.is_none() {
                connection = Connection::open(address)
                    .await
                    .ok()
                    .map(|open| (address, open));
            }
            self.counts.sent.fetch_add(1, Ordering::Relaxed);
            let status = match &mut connection {
                Some((_, open)) => self.ask(open, number).await,
                None => None,
            };
            if status.is_none() {
                connection = None;
            }
            self.counts.count(status);
        }
    }

    async fn ask(&self, connection: &mut Connection, number: u64) -> Option<u16> {
        let plan = &self.plan;
        let number = (number % plan.keys.max(1)).to_string();
        let key = plan.api_key.replace('#', &number);
        let tenant = plan.tenant.replace('#', &number);
        let headers = [("x-api-key", key.as_str()), ("x-tenant", tenant.as_str())];
        let answer = connection.get(&plan.path, &headers).await.ok()?;
        Some(answer.status)
    }
}
