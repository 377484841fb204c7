//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use quota_core::key::PolicyId;
use quota_core::policy::Span;

const AFTER: &str = "\
Policies are named NAME (in the namespace `default`) or NAMESPACE/NAME.

Exit codes:
  0   done
  1   the server refused, or does not know what was named
  2   the command line or a file is wrong; nothing was changed
  3   the server cannot be reached, or cannot answer now: the same command may work later

Examples:
  quotactl policy apply -f policies.toml --dry-run
      show what would change, and let the server check it
  quotactl policy put api --tokens 6000 --burst 500
      change a limit
  quotactl lease tune search --horizon 250ms
      shorter grants: more messages, less stranded capacity
  quotactl bucket top --by stranded
      see where tokens are held for nothing
  quotactl switch admit checkout --for 10m --reason 'limit set too low'
      let a policy admit everything, for ten minutes
  quotactl --output json stats | jq .granted_tokens";

/// Policies, leases and buckets of a running Quota server.
#[derive(Debug, Parser)]
#[command(name = "quotactl", version, after_help = AFTER, propagate_version = true)]
pub(crate) struct Arguments {
    /// The server's gRPC address
    #[arg(
        long,
        global = true,
        env = "QUOTA_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:7070"
    )]
    pub(crate) server: String,
    /// How results and errors are printed
    #[arg(
        long,
        short,
        global = true,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One JSON document on standard output; errors as an object on standard error
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See and change policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Tune how leases are sized and timed
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Look into buckets
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// See who is connected
    #[command(subcommand)]
    Holder(HolderCommand),
    /// Switch policies to admit or to refuse everything, at every gateway at once
    #[command(
        subcommand,
        after_help = "\
A switch decides at the gateways before any bucket is looked at: nothing is charged, leases that are
out stay counted, and what passes is counted apart. The narrowest switch decides about a policy: its
own, its namespace's, the one of everything. Policies in shadow mode never refuse, switched or not.
Switches are stored: they outlive a restart of the server. A gateway that is cut off learns of a
change when it is back, and ends a switch with an end by itself."
    )]
    Switch(SwitchCommand),
    /// Totals of the server since its start
    Stats,
    /// Print a script that completes quotactl's commands in a shell
    #[command(after_help = "\
Examples:
  quotactl completion bash > /etc/bash_completion.d/quotactl
  quotactl completion zsh > \"${fpath[1]}/_quotactl\"
  quotactl completion fish > ~/.config/fish/completions/quotactl.fish")]
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List all policies in force
    List {
        /// Only this namespace
        #[arg(long)]
        namespace: Option<String>,
    },
    /// Print one policy as a file that `apply` takes
    Get {
        /// Which
        #[arg(value_parser = policy_id)]
        policy: PolicyId,
    },
    /// Create a policy, or change the limit of one; what is not named stays as it is
    Put(Put),
    /// Delete a policy; tokens that are out stay valid until they are spent or their leases end
    Delete {
        /// Which
        #[arg(value_parser = policy_id)]
        policy: PolicyId,
        /// Only if this version is in force
        #[arg(long, value_name = "VERSION")]
        expect: Option<u64>,
    },
    /// Create and change policies as a file says, and show what that changes
    #[command(after_help = "\
The file holds one policy, or several under `policies`, as TOML or JSON:

  [[policies]]
  name = \"search\"
  match = { route = \"/search\" }
  key = [\"tenant\", \"route\"]
  limit = { tokens = 10, period = \"1s\", burst = 20 }

A policy is replaced as a whole: a field that the file does not name gets its default. Policies
that the file does not name stay as they are. Everything is checked before anything is changed;
each change names the version that the comparison was made with, so that a change by someone else
in between is refused, not overwritten.")]
    Apply {
        /// The file; `-` is standard input
        #[arg(long, short, value_name = "FILE")]
        file: PathBuf,
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Which
    #[arg(value_parser = policy_id)]
    pub(crate) policy: PolicyId,
    /// Tokens in each period
    #[arg(long, value_name = "COUNT")]
    pub(crate) tokens: Option<u64>,
    /// The period, as in `1s` or `1m30s`
    #[arg(long, value_name = "SPAN")]
    pub(crate) period: Option<Span>,
    /// The most that can be spent at one moment
    #[arg(long, value_name = "COUNT")]
    pub(crate) burst: Option<u64>,
    /// A dimension whose values pick the bucket, for a new policy; may be repeated
    #[arg(long = "key", value_name = "DIMENSION")]
    pub(crate) key: Vec<String>,
    /// Only if this version is in force; 0: only if there is no such policy
    #[arg(long, value_name = "VERSION")]
    pub(crate) expect: Option<u64>,
    /// Let the server check it and show what would change, but change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Change fields of a policy's `lease` section live; the next grants follow
    Tune(Tune),
}

#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// Which
    #[arg(value_parser = policy_id)]
    pub(crate) policy: PolicyId,
    /// The span of demand that a grant should cover, 10ms to 60s
    #[arg(long, value_name = "SPAN")]
    pub(crate) horizon: Option<Span>,
    /// The share of the capacity that may be out at a time: `80%`, or thousandths, 1 to 1000
    #[arg(long, value_name = "SHARE", value_parser = per_mille)]
    pub(crate) share: Option<u32>,
    /// The longest term of a lease, 100ms to 300s
    #[arg(long, value_name = "SPAN")]
    pub(crate) term_max: Option<Span>,
    /// A holder without demand for this long returns what it holds, 10ms to 300s
    #[arg(long, value_name = "SPAN")]
    pub(crate) idle_return: Option<Span>,
    /// Tokens that an idle holder keeps
    #[arg(long, value_name = "COUNT")]
    pub(crate) warm_floor: Option<u64>,
    /// Only if this version is in force
    #[arg(long, value_name = "VERSION")]
    pub(crate) expect: Option<u64>,
    /// Let the server check it and show what would change, but change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BucketCommand {
    /// One bucket as its authority sees it, with its leases
    Inspect {
        /// The policy
        #[arg(value_parser = policy_id)]
        policy: PolicyId,
        /// The values of the policy's key dimensions, in its order
        key: Vec<String>,
    },
    /// The buckets that stand out
    Top {
        /// By what
        #[arg(long, value_name = "ORDER")]
        by: Order,
        /// Only buckets of this policy
        #[arg(long, value_parser = policy_id)]
        policy: Option<PolicyId>,
        /// How many, at most 1000
        #[arg(short = 'n', long = "limit", value_name = "COUNT", default_value_t = 20,
              value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Tokens a second that holders report being asked for
    Demand,
    /// Recent requests that were not granted at once: they had to wait, or were refused
    Refused,
    /// Tokens in hand beyond what demand spends within the horizon
    Stranded,
    /// Recent requests of holders of any kind
    Messages,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SwitchCommand {
    /// Admit everything, charge nothing
    Admit(Set),
    /// Refuse everything (503), charge nothing
    Refuse(Set),
    /// Let the policies apply again as they are written
    Off {
        #[command(flatten)]
        scope: Scope,
        /// Why, for the server's log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List the switches that are set
    List,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Go back to off after this, 1s or more
    #[arg(long = "for", value_name = "SPAN")]
    pub(crate) within: Option<Span>,
    /// Why, for the server's log and `switch list`
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Scope {
    /// One policy
    #[arg(value_parser = policy_id)]
    pub(crate) policy: Option<PolicyId>,
    /// All policies of a namespace
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// All policies
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HolderCommand {
    /// List the holders that are connected, with what they have
    List,
}

/// `NAME` or `NAMESPACE/NAME`. Whether it is a legal one is for the server to say.
fn policy_id(text: &str) -> Result<PolicyId, String> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err("write NAME or NAMESPACE/NAME".to_owned());
    }
    Ok(PolicyId {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// `80%`, `72.5%`, or thousandths.
fn per_mille(text: &str) -> Result<u32, String> {
    let wrong = || "write a percentage, as in 80% or 72.5%, or thousandths, 1 to 1000".to_owned();
    let digits = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u32>().map_err(|_| wrong()),
        false => Err(wrong()),
    };
    let Some(percent) = text.strip_suffix('%') else {
        return digits(text);
    };
    let (whole, tenths) = percent.split_once('.').unwrap_or((percent, "0"));
    if tenths.len() != 1 {
        return Err(wrong());
    }
    let whole = digits(whole)?.checked_mul(10).ok_or_else(wrong)?;
    Ok(whole.saturating_add(digits(tenths)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_share_is_a_percentage_or_thousandths() {
        for (text, share) in [("80%", 800), ("72.5%", 725), ("100%", 1000), ("7", 7)] {
            assert_eq!(per_mille(text), Ok(share), "{text}");
        }
        for text in ["", "%", "80.55%", "-1", "+5", "1.5", "99999999999", ".5%"] {
            assert!(per_mille(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_policy_has_a_namespace_that_may_be_left_out() {
        let id = |text| policy_id(text).map(|id| id.to_string());
        assert_eq!(id("api"), Ok("default/api".to_owned()));
        assert_eq!(id("shop/api"), Ok("shop/api".to_owned()));
        for text in ["", "/api", "shop/", "a/b/c"] {
            assert!(id(text).is_err(), "{text}");
        }
    }
}
