//! What makes a commit durable: which files and directories are synced, and when it is noted.
//!
//! It knows of files only, and of no record.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::store::error::StoreError;
use crate::store::mark::CommitMark;

/// What a commit has to reach.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) database: sled::Db,
    /// The `db` file, opened a second time: a sync reaches the file, whoever wrote it.
    pub(super) file: File,
    pub(super) file_path: PathBuf,
    pub(super) blobs: PathBuf,
    pub(super) blobs_synced: HashSet<std::ffi::OsString>,
    pub(super) mark: CommitMark,
    pub(super) mark_path: PathBuf,
}

impl Disk {
    /// Makes everything that was flushed durable, and notes the commit.
    pub(super) fn sync(&mut self, commit: u64) -> Result<(), StoreError> {
        self.sync_blobs()
            .map_err(|source| io_error("sync", &self.blobs, source))?;
        self.file
            .sync_data()
            .map_err(|source| io_error("sync", &self.file_path, source))?;
        self.mark
            .advance(commit)
            .map_err(|source| io_error("write", &self.mark_path, source))
    }

    /// Syncs the pages that were moved out into files since the last commit. Mostly there are
    /// none, and this costs listing an empty directory.
    fn sync_blobs(&mut self) -> io::Result<()> {
        let mut present = HashSet::new();
        let mut any_new = false;
        for entry in fs::read_dir(&self.blobs)? {
            let name = entry?.file_name();
            if !self.blobs_synced.contains(&name) {
                match File::open(self.blobs.join(&name)) {
                    Ok(file) => file.sync_all()?,
                    // Replaced already, and removed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
                any_new = true;
            }
            present.insert(name);
        }
        if any_new {
            File::open(&self.blobs)?.sync_all()?;
        }
        self.blobs_synced = present;
        Ok(())
    }
}

pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| io_error("sync", path, source))
}

pub(super) fn io_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}
