//! What a client is made with.

use std::path::PathBuf;
use std::time::Duration;

use crate::table::KEYS_LIMIT;

/// A client's configuration. [`Config::new`] has the defaults; set the fields that differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Authorities to connect to, as `http://host:port`, tried in turn. At least one.
    pub seeds: Vec<String>,
    /// Names the program in the authority's logs. At most 128 bytes. Default `quota-client`.
    pub client_name: String,
    /// Only policies of these namespaces; empty for all, the default. At most 64.
    pub namespaces: Vec<String>,
    /// Keys that the client holds leases for at a time, 1 to 2³⁰. About 71 bytes each are taken
    /// at start. Default 65,536.
    pub keys_max: usize,
    /// Callers that may wait at a time; more are refused. Default 10,000.
    pub waiters_max: usize,
    /// Where the last good policy set is kept, so that the client can start while no authority is
    /// in reach. Default: nowhere.
    pub policy_file: Option<PathBuf>,
    /// How long [`crate::QuotaClient::connect`] waits for the first policies before it returns
    /// without them. Default 1 s.
    pub connect_wait: Duration,
    /// How long one attempt to connect may take. Default 2 s.
    pub attempt_timeout: Duration,
    /// Longest pause between two attempts to connect; pauses grow towards it from 50 ms, each
    /// drawn at random from the upper half of its range. Default 5 s.
    pub backoff_max: Duration,
    /// A stream on which nothing was heard for this long although an answer is due is given up.
    /// Default 3 s.
    pub silence_max: Duration,
    /// How often policies are asked for in case a push was lost. Default 60 s.
    pub policy_poll: Duration,
}

/// A configuration that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No authority is named.
    #[error("no seed is given: name at least one authority, such as http://127.0.0.1:7070")]
    NoSeeds,
    /// A seed is no address.
    #[error("seed `{seed}` is no address: write it as http://host:port")]
    Seed {
        /// The seed as given.
        seed: String,
        /// What is wrong with it.
        source: tonic::transport::Error,
    },
    /// A seed asks for what this version does not speak.
    #[error(
        "seed `{seed}` does not begin with http://: write it as http://host:port (TLS is not there \
         yet, so keep the connection on loopback or a trusted network)"
    )]
    Scheme {
        /// The seed as given.
        seed: String,
    },
    /// A number is out of range.
    #[error("{field} is {found}: it must be {allowed}")]
    Range {
        /// The field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The operating system gave no random numbers.
    #[error("no random numbers for the client's identity")]
    Random(#[source] getrandom::Error),
}

impl Config {
    /// The defaults, for one or more authorities.
    #[must_use]
    pub fn new<S: Into<String>>(seeds: impl IntoIterator<Item = S>) -> Self {
        Self {
            seeds: seeds.into_iter().map(Into::into).collect(),
            client_name: "quota-client".to_owned(),
            namespaces: Vec::new(),
            keys_max: 65_536,
            waiters_max: 10_000,
            policy_file: None,
            connect_wait: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(2),
            backoff_max: Duration::from_secs(5),
            silence_max: Duration::from_secs(3),
            policy_poll: Duration::from_secs(60),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.seeds.is_empty() {
            return Err(ConfigError::NoSeeds);
        }
        // Anything else would be spoken in plain text, or never connect.
        let plain = |seed: &&String| !seed.to_ascii_lowercase().starts_with("http://");
        if let Some(seed) = self.seeds.iter().find(plain) {
            return Err(ConfigError::Scheme { seed: seed.clone() });
        }
        let range = |field, found: String, fits, allowed| {
            if fits {
                Ok(())
            } else {
                Err(ConfigError::Range {
                    field,
                    found,
                    allowed,
                })
            }
        };
        range(
            "keys_max",
            self.keys_max.to_string(),
            (1..=KEYS_LIMIT).contains(&self.keys_max),
            "1 to 2^30",
        )?;
        range(
            "client_name",
            format!("{} bytes long", self.client_name.len()),
            self.client_name.len() <= 128,
            "at most 128 bytes long",
        )?;
        range(
            "namespaces",
            format!("{} entries long", self.namespaces.len()),
            self.namespaces.len() <= 64,
            "at most 64 entries long",
        )?;
        for (field, span) in [
            ("attempt_timeout", self.attempt_timeout),
            ("backoff_max", self.backoff_max),
            ("silence_max", self.silence_max),
            ("policy_poll", self.policy_poll),
        ] {
            let least = Duration::from_millis(10);
            range(field, format!("{span:?}"), span >= least, "at least 10 ms")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_nonsense_is_named() {
        let good = || Config::new(["http://127.0.0.1:7070"]);
        assert!(good().check().is_ok());
        assert!(matches!(
            Config::new(Vec::<String>::new()).check(),
            Err(ConfigError::NoSeeds)
        ));
        let mut config = good();
        config.keys_max = 0;
        let error = config.check().expect_err("zero keys");
        assert_eq!(error.to_string(), "keys_max is 0: it must be 1 to 2^30");
        let mut config = good();
        config.silence_max = Duration::ZERO;
        assert!(config.check().is_err());
    }
}
