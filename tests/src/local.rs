//! A server in this process, for benchmarks that need one at the other end of a connection.

use anyhow::Context;
use quota_core::policy::{Durability, LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_server::config::Config;
use quota_server::server::{RunningServer, Server};
use quota_wire::convert::policy::encode_spec;
use quota_wire::proto as wire;
use quota_wire::proto::admin_client::AdminClient;
use tempfile::TempDir;
use tonic::transport::Channel;

/// A server with a directory of its own.
#[derive(Debug)]
pub struct LocalServer {
    /// The server.
    pub server: RunningServer,
    _directory: TempDir,
}

impl LocalServer {
    /// Starts one on free ports, with these policies.
    ///
    /// # Errors
    /// If it does not start or refuses a policy.
    pub async fn start(policies: &[PolicySpec]) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let data = directory.path().to_str().context("a readable path")?;
        let arguments = [
            "quota-server",
            "--no-demo",
            "--data-dir",
            data,
            "--grpc-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ];
        let config = Config::load(arguments.iter().map(Into::into), |_| None)?;
        let server = Server::start(config).await?;
        server.ready().await;
        let local = Self {
            server,
            _directory: directory,
        };
        let mut admin = AdminClient::new(local.connect().await?);
        for policy in policies {
            let spec = Some(encode_spec(policy));
            admin
                .put_policy(wire::PutPolicyRequest {
                    spec,
                    ..Default::default()
                })
                .await?;
        }
        Ok(local)
    }

    /// Where it is, as a client's seed.
    #[must_use]
    pub fn seed(&self) -> String {
        format!("http://{}", self.server.grpc_addr)
    }

    /// A connection to it.
    ///
    /// # Errors
    /// If there is none to be had.
    pub async fn connect(&self) -> anyhow::Result<Channel> {
        Ok(Channel::from_shared(self.seed())?.connect().await?)
    }
}

/// A policy with so large a limit that a benchmark does not come near it, and leases that stay.
#[must_use]
pub fn plenty(name: &str, dimension: &str) -> PolicySpec {
    let limit = LimitSpec::new(1_000_000_000, Term::from_seconds(1)).with_burst(1 << 38);
    let mut spec = PolicySpec::new(name, &[dimension], limit);
    spec.durability = Durability::Volatile;
    spec.lease.term_max = Term::from_seconds(300).into();
    spec.lease.idle_return = Term::from_seconds(300).into();
    spec
}
