//! A gateway that limits HTTP requests: one way to use the client, and what the tour in the README
//! runs.
//!
//! Every path but `/stats` is limited. The dimensions of a request are `api_key` (the header
//! `x-api-key`, or `anonymous`), `tenant` (the header `x-tenant`, or `default`) and `route` (the
//! path). All policies that match must admit it.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use clap::Parser;
use quota_client::{Config, Decision, Outcome, QuotaClient, clock};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long a request may wait for its first lease, or for tokens that are about to come.
const WITHIN: Duration = Duration::from_millis(50);
/// How long the gateway takes to give its leases back when it stops.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// An HTTP gateway that limits requests by Quota.
///
/// Try it:  curl -i -H 'x-api-key: alice' http://127.0.0.1:8080/hello
#[derive(Debug, Parser)]
struct Arguments {
    /// Where to serve HTTP.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The authority to lease from. Several are tried in turn.
    #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:7070")]
    authority: Vec<String>,
    /// Keep the last good policies here, to start from while no authority is in reach.
    #[arg(long)]
    policy_file: Option<PathBuf>,
    /// Append a line for each admitted request and each bucket that it was charged to: two clock
    /// readings in nanoseconds (CLOCK_BOOTTIME) with the debit in between, the policy, the key
    /// and the cost, separated by tabs. For tests that judge what was admitted.
    #[arg(long)]
    log_admissions: Option<PathBuf>,
}

#[derive(Debug)]
struct Gateway {
    quota: QuotaClient,
    log: Option<File>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let arguments = Arguments::parse();
    let mut config = Config::new(arguments.authority.clone());
    config.client_name = "quota-example-gateway".to_owned();
    config.policy_file = arguments.policy_file;
    let quota = QuotaClient::connect(config).await?;
    let log = arguments
        .log_admissions
        .as_deref()
        .map(open_log)
        .transpose()?;
    let listener = TcpListener::bind(arguments.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; choose another --listen",
            arguments.listen
        )
    })?;
    let address = listener.local_addr()?;
    println!(
        "gateway on http://{address}, leasing from {}",
        arguments.authority.join(", ")
    );
    println!("try: curl -i -H 'x-api-key: alice' http://{address}/hello");

    let gateway = Arc::new(Gateway { quota, log });
    let routes = Router::new()
        .route("/stats", get(stats))
        .fallback(limited)
        .with_state(Arc::clone(&gateway));
    axum::serve(listener, routes)
        .with_graceful_shutdown(stopped()?)
        .await?;
    if gateway.quota.close(CLOSE_WITHIN).await {
        println!("all leases are given back");
    } else {
        println!(
            "the authority did not confirm in time; leases that were out end with their terms"
        );
    }
    Ok(())
}

/// One request: decide, then answer.
async fn limited(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let api_key = text(request.headers(), "x-api-key").unwrap_or_else(|| "anonymous".to_owned());
    let tenant = text(request.headers(), "x-tenant").unwrap_or_else(|| "default".to_owned());
    let dimensions = [
        ("api_key", api_key.as_str()),
        ("tenant", tenant.as_str()),
        ("route", request.uri().path()),
    ];
    let before = clock::now();
    let decision = gateway.quota.check_within(&dimensions, WITHIN).await;
    let after = clock::now();
    if let (Outcome::Allowed, Some(log)) = (decision.outcome(), &gateway.log) {
        let charged = gateway.quota.matching(&dimensions);
        let mut lines = String::new();
        for (bucket, cost) in charged {
            let (before, after) = (before.as_nanos(), after.as_nanos());
            let (policy, key) = (bucket.policy, bucket.key);
            let _infallible = writeln!(lines, "{before}\t{after}\t{policy}\t{key}\t{cost}");
        }
        // One write a request, so that a killed gateway leaves whole lines.
        let mut log = log;
        if let Err(error) = log.write_all(lines.as_bytes()) {
            tracing::error!(%error, "an admission could not be logged");
        }
    }
    answer(&decision)
}

fn answer(decision: &Decision<'_>) -> Response<Body> {
    let body = json!({
        "allowed": decision.is_allowed(),
        "reason": decision.reason().map(|reason| reason.as_str()),
        "policy": decision.policy().map(ToString::to_string),
        "version": decision.version().map(|version| version.get()),
    });
    let mut response = Response::new(Body::from(format!("{body}\n")));
    *response.status_mut() =
        StatusCode::from_u16(decision.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    for (name, value) in decision.header_fields() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    response
}

/// The client's totals, as JSON.
async fn stats(State(gateway): State<Arc<Gateway>>) -> Response<Body> {
    let stats = gateway.quota.stats();
    let body = json!({
        "link": format!("{:?}", gateway.quota.link()).to_lowercase(),
        "policies": gateway.quota.policies().iter()
            .map(|(id, version)| json!({ "policy": id.to_string(), "version": version.get() }))
            .collect::<Vec<_>>(),
        "allowed": stats.allowed,
        "allowed_switched": stats.allowed_switched,
        "allowed_open": stats.allowed_open,
        "allowed_listed": stats.allowed_listed,
        "allowed_shadow": stats.allowed_shadow,
        "exhausted": stats.exhausted,
        "unreachable": stats.unreachable,
        "overloaded": stats.overloaded,
        "kill_switch": stats.kill_switch,
        "first_touch": stats.first_touch,
        "unknown_policy": stats.unknown_policy,
        "cost_too_high": stats.cost_too_high,
        "table_full": stats.table_full,
        "too_many_waiters": stats.too_many_waiters,
        "invalid_key": stats.invalid_key,
        "open_tokens": stats.open_tokens,
        "listed_tokens": stats.listed_tokens,
        "switched_tokens": stats.switched_tokens,
        "rollbacks": stats.rollbacks,
        "rollbacks_lost": stats.rollbacks_lost,
        "keys": stats.keys,
        "connects": stats.connects,
    });
    let mut response = Response::new(Body::from(format!("{body}\n")));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A header as text. Header values are bytes; those that are not UTF-8 are escaped, so that every
/// value stays a key of its own.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.as_bytes();
    Some(match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.escape_ascii().to_string(),
    })
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot append to {}", path.display()))
}

/// Returns a future that ends when the process is asked to stop.
fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
