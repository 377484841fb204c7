//! How much of a limit can be used: half as much load again as the limit allows, from two
//! gateways, for twenty seconds.

use std::path::PathBuf;
use std::time::Duration;

use quota_client::clock;
use quota_core::id::PolicyVersion;
use quota_core::key::Key;
use quota_core::policy::Policy;
use quota_core::time::Term;
use quota_tests::cluster::Cluster;
use quota_tests::load::{Load, Plan};
use quota_tests::{verdict, wait};

const MEASURED: Term = Term::from_seconds(20);
/// The limit of `tenant` is 1,000 a second; each of two gateways is offered half of 1.5 times that.
const OFFERED: u64 = 750;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_least_97_percent_of_a_limit_is_admitted_under_half_as_much_load_again()
-> anyhow::Result<()> {
    let mut cluster = Cluster::new()?;
    let server = cluster.start_server(None).await?;
    // Out of the way: otherwise each API key would be limited before its tenant is.
    let mut api = server.policy("api").await?;
    api.disabled = true;
    let version = server.put_policy(&api).await?.version;
    let (first, log_1) = cluster.start_gateway(server.grpc).await?;
    let (second, log_2) = cluster.start_gateway(server.grpc).await?;
    println!("policy `api` is disabled as version {version}");

    let plan = Plan {
        path: "/hello".into(),
        tenant: "busy".into(),
        api_key: "any".into(),
        keys: 1,
        rate: OFFERED,
    };
    let begin = clock::now();
    let loads = [
        Load::start(first.address, plan.clone()),
        Load::start(second.address, plan),
    ];
    let patience = Duration::from_nanos(MEASURED.as_nanos()) * 3;
    wait::until("twenty seconds were measured", patience, || async {
        (clock::now().since(begin) >= MEASURED).then_some(())
    })
    .await?;
    for load in loads {
        println!("{:?}", load.stop().await?);
    }
    for gateway in [first, second] {
        gateway.process.stop().await?;
    }

    let policy = Policy::parse(server.policy("tenant").await?, PolicyVersion::new(1))?;
    server.process.stop().await?;
    let limit = *policy.limit_for(&Key::from_values(&["busy"])?);
    let logs: [PathBuf; 2] = [log_1, log_2];
    let mut admitted = verdict::read_logs(logs.iter().map(PathBuf::as_path))?;
    let tenant = ("default/tenant".to_owned(), "busy".to_owned());
    let within = admitted.get(&tenant).into_iter().flatten();
    let within = within
        .filter(|a| a.latest <= begin + MEASURED)
        .map(|a| a.cost.get());
    let used: u64 = within.sum();
    let allowed = (limit.capacity() + limit.rate().tokens_in(MEASURED)).get();
    let offered = 2 * OFFERED * MEASURED.as_seconds_ceil();
    let per_mille = used * 1000 / allowed.min(offered);
    println!("{used} of {allowed} admitted in 20 s: {per_mille} per mille");
    verdict::judge(&mut admitted, "default/tenant", (&limit).into())?;
    anyhow::ensure!(
        per_mille >= 970,
        "only {per_mille} per mille of the limit was admitted"
    );
    Ok(())
}
