//! The task of one shard: it claims the shard, drives its authority, and claims again when a
//! tenure is over.
//!
//! A wake-up takes everything that waits, then reads the clock once, then decides, so that a pause
//! between the reading and the sending of an answer is harmless. A tenure ends when a write fails
//! or its outcome is unknown, when the shard was claimed by someone else, or when the clocks show
//! that this machine stood still. Then nothing more is granted, every stream that touched the
//! shard ends, and the shard is claimed anew, in a new epoch. Meanwhile requests are answered busy.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use quota_core::authority::{Authority, AuthorityConfig, StreamId, WriteId};
use quota_core::id::{MessageNumber, ShardId};
use quota_core::key::BucketAddress;
use quota_core::message::{Answer, LeaseRequest, Refusal, Status as Outcome};
use quota_core::record::Reservation;
use quota_core::time::{DriftAllowance, Term, Timestamp};
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::event::{Applied, Event, Part};
use super::outbox::Outbox;
use super::policies::PolicySnapshot;
use super::readiness::{Readiness, ShardState};
use super::tenure::Tenure;
use super::totals::Totals;
use crate::clock::{self, JumpDetector};
use crate::metrics::Metrics;
use crate::random;
use crate::store::handle::StoreHandle;
use crate::store::{Claim, StoreError, WriteError};

/// Most events of one wake-up: enough to share a clock reading among many, few enough that the
/// oldest of them is not decided late.
const BATCH_MAX: usize = 256;
/// First and longest pause between two attempts to claim.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long holders are told to wait while the shard is not served.
const DOWN_RETRY: Term = Term::from_seconds(1);
/// The timer is not set further ahead than this, so that a machine that stood still is noticed
/// when it goes on.
const SLEEP_MAX: Term = Term::from_seconds(1);

/// What all shards of a node are set up with.
#[derive(Debug)]
pub(crate) struct ShardSetup {
    pub(crate) store: StoreHandle,
    pub(crate) policies: watch::Receiver<Arc<PolicySnapshot>>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set to true when the shard is to be handed over.
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) drift: DriftAllowance,
    /// A forward jump of the wall clock beyond this ends tenures.
    pub(crate) jump_margin: Term,
    pub(crate) buckets_max: u32,
}

/// The task of one shard.
pub(crate) struct ShardTask {
    shard: ShardId,
    setup: Arc<ShardSetup>,
    inbox: mpsc::Receiver<Event>,
    stop: watch::Receiver<bool>,
    events: Vec<Event>,
    /// Changes of policies that came while a tenure was being built: they may be later than what
    /// it begins with. The policy task waits for the answer to one change before it makes the
    /// next, so this holds few of them, and at most one word for each policy that is forgotten.
    changes: Vec<Event>,
    /// Streams that came while the shard was not served: they know nothing of the next tenure and
    /// end when it begins.
    turned_away: HashMap<StreamId, Arc<Outbox>>,
    totals: Totals,
}

/// How a tenure ended.
enum End {
    /// The server stops.
    Stopped,
    /// It has to be begun anew.
    Lost(String),
}

type InFlight<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Writing = InFlight<(WriteId, Result<(), WriteError>)>;
type Load = (Claim, Vec<(BucketAddress, Reservation)>);

impl ShardTask {
    pub(crate) fn new(
        shard: ShardId,
        setup: Arc<ShardSetup>,
        inbox: mpsc::Receiver<Event>,
    ) -> Self {
        let stop = setup.stop.clone();
        Self {
            shard,
            setup,
            inbox,
            stop,
            events: Vec::with_capacity(BATCH_MAX),
            changes: Vec::new(),
            turned_away: HashMap::new(),
            totals: Totals::default(),
        }
    }

    /// Runs until the server stops.
    pub(crate) async fn run(mut self) {
        let _watchdog = Watchdog {
            shard: self.shard,
            readiness: Arc::clone(&self.setup.readiness),
        };
        let end = loop {
            let tenure = match self.begin().await {
                Ok(tenure) => tenure,
                Err(end) => break end,
            };
            let (shard, epoch) = (self.shard.get(), tenure.epoch().get());
            match self.serve(tenure).await {
                End::Stopped => break ShardState::Stopped,
                End::Lost(why) => {
                    tracing::warn!(
                        shard,
                        epoch,
                        why,
                        "the tenure is over; claiming the shard anew"
                    );
                    self.setup.metrics.claims_lost.inc();
                    self.down(why);
                }
            }
        };
        self.setup.readiness.set(self.shard, end);
        self.turn_out();
    }

    /// Ends every stream and call that came too late to be served.
    fn turn_out(&mut self) {
        self.inbox.close();
        while let Ok(event) = self.inbox.try_recv() {
            self.turn_away(event);
        }
        for (_, outbox) in self.turned_away.drain() {
            outbox.end(Some(quota_wire::status::draining()));
        }
    }

    fn down(&self, why: String) {
        self.setup
            .readiness
            .set(self.shard, ShardState::Down { why });
    }

    /// Claims and loads the shard, as often as it takes. An error is how the task ends: the server
    /// stops, or no tenure can be built.
    async fn begin(&mut self) -> Result<Tenure, ShardState> {
        let mut pause = PAUSE_MIN;
        while !*self.stop.borrow() {
            // Once begun, an attempt is seen through, also when the server is told to stop: it
            // may have consumed a hand-over, which then has to be written again.
            let attempt = load(self.setup.store.clone(), self.shard);
            match self.meanwhile(Box::pin(attempt)).await {
                Ok((claim, records)) => return self.build(claim, records).await,
                Err(error) => {
                    let why = error.to_string();
                    tracing::error!(shard = self.shard.get(), why, "cannot take the shard over");
                    self.down(why);
                }
            }
            let mut stop = self.stop.clone();
            let wait = async move {
                // An error is a sender that is gone: the server stops.
                let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
            };
            self.meanwhile(Box::pin(wait)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(ShardState::Stopped)
    }

    /// Waits for the tenure that is being built, keeping the changes of policies for it and turning
    /// away everything else.
    async fn until_built<T>(&mut self, mut step: InFlight<T>) -> T {
        loop {
            tokio::select! {
                biased;
                done = &mut step => return done,
                Some(event) = self.inbox.recv() => match event {
                    change @ (Event::Apply { .. } | Event::Forget { .. }) => {
                        self.changes.push(change);
                    }
                    event => self.turn_away(event),
                },
            }
        }
    }

    /// Waits for `step`, turning away whatever comes in meanwhile.
    async fn meanwhile<T>(&mut self, mut step: InFlight<T>) -> T {
        loop {
            tokio::select! {
                biased;
                done = &mut step => return done,
                Some(event) = self.inbox.recv() => self.turn_away(event),
            }
        }
    }

    /// Answers an event while the shard is not served.
    fn turn_away(&mut self, event: Event) {
        match event {
            Event::Part(part) => {
                let Part {
                    stream,
                    connect,
                    number,
                    requests,
                    ..
                } = *part;
                if let Some(outbox) = connect {
                    self.turned_away.insert(stream, outbox);
                }
                let Some(outbox) = self.turned_away.get(&stream) else {
                    return;
                };
                turn_away(outbox, number, &requests);
            }
            Event::Leave { stream, .. } => {
                self.turned_away.remove(&stream);
            }
            // No grant follows an older version: the next tenure begins with the newest.
            Event::Apply { applied, .. } => drop(applied.send(Applied::default())),
            // Dropping the reply says so; the next tenure begins without a forgotten policy.
            Event::Forget { .. }
            | Event::Inspect { .. }
            | Event::Preview { .. }
            | Event::Top { .. }
            | Event::Holdings { .. }
            | Event::Report { .. } => {}
        }
    }

    /// Builds the authority of a new tenure. An error is how the task ends.
    async fn build(
        &mut self,
        claim: Claim,
        records: Vec<(BucketAddress, Reservation)>,
    ) -> Result<Tenure, ShardState> {
        let (shard, epoch) = (self.shard, claim.epoch);
        let exact = claim.hand_over.is_some();
        let read = records.len();
        let setup = Arc::clone(&self.setup);
        let settled = claim.tenures_before == 0;
        // Taken after the claim, and before any further event is: what was turned away is in it,
        // and what is stored later comes as an event that is kept.
        let snapshot = Arc::clone(&self.setup.policies.borrow());
        let revision = snapshot.revision();
        // A large shard takes a while: not on the threads that serve the others.
        let built =
            tokio::task::spawn_blocking(move || authority(&setup, &snapshot, claim, records));
        let built = self.until_built(Box::pin(built)).await;
        let changes = std::mem::take(&mut self.changes);
        // An error means that the runtime is going down, or a bug, which has been reported.
        let authority = match built {
            Ok(built) => built,
            Err(error) => {
                for change in changes {
                    self.turn_away(change);
                }
                let why = format!("building it failed: {error}; restart the server");
                return Err(ShardState::Down { why });
            }
        };
        let metrics = Arc::clone(&self.setup.metrics);
        let mut tenure = Tenure::new(shard, epoch, authority, revision, settled, metrics);
        // Before it serves: no grant follows what was replaced meanwhile.
        self.events.extend(changes);
        tenure.wake_up(clock::now(), None, &mut self.events, &self.totals);
        self.setup.metrics.claims.inc();
        for (_, outbox) in self.turned_away.drain() {
            outbox.end(Some(restarted(shard)));
        }
        tracing::debug!(
            shard = shard.get(),
            epoch = epoch.get(),
            records = read,
            exact,
            "the shard is served"
        );
        self.setup.readiness.set(shard, ShardState::Serving);
        Ok(tenure)
    }

    /// Drives the authority until the tenure is over.
    async fn serve(&mut self, mut tenure: Tenure) -> End {
        let mut write = self.start_write(&mut tenure);
        let mut settle: Option<InFlight<Result<(), WriteError>>> = None;
        let mut jumps = JumpDetector::new(self.setup.jump_margin);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let why = loop {
            let mut written = None;
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    self.end(tenure, write, jumps).await;
                    return End::Stopped;
                }
                (id, outcome) = in_flight(&mut write) => match outcome {
                    Ok(()) => written = Some(id),
                    Err(error) => break error.to_string(),
                },
                outcome = in_flight(&mut settle) => match outcome {
                    Ok(()) => tenure.mark_settled(),
                    Err(error @ WriteError::Fenced { .. }) => break error.to_string(),
                    // The old exposure is counted once more, no harm done.
                    Err(error) => tracing::warn!(
                        shard = self.shard.get(), %error, "the shard was not marked as settled"
                    ),
                },
                count = self.inbox.recv_many(&mut self.events, BATCH_MAX) => if count == 0 {
                    return End::Stopped;
                },
                () = &mut timer => {}
            }
            self.fill_batch();
            let (now, wall) = clock::both();
            if let Some(jump) = jumps.observe(now, wall) {
                break stood_still(jump);
            }
            tenure.wake_up(now, written, &mut self.events, &self.totals);
            if let Some(started) = self.start_write(&mut tenure) {
                write = Some(started);
            }
            if tenure.take_settle() {
                let (store, shard, epoch) = (self.setup.store.clone(), self.shard, tenure.epoch());
                settle = Some(Box::pin(async move { store.settle(shard, epoch).await }));
            }
            let sleep = sleep_from(now, tenure.next_deadline());
            timer.as_mut().reset(tokio::time::Instant::now() + sleep);
        };
        tenure.add_to(&mut self.totals);
        tenure.end_streams(&restarted(self.shard));
        for event in std::mem::take(&mut self.events) {
            self.turn_away(event);
        }
        End::Lost(why)
    }

    /// Starts the write that the tenure decided on, if it did.
    fn start_write(&self, tenure: &mut Tenure) -> Option<Writing> {
        let (id, batch) = tenure.take_write()?;
        let store = self.setup.store.clone();
        Some(Box::pin(async move { (id, store.write(batch).await) }))
    }

    /// Adds to the batch what came in since.
    fn fill_batch(&mut self) {
        while self.events.len() < BATCH_MAX {
            match self.inbox.try_recv() {
                Ok(event) => self.events.push(event),
                Err(_) => break,
            }
        }
    }

    /// Ends the tenure with an exact hand-over. If that is not possible the next owner starts as
    /// after a crash.
    async fn end(
        &mut self,
        mut tenure: Tenure,
        mut write: Option<Writing>,
        mut jumps: JumpDetector,
    ) {
        let (shard, epoch) = (self.shard, tenure.epoch());
        let failed = |why: &str| {
            tracing::warn!(
                shard = shard.get(),
                why,
                "the shard was not handed over and starts as after a crash"
            );
        };
        // A write in flight decides what may still be granted, so it has to end first.
        while let Some(in_flight) = write.take() {
            let (id, outcome) = in_flight.await;
            if let Err(error) = outcome {
                tenure.end_streams(&quota_wire::status::draining());
                return failed(&error.to_string());
            }
            tenure.wake_up(clock::now(), Some(id), &mut Vec::new(), &self.totals);
            write = self.start_write(&mut tenure);
        }
        tenure.end_streams(&quota_wire::status::draining());
        let (now, wall) = clock::both();
        if let Some(jump) = jumps.observe(now, wall) {
            return failed(&stood_still(jump));
        }
        let rows = tenure.hand_over(now);
        if let Err(error) = self.setup.store.hand_over(shard, epoch, rows).await {
            failed(&error.to_string());
        }
    }
}

/// Answers requests of a shard that is not served: busy. Nothing of them waits.
pub(crate) fn turn_away(outbox: &Outbox, number: MessageNumber, requests: &[LeaseRequest]) {
    let busy = requests.iter().map(|request| Answer {
        key: request.key,
        sequence: request.sequence,
        grant: None,
        status: Outcome::Refused(Refusal::Busy {
            retry_after: DOWN_RETRY,
        }),
    });
    let mut busy: Vec<Answer> = busy.collect();
    if !busy.is_empty() {
        // An outbox that is over has ended its stream already.
        let _ = outbox.push(number, &mut busy);
    }
}

/// Says so if the shard's task panics, which is a bug. The other shards go on; this one's leases
/// end by themselves, and a restart claims it anew.
struct Watchdog {
    shard: ShardId,
    readiness: Arc<Readiness>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "its task has panicked, which is a bug: restart the server".to_owned();
            self.readiness.set(self.shard, ShardState::Down { why });
        }
    }
}

async fn load(store: StoreHandle, shard: ShardId) -> Result<Load, StoreError> {
    let claim = store.claim(shard).await?;
    let records = store.load(shard).await?;
    Ok((claim, records))
}

/// The authority of a new tenure, which begins with the policies of `snapshot`.
fn authority(
    setup: &ShardSetup,
    snapshot: &PolicySnapshot,
    claim: Claim,
    records: Vec<(BucketAddress, Reservation)>,
) -> Authority {
    let seed = random::number();
    let config = AuthorityConfig {
        epoch: claim.epoch,
        tenures_before: claim.tenures_before,
        first_tenure: claim.first,
        drift: setup.drift,
        boot: clock::boot_id(),
        hash_seed: (
            u64::try_from(seed >> 64).expect("half of 128 bits"),
            u64::try_from(seed & u128::from(u64::MAX)).expect("half of 128 bits"),
        ),
        buckets_max: setup.buckets_max,
    };
    let histories = snapshot.histories();
    // Read after the records were: what a hand-over says remains is counted from here.
    let now = clock::now();
    Authority::new(now, config, histories, records, claim.hand_over)
}

/// Waits until the shard is to be handed over.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error is a sender that is gone: the server stops.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits for what is in flight, for ever if nothing is. Cleared when it ends.
async fn in_flight<T>(slot: &mut Option<InFlight<T>>) -> T {
    match slot {
        Some(future) => {
            let outcome = future.await;
            *slot = None;
            outcome
        }
        None => std::future::pending().await,
    }
}

fn sleep_from(now: Timestamp, deadline: Option<Timestamp>) -> Duration {
    let wait = deadline.map_or(SLEEP_MAX, |due| due.since(now).min(SLEEP_MAX));
    Duration::from_nanos(wait.as_nanos())
}

fn stood_still(jump: Term) -> String {
    format!(
        "the wall clock is {} ms ahead of the monotonic one: this machine may have stood still",
        jump.as_millis_ceil()
    )
}

fn restarted(shard: ShardId) -> Status {
    Status::unavailable(format!(
        "shard {shard} begins a new tenure: connect again and repeat what was not answered"
    ))
}
