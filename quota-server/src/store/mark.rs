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

const MAGIC: [u8; 4] = *b"QCM1";
/// Two slots, written in turn, each on a sector of its own: a torn write spares the other.
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 16;

/// An open mark.
#[derive(Debug)]
pub(super) struct CommitMark {
    file: File,
    last: u64,
}

impl CommitMark {
    /// A new mark at zero.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(directory.join(FILE))?;
        let mut mark = Self { file, last: 0 };
        mark.advance(0)?;
        mark.sync()?;
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
        match slots.into_iter().flatten().max() {
            Some(last) => Ok(Some(Self { file, last })),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not a mark, or damaged",
            )),
        }
    }

    /// The last commit known to be durable.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Notes that a commit is durable. One write to the page cache.
    pub(super) fn advance(&mut self, commit: u64) -> io::Result<()> {
        let mut slot = [0; SLOT_BYTES];
        slot[..4].copy_from_slice(&MAGIC);
        slot[4..12].copy_from_slice(&commit.to_le_bytes());
        let checksum = crc32fast::hash(&slot[..12]);
        slot[12..].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_all_at(&slot, (commit % 2) * SLOT_STRIDE)?;
        if commit == 0 {
            self.file.write_all_at(&slot, SLOT_STRIDE)?;
        }
        self.last = commit;
        Ok(())
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

    #[test]
    fn a_torn_slot_leaves_the_one_before_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut mark = CommitMark::create(directory.path()).expect("created");
        for commit in 1..=5 {
            mark.advance(commit).expect("written");
        }
        drop(mark);
        let reopened = || CommitMark::open(directory.path());
        assert_eq!(reopened().expect("opens").expect("is there").last(), 5);

        let path = directory.path().join(FILE);
        let file = OpenOptions::new().write(true).open(&path).expect("opens");
        file.write_all_at(&[0xff], SLOT_STRIDE + 6).expect("torn");
        assert_eq!(reopened().expect("opens").expect("is there").last(), 4);

        file.write_all_at(&[0xff], 6).expect("torn");
        let error = reopened().expect_err("both slots are torn");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn no_file_is_no_mark() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(CommitMark::open(directory.path()).expect("opens").is_none());
    }
}
