//! Where the rules come from: the authority's stream of policies, and a file of the last good
//! ones for when no authority is in reach.
//!
//! The file is JSON, replaced as a whole. One that cannot be read is ignored with a warning and
//! replaced as soon as the authority has spoken; nothing depends on it but the start.
//!
//! No revision outlives the connection that it was learned on: neither the file nor a connection
//! before says whose revisions it counts, and an authority that started over reaches the same
//! numbers with other policies. So the first update of each connection is a complete one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{Policy, PolicySpec, SwitchMode, SwitchScope};
use quota_wire::convert::policy::{PolicyUpdate, UpdateParts, VersionedSpec};
use quota_wire::convert::switch::Switch;
use quota_wire::convert::unary::{WatchPolicies, encode_watch};
use quota_wire::limits::MESSAGE_BYTES_MAX;
use quota_wire::proto::allocator_client::AllocatorClient;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use crate::clock;
use crate::rules::{Rules, Switched, Switches};
use crate::shared::Shared;

/// The format that is written, and the only one that is read.
const FORMAT: u32 = 2;
/// Longest file that is read: far more than any legal set of policies takes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Between two attempts to watch on one connection.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// Numbers the drafts of this process.
static DRAFTS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    revision: u64,
    /// The namespaces that `policies` are all the policies of; empty for all there are.
    namespaces: BTreeSet<String>,
    policies: Vec<StoredPolicy>,
    /// The kill switches that end by an operator's word only. Others are left out, since no clock
    /// of this client tells after a start how much of their time has passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    switches: Vec<StoredSwitch>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSwitch {
    scope: SwitchScope,
    mode: SwitchMode,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPolicy {
    version: PolicyVersion,
    spec: PolicySpec,
}

/// Why a file of policies is of no use.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error("it has {0} bytes, more than any set of policies")]
    TooLong(u64),
    #[error("it is not what a client writes")]
    Json(#[from] serde_json::Error),
    #[error("its format is {0}, and this version reads format {FORMAT}")]
    Format(u32),
    #[error("it covers the namespaces {0:?} only, and this client asks for others")]
    Namespaces(BTreeSet<String>),
    #[error("it holds a policy that is not valid: {0}")]
    Policy(String),
}

/// Starts from the last good policies, if there is a file of them.
pub(crate) fn load(shared: &Shared) {
    let Some(path) = &shared.config.policy_file else {
        return;
    };
    match read(path).and_then(|stored| stored.within(&shared.config.namespaces)) {
        Ok(stored) => {
            let count = stored.policies.len();
            let policies = stored.policies.into_iter();
            let parsed: Result<Vec<_>, _> = policies
                .map(|policy| Policy::parse(policy.spec, policy.version).map(Arc::new))
                .collect();
            let rules = parsed
                .map_err(|error| FileError::Policy(error.to_string()))
                .and_then(|policies| {
                    let (names, key) = (&shared.names, &shared.key);
                    let switches = stored.switches.into_iter().map(|one| {
                        let mode = one.mode;
                        (one.scope, Switched { mode, until: None })
                    });
                    Rules::new(stored.revision, false, policies, names, key)
                        .map(|rules| rules.under(switches.collect()))
                        .map_err(|error| FileError::Policy(error.to_string()))
                });
            match rules {
                Ok(rules) => {
                    shared.set_rules(rules);
                    tracing::info!(path = %path.display(), count, "starting from the last good policies");
                }
                Err(error) => ignored(path, &error),
            }
        }
        Err(FileError::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => ignored(path, &error),
    }
}

fn ignored(path: &Path, error: &FileError) {
    let source = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(
        path = %path.display(), %error, source,
        "the file of the last good policies is ignored; it will be replaced by what the authority says"
    );
}

fn read(path: &Path) -> Result<Stored, FileError> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > FILE_BYTES_MAX {
        return Err(FileError::TooLong(length));
    }
    let stored: Stored = serde_json::from_reader(io::BufReader::new(file))?;
    if stored.format == FORMAT {
        Ok(stored)
    } else {
        Err(FileError::Format(stored.format))
    }
}

impl Stored {
    /// What of it concerns these namespaces. Refused if it lacks one of them: to a client that
    /// knows some rules, a request that none of them matches is free to pass.
    fn within(mut self, namespaces: &[String]) -> Result<Self, FileError> {
        let wanted: BTreeSet<String> = namespaces.iter().cloned().collect();
        let covers_all = self.namespaces.is_empty();
        if !covers_all && (wanted.is_empty() || !wanted.is_subset(&self.namespaces)) {
            return Err(FileError::Namespaces(self.namespaces));
        }
        if !wanted.is_empty() {
            self.policies
                .retain(|policy| wanted.contains(&policy.spec.id().namespace));
            self.switches.retain(|switch| {
                let namespace = switch.scope.namespace();
                namespace.is_none_or(|namespace| wanted.contains(namespace))
            });
        }
        Ok(self)
    }
}

/// Replaces the file as a whole: a crash leaves the old one or the new one.
fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Two clients that share a file must not write into one draft, be they in one process or two.
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{number}.draft", std::process::id()));
    let draft = folder.join(name);
    let mut file = File::create(&draft)?;
    file.write_all(&serde_json::to_vec_pretty(stored)?)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()
}

/// The policies as the authority last described them.
#[derive(Debug, Default)]
struct Book {
    revision: u64,
    policies: BTreeMap<PolicyId, Arc<Policy>>,
    switches: Switches,
}

impl Book {
    /// What the client already has.
    fn of(rules: &Rules) -> Self {
        if !rules.known {
            return Self::default();
        }
        let policies = rules.iter().map(|(policy, _)| policy);
        Self {
            revision: rules.revision,
            policies: policies
                .map(|policy| (policy.id().clone(), Arc::clone(policy)))
                .collect(),
            switches: rules.switches().clone(),
        }
    }

    fn apply(&mut self, update: PolicyUpdate) {
        let mut before = std::mem::take(&mut self.policies);
        if !update.complete {
            self.policies.clone_from(&before);
        }
        for id in &update.deleted {
            self.policies.remove(id);
        }
        for VersionedSpec { version, spec } in update.policies {
            let id = spec.id();
            match Policy::parse(spec, version) {
                Ok(policy) => {
                    self.policies.insert(id, Arc::new(policy));
                }
                Err(error) => {
                    // Made by a newer authority, perhaps. Keeping the version before is closer to
                    // what was meant than no limit at all.
                    tracing::error!(policy = %id, %error, "a policy is not understood: upgrade this client");
                    if let Some(policy) = before.remove(&id) {
                        self.policies.insert(id, policy);
                    }
                }
            }
        }
        self.revision = update.revision;
        let now = clock::now();
        match update.switches {
            Some(told) => {
                let known = |(scope, one): (SwitchScope, Switch)| {
                    let until = one.expires_in.map(|left| now + left);
                    let mode = one.mode;
                    (scope, Switched { mode, until })
                };
                self.switches = told.into_iter().map(known).collect();
            }
            // Absent from a complete update: there are none, or an older authority has none.
            None if update.complete => self.switches.clear(),
            None => {}
        }
    }

    fn stored(&self, namespaces: &[String]) -> Stored {
        let policies = self.policies.values().map(|policy| StoredPolicy {
            version: policy.version(),
            spec: policy.spec().clone(),
        });
        let lasting = self.switches.iter().filter(|(_, one)| one.until.is_none());
        let lasting = lasting.map(|(scope, one)| StoredSwitch {
            scope: scope.clone(),
            mode: one.mode,
        });
        Stored {
            format: FORMAT,
            revision: self.revision,
            namespaces: namespaces.iter().cloned().collect(),
            policies: policies.collect(),
            switches: lasting.collect(),
        }
    }
}

/// Follows the policies over one connection, for ever. Asks again after `policy_poll` even if
/// nothing seems to have happened, in case a push was lost.
pub(crate) async fn watch(shared: Arc<Shared>, channel: Channel) {
    let mut client = AllocatorClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut told = false;
    loop {
        let quiet = Duration::ZERO;
        let pause = match follow(&shared, &mut client, &mut told).await {
            Ok(()) => quiet,
            Err(status) => {
                tracing::debug!(%status, "watching the policies ended");
                WATCH_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// One call: until the poll is due, or the stream ends. `told` says whether the policies at hand
/// are from this connection.
async fn follow(
    shared: &Arc<Shared>,
    client: &mut AllocatorClient<Channel>,
    told: &mut bool,
) -> Result<(), tonic::Status> {
    let mut book = Book::of(&shared.rules());
    let request = WatchPolicies {
        namespaces: shared.config.namespaces.clone(),
        known_revision: if *told { book.revision } else { 0 },
    };
    let poll = shared.config.policy_poll;
    let mut updates = client
        .watch_policies(encode_watch(&request))
        .await?
        .into_inner();
    let mut parts = UpdateParts::default();
    let mut first = true;
    loop {
        let part = match tokio::time::timeout(poll, updates.message()).await {
            Ok(part) => part?,
            Err(_elapsed) => return Ok(()),
        };
        let Some(part) = part else {
            return Err(tonic::Status::unavailable("the authority ended the stream"));
        };
        let update = parts
            .push(part)
            .map_err(|error| tonic::Status::internal(error.to_string()))?;
        let Some(update) = update else { continue };
        if !(*told || update.complete) {
            return Err(tonic::Status::internal(
                "the first update of the policies is not complete",
            ));
        }
        *told = true;
        let news = update.complete
            || !update.policies.is_empty()
            || !update.deleted.is_empty()
            || update.switches.is_some();
        if news || first {
            book.apply(update);
            adopt(shared, &book, news).await;
        }
        first = false;
    }
}

async fn adopt(shared: &Arc<Shared>, book: &Book, news: bool) {
    let policies = book.policies.values().map(Arc::clone);
    let (names, key) = (&shared.names, &shared.key);
    match Rules::new(book.revision, true, policies, names, key) {
        Ok(rules) => shared.set_rules(rules.under(book.switches.clone())),
        Err(error) => {
            tracing::error!(%error, "the policies do not make a set; the last good ones stay");
            return;
        }
    }
    tracing::debug!(
        revision = book.revision,
        count = book.policies.len(),
        "policies in force"
    );
    if let (Some(path), true) = (shared.config.policy_file.clone(), news) {
        let stored = book.stored(&shared.config.namespaces);
        let written = tokio::task::spawn_blocking(move || {
            write(&path, &stored).map_err(|error| (path, error))
        });
        if let Ok(Err((path, error))) = written.await {
            tracing::warn!(path = %path.display(), %error, "the last good policies could not be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use quota_core::policy::LimitSpec;
    use quota_core::time::Term;

    use super::*;
    use crate::config::Config;

    fn spec(name: &str, tokens: u64) -> PolicySpec {
        PolicySpec::new(
            name,
            &["tenant"],
            LimitSpec::new(tokens, Term::from_seconds(1)),
        )
    }

    fn update(complete: bool, revision: u64, specs: &[(u64, PolicySpec)]) -> PolicyUpdate {
        let policies = specs.iter().map(|(version, spec)| VersionedSpec {
            version: PolicyVersion::new(*version),
            spec: spec.clone(),
        });
        PolicyUpdate {
            revision,
            complete,
            policies: policies.collect(),
            deleted: Vec::new(),
            switches: None,
        }
    }

    fn names(book: &Book) -> Vec<(&str, u64)> {
        let policies = book.policies.iter();
        policies
            .map(|(id, policy)| (id.name.as_str(), policy.version().get()))
            .collect()
    }

    fn shared_with_file(path: &Path) -> Arc<Shared> {
        let mut config = Config::new(["http://127.0.0.1:1"]);
        config.keys_max = 8;
        config.policy_file = Some(path.to_owned());
        Shared::new(config, (1, 2)).0
    }

    #[test]
    fn updates_add_replace_and_delete() {
        let mut book = Book::default();
        book.apply(update(true, 2, &[(1, spec("a", 1)), (2, spec("b", 1))]));
        assert_eq!(names(&book), [("a", 1), ("b", 2)]);
        book.apply(update(false, 3, &[(3, spec("a", 5))]));
        assert_eq!(names(&book), [("a", 3), ("b", 2)]);
        book.apply(PolicyUpdate {
            deleted: vec![spec("b", 1).id()],
            ..update(false, 4, &[])
        });
        assert_eq!(names(&book), [("a", 3)]);
        book.apply(update(true, 5, &[(5, spec("c", 1))]));
        assert_eq!(names(&book), [("c", 5)]);
    }

    #[test]
    fn a_policy_that_is_not_understood_keeps_its_version_before() {
        let mut book = Book::default();
        book.apply(update(true, 1, &[(1, spec("a", 1))]));
        book.apply(update(true, 2, &[(2, spec("a", 0)), (2, spec("b", 0))]));
        assert_eq!(names(&book), [("a", 1)]);
        assert_eq!(book.revision, 2);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep").join("policies.json");
        let mut book = Book::default();
        book.apply(update(true, 7, &[(3, spec("a", 1)), (7, spec("b", 2))]));
        write(&path, &book.stored(&[])).expect("written");
        let shared = shared_with_file(&path);
        load(&shared);
        let rules = shared.rules();
        assert!(rules.known && !rules.is_current());
        assert_eq!(rules.revision, 7);
        assert_eq!(names(&Book::of(&rules)), [("a", 3), ("b", 7)]);
        let left: Vec<_> = fs::read_dir(path.parent().expect("it has one"))
            .expect("readable")
            .collect();
        assert_eq!(left.len(), 1, "no draft is left behind");
    }

    #[test]
    fn clients_of_one_process_that_share_a_file_do_not_share_a_draft() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("policies.json");
        std::thread::scope(|scope| {
            for writer in 1..5 {
                let mut book = Book::default();
                book.apply(update(true, writer, &[(writer, spec("a", 1))]));
                let (path, stored) = (&path, book.stored(&[]));
                scope.spawn(move || {
                    for _ in 0..20 {
                        write(path, &stored).expect("nobody takes the draft away");
                    }
                });
            }
        });
        assert_eq!(read(&path).expect("whole").policies.len(), 1);
    }

    #[test]
    fn a_file_serves_only_the_namespaces_that_it_covers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("policies.json");
        let mut book = Book::default();
        let in_namespace = |namespace: &str| {
            let mut spec = spec("a", 1);
            spec.namespace = namespace.to_owned();
            spec
        };
        let specs = [(1, in_namespace("east")), (2, in_namespace("west"))];
        book.apply(update(true, 2, &specs));
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let loaded = |covered: &[&str], wanted: &[&str]| {
            write(&path, &book.stored(&owned(covered))).expect("written");
            let mut config = Config::new(["http://127.0.0.1:1"]);
            config.keys_max = 8;
            config.policy_file = Some(path.clone());
            config.namespaces = owned(wanted);
            let shared = Shared::new(config, (1, 2)).0;
            load(&shared);
            let rules = shared.rules();
            rules.known.then(|| rules.iter().count())
        };
        assert_eq!(loaded(&[], &[]), Some(2));
        assert_eq!(loaded(&[], &["west"]), Some(1));
        assert_eq!(loaded(&["west", "east"], &["east", "west"]), Some(2));
        assert_eq!(loaded(&["west", "east"], &["east"]), Some(1));
        assert_eq!(loaded(&["west", "east"], &["east", "north"]), None);
        assert_eq!(loaded(&["west", "east"], &[]), None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("policies.json");
        let good = serde_json::to_string(&Book::default().stored(&[])).expect("json");
        let other_format = good.replace("\"format\":2", "\"format\":99");
        let mut invalid = Book::default();
        invalid.apply(update(true, 1, &[(1, spec("a", 1))]));
        let invalid = serde_json::to_string(&invalid.stored(&[]))
            .expect("json")
            .replace("\"tokens\":1", "\"tokens\":0");
        for nonsense in ["", "{", "[]", "\0\0", &other_format, &invalid, &good[..9]] {
            fs::write(&path, nonsense).expect("written");
            let shared = shared_with_file(&path);
            load(&shared);
            assert!(!shared.rules().known, "{nonsense:?}");
        }
        fs::write(&path, good).expect("written");
        let shared = shared_with_file(&path);
        load(&shared);
        assert!(shared.rules().known);
    }
}
