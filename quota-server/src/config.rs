//! What a server is told: flags, environment, one file, defaults, in that order.
//!
//! Nothing else in the server reads an environment variable or a settings file.

use quota_wire::limits::MESSAGE_BYTES_MAX;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::store::SHARDS_MAX;
use crate::store::sled::SHARDS_DEFAULT;

const EXAMPLES: &str = "\
Settings:
  Each option can also be given as an environment variable (--data-dir as QUOTA_DATA_DIR) or in
  the file named by --config (data_dir = \"…\"; the limits in a table [limits]). A flag wins over
  the environment, the environment over the file, the file over the default. See what is in force
  with --print-config, whose output is such a file.

Examples:
  quota-server
      serve on 127.0.0.1:7070, keep everything in ./quota-data, which is created if need be
  quota-server --data-dir /var/lib/quota --config /etc/quota/server.toml
      keep everything where the system keeps state, and read settings from a file
  quota-server --grpc-listen 0.0.0.0:7070 --allow-plaintext
      serve other machines without encryption: only in a network that you trust
  curl http://127.0.0.1:7071/readyz
      ask whether it serves, and if not, what it waits for

Files:
  quota-data/sled/          the database: claims, reservations and policies
  quota-data/commits.mark   the last acknowledged commit; the two belong together
  Copy the directory only while the server is stopped.";

/// The authority server of Quota: owns buckets, grants leases, keeps reservations on disk.
#[derive(Debug, Default, Parser)]
#[command(name = "quota-server", version, after_help = EXAMPLES, args_override_self = true)]
struct Flags {
    /// Read settings from this TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything durable is kept; created if it is not there [default: ./quota-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The kind of store [default: sled]
    #[arg(long, value_name = "KIND")]
    store: Option<StoreKind>,
    /// Into how many parts buckets are divided, 1 to 4096; fixed when the store is created
    /// [default: 64]
    #[arg(long, value_name = "COUNT")]
    shards: Option<u32>,
    /// Where clients and administrators connect (gRPC) [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    grpc_listen: Option<SocketAddr>,
    /// Where health and metrics are served (HTTP) [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    http_listen: Option<SocketAddr>,
    /// Serve gRPC without encryption on an address that other machines can reach
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_plaintext: Option<bool>,
    /// Start a new store without the demonstration policies
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_demo: Option<bool>,
    /// How log lines look: text for people, json for machines [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or by module as in RUST_LOG, which is
    /// read as well [default: info]
    #[arg(long, value_name = "FILTER")]
    log_level: Option<String>,
    /// Most client streams at a time [default: 10000]
    #[arg(long, value_name = "COUNT")]
    streams_max: Option<u32>,
    /// Most buckets that one stream may name [default: 1000000]
    #[arg(long, value_name = "COUNT")]
    keys_per_stream_max: Option<u32>,
    /// Most buckets in memory, all shards together; new ones are refused as busy beyond it
    /// [default: 5000000]
    #[arg(long, value_name = "COUNT")]
    buckets_max: Option<u64>,
    /// Largest gRPC message accepted, in bytes, 65536 to 1048576 [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    message_bytes_max: Option<u32>,
    /// Print the settings in force and stop
    #[arg(long, action = ArgAction::SetTrue)]
    print_config: bool,
}

/// The kinds of store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// The embedded database: nothing to install.
    #[default]
    Sled,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A settings file. Every setting is optional and every other one is refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    data_dir: Option<PathBuf>,
    store: Option<StoreKind>,
    shards: Option<u32>,
    grpc_listen: Option<SocketAddr>,
    http_listen: Option<SocketAddr>,
    allow_plaintext: Option<bool>,
    no_demo: Option<bool>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
    limits: FileLimits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileLimits {
    streams_max: Option<u32>,
    keys_per_stream_max: Option<u32>,
    buckets_max: Option<u64>,
    message_bytes_max: Option<u32>,
}

/// The settings in force. Always valid; serialises as a settings file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Where everything durable is kept.
    pub data_dir: PathBuf,
    /// The kind of store.
    pub store: StoreKind,
    /// The number of shards, if one was named: asked for at creation, checked afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// Where gRPC is served.
    pub grpc_listen: SocketAddr,
    /// Where health and metrics are served.
    pub http_listen: SocketAddr,
    /// Whether gRPC may be served without encryption beyond this machine.
    pub allow_plaintext: bool,
    /// Whether a new store is started without the demonstration policies.
    pub no_demo: bool,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, as a filter of `tracing-subscriber`.
    pub log_level: String,
    /// What bounds memory and work.
    pub limits: Limits,
    /// True if the settings are to be printed, and nothing else done.
    #[serde(skip)]
    pub print: bool,
}

/// What bounds a server's memory and work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most client streams at a time.
    pub streams_max: u32,
    /// Most buckets that one stream may name.
    pub keys_per_stream_max: u32,
    /// Most buckets in memory, all shards together.
    pub buckets_max: u64,
    /// Largest gRPC message accepted, in bytes.
    pub message_bytes_max: u32,
}

impl Default for Limits {
    /// Enough for a fleet of thousands of gateways and five million buckets, which is about a
    /// gigabyte.
    fn default() -> Self {
        Self {
            streams_max: 10_000,
            keys_per_stream_max: 1_000_000,
            buckets_max: 5_000_000,
            message_bytes_max: 1 << 20,
        }
    }
}

/// Why there are no settings.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The command line cannot be understood, or asks for help. `clap` prints it best.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// An environment variable cannot be understood.
    #[error("in an environment variable (QUOTA_…): {0}")]
    Environment(clap::Error),
    /// The settings file cannot be read.
    #[error("cannot read the settings file {path}: {source}. Name another one with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The settings file is not understood.
    #[error("{path}:{line}:{column}: {message}. `quota-server --print-config` prints a valid file")]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: usize,
        /// The column, from one.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// A setting has a value that it cannot have.
    #[error("{setting} = {value}: {advice}")]
    Value {
        /// The setting, as it is written in a file.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        advice: String,
    },
}

impl Config {
    /// The settings from a command line (program name first), an environment, and the file that
    /// either of them names.
    ///
    /// # Errors
    /// [`ConfigError`], which says what to do.
    pub fn load(
        args: impl IntoIterator<Item = OsString>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let flags = parse(args.into_iter().collect(), &environment)?;
        let file = match &flags.config {
            Some(path) => read_file(path)?,
            None => File::default(),
        };
        let rust_log = environment("RUST_LOG").and_then(|filter| filter.into_string().ok());
        Self::merge(flags, file, rust_log).check()
    }

    fn merge(flags: Flags, file: File, rust_log: Option<String>) -> Self {
        let default = Limits::default();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let limits = Limits {
            streams_max: pick(
                flags.streams_max,
                file.limits.streams_max,
                default.streams_max,
            ),
            keys_per_stream_max: pick(
                flags.keys_per_stream_max,
                file.limits.keys_per_stream_max,
                default.keys_per_stream_max,
            ),
            buckets_max: pick(
                flags.buckets_max,
                file.limits.buckets_max,
                default.buckets_max,
            ),
            message_bytes_max: pick(
                flags.message_bytes_max,
                file.limits.message_bytes_max,
                default.message_bytes_max,
            ),
        };
        Self {
            data_dir: pick(flags.data_dir, file.data_dir, PathBuf::from("./quota-data")),
            store: pick(flags.store, file.store, StoreKind::default()),
            shards: flags.shards.or(file.shards),
            grpc_listen: pick(flags.grpc_listen, file.grpc_listen, local(7070)),
            http_listen: pick(flags.http_listen, file.http_listen, local(7071)),
            allow_plaintext: pick(flags.allow_plaintext, file.allow_plaintext, false),
            no_demo: pick(flags.no_demo, file.no_demo, false),
            log_format: pick(flags.log_format, file.log_format, LogFormat::default()),
            log_level: pick(
                flags.log_level.or(rust_log),
                file.log_level,
                "info".to_owned(),
            ),
            limits,
            print: flags.print_config,
        }
    }

    fn check(self) -> Result<Self, ConfigError> {
        let refuse = |setting, value: String, advice: &str| {
            Err(ConfigError::Value {
                setting,
                value,
                advice: advice.to_owned(),
            })
        };
        if let Some(shards) = self.shards
            && !(1..=SHARDS_MAX).contains(&shards)
        {
            let advice = format!("use 1 to {SHARDS_MAX}; {SHARDS_DEFAULT} is a good number");
            return refuse("shards", shards.to_string(), &advice);
        }
        if !self.grpc_listen.ip().is_loopback() && !self.allow_plaintext {
            return refuse(
                "grpc_listen",
                self.grpc_listen.to_string(),
                "other machines can reach this address, and nothing sent to it would be \
                 encrypted. Listen on 127.0.0.1 behind something that encrypts, or accept this \
                 with --allow-plaintext in a network that you trust",
            );
        }
        if self.grpc_listen == self.http_listen && self.grpc_listen.port() != 0 {
            return refuse(
                "http_listen",
                self.http_listen.to_string(),
                "gRPC is served there already: use another port",
            );
        }
        if self.data_dir.as_os_str().is_empty() {
            return refuse("data_dir", "\"\"".to_owned(), "name a directory");
        }
        if let Err(error) = self.log_level.parse::<tracing_subscriber::EnvFilter>() {
            let advice =
                format!("{error}: use a level such as info, or a filter such as info,h2=warn");
            return refuse("log_level", self.log_level, &advice);
        }
        let limits = &self.limits;
        for (setting, value, least) in [
            ("streams_max", u64::from(limits.streams_max), 1),
            (
                "keys_per_stream_max",
                u64::from(limits.keys_per_stream_max),
                1,
            ),
            ("buckets_max", limits.buckets_max, 1),
            // Room for the largest policy that a client has to be sent, and for one full batch.
            (
                "message_bytes_max",
                u64::from(limits.message_bytes_max),
                64 << 10,
            ),
        ] {
            if value < least {
                return refuse(setting, value.to_string(), &format!("use {least} or more"));
            }
        }
        let most = u64::try_from(MESSAGE_BYTES_MAX).unwrap_or(u64::MAX);
        if u64::from(limits.message_bytes_max) > most {
            let found = limits.message_bytes_max.to_string();
            return refuse("message_bytes_max", found, &format!("use {most} or less"));
        }
        Ok(self)
    }

    /// The settings as a file that would give them again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::from("# The settings in force.\n");
        if self.shards.is_none() {
            writeln!(
                text,
                "# shards is not set: {SHARDS_DEFAULT} when a store is created, what is stored afterwards."
            )
            .expect("writing to a string does not fail");
        }
        let settings = toml::to_string(self).expect("settings are plain values and one table");
        text + &settings
    }
}

fn pick<T>(flag: Option<T>, file: Option<T>, default: T) -> T {
    flag.or(file).unwrap_or(default)
}

/// Parses the command line, with the environment as if it stood before it: the later one wins.
fn parse(
    args: Vec<OsString>,
    environment: &impl Fn(&str) -> Option<OsString>,
) -> Result<Flags, ConfigError> {
    let mut both: Vec<OsString> = args.first().cloned().into_iter().collect();
    for argument in Flags::command().get_arguments() {
        let Some(long) = argument.get_long() else {
            continue;
        };
        if matches!(long, "help" | "version" | "print-config") {
            continue;
        }
        let name = format!("QUOTA_{}", long.to_uppercase().replace('-', "_"));
        if let Some(value) = environment(&name) {
            let mut given = OsString::from(format!("--{long}="));
            given.push(value);
            both.push(given);
        }
    }
    // Alone first, so that a mistake is looked for where it was made.
    let alone = Flags::try_parse_from(&args)?;
    if both.len() == 1 {
        return Ok(alone);
    }
    both.extend(args.into_iter().skip(1));
    Flags::try_parse_from(both).map_err(ConfigError::Environment)
}

fn read_file(path: &Path) -> Result<File, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.get(..at).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ConfigError::File {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: error.message().trim_end().to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(args: &[&str], environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let args = ["quota-server"].iter().chain(args).map(OsString::from);
        Config::load(args, |name| {
            let found = environment.iter().find(|(key, _)| *key == name)?;
            Some(OsString::from(found.1))
        })
    }

    fn file(text: &str) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("server.toml");
        std::fs::write(&path, text).expect("writes");
        let path = path.to_str().expect("is text").to_owned();
        (directory, path)
    }

    fn refusal(args: &[&str]) -> String {
        load(args, &[]).expect_err("is refused").to_string()
    }

    #[test]
    fn without_anything_said_the_defaults_hold() {
        let config = load(&[], &[]).expect("is valid");
        assert_eq!(config.grpc_listen.to_string(), "127.0.0.1:7070");
        assert_eq!(config.http_listen.to_string(), "127.0.0.1:7071");
        assert_eq!(config.data_dir, PathBuf::from("./quota-data"));
        assert_eq!((config.shards, config.print), (None, false));
        assert_eq!(config.log_level, "info");
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let (_kept, path) = file("shards = 1\nlog_level = \"error\"\n[limits]\nstreams_max = 11\n");
        let in_file = load(&["--config", &path], &[]).expect("is valid");
        assert_eq!((in_file.shards, in_file.limits.streams_max), (Some(1), 11));
        assert_eq!(in_file.log_level, "error");

        let environment = [
            ("QUOTA_CONFIG", path.as_str()),
            ("QUOTA_SHARDS", "2"),
            ("RUST_LOG", "debug"),
        ];
        let both = load(&[], &environment).expect("is valid");
        assert_eq!((both.shards, both.limits.streams_max), (Some(2), 11));
        assert_eq!(both.log_level, "debug");

        let flags = ["--shards", "3", "--log-level=trace"];
        let all = load(&flags, &environment).expect("is valid");
        assert_eq!((all.shards, all.log_level.as_str()), (Some(3), "trace"));
    }

    #[test]
    fn an_unknown_or_mistyped_setting_is_refused_with_its_place() {
        let (_kept, path) = file("shards = 8\n\n  grcp_listen = \"127.0.0.1:1\"\n");
        let said = refusal(&["--config", &path]);
        assert!(
            said.starts_with(&format!("{path}:3:3: unknown field `grcp_listen`")),
            "{said}"
        );
        let (_kept, path) = file("[limits]\nbuckets_max = \"many\"\n");
        let said = refusal(&["--config", &path]);
        assert!(said.starts_with(&format!("{path}:2:15: ")), "{said}");
        let (_kept, path) = file("shards = \n");
        assert!(refusal(&["--config", &path]).contains(":1:"));
        assert!(refusal(&["--config", "/nowhere.toml"]).contains("/nowhere.toml"));
    }

    #[test]
    fn plain_text_beyond_this_machine_has_to_be_asked_for() {
        for address in ["0.0.0.0:7070", "192.0.2.1:7070", "[::]:7070"] {
            let said = refusal(&["--grpc-listen", address]);
            assert!(said.contains("--allow-plaintext"), "{said}");
            let asked = load(&["--grpc-listen", address, "--allow-plaintext"], &[]);
            assert!(asked.expect("is valid").allow_plaintext);
            let denied = ["--grpc-listen", address, "--allow-plaintext=false"];
            let environment = [("QUOTA_ALLOW_PLAINTEXT", "true")];
            assert!(load(&denied, &environment).is_err());
            assert!(load(&denied[..2], &environment).is_ok());
        }
        for address in ["127.0.0.2:1", "[::1]:7070"] {
            load(&["--grpc-listen", address], &[]).expect("is this machine");
        }
    }

    #[test]
    fn values_that_cannot_be_say_what_can() {
        for (args, said) in [
            (vec!["--shards", "0"], "use 1 to 4096"),
            (vec!["--shards", "4097"], "use 1 to 4096"),
            (vec!["--http-listen", "127.0.0.1:7070"], "another port"),
            (vec!["--data-dir", ""], "a value is required"),
            (vec!["--log-level", "quota=loud"], "a level such as info"),
            (vec!["--streams-max", "0"], "use 1 or more"),
            (vec!["--message-bytes-max", "10"], "use 65536 or more"),
            (vec!["--store", "etcd"], "possible values: sled"),
            (vec!["--grpc-listen", "localhost"], "--grpc-listen"),
            (vec!["--grpc-lisen", "1"], "--grpc-listen"),
        ] {
            let refused = refusal(&args);
            assert!(refused.contains(said), "{args:?}: {refused}");
        }
        let any = [
            "--grpc-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ];
        load(&any, &[]).expect("port 0 is another port each time");
        let error = load(&[], &[("QUOTA_SHARDS", "many")]).expect_err("is refused");
        assert!(
            error.to_string().contains("environment variable"),
            "{error}"
        );
        let error = load(&["--shards", "many"], &[("QUOTA_SHARDS", "2")]).expect_err("is refused");
        assert!(matches!(error, ConfigError::Usage(_)), "{error}");
    }

    #[test]
    fn what_is_printed_gives_the_same_settings_again() {
        for args in [
            vec!["--print-config"],
            vec![
                "--print-config",
                "--shards=7",
                "--log-format",
                "json",
                "--buckets-max",
                "9",
            ],
        ] {
            let config = load(&args, &[]).expect("is valid");
            assert!(config.print);
            let (_kept, path) = file(&config.to_toml());
            let again = load(&["--config", &path, "--print-config"], &[]).expect("is valid");
            assert_eq!(again, config);
        }
    }

    #[test]
    fn help_names_every_option_with_its_default_and_the_files() {
        let help = Flags::command().render_long_help().to_string();
        for argument in Flags::command().get_arguments() {
            let long = argument.get_long().expect("every option is long");
            assert!(help.contains(&format!("--{long}")), "{long}");
        }
        for word in [
            "QUOTA_DATA_DIR",
            "127.0.0.1:7070",
            "quota-data/sled/",
            "Examples:",
        ] {
            assert!(help.contains(word), "{word}");
        }
    }
}
