//! The authority server's process: settings, logs, signals.

use std::io;

use anyhow::Context as _;
use quota_server::config::{Config, ConfigError};
use quota_server::logging;
use quota_server::server::Server;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<()> {
    let config = match Config::load(std::env::args_os(), |name| std::env::var_os(name)) {
        Ok(config) => config,
        // Prints help to standard output and mistakes to standard error, with the right codes.
        Err(ConfigError::Usage(usage)) => usage.exit(),
        Err(error) => return Err(error.into()),
    };
    if config.print {
        return print(&config.to_toml());
    }
    logging::start(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(run(config))
}

async fn run(config: Config) -> anyhow::Result<()> {
    // Before anything is claimed: from here on a stop is an orderly one.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let data_dir = config.data_dir.display().to_string();
    let server = Server::start(config).await?;
    tracing::info!(grpc = %server.grpc_addr, http = %server.http_addr, data_dir, "listening");
    let ready = async {
        server.ready().await;
        tracing::info!("every shard is served");
        print(&server.greeting())?;
        std::future::pending::<anyhow::Result<()>>().await
    };
    let by = tokio::select! {
        failed = ready => return failed,
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(by, "stopping: handing every shard over");
    tokio::select! {
        () = server.shutdown() => tracing::info!("stopped"),
        // Whoever asks twice is in a hurry; the shards then start as after a crash.
        _ = terminate.recv() => tracing::warn!("stopped at once"),
        _ = interrupt.recv() => tracing::warn!("stopped at once"),
    }
    Ok(())
}

/// Prints, and does not mind if nobody reads.
fn print(text: &str) -> anyhow::Result<()> {
    match logging::print(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print"),
    }
}
