//! Timing loops that compare: all cases of a table take turns in each round, so that a noisy moment
//! strikes them alike, and ratios within one run mean something. Times are processor time of the
//! threads that work: other processes on the machine do not count, caches that they cool do.

use std::fmt::Write as _;

use quota_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Rounds of each case.
const ROUNDS: usize = 9;

/// One thing to be timed: runs `operations` of it on the calling thread.
type Operation<'a> = Box<dyn Fn(u64) + Sync + 'a>;

/// Cases that are compared with each other.
pub struct Table<'a> {
    title: String,
    cases: Vec<(String, u64, Operation<'a>)>,
}

impl std::fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

impl<'a> Table<'a> {
    /// A table without cases.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            cases: Vec::new(),
        }
    }

    /// Adds a case; the first one is what the others are compared with. `run` performs as many
    /// operations as it is told, `operations` in a round.
    pub fn case(&mut self, name: &str, operations: u64, run: impl Fn(u64) + Sync + 'a) {
        self.cases
            .push((name.to_owned(), operations, Box::new(run)));
    }

    /// Times all cases on `threads` threads and prints a line for each: nanoseconds for an
    /// operation of one thread (median, and the lowest and highest of the rounds), and how many
    /// times the first case's median that is.
    pub fn run(&self, threads: usize) {
        let mut times = vec![Vec::with_capacity(ROUNDS); self.cases.len()];
        for (_, operations, run) in &self.cases {
            run(operations / 10);
        }
        for _ in 0..ROUNDS {
            for ((_, operations, run), times) in self.cases.iter().zip(&mut times) {
                times.push(round(threads, *operations, run));
            }
        }
        let mut text = format!("\n{} ({threads} threads)\n", self.title);
        let mut base = None;
        for ((name, _, _), times) in self.cases.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            let base = *base.get_or_insert(median);
            let _ = writeln!(
                text,
                "  {name:<44} {median:>9.1} ns  ({:.1} to {:.1})  {:>7.2} x",
                times[0],
                times[times.len() - 1],
                median / base
            );
        }
        print!("{text}");
    }
}

/// Nanoseconds for one operation of one thread.
fn round(threads: usize, operations: u64, run: &Operation<'_>) -> f64 {
    let timed = || {
        let begin = thread_time();
        run(operations);
        nanos(begin)
    };
    let total: f64 = if threads == 1 {
        timed()
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a case does not fail"))
                .sum()
        })
    };
    total / (operations as f64 * threads as f64)
}

/// Processor time of this thread so far.
#[must_use]
pub fn thread_time() -> Timestamp {
    read(ClockId::ThreadCPUTime)
}

/// Processor time of this process so far.
#[must_use]
pub fn process_time() -> Timestamp {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Timestamp {
    let time = clock_gettime(clock);
    let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// Nanoseconds of this thread's processor time since `begin`.
#[must_use]
pub fn nanos(begin: Timestamp) -> f64 {
    thread_time().since(begin).as_nanos() as f64
}

/// Bytes of memory that this process holds now; `None` where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A number from the environment, to run a benchmark larger or smaller than usual.
#[must_use]
pub fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(usual)
}
