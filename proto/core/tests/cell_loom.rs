//! Every interleaving of small programs on one lease cell. Run with
//! `RUSTFLAGS="--cfg loom" cargo test --release -p quota-core --test cell_loom`.
#![cfg(loom)]
#![allow(missing_docs)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use quota_core::cell::{LeaseCell, Rise, RollBack, Spend, Tick};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

fn tick(number: u64) -> Tick {
    Tick::at(Timestamp::from_nanos(number << 22))
}

fn tokens(count: u64) -> Tokens {
    Tokens::new(count)
}

fn leased(count: u64, deadline: u64) -> Arc<LeaseCell> {
    let cell = Arc::new(LeaseCell::new());
    cell.install(tokens(count), tick(deadline), Rise::Fresh)
        .expect("a new cell has eras left");
    cell
}

/// Spends at tick 1; the tokens admitted.
fn spend(cell: &LeaseCell, cost: u64) -> u64 {
    match cell.spend(tokens(cost), || tick(1)) {
        Spend::Admitted { .. } => cost,
        Spend::Exhausted { .. } | Spend::Ended { .. } => 0,
    }
}

#[test]
fn two_spenders_never_spend_a_token_twice() {
    loom::model(|| {
        let cell = leased(3, 10);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || spend(&cell, 2) + spend(&cell, 1))
        };
        let mine = spend(&cell, 2);
        let admitted = mine + other.join().unwrap();
        assert_eq!(admitted + cell.view().tokens.get(), 3);
        assert!(admitted >= 2, "a spender that loses a race tries again");
    });
}

#[test]
fn an_extension_and_spenders_lose_nothing() {
    loom::model(|| {
        let cell = leased(1, 10);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || spend(&cell, 1) + spend(&cell, 1))
        };
        let overflow = cell.extend(tokens(2), tick(20), Rise::Above);
        assert!(overflow.is_zero());
        let admitted = other.join().unwrap();
        assert_eq!(admitted + cell.view().tokens.get(), 3);
        assert_eq!(cell.view().deadline, tick(20));
    });
}

#[test]
fn another_lease_starts_with_its_own_tokens_only() {
    loom::model(|| {
        let cell = leased(2, 10);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || spend(&cell, 1) + spend(&cell, 1))
        };
        let rest = cell
            .install(tokens(1), tick(20), Rise::Above)
            .unwrap()
            .get();
        let admitted = other.join().unwrap();
        assert_eq!(admitted + rest + cell.view().tokens.get(), 3);
    });
}

/// The one who closes the lease reads the tokens after the deadline; every admission must be
/// visible to it. A spender that reads the clock before its debit, or without a fence, fails.
#[test]
fn no_admission_is_later_than_the_deadline() {
    loom::model(|| {
        let cell = leased(2, 10);
        let clock = Arc::new(AtomicU64::new(9));
        let other = {
            let (cell, clock) = (cell.clone(), clock.clone());
            thread::spawn(move || {
                match cell.spend(tokens(1), || tick(clock.load(Ordering::Relaxed))) {
                    Spend::Admitted { .. } => 1,
                    Spend::Exhausted { .. } | Spend::Ended { .. } => 0,
                }
            })
        };
        clock.store(10, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let spent_at_end = 2 - cell.view().tokens.get();
        let admitted = other.join().unwrap();
        assert!(
            admitted <= spent_at_end,
            "spent after the authority closed it"
        );
    });
}

#[test]
fn an_ended_debit_takes_nothing_from_the_next_lease() {
    loom::model(|| {
        let cell = leased(1, 10);
        let other = {
            let cell = cell.clone();
            // The lease of tick 10 has ended for this spender, the one of tick 30 has not.
            thread::spawn(move || match cell.spend(tokens(1), || tick(15)) {
                Spend::Admitted { .. } => 1,
                Spend::Exhausted { .. } | Spend::Ended { .. } => 0,
            })
        };
        cell.install(tokens(5), tick(30), Rise::Above).unwrap();
        let admitted = other.join().unwrap();
        assert_eq!(admitted + cell.view().tokens.get(), 5);
    });
}

#[test]
fn taken_back_tokens_are_out_of_reach() {
    loom::model(|| {
        let cell = leased(3, 10);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || spend(&cell, 1) + spend(&cell, 1))
        };
        let taken = cell.take_back(tokens(1)).get();
        let admitted = other.join().unwrap();
        assert_eq!(admitted + taken + cell.view().tokens.get(), 3);
    });
}

#[test]
fn what_was_reported_spent_stays_spent() {
    loom::model(|| {
        let cell = leased(3, 10);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || {
                let Spend::Admitted { receipt, .. } = cell.spend(tokens(2), || tick(1)) else {
                    panic!("there are enough tokens");
                };
                cell.roll_back(receipt)
            })
        };
        let reported = 3 - cell.report().expect("the first report").get();
        let rolled = other.join().unwrap();
        let spent = 3 - cell.view().tokens.get();
        assert!(reported <= spent, "reported {reported}, spent {spent}");
        assert_eq!(spent, if rolled == RollBack::Lost { 2 } else { 0 });
    });
}

/// The second lease ends before the first would have: only the era tells them apart.
#[test]
fn a_roll_back_never_reaches_another_lease() {
    loom::model(|| {
        let cell = leased(2, 20);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || {
                if let Spend::Admitted { receipt, .. } = cell.spend(tokens(2), || tick(1)) {
                    cell.roll_back(receipt);
                }
            })
        };
        cell.clear(tick(21));
        let before = cell.view();
        assert!(
            before.tokens.is_zero(),
            "nothing comes back to a cleared cell"
        );
        cell.install(tokens(1), tick(20), Rise::Within).unwrap();
        other.join().unwrap();
        assert_eq!(cell.view().tokens.get(), 1);
    });
}

#[test]
fn exactly_one_spender_asks_for_the_renewal() {
    loom::model(|| {
        let cell = leased(2, 10);
        cell.set_renew_at(tokens(1));
        let asks = |cell: &LeaseCell, cost| match cell.spend(tokens(cost), || tick(1)) {
            Spend::Admitted { renew, .. } | Spend::Exhausted { renew } | Spend::Ended { renew } => {
                u64::from(renew)
            }
        };
        let other = {
            let cell = cell.clone();
            thread::spawn(move || asks(&cell, 1) + asks(&cell, 2))
        };
        let mine = asks(&cell, 1);
        assert_eq!(mine + other.join().unwrap(), 1);
        cell.rearm();
        assert_eq!(asks(&cell, 2), 1);
    });
}
