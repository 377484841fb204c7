//! Lists, changes and deletes policies of a running server: the Admin service by hand.
//!
//! ```text
//! cargo run -p quota-server --example policy -- list
//! cargo run -p quota-server --example policy -- put policy.toml
//! cargo run -p quota-server --example policy -- set api tokens=300 burst=50
//! cargo run -p quota-server --example policy -- delete api
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use quota_core::policy::{PolicySpec, Span};
use quota_wire::convert::policy::{decode_policy, encode_spec};
use quota_wire::proto as wire;
use quota_wire::proto::admin_client::AdminClient;
use tonic::transport::Channel;

/// Lists, changes and deletes policies of a running server.
#[derive(Debug, Parser)]
struct Arguments {
    /// The server.
    #[arg(long, default_value = "http://127.0.0.1:7070")]
    server: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print all policies.
    List,
    /// Store the policy written in a TOML file, as a new one or as the next version of its name.
    Put {
        /// The file.
        file: PathBuf,
    },
    /// Change the limit of a policy.
    Set {
        /// Its name.
        name: String,
        /// What to change: `tokens=300`, `period=60s`, `burst=50`.
        #[arg(required = true)]
        changes: Vec<String>,
    },
    /// Delete a policy.
    Delete {
        /// Its name.
        name: String,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let channel = Channel::from_shared(arguments.server.clone())?
        .connect()
        .await;
    let channel = channel.with_context(|| format!("no server answers at {}", arguments.server))?;
    let mut admin = AdminClient::new(channel);
    match arguments.command {
        Command::List => list(&mut admin).await,
        Command::Put { file } => put(&mut admin, read(&file)?).await,
        Command::Set { name, changes } => {
            let request = wire::GetPolicyRequest {
                id: Some(id(&name)),
            };
            let policy = admin.get_policy(request).await.map_err(said)?.into_inner();
            let mut spec = decode_policy("policy", policy)?.spec;
            changes
                .iter()
                .try_for_each(|change| set(&mut spec, change))?;
            put(&mut admin, spec).await
        }
        Command::Delete { name } => {
            let request = wire::DeletePolicyRequest {
                id: Some(id(&name)),
                expected_version: None,
            };
            let deleted = admin
                .delete_policy(request)
                .await
                .map_err(said)?
                .into_inner();
            println!(
                "{name} is deleted; {} tokens are still out",
                deleted.outstanding_before
            );
            Ok(())
        }
    }
}

async fn list(admin: &mut AdminClient<Channel>) -> anyhow::Result<()> {
    let mut request = wire::ListPoliciesRequest::default();
    loop {
        let page = admin
            .list_policies(request.clone())
            .await
            .map_err(said)?
            .into_inner();
        for policy in page.policies {
            let policy = decode_policy("policy", policy)?;
            println!(
                "# version {}\n{}",
                policy.version,
                toml::to_string(&policy.spec)?
            );
        }
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}

async fn put(admin: &mut AdminClient<Channel>, spec: PolicySpec) -> anyhow::Result<()> {
    let name = spec.name.clone();
    let spec = Some(encode_spec(&spec));
    let request = wire::PutPolicyRequest {
        spec,
        ..wire::PutPolicyRequest::default()
    };
    let stored = admin.put_policy(request).await.map_err(said)?.into_inner();
    println!(
        "{name} is in force as version {}; {} tokens are out under the version before, {} are owed",
        stored.version, stored.outstanding_before, stored.owed
    );
    Ok(())
}

fn set(spec: &mut PolicySpec, change: &str) -> anyhow::Result<()> {
    let (field, value) = change
        .split_once('=')
        .context("write changes as field=value")?;
    let limit = &mut spec.limit;
    match field {
        "tokens" => limit.tokens = Some(value.parse()?),
        "burst" => limit.burst = Some(value.parse()?),
        "period" => {
            let span: Span = value.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
            limit.period = Some(span.term().into());
        }
        other => bail!("{other:?} is not tokens, period or burst; use `put` for the rest"),
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<PolicySpec> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is no policy", file.display()))
}

fn id(name: &str) -> wire::PolicyId {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    wire::PolicyId {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// What the server said, without the wrapping of the call.
fn said(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{:?}: {}", status.code(), status.message())
}
