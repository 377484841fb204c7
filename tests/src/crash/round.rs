//! One round, from a seed to its verdict.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use simulations::random::Random;
use tokio::task::JoinSet;

use super::budgets::{self, Traffic};
use super::clocks::Clocks;
use super::faults;
use super::judge::judge;
use super::moment::{millis, pass};
use super::scene::Scene;
use super::tally::Tally;
use crate::load::Load;
use crate::metrics::Metrics;
use crate::wait;

/// Longest a round may take before it counts as hung. Most take some eight seconds.
const ROUND_WITHIN: Duration = Duration::from_secs(480);
/// How long after the last fault every limit must admit again: longer than all terms, pauses and
/// back-offs together, and long enough for a machine that has other things to do. Mostly it takes
/// a second.
const RECOVER_WITHIN: Duration = Duration::from_secs(180);
/// Of the usual load while it recovers. It is about whether, not how much, and a machine that has
/// too much to do is to get out of it.
const RECOVER_DIVISOR: u64 = 4;

/// Plays the round of a seed in a directory of its own. Returns what it did and everything that
/// is wrong; what stopped the round before its end is among that.
pub(super) async fn play(seed: u64, clocks: Clocks, directory: &Path) -> (Tally, Vec<String>) {
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    let round = tokio::time::timeout(ROUND_WITHIN, act(seed, clocks, directory, &mut tally));
    match round.await {
        Ok(Ok(found)) => wrong.extend(found),
        Ok(Err(error)) => wrong.push(format!("{error:#}")),
        Err(_) => wrong.push(format!("the round did not end within {ROUND_WITHIN:?}")),
    }
    tally.rounds = 1;
    (tally, wrong)
}

async fn act(
    seed: u64,
    clocks: Clocks,
    directory: &Path,
    tally: &mut Tally,
) -> anyhow::Result<Vec<String>> {
    let mut random = Random::new(seed);
    let gateways = usize::try_from(random.between(2, 3)).unwrap_or(2);
    let policies = budgets::policies(budgets::lease(&mut random));
    let faults = faults::schedule(&mut random, gateways);
    let (of_scene, of_loads) = (Random::new(random.bits()), random);
    let limits = budgets::limits(&policies)?;
    let traffic = budgets::traffic();

    let mut scene = Scene::start(directory, clocks, of_scene, &policies, gateways).await?;
    for which in 0..gateways {
        let address = scene.address(which)?;
        let loads = traffic
            .iter()
            .map(|load| Load::start(address, load.plan.clone()));
        scene.places[which].loads = loads.collect();
    }
    let breath = breathe(&scene, &traffic, of_loads);
    let mut suffered = Ok(());
    for (pause, fault) in &faults {
        pass(*pause).await;
        suffered = scene.suffer(fault).await;
        if suffered.is_err() {
            break;
        }
    }
    drop(breath);
    let after = match suffered {
        Ok(()) => recover(&mut scene, &traffic).await,
        Err(error) => Err(error),
    };
    if let Ok(server) = scene.server()
        && let Ok(metrics) = Metrics::read(server.http).await
    {
        let read = metrics.sum("quota_records_read_total", "");
        scene.tally.records_read += read as u64;
    }
    let mut answers = Vec::new();
    for place in &mut scene.places {
        for (load, traffic) in place.loads.drain(..).zip(&traffic) {
            // A gateway that is stuck would never give its last answers.
            let counts = match &after {
                Ok(()) => load.stop().await?,
                Err(_) => load.abandon(),
            };
            answers.push((traffic.policies, counts));
        }
    }
    // Whatever went wrong, what was admitted is judged.
    let stopped = match &after {
        Ok(()) => scene.stop().await,
        Err(_) => Ok(()),
    };
    let judged = judge(&scene, &limits, &answers);
    *tally = std::mem::take(&mut scene.tally);
    let (edges, mut wrong) = judged?;
    tally.policies = edges;
    wrong.extend(
        [after, stopped]
            .into_iter()
            .filter_map(|end| Some(format!("{:#}", end.err()?))),
    );
    Ok(wrong)
}

/// Lets each load come and go, on all gateways at once: buckets fill up, and then everyone wants
/// everything. Ends with the set.
fn breathe(scene: &Scene, traffic: &[Traffic], mut random: Random) -> JoinSet<()> {
    let mut breath = JoinSet::new();
    for (number, load) in traffic.iter().enumerate() {
        let rates: Vec<Arc<AtomicU64>> = scene
            .places
            .iter()
            .map(|place| place.loads[number].rate())
            .collect();
        let (full, mut random) = (load.plan.rate, Random::new(random.bits()));
        breath.spawn(async move {
            let set = |rate| rates.iter().for_each(|r| r.store(rate, Ordering::Relaxed));
            loop {
                set(full * random.pick(&[1, 1, 2]));
                pass(millis(&mut random, 300, 2000)).await;
                if random.chance(500) {
                    set(0);
                    pass(millis(&mut random, 100, 1500)).await;
                }
            }
        });
    }
    breath
}

/// Ends all trouble and waits until every gateway is admitted again under every limit that
/// refills.
async fn recover(scene: &mut Scene, traffic: &[Traffic]) -> anyhow::Result<()> {
    scene.note("the faults are over");
    for place in &scene.places {
        place.proxy.heal();
        for (load, traffic) in place.loads.iter().zip(traffic) {
            let rate = traffic.plan.rate / RECOVER_DIVISOR;
            load.rate().store(rate, Ordering::Relaxed);
        }
    }
    let waiting = || {
        let mut waiting = Vec::new();
        for (number, place) in scene.places.iter().enumerate() {
            for (load, traffic) in place.loads.iter().zip(traffic) {
                let path = &traffic.plan.path;
                let refills = traffic.refills;
                waiting.push((number, path.clone(), refills, load.counts().admitted()));
            }
        }
        waiting
    };
    let before = waiting();
    let recovered = wait::until("every limit admits again", RECOVER_WITHIN, || {
        let now = waiting();
        let all = before
            .iter()
            .zip(&now)
            .all(|(before, now)| !now.2 || now.3 > before.3);
        async move { all.then_some(()) }
    });
    let recovered = recovered.await;
    recovered.map_err(|error| {
        let stuck: Vec<String> = before
            .iter()
            .zip(waiting())
            .filter(|(before, now)| now.2 && now.3 == before.3)
            .map(|(_, now)| format!("{} at gateway {}", now.1, now.0))
            .collect();
        error.context(format!("still refused: {}", stuck.join(", ")))
    })
}
