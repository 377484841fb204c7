//! The asynchronous front of a store: one thread that owns it, and group commit.
//!
//! All shards' writes that are waiting when the thread comes round go into one commit, so that
//! the cost of a sync is shared; a write that comes while a commit is under way waits for the
//! next one. Other calls keep their place between the writes.
//!
//! At the bound of the queue a caller waits for room. A caller whose turn has not come while the
//! store made no progress at all for [`HandleOptions::stuck_after`] is told so, and the store
//! counts as stopped from then on: a database that lost one of its own threads waits for ever,
//! and no one must wait with it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::record::{HandOver, Reservation};
use tokio::sync::{mpsc, oneshot};

use super::{
    Claim, Identity, PolicyWrite, PolicyWriteError, ShardWrite, Store, StoreError, StoredPolicy,
    SwitchesRecord, WriteError, panic_text,
};

/// The bounds of a handle.
#[derive(Clone, Copy, Debug)]
pub struct HandleOptions {
    /// Calls that may wait; more callers wait for room. A shard has one write in flight at a
    /// time, so twice the number of shards is never reached by writes.
    pub queue: usize,
    /// Records after which a group is committed even if more are waiting. Bounds the time of one
    /// commit: about 15 µs a record on the reference machine.
    pub group_records_max: usize,
    /// Without any progress for this long the store counts as stopped. Long beside the worst
    /// sync of a working disk.
    pub stuck_after: Duration,
}

impl Default for HandleOptions {
    fn default() -> Self {
        Self {
            queue: 1024,
            group_records_max: 4096,
            stuck_after: Duration::from_secs(30),
        }
    }
}

/// Counts what a store's thread did.
#[derive(Debug, Default)]
pub struct StoreCounters {
    /// Calls answered, of every kind.
    pub calls: AtomicU64,
    /// Groups of writes committed: one sync each.
    pub groups: AtomicU64,
    /// Shard batches in those groups that were applied.
    pub batches: AtomicU64,
    /// Records in those batches.
    pub records: AtomicU64,
    /// Shard batches refused, failed or in doubt.
    pub batches_failed: AtomicU64,
    /// Time spent committing groups of writes, in nanoseconds.
    pub commit_nanos: AtomicU64,
}

/// Reaches the store from any task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StoreHandle {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
}

/// Looks at a store's thread without keeping the store open. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StoreWatch {
    shared: Arc<Shared>,
}

impl StoreWatch {
    /// See [`StoreHandle::stopped`].
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.shared.stopped.get().map(String::as_str)
    }

    /// See [`StoreHandle::counters`].
    #[must_use]
    pub fn counters(&self) -> &StoreCounters {
        &self.shared.counters
    }
}

#[derive(Debug)]
struct Shared {
    identity: Identity,
    stuck_after: Duration,
    stopped: OnceLock<String>,
    /// Grows with each job begun and each one ended.
    progress: AtomicU64,
    counters: StoreCounters,
}

/// The thread that owns the store. It ends when every [`StoreHandle`] is dropped, or after a panic
/// of the store.
#[derive(Debug)]
pub struct StoreThread {
    thread: JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

enum Job {
    Write(ShardWrite, oneshot::Sender<Result<(), WriteError>>),
    Other(Call),
}

type Call = Box<dyn FnOnce(&mut dyn Store) + Send>;

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Write(..) => "Write",
            Self::Other(_) => "Other",
        })
    }
}

/// Why there is no answer from the store's thread.
enum NoAnswer {
    /// The call never began.
    NotBegun(StoreError),
    /// It may have been carried out.
    InDoubt(StoreError),
}

impl StoreHandle {
    /// Starts a thread for the store.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(
        store: Box<dyn Store>,
        options: HandleOptions,
    ) -> std::io::Result<(Self, StoreThread)> {
        let shared = Arc::new(Shared {
            identity: store.identity(),
            stuck_after: options.stuck_after,
            stopped: OnceLock::new(),
            progress: AtomicU64::new(0),
            counters: StoreCounters::default(),
        });
        let (jobs, inbox) = mpsc::channel(options.queue);
        let (end, ended) = oneshot::channel();
        let worker = Worker {
            store,
            inbox,
            shared: Arc::clone(&shared),
            group_records_max: options.group_records_max,
        };
        let thread = std::thread::Builder::new()
            .name("quota-store".to_owned())
            .spawn(move || {
                worker.run();
                // Nobody waits for it if the server was told to stop at once.
                let _ = end.send(());
            })?;
        Ok((Self { shared, jobs }, StoreThread { thread, ended }))
    }

    /// What the store was created as.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// Why the store has stopped, if it has. It does not recover: the server has to be restarted.
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.shared.stopped.get().map(String::as_str)
    }

    /// What the store's thread did so far.
    #[must_use]
    pub fn counters(&self) -> &StoreCounters {
        &self.shared.counters
    }

    /// Looks on without keeping the store open.
    #[must_use]
    pub fn watch(&self) -> StoreWatch {
        StoreWatch {
            shared: Arc::clone(&self.shared),
        }
    }

    /// See [`Store::claim`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn claim(&self, shard: ShardId) -> Result<Claim, StoreError> {
        self.read(move |store| store.claim(shard)).await
    }

    /// See [`Store::load`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn load(
        &self,
        shard: ShardId,
    ) -> Result<Vec<(BucketAddress, Reservation)>, StoreError> {
        self.read(move |store| store.load(shard)).await
    }

    /// Writes one shard's batch, together with whatever else is waiting. Durable when it returns
    /// `Ok`.
    ///
    /// # Errors
    /// See [`Store::write`]. If this future is dropped, the outcome is unknown.
    pub async fn write(&self, write: ShardWrite) -> Result<(), WriteError> {
        let shard = write.shard;
        let (answer, answered) = oneshot::channel();
        match self.ask(Job::Write(write, answer), answered).await {
            Ok(outcome) => outcome,
            Err(NoAnswer::NotBegun(source)) => Err(WriteError::Failed { shard, source }),
            Err(NoAnswer::InDoubt(source)) => Err(WriteError::Unknown { shard, source }),
        }
    }

    /// See [`Store::settle`].
    ///
    /// # Errors
    /// As there.
    pub async fn settle(&self, shard: ShardId, epoch: Epoch) -> Result<(), WriteError> {
        self.change(shard, move |store| store.settle(shard, epoch))
            .await
    }

    /// See [`Store::hand_over`].
    ///
    /// # Errors
    /// As there.
    pub async fn hand_over(
        &self,
        shard: ShardId,
        epoch: Epoch,
        rows: HandOver,
    ) -> Result<(), WriteError> {
        self.change(shard, move |store| store.hand_over(shard, epoch, &rows))
            .await
    }

    /// See [`Store::policies`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn policies(&self) -> Result<Vec<StoredPolicy>, StoreError> {
        self.read(|store| store.policies()).await
    }

    /// See [`Store::next_revision`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn next_revision(&self) -> Result<PolicyVersion, StoreError> {
        self.read(|store| store.next_revision()).await
    }

    /// See [`Store::put_policy`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_policy(&self, write: PolicyWrite) -> Result<(), PolicyWriteError> {
        let id = write.history.id().clone();
        self.change_policy(id, move |store| store.put_policy(&write))
            .await
    }

    /// See [`Store::forget_policy`].
    ///
    /// # Errors
    /// As there.
    pub async fn forget_policy(
        &self,
        id: PolicyId,
        expected: PolicyVersion,
    ) -> Result<(), PolicyWriteError> {
        self.change_policy(id.clone(), move |store| store.forget_policy(&id, expected))
            .await
    }

    /// See [`Store::switches`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn switches(&self) -> Result<SwitchesRecord, StoreError> {
        self.read(|store| store.switches()).await
    }

    /// See [`Store::put_switches`].
    ///
    /// # Errors
    /// As there, and [`StoreError::Stopped`].
    pub async fn put_switches(
        &self,
        switches: SwitchesRecord,
    ) -> Result<PolicyVersion, StoreError> {
        self.read(move |store| store.put_switches(&switches)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.call(call).await {
            Ok(outcome) => outcome,
            Err(NoAnswer::NotBegun(source) | NoAnswer::InDoubt(source)) => Err(source),
        }
    }

    async fn change(
        &self,
        shard: ShardId,
        call: impl FnOnce(&mut dyn Store) -> Result<(), WriteError> + Send + 'static,
    ) -> Result<(), WriteError> {
        match self.call(call).await {
            Ok(outcome) => outcome,
            Err(NoAnswer::NotBegun(source)) => Err(WriteError::Failed { shard, source }),
            Err(NoAnswer::InDoubt(source)) => Err(WriteError::Unknown { shard, source }),
        }
    }

    async fn change_policy(
        &self,
        id: PolicyId,
        call: impl FnOnce(&mut dyn Store) -> Result<(), PolicyWriteError> + Send + 'static,
    ) -> Result<(), PolicyWriteError> {
        match self.call(call).await {
            Ok(outcome) => outcome,
            Err(NoAnswer::NotBegun(source)) => Err(PolicyWriteError::Failed { id, source }),
            Err(NoAnswer::InDoubt(source)) => Err(PolicyWriteError::Unknown { id, source }),
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Store) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        let job = Job::Other(Box::new(move |store| {
            // The caller may have given up; what was done stands.
            let _ = answer.send(call(store));
        }));
        self.ask(job, answered).await
    }

    async fn ask<T>(&self, job: Job, answered: oneshot::Receiver<T>) -> Result<T, NoAnswer> {
        if let Some(error) = self.shared.stop_error() {
            return Err(NoAnswer::NotBegun(error));
        }
        match self.shared.unless_stuck(self.jobs.send(job)).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return Err(NoAnswer::NotBegun(self.shared.stop_for_good())),
        }
        match self.shared.unless_stuck(answered).await {
            Some(Ok(answer)) => Ok(answer),
            // The thread is gone, or takes the job up some day: nobody knows.
            Some(Err(_)) | None => Err(NoAnswer::InDoubt(self.shared.stop_for_good())),
        }
    }
}

impl Shared {
    /// Waits for `step`, but not past a time without any progress of the store.
    async fn unless_stuck<F: Future>(&self, step: F) -> Option<F::Output> {
        let mut step = std::pin::pin!(step);
        loop {
            let before = self.progress.load(Ordering::Relaxed);
            match tokio::time::timeout(self.stuck_after, &mut step).await {
                Ok(output) => return Some(output),
                Err(_) if self.progress.load(Ordering::Relaxed) == before => return None,
                Err(_) => {}
            }
        }
    }

    fn stop(&self, why: String) {
        if self.stopped.set(why).is_ok() {
            tracing::error!(why = self.stopped.get(), "the store has stopped");
        }
    }

    fn stop_error(&self) -> Option<StoreError> {
        let why = self.stopped.get()?.clone();
        Some(StoreError::Stopped { why })
    }

    fn stop_for_good(&self) -> StoreError {
        if self.stopped.get().is_none() {
            self.stop(format!("it made no progress for {:?}", self.stuck_after));
        }
        self.stop_error().expect("just stopped")
    }
}

impl StoreThread {
    /// Waits until the store is closed. Every [`StoreHandle`] has to be dropped first.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] if it is not closed within `limit`: it is then left behind, and
    /// what it had acknowledged is durable all the same.
    pub async fn closed(self, limit: Duration) -> Result<(), StoreError> {
        match tokio::time::timeout(limit, self.ended).await {
            // An error is a thread that ended by a panic: then it is over as well.
            Ok(_) => {
                if self.thread.join().is_err() {
                    tracing::error!("the store's thread panicked while closing");
                }
                Ok(())
            }
            Err(_) => Err(StoreError::Stopped {
                why: format!("it did not close within {limit:?}"),
            }),
        }
    }
}

struct Worker {
    store: Box<dyn Store>,
    inbox: mpsc::Receiver<Job>,
    shared: Arc<Shared>,
    group_records_max: usize,
}

type Waiting = oneshot::Sender<Result<(), WriteError>>;

impl Worker {
    fn run(mut self) {
        let mut next = self.inbox.blocking_recv();
        while let Some(job) = next.take() {
            self.progress();
            let done = match job {
                Job::Write(write, answer) => {
                    let (group, answers, after) = self.gather(write, answer);
                    next = after;
                    self.commit(&group, answers)
                }
                Job::Other(call) => {
                    self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
                    caught(|| call(&mut *self.store))
                }
            };
            self.progress();
            if let Err(why) = done {
                self.shared.stop(why);
                return;
            }
            if next.is_none() {
                next = self.inbox.blocking_recv();
            }
        }
    }

    /// The writes that are waiting, up to the first other call, which comes back too.
    fn gather(
        &mut self,
        write: ShardWrite,
        answer: Waiting,
    ) -> (Vec<ShardWrite>, Vec<Waiting>, Option<Job>) {
        let mut records = write.records.len();
        let mut group = vec![write];
        let mut answers = vec![answer];
        while records < self.group_records_max {
            match self.inbox.try_recv() {
                Ok(Job::Write(write, answer)) => {
                    records += write.records.len();
                    group.push(write);
                    answers.push(answer);
                }
                Ok(other) => return (group, answers, Some(other)),
                Err(_) => break,
            }
        }
        (group, answers, None)
    }

    fn commit(&mut self, group: &[ShardWrite], answers: Vec<Waiting>) -> Result<(), String> {
        // After a panic the answers are dropped, which their callers take for an unknown outcome.
        let begun = crate::clock::now();
        let outcomes = caught(|| self.store.write(group))?;
        let counters = &self.shared.counters;
        let took = crate::clock::now().since(begun).as_nanos();
        counters.commit_nanos.fetch_add(took, Ordering::Relaxed);
        counters.calls.fetch_add(1, Ordering::Relaxed);
        counters.groups.fetch_add(1, Ordering::Relaxed);
        assert_eq!(outcomes.len(), group.len(), "a store answers every batch");
        for ((write, outcome), answer) in group.iter().zip(outcomes).zip(answers) {
            if outcome.is_ok() {
                let records = u64::try_from(write.records.len()).expect("a length fits 64 bits");
                counters.batches.fetch_add(1, Ordering::Relaxed);
                counters.records.fetch_add(records, Ordering::Relaxed);
            } else {
                counters.batches_failed.fetch_add(1, Ordering::Relaxed);
            }
            // The caller may have given up; what was done stands.
            let _ = answer.send(outcome);
        }
        Ok(())
    }

    fn progress(&self) {
        self.shared.progress.fetch_add(1, Ordering::Relaxed);
    }
}

fn caught<T>(step: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(step))
        .map_err(|panic: Box<dyn Any + Send>| format!("it panicked: {}", panic_text(&*panic)))
}

#[cfg(test)]
mod tests;
