//! The data directory: prepared and recognised at opening, and let go of at the end.
//!
//! It does not read any record: what the store is, and whether it lost commits, is told by those
//! who do.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::disk::{Disk, io_error, sync_directory};
use super::guard::caught;
use super::{SledOptions, Trees};
use crate::store::error::StoreError;
use crate::store::format::Tree;
use crate::store::mark::{self, CommitMark};

/// How often `sled` cleans its file, in milliseconds. It does so only from this timer; nothing
/// waits for it.
const CLEAN_EVERY_MS: u64 = 1000;

/// How often, and after which pause, the lock of a database in use is tried again: three seconds
/// in all, since whoever was killed or closed it a moment ago may not have let go of it yet.
const LOCK_TRIES: u32 = 60;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Where the database lies in the data directory.
pub(super) const DATABASE: &str = "sled";

/// Prepares the data directory and its mark.
pub(super) fn open_mark(path: &Path) -> Result<CommitMark, StoreError> {
    let mark_path = path.join(mark::FILE);
    let found = CommitMark::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidData => StoreError::Corrupt {
            tree: "file",
            key: mark_path.display().to_string(),
            what: source.to_string(),
        },
        _ => io_error("open", &mark_path, source),
    })?;
    if let Some(mark) = found {
        if mark.last() > 0 && !path.join(DATABASE).join("db").exists() {
            return Err(StoreError::LostCommits {
                path: path.to_owned(),
                acknowledged: mark.last(),
                found: 0,
            });
        }
        return Ok(mark);
    }
    fs::create_dir_all(path).map_err(|source| io_error("create", path, source))?;
    if path.join(DATABASE).exists() {
        return Err(StoreError::MissingMark {
            path: path.to_owned(),
            mark: mark::FILE,
        });
    }
    check_empty(path)?;
    let mark = CommitMark::create(path).map_err(|source| io_error("create", &mark_path, source))?;
    sync_directory(path)?;
    if let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
        sync_directory(parent)?;
    }
    Ok(mark)
}

pub(super) fn open_database(options: &SledOptions) -> Result<sled::Db, StoreError> {
    let config = sled::Config::new()
        .path(options.path.join(DATABASE))
        .cache_capacity(options.cache_bytes)
        .flush_every_ms(Some(CLEAN_EVERY_MS));
    let mut tries = LOCK_TRIES;
    loop {
        let error = match caught("opening the database", || config.open()) {
            Ok(database) => return Ok(database),
            Err(error) => error,
        };
        if !error.to_string().contains("could not acquire lock") {
            return Err(error);
        }
        tries -= 1;
        if tries == 0 {
            return Err(StoreError::InUse {
                path: options.path.clone(),
            });
        }
        std::thread::park_timeout(LOCK_PAUSE);
    }
}

pub(super) fn attach(
    options: &SledOptions,
    database: sled::Db,
    mark: CommitMark,
) -> Result<(Trees, Disk), StoreError> {
    let tree = |tree: Tree| caught("opening a tree", || database.open_tree(tree.name()));
    let trees = Trees {
        meta: tree(Tree::Meta)?,
        claims: tree(Tree::Claims)?,
        reservations: tree(Tree::Reservations)?,
        hand_overs: tree(Tree::HandOvers)?,
        policies: tree(Tree::Policies)?,
    };
    let directory = options.path.join(DATABASE);
    let file_path = directory.join("db");
    let file = File::open(&file_path).map_err(|source| io_error("open", &file_path, source))?;
    let disk = Disk {
        database,
        file,
        file_path,
        blobs: directory.join("blobs"),
        blobs_synced: HashSet::new(),
        mark,
        mark_path: options.path.join(mark::FILE),
    };
    Ok((trees, disk))
}

/// Dropped after the database, it waits until the database has let go of its file: tasks on its
/// own threads may outlive it for a moment, and opening the store again in this process would
/// find it in use.
#[derive(Debug)]
pub(super) struct AwaitRelease(pub(super) File);

impl Drop for AwaitRelease {
    fn drop(&mut self) {
        // At most a second, in case a task hangs: nothing is wrong then but the lock.
        for _ in 0..200 {
            if self.0.try_lock().is_ok() {
                // Said, and not left to closing: a child process that is just being started
                // shares the descriptor until it runs its own program.
                if let Err(error) = self.0.unlock() {
                    tracing::warn!(%error, "cannot unlock the database's file");
                }
                return;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

/// Refuses to create a store among other files. A file system's own `lost+found` is fine, and so
/// is what is left of a creation that did not get far.
fn check_empty(path: &Path) -> Result<(), StoreError> {
    let entries = fs::read_dir(path).map_err(|source| io_error("read", path, source))?;
    for entry in entries {
        let name = entry
            .map_err(|source| io_error("read", path, source))?
            .file_name();
        if name != "lost+found" && name != mark::FILE_NEW {
            return Err(StoreError::Foreign {
                path: path.to_owned(),
                found: format!("{} without {}", name.to_string_lossy(), mark::FILE),
            });
        }
    }
    Ok(())
}
