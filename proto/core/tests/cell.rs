//! The lease cell's decisions, one thread, one fact each.
#![cfg(not(loom))]
#![allow(missing_docs)]

use quota_core::cell::{CELL_TERM_MAX, ErasExhausted, LeaseCell, Rise, RollBack, Spend, Tick};
use quota_core::message::{COST_MAX, HELD_MAX};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

fn tick(number: u64) -> Tick {
    Tick::at(Timestamp::from_nanos(number << 22))
}

fn tokens(count: u64) -> Tokens {
    Tokens::new(count)
}

fn leased(count: u64, deadline: u64) -> LeaseCell {
    let cell = LeaseCell::new();
    cell.install(tokens(count), tick(deadline), Rise::Fresh)
        .expect("a new cell has eras left");
    cell
}

fn never() -> Tick {
    panic!("a refusal reads no clock")
}

#[test]
fn a_cell_is_sixteen_bytes() {
    assert_eq!(size_of::<LeaseCell>(), 16);
}

#[test]
fn an_empty_cell_asks_for_its_lease_once() {
    let cell = LeaseCell::new();
    assert_eq!(
        cell.spend(tokens(1), never),
        Spend::Exhausted { renew: true }
    );
    assert_eq!(
        cell.spend(tokens(1), never),
        Spend::Exhausted { renew: false }
    );
    cell.rearm();
    assert_eq!(
        cell.spend(tokens(1), never),
        Spend::Exhausted { renew: true }
    );
}

#[test]
fn odd_costs_are_handled() {
    let cell = leased(HELD_MAX.get(), 10);
    // Nothing costs nothing, in every state, without a clock.
    assert!(matches!(
        cell.spend(Tokens::ZERO, || tick(99)),
        Spend::Admitted { .. }
    ));
    for cost in [COST_MAX.get() + 1, u64::from(u32::MAX) + 1, u64::MAX] {
        assert_eq!(
            cell.spend(tokens(cost), never),
            Spend::Exhausted { renew: false }
        );
    }
    assert_eq!(cell.view().tokens, HELD_MAX);
    assert!(matches!(
        cell.spend(COST_MAX, || tick(1)),
        Spend::Admitted { .. }
    ));
    let cell = LeaseCell::new();
    assert!(matches!(
        cell.spend(Tokens::ZERO, || tick(99)),
        Spend::Admitted { .. }
    ));
}

#[test]
fn a_lease_is_spendable_until_the_tick_before_its_deadline() {
    let cell = leased(5, 10);
    assert!(matches!(
        cell.spend(tokens(1), || tick(9)),
        Spend::Admitted { .. }
    ));
    assert!(matches!(
        cell.spend(tokens(1), || tick(10)),
        Spend::Ended { .. }
    ));
    // The rest ended with it, so the next refusal needs no clock.
    assert!(matches!(
        cell.spend(tokens(1), never),
        Spend::Exhausted { .. }
    ));
}

#[test]
fn deadlines_work_across_the_wrap_of_the_tick_and_old_ones_do_not_revive() {
    let wrap = 1 << 29;
    let cell = leased(5, wrap + 3);
    assert!(matches!(
        cell.spend(tokens(1), || tick(wrap - 2)),
        Spend::Admitted { .. }
    ));
    assert!(matches!(
        cell.spend(tokens(1), || tick(wrap + 2)),
        Spend::Admitted { .. }
    ));
    // A clock jump of 13 days, at which half a range would take the deadline for a future one.
    let jumped = wrap + 4 + wrap / 2;
    assert!(matches!(
        cell.spend(tokens(1), || tick(jumped)),
        Spend::Ended { .. }
    ));
    let longest = Timestamp::ZERO + CELL_TERM_MAX;
    assert!(Tick::at(longest).ahead_of(tick(0)) > 0);
}

#[test]
fn a_deadline_is_restored_from_its_tick() {
    let now = Timestamp::from_nanos((5 << 51) + 12_345);
    let deadline = now + Term::from_seconds(60);
    let restored = Tick::at(deadline).timestamp_ahead_of(now).expect("ahead");
    assert!(restored <= deadline && deadline.since(restored) < Term::from_millis(5));
    assert_eq!(Tick::at(now).timestamp_ahead_of(deadline), None);
}

#[test]
fn a_roll_back_after_a_report_an_extension_or_an_end_is_lost() {
    let spend = |cell: &LeaseCell| match cell.spend(tokens(2), || tick(1)) {
        Spend::Admitted { receipt, .. } => receipt,
        other => panic!("{other:?}"),
    };
    let cell = leased(9, 10);
    let receipt = spend(&cell);
    assert_eq!(cell.roll_back(receipt), RollBack::Restored);
    assert_eq!(cell.view().tokens, tokens(9));
    let receipt = spend(&cell);
    assert_eq!(cell.report(), Some(tokens(7)));
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    let receipt = spend(&cell);
    cell.extend(Tokens::ZERO, tick(11), Rise::Above);
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    let receipt = spend(&cell);
    assert_eq!(cell.clear(tick(12)), tokens(3));
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    // A lease that must end earlier than the cell's last deadline, even at the very same tick.
    cell.install(tokens(1), tick(11), Rise::Within)
        .expect("an era is left");
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    assert_eq!(cell.view().tokens, tokens(1));
}

#[test]
fn reports_and_eras_run_out_and_come_back_with_a_later_deadline() {
    let cell = leased(9, 10);
    for _ in 0..7 {
        assert_eq!(cell.report(), Some(tokens(9)));
    }
    assert_eq!(cell.report(), None);
    cell.extend(Tokens::ZERO, tick(11), Rise::Above);
    assert_eq!(cell.report(), Some(tokens(9)));
    for deadline in (3..10).rev() {
        assert!(
            cell.install(tokens(1), tick(deadline), Rise::Within)
                .is_ok()
        );
    }
    assert_eq!(
        cell.install(tokens(1), tick(2), Rise::Within),
        Err(ErasExhausted)
    );
    assert_eq!(cell.view().deadline, tick(3));
    assert!(cell.install(tokens(1), tick(12), Rise::Above).is_ok());
    assert!(cell.install(tokens(1), tick(11), Rise::Within).is_err());
    assert!(cell.install(tokens(1), tick(90), Rise::Fresh).is_ok());
    assert!(cell.install(tokens(1), tick(89), Rise::Within).is_ok());
}

#[test]
fn an_extension_stops_at_what_a_word_can_hold() {
    let cell = leased(HELD_MAX.get() - 1, 10);
    assert_eq!(
        cell.extend(tokens(u64::MAX), tick(10), Rise::Within),
        tokens(u64::MAX - HELD_MAX.get())
    );
    assert_eq!(cell.view().tokens, HELD_MAX);
    // An earlier deadline moves nothing.
    cell.extend(Tokens::ZERO, tick(9), Rise::Within);
    assert_eq!(cell.view().deadline, tick(10));
}

#[test]
fn the_low_remainder_asks_once_and_again_after_a_grant() {
    let cell = leased(4, 10);
    cell.set_renew_at(tokens(2));
    let renew = |cell: &LeaseCell| match cell.spend(tokens(1), || tick(1)) {
        Spend::Admitted { renew, .. } => renew,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [renew(&cell), renew(&cell), renew(&cell)],
        [false, true, false]
    );
    cell.extend(tokens(2), tick(10), Rise::Within);
    assert!(renew(&cell));
}

#[test]
fn refused_demand_never_wraps() {
    let cell = LeaseCell::new();
    for _ in 0..10_000 {
        cell.refuse(tokens(u64::MAX));
    }
    assert!(cell.take_refused() >= tokens(u64::from(u32::MAX / 2)));
    assert!(cell.take_refused().is_zero());
}
