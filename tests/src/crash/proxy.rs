//! A loopback proxy between a gateway and the server that delays, holds, cuts and duplicates.
//!
//! # What a duplicate is
//!
//! Bytes that come twice within one connection are noise to HTTP/2: it ends the connection, and
//! nothing of the protocol above is tested. What networks and proxies really do is to carry the
//! same bytes over a *second connection*, so a duplicate here is one that replays everything a
//! client ever sent on a connection, from its preface on. To the server that is a whole second
//! stream of the same client: the same incarnation, message numbers, sequence numbers and
//! reports. It comes in two forms: a *mirror* follows a living connection and carries each byte
//! again as the original comes, sometimes sooner; an *echo* replays a connection that has ended,
//! after the client has long moved on to another. What the server answers is read and thrown
//! away. And when a connection is cut, one *side* of it may go on living: bytes under way still
//! arrive while the client has reconnected, or the client goes on talking to nobody.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::moment;

/// Most bytes of a connection that are kept for a replay; a longer one is not replayed.
const RECORD_MAX: usize = 4 << 20;
/// Connections that are remembered for a replay.
const RECORDS: usize = 6;
/// Pieces under way in one direction; beyond it the sender has to wait, as on a real network.
const UNDER_WAY: usize = 256;
/// A replay that was answered with more than the handshake of HTTP/2.
const ANSWERED_BYTES: usize = 200;

/// What the path is like.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// How long each piece takes: to the server, and back.
    pub(super) delay: [Duration; 2],
    /// Whether pieces are held back until the weather changes.
    pub(super) held: [bool; 2],
    /// Whether each piece arrives in crumbs.
    pub(super) crumbs: bool,
}

/// How a connection ends by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Both sides learn of it.
    Both,
    /// The client learns of it at once; for this long the server does not, and still gets what
    /// was under way.
    Client(Duration),
    /// The server learns of it at once, the client after this long.
    Server(Duration),
}

/// A proxy for one gateway.
#[derive(Debug)]
pub(super) struct Proxy {
    /// Where it listens.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    accept: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    weather: watch::Sender<Weather>,
    links: Mutex<Vec<Link>>,
    /// Spells of weather so far.
    spells: AtomicU64,
    replays: AtomicU64,
    answered: AtomicU64,
}

/// One connection, living or remembered.
#[derive(Debug)]
struct Link {
    end: watch::Sender<Option<Cut>>,
    record: watch::Receiver<Record>,
}

/// Everything that a client sent.
#[derive(Clone, Debug, Default)]
struct Record {
    bytes: Arc<Mutex<Vec<u8>>>,
    length: usize,
}

impl Proxy {
    /// Listens on a free port.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(None),
            weather: watch::Sender::new(Weather::default()),
            links: Mutex::default(),
            spells: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        let accept = tokio::spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                links.spawn(link(Arc::clone(&accepting), client));
                while links.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            shared,
            accept,
        })
    }

    /// Where connections lead from now on. With `None` they end at once: a port of a server that
    /// is gone may soon be someone else's.
    pub(super) fn lead_to(&self, target: Option<SocketAddr>) {
        *lock(&self.shared.target) = target;
    }

    /// Makes the weather worse for a while. It clears up when the latest spell ends.
    pub(super) fn spell(&self, lasting: Duration, change: impl FnOnce(&mut Weather)) {
        let number = self.shared.spells.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.weather.send_modify(change);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            moment::pass(lasting).await;
            if shared.spells.load(Ordering::Relaxed) == number {
                shared.weather.send_replace(Weather::default());
            }
        });
    }

    /// Fair weather.
    pub(super) fn heal(&self) {
        self.shared.spells.fetch_add(1, Ordering::Relaxed);
        self.shared.weather.send_replace(Weather::default());
    }

    /// Cuts all connections. Returns how many.
    pub(super) fn cut(&self, how: Cut) -> u64 {
        let mut count = 0;
        for link in lock(&self.shared.links).iter() {
            let living = link.end.receiver_count() > 0 && link.end.borrow().is_none();
            if living {
                link.end.send_replace(Some(how));
                count += 1;
            }
        }
        count
    }

    /// Duplicates all connections that live (`living`), or those that have ended, for this long.
    pub(super) fn replay(&self, living: bool, lasting: Duration) {
        for link in lock(&self.shared.links).iter() {
            if (link.end.receiver_count() > 0) == living {
                let shared = Arc::clone(&self.shared);
                tokio::spawn(replay(shared, link.record.clone(), lasting));
            }
        }
    }

    /// Duplicate connections so far, and how many of them the server answered as it would a
    /// client.
    pub(super) fn replays(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.shared.replays), read(&self.shared.answered))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// Carries one connection until it ends.
async fn link(shared: Arc<Shared>, client: TcpStream) {
    let Some(target) = *lock(&shared.target) else {
        return;
    };
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (record, kept) = watch::channel(Record::default());
    let end = watch::Sender::new(None);
    let mut ended = end.subscribe();
    {
        let mut links = lock(&shared.links);
        links.push(Link { end, record: kept });
        let surplus = links.len().saturating_sub(RECORDS);
        links.drain(..surplus);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut tasks = JoinSet::new();
    let mut carry = |way, from, to, record| {
        let (queue, queued) = mpsc::channel(UNDER_WAY);
        let reading = tasks.spawn(read(from, queue, shared.weather.subscribe(), way, record));
        let lasts = ended.clone();
        let writing = tasks.spawn(write(to, queued, shared.weather.subscribe(), way, lasts));
        (reading, writing)
    };
    let (read_client, write_server) = carry(0, from_client, to_server, Some(record));
    let (read_server, write_client) = carry(1, from_server, to_client, None);
    let over = tokio::select! {
        cut = ended.wait_for(Option::is_some) => cut.ok().and_then(|cut| *cut),
        // Whoever closes ends all, once what it had sent is delivered.
        _ = tasks.join_next() => None,
    };
    let leave = |side: [AbortHandle; 2]| side.iter().for_each(AbortHandle::abort);
    match over {
        Some(Cut::Client(lives)) => {
            leave([read_client, write_client]);
            moment::pass(lives).await;
        }
        Some(Cut::Server(lives)) => {
            leave([read_server, write_server]);
            moment::pass(lives).await;
        }
        Some(Cut::Both) => {}
        // The other side gets the rest of what was under way, if it takes it soon.
        None => {
            let rest = tasks.join_next();
            let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
        }
    }
}

/// Reads pieces until the end, and then ends the queue. If nobody takes them any more, they are
/// lost.
async fn read(
    mut from: OwnedReadHalf,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    weather: watch::Receiver<Weather>,
    way: usize,
    record: Option<watch::Sender<Record>>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if let Some(record) = &record {
            record.send_modify(|record| {
                let mut bytes = lock(&record.bytes);
                bytes.extend_from_slice(&buffer[..count]);
                record.length = bytes.len();
                if record.length > RECORD_MAX {
                    bytes.clear();
                }
            });
        }
        let due = Instant::now() + weather.borrow().delay[way];
        let _ = queue.send((due, buffer[..count].to_vec())).await;
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut queued: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut weather: watch::Receiver<Weather>,
    way: usize,
    ended: watch::Receiver<Option<Cut>>,
) {
    while let Some((due, piece)) = queued.recv().await {
        sleep_until(due).await;
        let Ok(now) = weather
            .wait_for(|weather| !weather.held[way])
            .await
            .map(|now| *now)
        else {
            return;
        };
        let crumb = if now.crumbs { 7 } else { piece.len() };
        for part in piece.chunks(crumb) {
            if to.write_all(part).await.is_err() {
                return;
            }
            if now.crumbs {
                tokio::task::yield_now().await;
            }
        }
    }
    // The other side was cut off; this one is not to learn of it yet.
    if ended.borrow().is_some() {
        std::future::pending::<()>().await;
    }
}

/// A second connection with the bytes of the first, as far as they have come and as they come.
async fn replay(shared: Arc<Shared>, mut record: watch::Receiver<Record>, lasting: Duration) {
    let target = *lock(&shared.target);
    let Some(target) = target else { return };
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    shared.replays.fetch_add(1, Ordering::Relaxed);
    let (mut from, mut to) = server.into_split();
    let mut heard = 0;
    let listen = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            heard += count;
        }
    };
    let speak = async {
        let mut sent = 0;
        loop {
            let more = {
                let record = record.borrow_and_update();
                if record.length > RECORD_MAX {
                    return;
                }
                let bytes = lock(&record.bytes);
                bytes.get(sent..).unwrap_or_default().to_vec()
            };
            sent += more.len();
            if to.write_all(&more).await.is_err() || record.changed().await.is_err() {
                break;
            }
        }
        // A client that said everything and waits.
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! { () = listen => {}, () = speak => {} }
    };
    let _ = tokio::time::timeout(lasting, both).await;
    if heard > ANSWERED_BYTES {
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
