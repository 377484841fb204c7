//! Rolling out a policy safely: watched first, enforced then, and switched off when it was wrong.
//! A real server and two clients.

use std::time::{Duration, Instant};

use anyhow::Context;
use quota_client::{Config, Outcome, PolicyOutcomes, QuotaClient, Reason};
use quota_core::key::PolicyId;
use quota_core::policy::{LimitSpec, PolicySpec, SwitchMode};
use quota_core::time::Term;
use quota_tests::cluster::{Cluster, Server};
use quota_tests::metrics::Metrics;
use quota_tests::wait;
use quota_wire::convert::common::encode_policy_id;
use quota_wire::convert::switch::encode_mode;
use quota_wire::proto as wire;

const PATIENCE: Duration = Duration::from_secs(60);
const WITHIN: Duration = Duration::from_millis(200);
/// A switch is in force at every gateway within this.
const PUSHED_WITHIN: Duration = Duration::from_secs(1);

async fn client(server: &Server) -> anyhow::Result<QuotaClient> {
    let mut config = Config::new([format!("http://{}", server.grpc)]);
    config.connect_wait = PATIENCE;
    Ok(QuotaClient::connect(config).await?)
}

/// Five in an hour, and no more for a while after those.
fn spec() -> PolicySpec {
    let limit = LimitSpec::new(5, Term::from_seconds(3600));
    PolicySpec::new("checkout", &["shop"], limit)
}

const SHOP: [(&str, &str); 1] = [("shop", "s1")];

async fn switch(
    server: &Server,
    scope: Option<&PolicyId>,
    mode: Option<SwitchMode>,
) -> anyhow::Result<()> {
    let request = wire::SetKillSwitchRequest {
        scope: scope.map(encode_policy_id),
        mode: encode_mode(mode).into(),
        expires_after: None,
        reason: "drill".to_owned(),
    };
    server.admin().await?.set_kill_switch(request).await?;
    Ok(())
}

/// Waits until both clients decide so, and says how long that took.
async fn both(
    clients: &[QuotaClient; 2],
    what: &str,
    decides: impl Fn(Outcome) -> bool,
) -> anyhow::Result<Duration> {
    let begun = clock_now();
    for client in clients {
        wait::until(what, PATIENCE, || {
            let outcome = client.check(&SHOP).outcome();
            let there = decides(outcome).then_some(());
            async move { there }
        })
        .await?;
    }
    Ok(begun.elapsed())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a stop watch for people who read the output"
)]
fn clock_now() -> Instant {
    Instant::now()
}

fn outcomes(client: &QuotaClient) -> PolicyOutcomes {
    let found = client.outcomes().into_iter();
    let mut found = found.filter(|(id, _)| id.name == "checkout");
    found
        .next()
        .map(|(_, outcomes)| outcomes)
        .unwrap_or_default()
}

/// What the server has heard of the policy from its gateways.
async fn reported(server: &Server) -> anyhow::Result<wire::PolicyOutcomes> {
    let stats = server.admin().await?.stats(wire::StatsRequest {}).await?;
    let found = stats.into_inner().outcomes.into_iter();
    let mut found = found.filter(|one| one.policy.as_ref().is_some_and(|id| id.name == "checkout"));
    Ok(found.next().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_watched_then_enforced_and_both_sides_count_what_it_would_have_refused()
-> anyhow::Result<()> {
    let cluster = Cluster::new()?;
    let server = cluster.start_server(None).await?;
    let mut policy = spec();
    policy.shadow = true;
    server.put_policy(&policy).await?;
    let clients = [client(&server).await?, client(&server).await?];
    wait::until("both would refuse", PATIENCE, || async {
        for client in &clients {
            assert!(client.check(&SHOP).is_allowed(), "shadow refuses nothing");
        }
        let all = clients.iter().all(|one| outcomes(one).shadow_refused >= 10);
        all.then_some(())
    })
    .await?;
    let here = clients
        .iter()
        .map(|one| outcomes(one).shadow_refused)
        .sum::<u64>();
    wait::until("the server has heard of all", PATIENCE, || async {
        let heard = reported(&server).await.ok()?;
        (heard.shadow_refused == here).then_some(())
    })
    .await?;
    let labels = r#"policy="default/checkout",decision="shadow_refused""#;
    let metrics = Metrics::read(server.http).await?;
    let counted = metrics.sum("quota_gateway_decisions_total", labels);
    anyhow::ensure!(counted >= 20.0, "{counted}");
    // A limit in shadow is kept like any other: five of an hour's were there.
    let admitted = clients
        .iter()
        .map(|one| outcomes(one).shadow_admitted)
        .sum::<u64>();
    anyhow::ensure!(admitted <= 5, "{admitted} tokens of five");

    policy.shadow = false;
    server.put_policy(&policy).await?;
    let refused = |outcome| outcome == Outcome::Refused(Reason::Exhausted);
    both(&clients, "the policy is enforced", refused).await?;
    for client in clients {
        client.close(PATIENCE).await;
    }
    server.process.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_switch_is_in_force_at_every_gateway_and_outlives_a_kill_of_the_server()
-> anyhow::Result<()> {
    let cluster = Cluster::new()?;
    let server = cluster.start_server(None).await?;
    server.put_policy(&spec()).await?;
    let id = spec().id();
    let clients = [client(&server).await?, client(&server).await?];
    for client in &clients {
        // Until nothing is left, which stays so for minutes.
        while client.check_within(&SHOP, WITHIN).await.is_allowed() {}
    }
    let refused = |outcome| outcome == Outcome::Refused(Reason::Exhausted);
    both(&clients, "the quota is used up", refused).await?;

    let admitted = |outcome| outcome == Outcome::AllowedSwitched;
    switch(&server, Some(&id), Some(SwitchMode::AdmitAll)).await?;
    let took = both(&clients, "the policy admits all", admitted).await?;
    println!("admit all was in force after {took:?}");
    // Many times the bound, for a machine that is busy with other things.
    anyhow::ensure!(took < 20 * PUSHED_WITHIN, "{took:?}");
    for client in &clients {
        for _ in 0..100 {
            assert!(client.check(&SHOP).is_allowed());
        }
    }

    switch(&server, None, Some(SwitchMode::RefuseAll)).await?;
    // The narrower switch decides about the policy; another one falls under the wider.
    assert_eq!(clients[0].check(&SHOP).outcome(), Outcome::AllowedSwitched);
    let api = [("api_key", "alice")];
    for client in &clients {
        wait::until("the others refuse", PATIENCE, || {
            let reason = client.check(&api).reason();
            let there = (reason == Some(Reason::KillSwitch)).then_some(());
            async move { there }
        })
        .await?;
    }

    // A crash forgets nothing of it: whoever connects afterwards is told.
    let addresses = server.addresses();
    server.process.kill()?;
    let server = cluster.start_server(Some(addresses)).await?;
    let newcomer = client(&server).await?;
    assert_eq!(newcomer.check(&SHOP).outcome(), Outcome::AllowedSwitched);
    assert_eq!(newcomer.check(&api).reason(), Some(Reason::KillSwitch));
    newcomer.close(WITHIN).await;
    for client in &clients {
        wait::until("the link is up", PATIENCE, || async {
            (client.link() == quota_client::Link::Up).then_some(())
        })
        .await?;
    }

    switch(&server, None, None).await?;
    switch(&server, Some(&id), None).await?;
    // After the crash the bucket began empty; either way nothing passes that is not granted.
    let enforced = |outcome| !matches!(outcome, Outcome::AllowedSwitched);
    let took = both(&clients, "the policies apply again", enforced).await?;
    println!("off was in force after {took:?}");
    let admitted = clients[0].stats().switched_tokens + clients[1].stats().switched_tokens;
    anyhow::ensure!(admitted >= 200, "{admitted}");
    let bucket = wire::InspectBucketRequest {
        bucket: Some(wire::Bucket {
            policy: Some(encode_policy_id(&id)),
            key: Some(wire::Key {
                values: vec![b"s1".to_vec()],
            }),
        }),
    };
    let seen = server.admin().await?.inspect_bucket(bucket).await?;
    let seen = seen.into_inner();
    // What passed under the switch is no debt: the ledger is as if nobody had come.
    anyhow::ensure!(seen.available >= 0 && seen.capacity == 5, "{seen:?}");
    for client in clients {
        client.close(WITHIN).await;
    }
    server.process.stop().await.context("it stops")?;
    Ok(())
}
