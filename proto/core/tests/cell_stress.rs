//! Millions of operations by real threads on one lease cell: nothing is spent that was not
//! granted, and every token is accounted for.
#![cfg(not(loom))]
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use quota_core::cell::{LeaseCell, Rise, RollBack, Spend, Tick};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

const SPENDERS: u64 = 4;
/// Debits that each spender makes; refusals come on top.
const DEBITS: u64 = 500_000;
/// Leases follow each other up to this tick; a cell believes 2²⁰ ticks ahead.
const DEADLINE_MAX: u64 = 900_000;

fn tick(number: u64) -> Tick {
    Tick::at(Timestamp::from_nanos(number << 22))
}

/// A small generator, so that threads do different things; its seed is the thread's number.
struct Mix(u64);

impl Mix {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[derive(Default)]
struct Spent {
    /// Admitted and not rolled back: what really was spent.
    admitted: u64,
    /// Rolled back by its caller, but not put back: counts as spent, though nobody has it.
    lost: u64,
    asked: u64,
}

fn spender(cell: &LeaseCell, clock: &AtomicU64, done: &AtomicBool, mix: &mut Mix) -> Spent {
    let mut spent = Spent::default();
    let mut debits = 0;
    while debits < DEBITS && !done.load(Ordering::Relaxed) {
        let cost = 1 + mix.next(3);
        match cell.spend(Tokens::new(cost), || tick(clock.load(Ordering::SeqCst))) {
            Spend::Admitted { renew, receipt, .. } => {
                debits += 1;
                spent.asked += u64::from(renew);
                if mix.next(4) > 0 {
                    spent.admitted += cost;
                } else if cell.roll_back(receipt) == RollBack::Lost {
                    spent.lost += cost;
                }
            }
            Spend::Exhausted { renew } | Spend::Ended { renew } => {
                spent.asked += u64::from(renew);
                cell.refuse(Tokens::new(cost));
                thread::yield_now();
            }
        }
    }
    spent
}

#[derive(Default)]
struct Totals {
    granted: u64,
    returned: u64,
    given_up: u64,
    armed: u64,
}

/// Lets the spenders go when the supplier ends, by a failed assertion too.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Grants, extends, takes back, reports and installs until the spenders are done. With `expire`,
/// the clock passes deadlines too.
fn supplier(cell: &LeaseCell, clock: &AtomicU64, done: &AtomicBool, expire: bool) -> Totals {
    let _released = Release(done);
    let mut totals = Totals::default();
    let mut mix = Mix(99);
    let mut deadline = 1_000;
    let mut lease_granted = 0;
    let mut lease_returned = 0;
    let mut reported = 0;
    while !done.load(Ordering::SeqCst) {
        let amount = mix.next(20_000);
        match mix.next(12) {
            // A supplier that is never interrupted must not run so far ahead of the clock that its
            // deadlines are no longer believed.
            0 if deadline < DEADLINE_MAX => {
                // Another lease: what was reported of the old one is what it had spent at most.
                deadline += 1;
                let rest = cell
                    .install(Tokens::new(amount), tick(deadline), Rise::Above)
                    .expect("above needs no era")
                    .get();
                assert!(lease_granted - lease_returned - rest >= reported);
                totals.given_up += rest;
                totals.granted += amount;
                (lease_granted, lease_returned, reported) = (amount, 0, 0);
                totals.armed += 1;
            }
            1 => {
                let taken = cell.take_back(Tokens::new(mix.next(5_000))).get();
                totals.returned += taken;
                lease_returned += taken;
            }
            2 => {
                if let Some(left) = cell.report() {
                    let spent = lease_granted - lease_returned - left.get();
                    assert!(spent >= reported, "reported {reported}, then {spent}");
                    reported = spent;
                }
            }
            _ if cell.view().tokens.get() < 20_000 => {
                deadline += mix.next(3);
                let overflow = cell.extend(Tokens::new(amount), tick(deadline), Rise::Above);
                assert!(overflow.is_zero());
                totals.granted += amount;
                lease_granted += amount;
                totals.armed += 1;
            }
            _ => thread::yield_now(),
        }
        if expire && mix.next(50) == 0 {
            clock.store(deadline, Ordering::SeqCst);
        }
    }
    totals
}

fn run(expire: bool) -> (Totals, Spent, u64) {
    let cell = LeaseCell::new();
    let clock = AtomicU64::new(900);
    let done = AtomicBool::new(false);
    cell.set_renew_at(Tokens::new(50));
    let (totals, spent) = thread::scope(|scope| {
        let supply = scope.spawn(|| supplier(&cell, &clock, &done, expire));
        let spenders: Vec<_> = (0..SPENDERS)
            .map(|seed| {
                scope.spawn({
                    let (cell, clock, done) = (&cell, &clock, &done);
                    move || spender(cell, clock, done, &mut Mix(seed))
                })
            })
            .collect();
        let mut sum = Spent::default();
        for spender in spenders {
            let spent = spender.join().expect("a spender ends");
            sum.admitted += spent.admitted;
            sum.lost += spent.lost;
            sum.asked += spent.asked;
        }
        done.store(true, Ordering::SeqCst);
        (supply.join().expect("the supplier ends"), sum)
    });
    (totals, spent, cell.view().tokens.get())
}

#[test]
fn every_token_is_accounted_for() {
    let (totals, spent, left) = run(false);
    assert_eq!(
        spent.admitted + spent.lost + totals.returned + totals.given_up + left,
        totals.granted
    );
    assert!(spent.asked <= totals.armed + 1, "one ask for each grant");
}

#[test]
fn with_leases_ending_no_more_is_spent_than_granted() {
    let (totals, spent, left) = run(true);
    assert!(spent.admitted + totals.returned + totals.given_up + left <= totals.granted);
}
