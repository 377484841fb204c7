//! Slots that close and holders that shut down: everything goes back.

use quota_core::holder::{Event, Input, Slot};
use quota_core::message::Status;
use quota_core::time::Term;

use crate::DONE;
use crate::holder_rig::*;

#[test]
fn closing_returns_everything_and_frees_the_slot_when_it_is_known() {
    let mut rig = Rig::leased(20);
    assert!(rig.spend(2));
    rig.input(Input::Close { slot: SLOT });
    assert_eq!(rig.left(), 0, "out of reach before it is reported");
    assert!(rig.events().is_empty());
    let (number, request) = rig.one();
    assert!(request.release);
    assert_eq!((request.spent, request.returned), (tokens(2), tokens(18)));
    rig.answer(number, &request, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }]);
    assert_eq!(rig.holder.open_slots(), 0);
    // The slot serves another bucket; nothing of the first is believed any more.
    rig.open(SLOT, "b", settings());
    rig.answer(number, &request, Some(grant(1, 99, TEN)), DONE);
    assert_eq!(rig.left(), 0);
    rig.touch(1);
    let (_, other) = rig.one();
    assert!(other.sequence > request.sequence && other.key != request.key);
}

#[test]
fn closing_waits_for_the_answer_in_flight_and_gives_it_back() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    rig.input(Input::Close { slot: SLOT });
    assert!(rig.sent().is_empty() && rig.events().is_empty());
    rig.answer(number, &request, Some(grant(1, 4, TEN)), DONE);
    assert_eq!(rig.left(), 0);
    let (number, release) = rig.one();
    assert_eq!((release.spent, release.returned), (tokens(0), tokens(4)));
    assert!(release.release);
    rig.answer(number, &release, None, DONE);
    assert_eq!(rig.events().last(), Some(&Event::Closed { slot: SLOT }));
}

#[test]
fn closing_withdraws_a_queued_wish() {
    let mut rig = Rig::ready();
    rig.touch(1);
    let (number, request) = rig.one();
    let retry_after = Term::from_seconds(60);
    rig.answer(number, &request, None, Status::Queued { retry_after });
    rig.input(Input::Close { slot: SLOT });
    rig.events();
    let (number, withdraw) = rig.one();
    assert!(withdraw.release && withdraw.want.is_zero() && withdraw.sequence > request.sequence);
    rig.answer(number, &withdraw, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }]);
}

#[test]
fn without_a_stream_closing_ends_with_the_lease() {
    let mut rig = Rig::leased(20);
    rig.open(Slot::new(1), "b", settings());
    rig.input(Input::Disconnected);
    rig.input(Input::Shutdown);
    let closed = Event::Closed { slot: Slot::new(1) };
    assert_eq!(
        rig.events(),
        [closed],
        "a slot without lease has nothing to return"
    );
    assert_eq!(rig.left(), 0);
    rig.pass(TEN);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }, Event::Drained]);
}

#[test]
fn a_shutdown_returns_everything() {
    let mut rig = Rig::leased(20);
    rig.input(Input::Shutdown);
    let (number, request) = rig.one();
    assert_eq!(request.returned, tokens(20));
    rig.answer(number, &request, None, DONE);
    assert_eq!(rig.events(), [Event::Closed { slot: SLOT }, Event::Drained]);
}
