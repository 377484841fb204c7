//! Rules 4, 8 and 10 in the word that requests spend from.

use quota_core::cell::{LeaseCell, Receipt, Rise, RollBack, Spend, Tick};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

/// So many ticks of the cell, from somewhere.
fn tick(number: u64) -> Tick {
    Tick::at(Timestamp::ZERO + Term::from_nanos((1_000 + number) << 22))
}

/// A cell with five tokens until the tenth tick.
fn leased() -> LeaseCell {
    let cell = LeaseCell::new();
    let rest = cell.install(Tokens::new(5), tick(10), Rise::Fresh);
    assert_eq!(rest, Ok(Tokens::ZERO));
    cell
}

fn spent(cell: &LeaseCell, cost: u64) -> Receipt {
    match cell.spend(Tokens::new(cost), || tick(0)) {
        Spend::Admitted { receipt, .. } => receipt,
        refused => panic!("{refused:?}"),
    }
}

/// Rule 4: spending needs an earlier tick than the deadline's.
#[test]
fn nothing_is_spent_in_the_tick_of_the_deadline() {
    let cell = leased();
    let spend = |now| cell.spend(Tokens::ONE, || tick(now));
    assert!(matches!(spend(9), Spend::Admitted { .. }));
    assert!(matches!(spend(10), Spend::Ended { .. }));
    let cell = leased();
    let late = cell.spend(Tokens::ONE, || tick(11));
    assert!(matches!(late, Spend::Ended { .. }));
}

/// Rule 4: the admission is the instant of the debit, so the clock is read when it is done.
#[test]
fn the_clock_is_read_after_the_debit() {
    let cell = leased();
    let mut seen = None;
    let outcome = cell.spend(Tokens::new(2), || {
        seen = Some(cell.view().tokens);
        tick(0)
    });
    assert!(matches!(outcome, Spend::Admitted { .. }));
    assert_eq!(seen, Some(Tokens::new(3)));
}

/// Rule 8: another lease, though it may end in the very same tick.
#[test]
fn a_roll_back_never_lands_in_another_lease() {
    for (end, rise) in [(20, Rise::Above), (10, Rise::Within), (5, Rise::Within)] {
        let cell = leased();
        let receipt = spent(&cell, 2);
        let rest = cell.install(Tokens::new(4), tick(end), rise);
        assert_eq!(rest, Ok(Tokens::new(3)));
        assert_eq!(cell.roll_back(receipt), RollBack::Lost, "{end}");
        assert_eq!(cell.view().tokens, Tokens::new(4));
    }
}

/// Rule 10: a report counts only what can never come back.
#[test]
fn what_was_reported_spent_never_comes_back() {
    let cell = leased();
    let receipt = spent(&cell, 2);
    assert_eq!(cell.report(), Some(Tokens::new(3)));
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    assert_eq!(cell.view().tokens, Tokens::new(3));
}

/// Rule 10: after the end all is accounted for.
#[test]
fn a_roll_back_after_the_end_is_lost() {
    let cell = leased();
    let receipt = spent(&cell, 2);
    assert_eq!(cell.clear(tick(11)), Tokens::new(3));
    assert_eq!(cell.roll_back(receipt), RollBack::Lost);
    assert_eq!(cell.view().tokens, Tokens::ZERO);
}
