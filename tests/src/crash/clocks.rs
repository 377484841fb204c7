//! Machines with clocks of their own, on one machine.
//!
//! The machine's clocks are never touched. Each gateway and the server run in a *time namespace*
//! with an offset to the monotonic clocks of this machine, as on machines that were started at
//! other times; a reboot of the server's machine is another offset and another boot id, mounted
//! over the real one for that process alone. The programs need no hook for it. Both kinds of
//! namespace need privileges; where they are missing, all processes share one clock, and the
//! campaign says so. What a time namespace cannot do is to let a clock drift, step or stand still
//! while a process runs; the virtual world does all of these.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context;
use quota_core::time::Timestamp;
use simulations::random::Random;

/// Where Linux tells one boot from another.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const DAY: i64 = 24 * 60 * 60;

/// What this machine permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each process has a clock of its own.
    Own,
    /// All share this machine's.
    Shared,
}

/// The clock and the boot id of one machine that a process believes to run on.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// Seconds between this machine's monotonic clocks and its own; `None` for the same ones.
    offset: Option<i64>,
    /// A file with another boot id.
    boot_id: Option<PathBuf>,
}

impl Clocks {
    /// Finds out by trying, with a file in `directory`.
    #[must_use]
    pub fn probe(directory: &Path) -> Self {
        match probe(directory) {
            Ok(()) => Self::Own,
            Err(_) => Self::Shared,
        }
    }

    /// A machine that was started at another time.
    pub(super) fn machine(self, random: &mut Random) -> Machine {
        // Drawn in any case, so that the rest of the round is the same on every machine.
        let days = i64::try_from(random.below(400)).unwrap_or(0);
        let sooner = -i64::try_from(random.below(uptime() / 2 + 1)).unwrap_or(0);
        let offset = random.pick(&[0, sooner, days * DAY + 17]);
        Machine {
            offset: (self == Self::Own).then_some(offset),
            boot_id: None,
        }
    }

    /// The machine after its next boot, or the same one if clocks are shared.
    ///
    /// # Errors
    /// If no boot id can be written to `directory`.
    pub(super) fn reboot(
        self,
        machine: &Machine,
        directory: &Path,
        random: &mut Random,
    ) -> anyhow::Result<Machine> {
        let mut after = self.machine(random);
        let bits = random.bits();
        if self == Self::Shared {
            return Ok(machine.clone());
        }
        let (high, low) = (bits >> 32, bits & 0xffff_ffff);
        let path = directory.join(format!("boot-id-{bits:016x}"));
        std::fs::write(&path, format!("{high:08x}-0000-4000-8000-0000{low:08x}\n"))?;
        after.boot_id = Some(path);
        Ok(after)
    }
}

impl Machine {
    /// Runs `program` on it. The process is the program itself, so signals reach it; where
    /// `setpriv` is there, it is killed with the campaign, however that ends.
    pub(super) fn command(&self, program: &Path) -> Command {
        let bound: &[&str] = if has_setpriv() {
            &["setpriv", "--pdeathsig", "KILL", "--"]
        } else {
            &[]
        };
        let Some(offset) = self.offset else {
            let mut words = bound.iter().map(OsStr::new).chain([program.as_os_str()]);
            let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
            command.args(words);
            return command;
        };
        let mut command = Command::new("unshare");
        command.arg("--time");
        command.arg(format!("--boottime={offset}"));
        command.arg(format!("--monotonic={offset}"));
        if let Some(file) = &self.boot_id {
            let bind = format!("mount --bind \"$0\" {BOOT_ID} && exec \"$@\"");
            command.args(["--mount", "--", "sh", "-c", &bind]).arg(file);
        } else {
            command.arg("--");
        }
        command.args(bound).arg(program);
        command
    }

    /// A reading of its clock, as this machine's clock showed it at that moment.
    pub(super) fn here(&self, there: Timestamp) -> Timestamp {
        let offset = i128::from(self.offset.unwrap_or(0)) * 1_000_000_000;
        let nanos = i128::from(there.as_nanos()) - offset;
        Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

fn has_setpriv() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "true"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// Whole seconds since this machine's boot.
fn uptime() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    seconds(&text).unwrap_or(0)
}

fn seconds(text: &str) -> Option<u64> {
    text.split(['.', ' ']).next()?.parse().ok()
}

/// Runs a shell on another machine and sees that it is there.
fn probe(directory: &Path) -> anyhow::Result<()> {
    let offset = 100_000;
    let file = directory.join("boot-id-probe");
    std::fs::write(&file, "another boot\n")?;
    let machine = Machine {
        offset: Some(offset),
        boot_id: Some(file.clone()),
    };
    let mut command = machine.command(Path::new("sh"));
    command
        .arg("-c")
        .arg(format!("echo $$; cat {BOOT_ID} /proc/uptime"));
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let child = command.spawn()?;
    let pid = child.id().to_string();
    let output = child.wait_with_output()?;
    std::fs::remove_file(&file)?;
    let text = String::from_utf8(output.stdout)?;
    let mut lines = text.lines();
    anyhow::ensure!(lines.next() == Some(&pid), "another process");
    anyhow::ensure!(lines.next() == Some("another boot"), "the same boot id");
    let there = lines.next().and_then(seconds).context("no time")?;
    let shift = there.saturating_sub(uptime());
    anyhow::ensure!((99_000..=101_000).contains(&shift), "the same clock");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_on_another_machine_is_brought_home() {
        let machine = |offset| Machine {
            offset,
            boot_id: None,
        };
        let at = Timestamp::from_nanos(5_000_000_123);
        assert_eq!(machine(None).here(at), at);
        assert_eq!(machine(Some(3)).here(at).as_nanos(), 2_000_000_123);
        assert_eq!(machine(Some(-3)).here(at).as_nanos(), 8_000_000_123);
    }
}
