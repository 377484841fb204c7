//! The mark of the last acknowledged commit, kept beside the database.
//!
//! The database recovers by reading its log up to the first message that does not check, and
//! takes that for the end. A damaged message in the middle therefore loses everything after it,
//! silently, and a server that started from such an old state would grant tokens twice. So each
//! commit has a number, which is the last thing written in it; once it is durable the number is
//! also noted here, and a database that ends before the mark is refused.
//!
//! The mark itself is not synced with each commit, which would double the cost of one. It
//! survives a crash of the process; after a loss of power it may be older than the database, and
//! then proves less, but never raises a false alarm. It is synced when the store is opened and
//! closed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The name of the file in the data directory.
pub(super) const FILE: &str = "commits.mark";
/// Its name until it is whole: a crash in the middle of making it leaves no half mark behind.
pub(super) const FILE_NEW: &str = "commits.mark.new";

const MAGIC: [u8; 4] = *b"QCM1";
/// Two slots, written in turn, each on a sector of its own: a torn write spares the other.
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 16;

/// An open mark.
#[derive(Debug)]
pub(super) struct CommitMark {
    file: File,
    last: u64,
    /// Whether the other slot cannot be read.
    damaged: bool,
}

impl CommitMark {
    /// A new mark at zero. The directory is not synced.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let new = directory.join(FILE_NEW);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)?;
        let mark = Self {
            file,
            last: 0,
            damaged: false,
        };
        mark.write_slot(0, 0)?;
        mark.write_slot(0, 1)?;
        mark.sync()?;
        std::fs::rename(new, directory.join(FILE))?;
        Ok(mark)
    }

    /// Opens the mark, if there is one. A mark of which neither slot can be read is an error of
    /// kind [`io::ErrorKind::InvalidData`].
    pub(super) fn open(directory: &Path) -> io::Result<Option<Self>> {
        let options = OpenOptions::new().read(true).write(true).clone();
        let file = match options.open(directory.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let slots = [read_slot(&file, 0), read_slot(&file, SLOT_STRIDE)];
        match slots.iter().flatten().max() {
            Some(&last) => Ok(Some(Self {
                file,
                last,
                damaged: slots.contains(&None),
            })),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not a mark, or damaged",
            )),
        }
    }

    /// Whether a database that ends at `commit` is sure to hold all that was acknowledged, given
    /// that it is not older than [`last`](Self::last).
    ///
    /// Slots are written in turn, each after its commit is durable. So a slot that was torn while
    /// it was written told of a commit that the database has, and which is newer than the other
    /// slot's. A database that ends with the other slot's says that this is not what happened:
    /// then the damaged slot may have told of one commit more, which is gone.
    pub(super) const fn vouches_for(&self, commit: u64) -> bool {
        !self.damaged || commit > self.last
    }

    /// Writes both slots anew if one was damaged, once the database is known to end at `commit`.
    pub(super) fn repair(&mut self, commit: u64) -> io::Result<()> {
        if self.damaged {
            self.write_slot(commit, commit + 1)?;
            self.sync()?;
            self.advance(commit)?;
            self.damaged = false;
        }
        Ok(())
    }

    /// Whether a slot was damaged.
    pub(super) const fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The last commit known to be durable.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Notes that a commit is durable. One write to the page cache.
    pub(super) fn advance(&mut self, commit: u64) -> io::Result<()> {
        self.write_slot(commit, commit)?;
        self.last = commit;
        Ok(())
    }

    /// Writes `commit` to the slot whose turn it is at `turn`.
    fn write_slot(&self, commit: u64, turn: u64) -> io::Result<()> {
        let mut slot = [0; SLOT_BYTES];
        slot[..4].copy_from_slice(&MAGIC);
        slot[4..12].copy_from_slice(&commit.to_le_bytes());
        let checksum = crc32fast::hash(&slot[..12]);
        slot[12..].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_all_at(&slot, (turn % 2) * SLOT_STRIDE)
    }

    /// Makes the mark durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

fn read_slot(file: &File, at: u64) -> Option<u64> {
    let mut slot = [0; SLOT_BYTES];
    file.read_exact_at(&mut slot, at).ok()?;
    let (body, checksum) = slot.split_last_chunk::<4>()?;
    if body[..4] != MAGIC || crc32fast::hash(body).to_le_bytes() != *checksum {
        return None;
    }
    Some(u64::from_le_bytes(*body[4..].first_chunk::<8>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(directory: &Path, slot: u64) {
        let file = OpenOptions::new().write(true).open(directory.join(FILE));
        let file = file.expect("opens");
        file.write_all_at(&[0xff], slot * SLOT_STRIDE + 6)
            .expect("written");
    }

    #[test]
    fn a_torn_slot_vouches_only_for_a_newer_database_and_is_repaired() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let mut mark = CommitMark::create(path).expect("created");
        for commit in 1..=5 {
            mark.advance(commit).expect("written");
        }
        drop(mark);
        let reopened = || CommitMark::open(path);
        let whole = reopened().expect("opens").expect("is there");
        assert_eq!(whole.last(), 5);
        assert!(whole.vouches_for(5));

        damage(path, 1);
        let mut torn = reopened().expect("opens").expect("is there");
        assert_eq!(torn.last(), 4);
        assert!(!torn.vouches_for(4), "commit 5 may be gone");
        assert!(torn.vouches_for(5), "torn while 5 was noted");
        torn.repair(5).expect("written");
        let repaired = reopened().expect("opens").expect("is there");
        assert_eq!((repaired.last(), repaired.is_damaged()), (5, false));

        damage(path, 0);
        damage(path, 1);
        let error = reopened().expect_err("both slots are torn");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn no_file_is_no_mark() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(CommitMark::open(directory.path()).expect("opens").is_none());
    }
}
