//! What a holder asks for: as much as its callers need, and no more.

use quota_core::holder::{Event, Input, Slot};

use crate::DONE;
use crate::holder_rig::*;

#[test]
fn a_first_touch_asks_for_little_and_a_hot_key_for_more_each_time() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    assert_eq!(request.lease, None);
    assert!((1..=4).contains(&request.want.get()), "{request:?}");
    assert!(request.least.get() == 1 && request.demand >= 1);
    let mut granted = request.want.get();
    rig.answer(number, &request, Some(grant(1, granted, TEN)), DONE);
    assert!(matches!(rig.events()[..], [Event::Wake { .. }]));
    let (mut spent, mut last, mut most) = (0, request.want.get(), 0);
    for _ in 0..400 {
        rig.pass_millis(5);
        for _ in 0..5 {
            spent += u64::from(rig.spend(1));
        }
        for message in rig.sent() {
            let request = message.requests[0];
            assert!(request.want.get() <= (2 * last).max(4), "at most twofold");
            assert!(request.spent.get() <= spent);
            assert_eq!(request.lease, Some(lease(1)));
            last = request.want.get();
            most = most.max(last);
            granted += last;
            rig.answer(message.number, &request, Some(grant(1, granted, TEN)), DONE);
        }
    }
    // A thousand a second over half a second, and two deviations.
    assert!(most > 200, "the wish grows: {most}");
    assert!(granted - spent <= 545, "held {}", granted - spent);
    assert!(spent > 1_900, "hardly anyone is refused: {spent}");
}

#[test]
fn a_wish_stays_below_the_target_and_stops_there() {
    let mut rig = Rig::leased(50);
    // Cold: one spender a second is far from the renewal remainder.
    rig.pass_millis(1000);
    assert!(rig.spend(1));
    assert!(rig.sent().is_empty());
}

#[test]
fn waiting_callers_set_the_wish_and_its_least() {
    let mut rig = Rig::ready();
    for cost in [3, 30, 7] {
        rig.input(Input::Waiting {
            slot: SLOT,
            cost: tokens(cost),
        });
    }
    let (number, request) = rig.one();
    assert!(request.want >= request.least);
    assert!(request.want.get() >= 3, "{request:?}");
    rig.answer(number, &request, Some(grant(1, 10, TEN)), DONE);
    assert!(matches!(rig.events()[..], [Event::Wake { slot: SLOT, .. }]));
    let (number, request) = rig.one();
    assert_eq!(request.want, tokens(30), "all who wait, less what is held");
    assert_eq!(request.least, tokens(20), "the dearest, less what is held");
    rig.answer(number, &request, Some(grant(1, 40, TEN)), DONE);
    for cost in [3, 30, 7] {
        assert!(rig.spend(cost));
        rig.input(Input::WaitOver {
            slot: SLOT,
            cost: tokens(cost),
        });
    }
    // Counted when they began to wait, and not again when they spent.
    assert!((39..=41).contains(&rig.holder.demand(SLOT)));
}

#[test]
fn first_touches_of_many_keys_travel_together_in_bounded_messages() {
    let mut rig = Rig::new(2_500);
    rig.input(Input::Connected);
    for index in 0..2_500 {
        let slot = Slot::new(index);
        rig.open(slot, &index.to_string(), settings());
        rig.input(Input::Waiting {
            slot,
            cost: tokens(1),
        });
    }
    let sizes: Vec<_> = rig.sent().iter().map(|m| m.requests.len()).collect();
    assert_eq!(sizes, [1000, 1000, 500]);
}
