//! Waiting for conditions. Nothing in the tests waits for time to pass in the hope of something.

use std::future::Future;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `condition` gives a value.
///
/// # Errors
/// If it gave none within `deadline`; `what` says in the message what was waited for.
pub async fn until<T, F>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Option<T>>,
{
    let look = async {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if let Some(value) = condition().await {
                return value;
            }
        }
    };
    match timeout(deadline, look).await {
        Ok(value) => Ok(value),
        Err(_) => bail!("waited {deadline:?} in vain until {what}"),
    }
}
