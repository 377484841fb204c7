//! The one place where this server reads a clock.
//!
//! Time is `CLOCK_BOOTTIME` on Linux and Android: monotonic, and it keeps counting while the
//! machine is suspended. Elsewhere it is `CLOCK_MONOTONIC`, which on most systems stops during
//! suspend: there a machine that sleeps while it holds leases or shards is outside the promise.
//! A hypervisor that stops every clock of a guest is outside it everywhere, except as far as
//! [`JumpDetector`] notices the wall clock being put right afterwards.

use std::sync::OnceLock;
use std::time::SystemTime;

use quota_core::time::{Term, Timestamp};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Where Linux tells one boot from another.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Now, in nanoseconds of this machine's monotonic clock. A few tens of nanoseconds where the
/// kernel serves it without a system call.
#[must_use]
pub fn now() -> Timestamp {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).expect("a monotonic clock is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    Timestamp::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// The wall clock, in nanoseconds since 1970. Only for [`JumpDetector`], calendars and logs: it
/// may jump either way.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub fn wall_nanos() -> i128 {
    let signed = |nanos: u128| i128::try_from(nanos).unwrap_or(i128::MAX);
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => signed(since.as_nanos()),
        Err(before) => -signed(before.duration().as_nanos()),
    }
}

/// Most nanoseconds between the two readings of one clock for what was read in between to count
/// as read at the same time.
const TOGETHER: u64 = 2_000_000;
/// How often both clocks are read in the hope of that. A task that is held up each time is on a
/// machine where the closest pair has to do.
const READINGS: usize = 8;

/// Both clocks at about the same time: this machine's monotonic one and the wall clock, for
/// [`JumpDetector::observe`]. A task that is held up between the two readings would see the wall
/// clock jump, so it reads again.
#[must_use]
pub fn both() -> (Timestamp, i128) {
    both_from(now, wall_nanos)
}

fn both_from(
    mut now: impl FnMut() -> Timestamp,
    mut wall: impl FnMut() -> i128,
) -> (Timestamp, i128) {
    let mut read = || {
        let (before, wall, after) = (now(), wall(), now());
        (after.since(before), (before, wall))
    };
    let mut closest = read();
    for _ in 1..READINGS {
        if closest.0 <= Term::from_nanos(TOGETHER) {
            break;
        }
        let again = read();
        if again.0 < closest.0 {
            closest = again;
        }
    }
    closest.1
}

/// Identifies the boot of this machine: two timestamps are comparable only under one boot. Where
/// the system does not tell, it is a number drawn once per process, so that nothing recorded by
/// an earlier process counts as certain.
#[must_use]
pub fn boot_id() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        std::fs::read_to_string(BOOT_ID_FILE)
            .ok()
            .and_then(|text| parse_boot_id(&text))
            .unwrap_or_else(crate::random::number)
    })
}

fn parse_boot_id(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    if digits.len() == 32 {
        u128::from_str_radix(&digits, 16).ok()
    } else {
        None
    }
}

/// Notices a forward jump of the wall clock against the monotonic one: the sign that every clock
/// of this machine stood still for a while and the wall clock was put right afterwards. Then more
/// time has passed than the monotonic clock knows, so leases and tenures have to end.
///
/// A jump backwards, or an administrator who sets the clock forward, is no such sign, but the
/// second cannot be told apart, and ending too early is safe. Steps that are each smaller than
/// the margin go unnoticed.
#[derive(Clone, Debug)]
pub struct JumpDetector {
    margin: Term,
    last: Option<(Timestamp, i128)>,
}

impl JumpDetector {
    /// Clock daemons may slew the wall clock by up to a tenth; that is no jump.
    const SLEW_DIVISOR: u64 = 10;

    /// Notices jumps of more than `margin` between two observations.
    #[must_use]
    pub const fn new(margin: Term) -> Self {
        Self { margin, last: None }
    }

    /// Compares both clocks, read one right after the other, with the observation before. `Some`
    /// is the size of a forward jump beyond the margin.
    pub fn observe(&mut self, now: Timestamp, wall_nanos: i128) -> Option<Term> {
        let (then, wall_then) = self.last.replace((now, wall_nanos))?;
        let elapsed = now.since(then);
        let jump = wall_nanos
            .saturating_sub(wall_then)
            .saturating_sub(i128::from(elapsed.as_nanos()));
        let jump = Term::from_nanos(u64::try_from(jump.max(0)).unwrap_or(u64::MAX));
        let allowed = self.margin + elapsed.scale_up(1, Self::SLEW_DIVISOR);
        (jump > allowed).then_some(jump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Term::from_seconds(seconds)
    }

    fn detector() -> JumpDetector {
        let mut detector = JumpDetector::new(Term::from_millis(500));
        assert_eq!(
            detector.observe(at(100), 5 * SECOND),
            None,
            "nothing to compare with"
        );
        detector
    }

    #[test]
    fn clocks_that_run_together_never_jump() {
        let mut detector = detector();
        for step in 1..100 {
            let now = at(100 + u64::try_from(step).expect("small"));
            assert_eq!(detector.observe(now, (5 + step) * SECOND), None);
        }
    }

    #[test]
    fn a_wall_clock_put_right_after_a_standstill_is_a_jump_once() {
        let mut detector = detector();
        assert_eq!(
            detector.observe(at(101), 36 * SECOND),
            Some(Term::from_seconds(30))
        );
        assert_eq!(detector.observe(at(102), 37 * SECOND), None);
    }

    #[test]
    fn slewing_by_a_tenth_is_no_jump_and_a_little_more_is() {
        let slewed = |extra: i128| detector().observe(at(200), 105 * SECOND + extra);
        assert_eq!(slewed(10 * SECOND + SECOND / 2), None);
        assert!(slewed(10 * SECOND + SECOND / 2 + 1).is_some());
    }

    #[test]
    fn a_step_backwards_is_no_jump_and_the_next_one_forward_is() {
        let mut detector = detector();
        assert_eq!(detector.observe(at(101), -7200 * SECOND), None);
        assert!(detector.observe(at(102), 6 * SECOND).is_some());
        assert_eq!(
            detector.observe(at(103), i128::MAX),
            Some(Term::from_nanos(u64::MAX))
        );
        assert_eq!(detector.observe(at(104), i128::MIN), None);
    }

    /// Both clocks at rest but for the stalls, in nanoseconds, after each reading of any of them.
    fn read_with_stalls(stalls: &[u64]) -> (u64, u64) {
        let time = std::cell::Cell::new(1_000_000_000_u64);
        let stalls = std::cell::RefCell::new(stalls.iter());
        let read = || {
            let read = time.get();
            let stall = stalls.borrow_mut().next().copied().unwrap_or_default();
            time.set(read + stall);
            read
        };
        let (now, wall) = both_from(|| Timestamp::from_nanos(read()), || i128::from(read()));
        (now.as_nanos(), u64::try_from(wall).expect("positive"))
    }

    #[test]
    fn a_stall_between_the_two_clocks_is_no_jump() {
        let second = 1_000_000_000;
        assert_eq!(read_with_stalls(&[]), (second, second));
        let (now, wall) = read_with_stalls(&[TOGETHER]);
        assert_eq!(wall - now, TOGETHER, "as close as it has to be");
        // Held up before the wall clock is read, then after it, then not.
        let (now, wall) = read_with_stalls(&[second, 0, 0, 0, second]);
        assert_eq!((now, wall), (3 * second, 3 * second));
        // Held up every time: the closest pair.
        let mut stalls = [5 * second; 3 * READINGS];
        stalls[6] = 3 * TOGETHER;
        stalls[7] = 0;
        let (now, wall) = read_with_stalls(&stalls);
        assert_eq!(wall - now, 3 * TOGETHER);
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let mut before = now();
        for _ in 0..1000 {
            let after = now();
            assert!(after >= before);
            before = after;
        }
    }

    #[test]
    fn a_boot_id_is_read_and_stays() {
        assert_eq!(boot_id(), boot_id());
        assert_eq!(
            parse_boot_id("00000000-0000-0000-0000-0000000000ff\n"),
            Some(255)
        );
        assert_eq!(parse_boot_id("not a boot id"), None);
    }
}
