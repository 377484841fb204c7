//! The client: what a gateway links, makes once, and asks about every request.

use std::sync::Arc;
use std::time::Duration;

use quota_core::id::{Incarnation, PolicyVersion};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::outcomes::Outcomes as PolicyOutcomes;
use quota_core::policy::Match;
use quota_core::tokens::Tokens;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::clock;
use crate::config::{Config, ConfigError};
use crate::decision::Decision;
use crate::driver::{Command, Driver};
use crate::handle::Handle;
use crate::policies;
use crate::shared::{Link, Shared};
use crate::stats::Stats;

/// An embedded client. Clones are cheap and stand for the same client.
///
/// It spends leases that it holds and renews them in the background, on a task of the runtime
/// that [`QuotaClient::connect`] was called on. When the last clone is dropped, everything it
/// holds is out of reach at once and lost to the quota until its term ends; call
/// [`QuotaClient::close`] to give it back.
///
/// Do not fork a process that has a client: parent and child would spend the same leases.
#[derive(Clone, Debug)]
pub struct QuotaClient {
    shared: Arc<Shared>,
    driver: Arc<DriverTask>,
}

#[derive(Debug)]
struct DriverTask {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        // Dropping the driver's future takes all tokens out of reach.
        self.task.abort();
    }
}

impl QuotaClient {
    /// Makes a client and starts its background task. Waits for the first policies, at most
    /// `config.connect_wait`; an authority that is out of reach is no error: the client works
    /// from the last good policies, if it has a file of them, and goes on trying.
    ///
    /// # Errors
    /// [`ConfigError`] for a configuration that cannot work.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O.
    pub async fn connect(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        clock::warn_if_slow();
        let key = (random()?, random()?);
        let incarnation = Incarnation::new(random()?.max(1));
        let jitter = random()?;
        let wait = config.connect_wait;
        let (shared, signals) = Shared::new(config, key);
        policies::load(&shared);
        let (commands, receiver) = mpsc::channel(1);
        let driver = Driver::new(Arc::clone(&shared), signals, receiver, incarnation, jitter)?;
        let client = Self {
            shared,
            driver: Arc::new(DriverTask {
                commands,
                task: tokio::spawn(driver.run()),
            }),
        };
        // Running out of time is no error, as said above.
        let _in_time = tokio::time::timeout(wait, client.ready()).await.is_ok();
        Ok(client)
    }

    /// Returns once policies are known and the authority is connected. May take for ever.
    pub async fn ready(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.shared.rules().is_current() && self.shared.link() == Link::Up {
                return;
            }
            changed.await;
        }
    }

    /// Decides about a request, at the cost that each matching policy names for it, and takes
    /// the tokens if it is allowed. `dimensions` are names and values, such as
    /// `[("tenant", "t1"), ("route", "/search")]`, in any order; all policies that match them
    /// must admit the request, or nothing is taken.
    ///
    /// Never waits. In steady state it takes no lock, allocates nothing (while at most eight
    /// policies match) and makes no system call but the clock. The first touch of a key takes a
    /// lock, allocates, and is refused with [`crate::Reason::FirstTouch`] while the authority is
    /// asked.
    #[must_use = "a refused request must not pass"]
    pub fn check(&self, dimensions: &[(&str, &str)]) -> Decision<'_> {
        self.shared.check(dimensions, None)
    }

    /// [`QuotaClient::check`] for a request that costs `cost` tokens of every matching policy.
    #[must_use = "a refused request must not pass"]
    pub fn check_cost(&self, dimensions: &[(&str, &str)], cost: u64) -> Decision<'_> {
        self.shared.check(dimensions, Some(Tokens::new(cost)))
    }

    /// [`QuotaClient::check`] that waits up to `within` where waiting can help: for the first
    /// lease of a key, for tokens that the authority is about to grant, or for a connection that
    /// is being made. It does not wait for tokens that the authority expects to have only later,
    /// nor while attempts to connect fail. This is what gateways normally use, with a few tens of
    /// milliseconds.
    ///
    /// Dropping the future gives up the wait and takes nothing.
    pub async fn check_within(
        &self,
        dimensions: &[(&str, &str)],
        within: Duration,
    ) -> Decision<'_> {
        let attempt = |mood| self.shared.attempt(dimensions, None, mood);
        self.shared.wait(within, attempt).await
    }

    /// [`QuotaClient::check_within`] for a request that costs `cost` tokens of every matching
    /// policy.
    pub async fn check_cost_within(
        &self,
        dimensions: &[(&str, &str)],
        cost: u64,
        within: Duration,
    ) -> Decision<'_> {
        let cost = Some(Tokens::new(cost));
        let attempt = |mood| self.shared.attempt(dimensions, cost, mood);
        self.shared.wait(within, attempt).await
    }

    /// A handle to one bucket of one policy: the fastest way to spend from it often. `policy` is
    /// `name` (in the namespace `default`) or `namespace/name`; `dimensions` must have those of
    /// the policy's key. The policy's conditions are not looked at. A policy that is not known,
    /// or whose key lacks a dimension, shows at the first use.
    #[must_use]
    pub fn bucket(&self, policy: &str, dimensions: &[(&str, &str)]) -> Handle {
        let (namespace, name) = policy.split_once('/').unwrap_or(("default", policy));
        let id = PolicyId {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Handle::new(Arc::clone(&self.shared), id, dimensions)
    }

    /// Totals since the client was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// What each policy decided beside the ledger since the client was made: what those in shadow
    /// mode found, what kill switches and outages let pass or refused. Policies without any are
    /// left out. The authority is told the same, each second, for its metrics.
    #[must_use]
    pub fn outcomes(&self) -> Vec<(PolicyId, PolicyOutcomes)> {
        let tallies = self.shared.names.tallies();
        tallies
            .map(|(id, tally)| (id.clone(), tally.outcomes()))
            .filter(|(_, outcomes)| !outcomes.is_zero())
            .collect()
    }

    /// How the client stands with the authority now.
    #[must_use]
    pub fn link(&self) -> Link {
        self.shared.link()
    }

    /// The policies in force at this client, by name and version.
    #[must_use]
    pub fn policies(&self) -> Vec<(PolicyId, PolicyVersion)> {
        let rules = self.shared.rules();
        rules
            .iter()
            .map(|(policy, _)| (policy.id().clone(), policy.version()))
            .collect()
    }

    /// The buckets that a request is charged to, and how much, by the policies in force now. For
    /// logs and tests: allocates. Empty for dimensions that cannot be matched.
    #[must_use]
    pub fn matching(&self, dimensions: &[(&str, &str)]) -> Vec<(BucketAddress, Tokens)> {
        let rules = self.shared.rules();
        let Ok(matches) = rules.set().matches(dimensions) else {
            return Vec::new();
        };
        let charge = |found: Match<'_>| {
            let policy = found.policy();
            let bucket = BucketAddress {
                policy: policy.id().clone(),
                key: found.key(),
            };
            (bucket, policy.cost_default())
        };
        matches.map(charge).collect()
    }

    /// Gives everything back and ends the client: from here on every check is refused with
    /// [`crate::Reason::Closed`]. Returns true if the authority has confirmed all returns within
    /// `within`; what it did not confirm counts as spent when its term ends.
    pub async fn close(&self, within: Duration) -> bool {
        let (done, confirmed) = oneshot::channel();
        let close = Command::Close { within, done };
        if self.driver.commands.send(close).await.is_err() {
            return false;
        }
        // The driver bounds itself; the margin is for a driver that never gets to run.
        let margin = Duration::from_secs(1);
        let outcome = tokio::time::timeout(within + margin, confirmed).await;
        matches!(outcome, Ok(Ok(true)))
    }
}

fn random() -> Result<u64, ConfigError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(ConfigError::Random)?;
    Ok(u64::from_le_bytes(bytes))
}
