//! Whether the node serves, and if not, why.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quota_core::id::ShardId;
use tokio::sync::watch;

/// Most reasons that are told at once; the rest are counted.
const REASONS_MAX: usize = 5;

/// What one shard is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardState {
    /// It is being claimed and loaded for the first time.
    Starting,
    /// It grants.
    Serving,
    /// Its tenure ended or could not begin; it is being claimed again.
    Down {
        /// What went wrong.
        why: String,
    },
    /// It was handed over.
    Stopped,
}

/// The states of all shards, and whether the node is on its way out.
#[derive(Debug)]
pub(crate) struct Readiness {
    shards: Mutex<Vec<ShardState>>,
    draining: watch::Sender<bool>,
    ready: watch::Sender<bool>,
    started: watch::Sender<bool>,
}

impl Readiness {
    /// All shards are starting.
    pub(crate) fn new(shards: u32) -> Self {
        let shards = usize::try_from(shards).expect("32 bits fit a usize");
        Self {
            shards: Mutex::new(vec![ShardState::Starting; shards]),
            draining: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            started: watch::Sender::new(false),
        }
    }

    /// Takes note of what a shard is doing.
    pub(crate) fn set(&self, shard: ShardId, state: ShardState) {
        let mut shards = self.shards();
        let place = usize::try_from(shard.get()).expect("32 bits fit a usize");
        shards[place] = state;
        let ready = all_serve(&shards) && !*self.draining.borrow();
        self.ready.send_replace(ready);
        if !shards.contains(&ShardState::Starting) {
            self.started.send_replace(true);
        }
    }

    /// The node is about to stop: it is not ready from here on.
    pub(crate) fn drain(&self) {
        // Under the lock, so that no shard's news gets in between.
        let _shards = self.shards();
        self.draining.send_replace(true);
        self.ready.send_replace(false);
    }

    /// Why the node is not ready, in a few lines; empty if it is.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = reasons(&self.shards());
        if self.is_draining() {
            reasons.insert(0, "the server is stopping".to_owned());
        }
        reasons
    }

    /// Follows whether the node is about to stop.
    pub(crate) fn watch_draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// True once the node is about to stop.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Follows whether every shard is claimed and serving.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Waits until the first claim of every shard has come to an end, be it a bad one. At once
    /// ever after.
    pub(crate) async fn started(&self) {
        // The sender lives as long as this borrow.
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }

    fn shards(&self) -> MutexGuard<'_, Vec<ShardState>> {
        // Nothing in here panics half-way.
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why not every shard serves, in a few lines; empty if every one does.
fn reasons(shards: &[ShardState]) -> Vec<String> {
    let mut reasons = Vec::new();
    let starting = shards
        .iter()
        .filter(|state| **state == ShardState::Starting)
        .count();
    if starting > 0 {
        reasons.push(format!(
            "{starting} of {} shards are being loaded",
            shards.len()
        ));
    }
    let down = shards
        .iter()
        .enumerate()
        .filter_map(|(shard, state)| match state {
            ShardState::Down { why } => Some(format!("shard {shard} is not served: {why}")),
            ShardState::Stopped => Some(format!("shard {shard} was handed over")),
            ShardState::Starting | ShardState::Serving => None,
        });
    let down: Vec<String> = down.collect();
    let more = down.len().saturating_sub(REASONS_MAX);
    reasons.extend(down.into_iter().take(REASONS_MAX));
    if more > 0 {
        reasons.push(format!("{more} more shards are not served"));
    }
    reasons
}

fn all_serve(shards: &[ShardState]) -> bool {
    shards.iter().all(|state| *state == ShardState::Serving)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_start_is_over_once_no_shard_is_claimed_for_the_first_time() {
        let over = |readiness: &Readiness| {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            std::pin::pin!(readiness.started())
                .poll(&mut context)
                .is_ready()
        };
        let readiness = Readiness::new(2);
        assert!(!over(&readiness));
        readiness.set(ShardId::new(0), ShardState::Serving);
        assert!(!over(&readiness));
        let why = String::new();
        readiness.set(ShardId::new(1), ShardState::Down { why });
        assert!(over(&readiness), "nobody waits for a shard that failed");
    }

    #[test]
    fn the_node_is_ready_only_while_every_shard_serves() {
        let readiness = Readiness::new(2);
        assert!(!*readiness.watch().borrow());
        assert_eq!(readiness.reasons(), ["2 of 2 shards are being loaded"]);
        readiness.set(ShardId::new(0), ShardState::Serving);
        assert!(!*readiness.watch().borrow());
        readiness.set(ShardId::new(1), ShardState::Serving);
        assert!(*readiness.watch().borrow());
        assert!(readiness.reasons().is_empty());
        readiness.set(
            ShardId::new(1),
            ShardState::Down {
                why: "the disk is full".into(),
            },
        );
        assert!(!*readiness.watch().borrow());
        assert_eq!(
            readiness.reasons(),
            ["shard 1 is not served: the disk is full"]
        );
        readiness.set(ShardId::new(1), ShardState::Serving);
        readiness.drain();
        readiness.set(ShardId::new(1), ShardState::Serving);
        assert!(
            !*readiness.watch().borrow(),
            "a draining node stays unready"
        );
        assert_eq!(readiness.reasons(), ["the server is stopping"]);
    }
}
