//! The client's one clock module: nothing else in this crate reads a clock.
//!
//! Deadlines of leases are counted on a clock that keeps counting while the machine is suspended:
//! `CLOCK_BOOTTIME` on Linux, Android, Fuchsia and OpenBSD. FreeBSD, NetBSD and macOS offer
//! `CLOCK_MONOTONIC` only; there a suspend stops the clock, so a lease may be spent after a
//! resume although its authority has reclaimed it. Run gateways on machines that do not suspend,
//! or on Linux. A hypervisor that stops *every* clock of a guest is outside what any clock can
//! show.
//!
//! A read is a vDSO call of about 20 ns where the kernel's clock source can be read from user
//! space (`tsc` and its like). Where it cannot, each read is a system call of several hundred
//! nanoseconds, and a decision costs as much more; [`warn_if_slow`] says so at start.

use std::time::Duration;

use quota_core::time::{Term, Timestamp};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(
    target_os = "linux",
    target_os = "android",
    target_os = "fuchsia",
    target_os = "openbsd"
))]
const MONOTONIC: ClockId = ClockId::Boottime;
#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "fuchsia",
    target_os = "openbsd"
)))]
const MONOTONIC: ClockId = ClockId::Monotonic;

/// A read dearer than this is a system call, not a vDSO call: those take 20–60 ns even on slow
/// machines, a system call 100 ns at the least and 300 ns or more with mitigations.
const SLOW_READ_NANOS: u64 = 250;

/// Forward jumps of the wall clock against the monotonic clock up to this are taken for the
/// clock daemon at work. It is the margin that an authority adds to every term.
pub const WALL_JUMP_MARGIN: Term = Term::from_millis(50);

/// Reads of two clocks that are further apart than this are repeated: far above what three reads
/// cost even as system calls, far below [`WALL_JUMP_MARGIN`].
const READS_APART_MAX: Term = Term::from_millis(2);
const READ_ATTEMPTS: u32 = 8;

/// Now, on the monotonic clock. Costs one vDSO call.
#[inline]
#[must_use]
pub fn now() -> Timestamp {
    read(MONOTONIC)
}

fn wall() -> Timestamp {
    read(ClockId::Realtime)
}

#[inline]
fn read(clock: ClockId) -> Timestamp {
    let time = clock_gettime(clock);
    // Both clocks count from a past origin; a wall clock set before 1970 reads as its origin.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Timestamp::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// `term` as the standard library's span.
pub(crate) const fn duration(term: Term) -> Duration {
    Duration::from_nanos(term.as_nanos())
}

/// A span of the standard library as a term; saturates after 584 years.
pub(crate) fn term(duration: Duration) -> Term {
    Term::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Measures the clock and warns through `tracing` if reading it is a system call.
pub fn warn_if_slow() {
    let nanos = read_cost();
    if nanos > SLOW_READ_NANOS {
        tracing::warn!(
            nanos_per_read = nanos,
            clock_source = clock_source().as_deref().unwrap_or("unknown"),
            "reading the clock is a system call on this machine, so every decision costs that \
             much more; prefer a clock source that user space can read (tsc)"
        );
    }
}

/// Nanoseconds per clock read, the least of several short batches so that a preemption between
/// two reads does not count.
fn read_cost() -> u64 {
    const READS: u64 = 64;
    (0..8)
        .map(|_| {
            let start = now();
            for _ in 0..READS {
                std::hint::black_box(now());
            }
            now().since(start).as_nanos() / READS
        })
        .min()
        .unwrap_or(0)
}

fn clock_source() -> Option<String> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Notices when the wall clock steps forward against the monotonic clock.
///
/// That happens when a snapshot of this machine was restored or a hypervisor held it: the
/// monotonic clock did not see the pause, the wall clock was corrected afterwards. Leases may
/// then be over although their deadlines have not come, so the driver ends them all. It asks at
/// every turn of its loop, at least once a second; a decision between the resume and that turn is
/// not covered. A backward step changes nothing.
#[derive(Debug)]
pub struct WallJumpDetector {
    offset: i128,
}

impl WallJumpDetector {
    /// Starts from the clocks as they are.
    #[must_use]
    pub fn new() -> Self {
        let (monotonic, wall) = read_together(now, wall);
        Self::starting_at(monotonic, wall)
    }

    fn starting_at(monotonic: Timestamp, wall: Timestamp) -> Self {
        Self {
            offset: offset(monotonic, wall),
        }
    }

    /// How far the wall clock has jumped forward since the last call, if that is more than
    /// [`WALL_JUMP_MARGIN`].
    pub fn poll(&mut self) -> Option<Term> {
        let (monotonic, wall) = read_together(now, wall);
        self.observe(monotonic, wall)
    }

    fn observe(&mut self, monotonic: Timestamp, wall: Timestamp) -> Option<Term> {
        let offset = offset(monotonic, wall);
        let jump = offset - self.offset;
        if jump > i128::from(WALL_JUMP_MARGIN.as_nanos()) {
            self.offset = offset;
            return Some(Term::from_nanos(u64::try_from(jump).unwrap_or(u64::MAX)));
        }
        // A clock daemon slews within the margin between two polls; following it keeps slow
        // drift from adding up to a jump.
        self.offset = offset;
        None
    }
}

impl Default for WallJumpDetector {
    fn default() -> Self {
        Self::new()
    }
}

/// Both clocks at nearly one instant. A thread that is preempted between two reads would see the
/// wall clock ahead by as long as it was kept waiting; such a pair is read again. After a few
/// attempts the closest pair must do: on a machine that busy, an offset that is too large ends
/// leases early, which is safe.
fn read_together(
    mut monotonic: impl FnMut() -> Timestamp,
    mut wall: impl FnMut() -> Timestamp,
) -> (Timestamp, Timestamp) {
    let mut closest: Option<(Term, Timestamp, Timestamp)> = None;
    for _ in 0..READ_ATTEMPTS {
        let before = monotonic();
        let between = wall();
        let apart = monotonic().since(before);
        if closest.is_none_or(|(least, ..)| apart < least) {
            closest = Some((apart, before, between));
        }
        if apart <= READS_APART_MAX {
            break;
        }
    }
    let (_, monotonic, wall) = closest.expect("there is at least one attempt");
    (monotonic, wall)
}

fn offset(monotonic: Timestamp, wall: Timestamp) -> i128 {
    i128::from(wall.as_nanos()) - i128::from(monotonic.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, millis: u64) -> Timestamp {
        Timestamp::ZERO + Term::from_seconds(seconds) + Term::from_millis(millis)
    }

    #[test]
    fn the_clock_moves_and_never_back() {
        let start = now();
        assert!(start > Timestamp::ZERO);
        let mut last = start;
        while last == start {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }

    #[test]
    fn a_forward_jump_of_the_wall_clock_is_reported_once() {
        let mut detector = WallJumpDetector::starting_at(at(10, 0), at(1_000, 0));
        assert_eq!(detector.observe(at(11, 0), at(1_001, 10)), None);
        assert_eq!(
            detector.observe(at(12, 0), at(1_062, 10)),
            Some(Term::from_seconds(60))
        );
        assert_eq!(detector.observe(at(13, 0), at(1_063, 10)), None);
    }

    #[test]
    fn backward_steps_and_slow_slewing_are_no_jumps() {
        let mut detector = WallJumpDetector::starting_at(at(10, 0), at(1_000, 0));
        assert_eq!(detector.observe(at(11, 0), at(401, 0)), None);
        for second in 12..40 {
            let slewed = at(390 + second, (second - 11) * 40);
            assert_eq!(detector.observe(at(second, 0), slewed), None, "{second}");
        }
    }

    /// Reads both clocks of a machine on which `pauses` say how long each read is held up.
    fn read_with_pauses(pauses: &[u64]) -> ((Timestamp, Timestamp), usize) {
        let (elapsed, reads) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let read = |origin: u64| {
            let pause = pauses.get(reads.get()).copied().unwrap_or(0);
            reads.set(reads.get() + 1);
            elapsed.set(elapsed.get() + pause);
            at(origin, elapsed.get())
        };
        let pair = read_together(|| read(10), || read(1_000));
        (pair, reads.get())
    }

    #[test]
    fn a_preemption_between_two_reads_is_no_jump() {
        for pauses in [[0, 80, 0], [0, 0, 80], [0, 40, 60]] {
            let ((monotonic, wall), reads) = read_with_pauses(&pauses);
            assert_eq!(reads, 6, "{pauses:?}: read once more");
            let mut detector = WallJumpDetector::starting_at(at(10, 0), at(1_000, 0));
            assert_eq!(detector.observe(monotonic, wall), None, "{pauses:?}");
        }
        let (_, reads) = read_with_pauses(&[500, 1, 1]);
        assert_eq!(reads, 3, "a pause before the first read does no harm");
    }

    #[test]
    fn on_a_machine_that_always_preempts_the_closest_pair_is_taken() {
        let mut pauses = [60; 24];
        (pauses[7], pauses[8]) = (3, 4);
        let ((monotonic, wall), reads) = read_with_pauses(&pauses);
        assert_eq!(reads, 24);
        assert_eq!(
            offset(monotonic, wall),
            offset(at(10, 0), at(1_000, 3)),
            "of the third attempt"
        );
    }
}
