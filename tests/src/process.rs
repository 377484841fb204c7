//! A process that is watched while it runs and never outlives its test.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// How long a process may take to stop in order before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// Lines of output that a failed test shows of each process, at most.
const SHOWN_LINES: usize = 60;

/// A running process with all that it printed so far.
///
/// A test ends each of its processes by [`kill`](Self::kill) or [`stop`](Self::stop). One that is
/// dropped before is killed and its last lines are shown, since then the test is failing.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Output>,
    ended: bool,
}

/// What a process printed.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    /// Pipes that have not ended yet.
    open: AtomicUsize,
    copy: Option<Mutex<File>>,
}

impl Process {
    /// Starts `command`, called `name` in messages.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        Self::start(name, command, None)
    }

    /// The same, and everything that it prints is also appended to a file.
    ///
    /// # Errors
    /// If it cannot be started or the file cannot be written.
    pub fn spawn_with_copy(name: &str, command: &mut Command, copy: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(copy);
        let file = file.with_context(|| format!("cannot append to {}", copy.display()))?;
        Self::start(name, command, Some(Mutex::new(file)))
    }

    fn start(name: &str, command: &mut Command, copy: Option<Mutex<File>>) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = Arc::new(Output {
            open: AtomicUsize::new(2),
            copy,
            ..Output::default()
        });
        let stdout = child.stdout.take().context("standard output is piped")?;
        let stderr = child.stderr.take().context("standard error is piped")?;
        collect(stdout, Arc::clone(&output));
        collect(stderr, Arc::clone(&output));
        Ok(Self {
            name: name.to_owned(),
            child,
            output,
            ended: false,
        })
    }

    /// Waits for a line of output of which `pick` makes something.
    ///
    /// # Errors
    /// If there is none within `deadline`, or before the process ends.
    pub async fn line<T>(
        &self,
        what: &str,
        deadline: Duration,
        pick: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let what = format!("{} printed {what}", self.name);
        let found = wait::until(&what, deadline, || {
            // Asked first: once both pipes have ended, all that was said is there.
            let ended = self.output.open.load(Ordering::Acquire) == 0;
            let found = self.lines().iter().find_map(|line| pick(line));
            async move { found.map(Some).or_else(|| ended.then_some(None)) }
        });
        let found = found.await?;
        found.with_context(|| {
            let lines = self.lines();
            let last = lines.last().map_or("nothing", String::as_str);
            format!("waited until {what}, but it ended; its last line is: {last}")
        })
    }

    /// Sends a signal. It goes to this process alone.
    ///
    /// # Errors
    /// If the process has ended by itself.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        // A child that was not waited for keeps its number, so the signal reaches no other.
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("{} ended by itself: {status}", self.name);
        }
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot send {signal:?} to {}", self.name))
    }

    /// Kills the process without a word, as a crash would.
    ///
    /// # Errors
    /// If it had ended by itself before.
    pub fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("{} ended by itself: {status}", self.name);
        }
        self.child.kill()?;
        self.child.wait()?;
        self.ended = true;
        Ok(())
    }

    /// Asks the process to stop and waits until it has.
    ///
    /// # Errors
    /// If it does not stop in time or had ended before.
    pub async fn stop(mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.end(STOP_WITHIN).await
    }

    /// Waits until the process ends by itself.
    ///
    /// # Errors
    /// If it does not within `deadline`.
    pub async fn end(mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let what = format!("{} ended", self.name);
        let child = &mut self.child;
        let status = wait::until(&what, deadline, || {
            let ended = child.try_wait().ok().flatten();
            async move { ended }
        });
        let status = status.await?;
        self.ended = true;
        Ok(status)
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn lines(&self) -> Vec<String> {
        self.output
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let lines = self.lines();
        let mut shown = format!("--- the last lines of {}\n", self.name);
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            let _ = writeln!(shown, "    {line}");
        }
        // A test that cannot print still has other processes to kill.
        let _ = std::io::stderr().write_all(shown.as_bytes());
    }
}

/// Reads lines until the pipe ends, which it does with the process.
fn collect(pipe: impl Read + Send + 'static, output: Arc<Output>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Some(copy) = &output.copy {
                let mut copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
                // A full disk costs the copy, not the test.
                let _ = writeln!(copy, "{line}");
            }
            let lines = output.lines.lock();
            lines.unwrap_or_else(PoisonError::into_inner).push(line);
        }
        output.open.fetch_sub(1, Ordering::Release);
    });
}
