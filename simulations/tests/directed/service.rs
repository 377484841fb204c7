//! Rule 25, queues and memory: small numbers, and who waits.

use quota_core::authority::{Input, StreamId};
use quota_core::id::Incarnation;
use quota_core::tokens::Tokens;

use crate::rig::{Rig, granted, is_queued, request, spec};
use crate::{RESERVED, VOLATILE};

/// Rule 25: a cost above the cap but within the capacity is served; a cap is at least one.
#[test]
fn a_bucket_of_one_token_serves_and_a_dear_request_is_served_whole() {
    let mut tiny = spec(1, 1, VOLATILE);
    tiny.lease.share_per_mille = 1;
    let mut rig = Rig::first(tiny);
    rig.connect(1, "a");
    assert_eq!(granted(&rig.ask(1, 1, None, 1)).granted, Tokens::ONE);

    let mut dear = spec(10, 1, VOLATILE);
    dear.cost.max = Some(10);
    let mut rig = Rig::first(dear);
    rig.connect(1, "a");
    let mut wish = request(1, None, 0, 0, 10);
    wish.least = Tokens::new(10);
    rig.send(1, 1, wish);
    assert_eq!(granted(&rig.answers[0].1).granted, Tokens::new(10));
}

/// Bounded memory: what a holder waited for goes with its stream.
#[test]
fn a_holder_that_comes_and_goes_leaves_nothing_waiting() {
    let mut rig = Rig::first(spec(1, 1, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 1)).lease;
    assert!(
        is_queued(&rig.ask(1, 2, Some(lease), 1)),
        "the front of the queue"
    );
    for holder in 2..500 {
        rig.connect(holder, "a");
        rig.ask(holder, 1, None, 1);
        let (incarnation, stream) = (Incarnation::new(holder), StreamId::new(holder));
        rig.input(Input::Disconnect {
            incarnation,
            stream,
        });
    }
    let waiting = rig.authority.stats().waiting;
    assert_eq!(waiting, 1, "requests of holders that are gone wait on");
}

/// Rule 25: a block is at least a token, and at least what is asked for.
#[test]
fn a_small_reserved_bucket_books_at_least_what_is_asked_for() {
    let mut rig = Rig::first(spec(5, 1, RESERVED));
    rig.connect(1, "a");
    assert!(is_queued(&rig.ask(1, 1, None, 1)));
    rig.answers.clear();
    rig.written();
    assert_eq!(rig.answers.len(), 1, "a durable block of nothing");
    assert_eq!(granted(&rig.answers[0].1).granted, Tokens::ONE);
}

/// Queues: first come, first served.
#[test]
fn whoever_came_first_is_served_first() {
    let mut rig = Rig::first(spec(1, 10, VOLATILE));
    rig.connect(1, "a");
    let lease = granted(&rig.ask(1, 1, None, 1)).lease;
    rig.report(1, 2, Some(lease), 1, 0, 0);
    for holder in 2..5 {
        rig.connect(holder, "a");
        assert!(is_queued(&rig.ask(holder, 10 * holder, None, 1)));
    }
    rig.answers.clear();
    rig.at(100).tick();
    let served: Vec<u64> = rig.answers.iter().map(|a| a.1.sequence.get()).collect();
    assert_eq!(served, [20]);
}
