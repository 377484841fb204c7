//! `quotactl`: policies, leases and buckets of a running server, by hand and by script.
//!
//! - [`args`]: what can be said on the command line
//! - [`mod@file`], [`place`]: policy files, and where in them a mistake is
//! - [`diff`]: what a change changes
//! - [`policy`], [`lease`], [`bucket`], [`switch`], [`node`]: the commands
//! - [`output`]: tables and JSON
//! - [`failure`]: what went wrong, and the exit code for it
//!
//! It says what the server says: it checks files before it sends them, and decides nothing else.

mod args;
mod bucket;
mod diff;
mod failure;
mod file;
mod lease;
mod node;
mod output;
mod place;
mod policy;
mod switch;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use quota_wire::limits::MESSAGE_BYTES_MAX;
use quota_wire::proto::admin_client::AdminClient;
use tonic::transport::{Channel, Endpoint};

use self::args::{Arguments, Command};
use self::failure::Failure;
use self::output::Output;

type Admin = AdminClient<Channel>;

/// How long a connection and a call may take. A policy change waits half a minute for a shard.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const CALL_WITHIN: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    // Prints help to standard output and mistakes to standard error, with 0 and 2.
    let arguments = Arguments::parse();
    let json = arguments.output == args::Format::Json;
    match run(arguments) {
        Ok(output) => print(&output.render(json)),
        Err(failure) => {
            if let Some(done) = &failure.done {
                print(&done.render(json));
            }
            let text = failure.render(json);
            // Nobody may be reading; the exit code says it as well.
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(failure.code())
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> Result<Output, Failure> {
    let server = &arguments.server;
    match arguments.command {
        Command::Policy(command) => policy::run(command, server).await,
        Command::Lease(args::LeaseCommand::Tune(tuning)) => lease::tune(tuning, server).await,
        Command::Bucket(command) => bucket::run(command, server).await,
        Command::Holder(args::HolderCommand::List) => node::holders(server).await,
        Command::Switch(command) => switch::run(command, server).await,
        Command::Stats => node::stats(server).await,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "quotactl", &mut script);
            Ok(Output::script(
                String::from_utf8_lossy(&script).into_owned(),
            ))
        }
    }
}

/// Connects to the server's Admin service.
async fn connect(server: &str) -> Result<Admin, Failure> {
    let endpoint = Endpoint::from_shared(server.to_owned()).map_err(|error| {
        Failure::usage(format!(
            "--server {server} is no address ({error}); write it like http://127.0.0.1:7070"
        ))
    })?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_WITHIN)
        .timeout(CALL_WITHIN);
    let channel = endpoint.connect().await.map_err(|error| {
        let why = failure::causes(&error);
        Failure::unreachable(format!(
            "no server answers at {server}: {why}; is it running, and is --server right?"
        ))
    })?;
    Ok(AdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

/// Prints to standard output, and does not mind if nobody reads.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quotactl: cannot print: {error}");
            ExitCode::FAILURE
        }
    }
}
