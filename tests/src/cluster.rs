//! An authority server and gateways as real processes, in a directory that goes with them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use quota_core::key::PolicyId;
use quota_core::policy::PolicySpec;
use quota_wire::convert::policy::{decode_policy, encode_spec};
use quota_wire::proto as wire;
use quota_wire::proto::admin_client::AdminClient;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::binaries::binaries;
use crate::http;
use crate::process::Process;
use crate::wait;

/// How long a process may take to start on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);

/// A running authority server.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// Where clients and administrators connect.
    pub grpc: SocketAddr,
    /// Where health and metrics are.
    pub http: SocketAddr,
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    /// The process.
    pub process: Process,
    /// Where it serves.
    pub address: SocketAddr,
}

/// The directory of one test, and what runs in it.
#[derive(Debug)]
pub struct Cluster {
    directory: TempDir,
    gateways: u32,
}

impl Cluster {
    /// A directory with nothing running in it.
    ///
    /// # Errors
    /// If there is no room for one.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            directory: tempfile::tempdir()?,
            gateways: 0,
        })
    }

    /// Starts the authority on free ports, or again where it was before, and waits until it
    /// serves.
    ///
    /// # Errors
    /// If it does not.
    pub async fn start_server(
        &self,
        before: Option<(SocketAddr, SocketAddr)>,
    ) -> anyhow::Result<Server> {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let (grpc, http) = before.unwrap_or((free, free));
        let mut command = Command::new(&binaries()?.server);
        command
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args([
                "--grpc-listen",
                &grpc.to_string(),
                "--http-listen",
                &http.to_string(),
            ])
            .current_dir(self.directory.path());
        let process = Process::spawn("the server", &mut command)?;
        let (grpc, http) = process
            .line("where it serves", START_WITHIN, addresses)
            .await?;
        Ok(Server {
            process,
            grpc,
            http,
        })
    }

    /// Starts a gateway on a free port and waits until it has the policies. Returns it with the
    /// path of its admission log.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_gateway(
        &mut self,
        authority: SocketAddr,
    ) -> anyhow::Result<(Gateway, PathBuf)> {
        self.gateways += 1;
        let name = format!("gateway {}", self.gateways);
        let log = self
            .directory
            .path()
            .join(format!("admitted-{}", self.gateways));
        let mut command = Command::new(&binaries()?.gateway);
        command
            .args([
                "--listen",
                "127.0.0.1:0",
                "--authority",
                &format!("http://{authority}"),
            ])
            .arg("--log-admissions")
            .arg(&log)
            .current_dir(self.directory.path());
        let process = Process::spawn(&name, &mut command)?;
        let serves = process.line("where it serves", START_WITHIN, gateway_address);
        let address = serves.await?;
        wait::until("the gateway has policies", START_WITHIN, || async {
            let answer = http::get(address, "/stats", &[]).await.ok()?;
            let stats: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
            (!stats["policies"].as_array()?.is_empty()).then_some(())
        })
        .await?;
        Ok((Gateway { process, address }, log))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Server {
    /// Its ports, to start it there again.
    #[must_use]
    pub const fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.grpc, self.http)
    }

    /// A client of its administration.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub async fn admin(&self) -> anyhow::Result<AdminClient<Channel>> {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc))?;
        let channel = endpoint
            .connect()
            .await
            .context("the administration cannot be reached")?;
        Ok(AdminClient::new(channel))
    }

    /// A policy as it is in force.
    ///
    /// # Errors
    /// If there is none.
    pub async fn policy(&self, name: &str) -> anyhow::Result<PolicySpec> {
        let id = PolicyId {
            namespace: "default".into(),
            name: name.into(),
        };
        let id = wire::PolicyId {
            namespace: id.namespace,
            name: id.name,
        };
        let request = wire::GetPolicyRequest { id: Some(id) };
        let policy = self.admin().await?.get_policy(request).await?.into_inner();
        Ok(decode_policy("policy", policy)?.spec)
    }

    /// Stores a policy; when this returns, every grant follows it.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn put_policy(&self, spec: &PolicySpec) -> anyhow::Result<wire::PutPolicyResponse> {
        let request = wire::PutPolicyRequest {
            spec: Some(encode_spec(spec)),
            ..wire::PutPolicyRequest::default()
        };
        Ok(self.admin().await?.put_policy(request).await?.into_inner())
    }
}

/// `quota-server serves gRPC on 127.0.0.1:7070 and HTTP on 127.0.0.1:7071`
pub(crate) fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let rest = line.strip_prefix("quota-server serves gRPC on ")?;
    let (grpc, http) = rest.split_once(" and HTTP on ")?;
    Some((grpc.parse().ok()?, http.trim().parse().ok()?))
}

/// `gateway on http://127.0.0.1:8080, leasing from …`
pub(crate) fn gateway_address(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix("gateway on http://")?;
    rest.split(',').next()?.parse().ok()
}
