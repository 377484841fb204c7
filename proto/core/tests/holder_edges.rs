//! The holder machine where an authority is busy or its policy has moved on.

mod holder_rig;

use holder_rig::{Rig, TEN, grant, tokens};
use quota_core::message::{Refusal, Status};
use quota_core::time::Term;

#[test]
fn a_release_that_a_busy_authority_did_not_take_in_is_said_again() {
    let mut rig = Rig::leased(4);
    rig.pass_millis(3_000);
    let (number, release) = rig.one();
    assert!(release.release);
    let busy = Status::Refused(Refusal::Busy {
        retry_after: Term::from_millis(200),
    });
    rig.answer(number, &release, None, busy);
    assert!(
        rig.sent().iter().all(|message| message.requests.is_empty()),
        "not before its pause"
    );
    rig.pass_millis(200);
    let (number, again) = rig.one();
    assert!(again.release && again.sequence > release.sequence);
    assert_eq!(
        (again.lease, again.returned),
        (release.lease, release.returned)
    );
    rig.answer(number, &again, None, Status::Done);
    rig.pass_millis(5_000);
    assert!(rig.sent().iter().all(|message| message.requests.is_empty()));
}

#[test]
fn a_lease_that_gets_no_further_term_does_not_hurry_its_anchors() {
    let mut rig = Rig::leased(4);
    assert!(rig.spend(4));
    rig.touch(4);
    let (number, ask) = rig.one();
    // The policy has changed: the old lease is told its totals and no term, and the wish waits.
    let told = grant(1, 4, Term::ZERO);
    rig.answer(
        number,
        &ask,
        Some(told),
        Status::Queued { retry_after: TEN },
    );
    let mut messages = 0;
    for _ in 0..100 {
        rig.pass_millis(10);
        while rig.holder.poll_transmit(rig.now, &rig.table).is_some() {
            messages += 1;
        }
    }
    assert!(messages <= 6, "{messages} messages in a second");
    assert_eq!(
        rig.holder
            .lease(holder_rig::SLOT)
            .map(|lease| lease.granted),
        Some(tokens(4))
    );
}
