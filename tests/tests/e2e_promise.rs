//! The promise with real processes: two gateways, more load than the limits allow, the server and
//! one gateway killed in the middle. What was admitted is fed to ideal buckets that must never go
//! below zero.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quota_core::id::PolicyVersion;
use quota_core::key::Key;
use quota_core::policy::Policy;
use quota_tests::cluster::{Cluster, Gateway, Server};
use quota_tests::load::{Load, Plan};
use quota_tests::metrics::Metrics;
use quota_tests::verdict::{self, Admissions};
use quota_tests::wait;
use simulations::admission_log::Summary;
use simulations::oracle::IdealLimit;

/// How long a condition may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn plan(path: &str, tenant: &str, api_key: &str, keys: u64, rate: u64) -> Plan {
    Plan {
        path: path.into(),
        tenant: tenant.into(),
        api_key: api_key.into(),
        keys,
        rate,
    }
}

/// The loads on one gateway: one hot API key; one hot tenant with so many API keys that none of
/// them is its limit; and reports, of which a day's worth lasts some seconds.
struct Loads {
    api: Load,
    tenant: Load,
    reports: Load,
}

impl Loads {
    fn start(gateway: &Gateway) -> Self {
        let start = |plan| Load::start(gateway.address, plan);
        Self {
            api: start(plan("/hello", "small", "hot", 1, 50)),
            tenant: start(plan("/hello", "busy", "key-#", 400, 750)),
            reports: start(plan("/reports", "daily", "reader-#", 100, 60)),
        }
    }

    async fn redirect(&self, gateway: &Gateway) {
        for load in [&self.api, &self.tenant, &self.reports] {
            load.redirect(gateway.address).await;
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        for (name, load) in [
            ("api", self.api),
            ("tenant", self.tenant),
            ("reports", self.reports),
        ] {
            let counts = load.stop().await?;
            println!("  {name}: {counts:?}");
        }
        Ok(())
    }
}

/// Waits until the loads have admitted so many more reports and so much more of the tenant.
async fn admitted_more(loads: &[&Loads], reports: u64, tenant: u64) -> anyhow::Result<()> {
    let sum = |pick: fn(&Loads) -> &Load| -> u64 {
        loads
            .iter()
            .map(|loads| pick(loads).counts().admitted())
            .sum()
    };
    let both = || (sum(|loads| &loads.reports), sum(|loads| &loads.tenant));
    let before = both();
    wait::until("enough was admitted", SOON, || {
        let now = both();
        let enough = now.0 >= before.0 + reports && now.1 >= before.1 + tenant;
        async move { enough.then_some(()) }
    })
    .await
}

async fn limit(server: &Server, name: &str) -> anyhow::Result<IdealLimit> {
    let policy = Policy::parse(server.policy(name).await?, PolicyVersion::new(1))?;
    let key = Key::from_values(&["any"])?;
    Ok(policy.limit_for(&key).into())
}

/// Judges one policy and prints what its busiest bucket showed.
fn judge(admitted: &mut Admissions, name: &str, limit: IdealLimit) -> anyhow::Result<Summary> {
    let policy = format!("default/{name}");
    let summaries = verdict::judge(admitted, &policy, limit)?;
    let busiest = summaries.iter().max_by_key(|(_, summary)| summary.admitted);
    let (key, summary) = busiest.expect("judged at least one bucket");
    println!(
        "{name}: {} buckets hold; the busiest, {key}: {summary:?}",
        summaries.len()
    );
    Ok(*summary)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_admitted_than_the_limits_allow_through_kills_of_server_and_gateway()
-> anyhow::Result<()> {
    let mut cluster = Cluster::new()?;
    let server = cluster.start_server(None).await?;
    let (first, log_1) = cluster.start_gateway(server.grpc).await?;
    let (second, log_2) = cluster.start_gateway(server.grpc).await?;
    let (loads_1, loads_2) = (Loads::start(&first), Loads::start(&second));
    let all = [&loads_1, &loads_2];

    admitted_more(&all, 200, 2_000).await?;
    let before = Metrics::read(server.http).await?;
    println!("killing the server");
    let addresses = server.addresses();
    server.process.kill()?;
    let server = cluster.start_server(Some(addresses)).await?;
    let after = Metrics::read(server.http).await?;

    admitted_more(&all, 100, 2_000).await?;
    println!("killing a gateway");
    first.process.kill()?;
    let (third, log_3) = cluster.start_gateway(server.grpc).await?;
    loads_1.redirect(&third).await;
    admitted_more(&all, 50, 3_000).await?;

    let limits = [
        limit(&server, "api").await?,
        limit(&server, "tenant").await?,
        limit(&server, "reports").await?,
    ];
    let exhausted = [&loads_1.tenant, &loads_2.tenant, &loads_1.api, &loads_2.api];
    let exhausted = exhausted.map(|load| load.counts().exhausted.load(Ordering::Relaxed));
    println!("gateway 1, then 3:");
    loads_1.stop().await?;
    println!("gateway 2:");
    loads_2.stop().await?;
    for gateway in [second, third] {
        let status = gateway.process.stop().await?;
        anyhow::ensure!(status.success(), "a gateway stops with {status}");
    }
    let status = server.process.stop().await?;
    anyhow::ensure!(status.success(), "the server stops with {status}");

    let logs: [PathBuf; 3] = [log_1, log_2, log_3];
    let mut admitted = verdict::read_logs(logs.iter().map(PathBuf::as_path))?;
    let verdicts = ["api", "tenant", "reports"].into_iter().zip(limits);
    let verdicts = verdicts.map(|(name, limit)| judge(&mut admitted, name, limit));
    let verdicts: Vec<anyhow::Result<Summary>> = verdicts.collect();
    for broken in verdicts.iter().filter_map(|verdict| verdict.as_ref().err()) {
        println!("BROKEN: {broken:#}");
    }
    let summaries: anyhow::Result<Vec<Summary>> = verdicts.into_iter().collect();
    let [_, tenant, reports] = summaries?[..] else {
        anyhow::bail!("three policies were judged");
    };

    // The limits were reached, or the verdict says nothing.
    anyhow::ensure!(
        exhausted.iter().all(|count| *count > 0),
        "never exhausted: {exhausted:?}"
    );
    anyhow::ensure!(tenant.admissions > 5_000 && reports.admissions > 300);
    // What a reserved bucket granted before the kill was booked in records, which were read back.
    let written = before.sum("quota_records_total", "");
    let of_reports = before.sum("quota_records_total", "policy=\"default/reports\"");
    let grants = before.sum("quota_grants_total", "policy=\"default/reports\"");
    let read = after.sum("quota_records_read_total", "");
    println!(
        "reservation records: {written} for {grants} grants before the kill, {read} read after"
    );
    anyhow::ensure!(of_reports >= 1.0, "no record was written");
    anyhow::ensure!(written == of_reports, "volatile buckets wrote records");
    anyhow::ensure!(read >= 1.0, "no record was read back");
    Ok(())
}
