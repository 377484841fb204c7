//! The simulations count bytes without encoding anything: their sizes against real messages.

use prost::Message;
use quota_core::holder::HolderMessage;
use quota_core::id::{Epoch, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Grant, Introduction, LeaseRequest, Refusal, Status};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::answers::AuthorityMessage;
use quota_wire::convert::stream::{self, FromAuthority};
use simulations::capacity::wire_size;
use simulations::random::Random;

/// Any number of bits, so that all lengths occur.
fn number(random: &mut Random) -> u64 {
    let bits = random.below(40);
    random.below(1 << bits)
}

fn lease(random: &mut Random) -> Option<LeaseId> {
    random.chance(700).then(|| LeaseId {
        epoch: Epoch::new(1 + random.below(300)),
        counter: 1 + number(random),
    })
}

fn key_number(random: &mut Random) -> KeyNumber {
    KeyNumber::new(u32::try_from(random.below(100_000)).expect("small"))
}

fn request(random: &mut Random) -> LeaseRequest {
    let want = Tokens::new(random.below(500));
    LeaseRequest {
        key: key_number(random),
        sequence: Sequence::new(1 + number(random)),
        lease: lease(random),
        spent: Tokens::new(number(random)),
        returned: Tokens::new(number(random)),
        want,
        least: Tokens::new(random.below(3)).min(want),
        demand: number(random),
        release: random.chance(100),
    }
}

fn answer(random: &mut Random) -> Answer {
    let retry_after = Term::from_nanos(number(random));
    Answer {
        key: key_number(random),
        sequence: Sequence::new(1 + number(random)),
        grant: lease(random).map(|lease| Grant {
            lease,
            granted: Tokens::new(number(random)),
            term: Term::from_seconds(random.below(60)),
            headroom: Term::from_millis(random.below(3)),
            version: PolicyVersion::new(1 + random.below(3)),
        }),
        status: random.pick(&[
            Status::Done,
            Status::Queued { retry_after },
            Status::Recall { keep: Tokens::ONE },
            Status::Refused(Refusal::UnknownKey),
            Status::Refused(Refusal::Busy { retry_after }),
        ]),
    }
}

#[test]
fn sizes_of_messages_are_those_of_the_encoding_to_the_byte() {
    let mut random = Random::new(11);
    for round in 0..2_000 {
        let items = random.below(12);
        let introduced = u32::try_from(random.below(4)).expect("small");
        let message = HolderMessage {
            number: MessageNumber::new(1 + number(&mut random)),
            introductions: (0..introduced)
                .map(|number| Introduction {
                    number: KeyNumber::new(number),
                    bucket: BucketAddress {
                        policy: PolicyId {
                            namespace: "default".into(),
                            name: if number == 2 { "other" } else { "one" }.into(),
                        },
                        key: Key::from_values(&[format!("k{round}")]).expect("short"),
                    },
                })
                .collect(),
            requests: (0..items).map(|_| request(&mut random)).collect(),
        };
        let real = stream::encode_requests(&message).encoded_len();
        assert_eq!(wire_size::requests(&message), real as u64, "{message:?}");

        let anchor = MessageNumber::new(1 + number(&mut random));
        let answers: Vec<Answer> = (0..=items).map(|_| answer(&mut random)).collect();
        let size = wire_size::answers(anchor, &answers);
        let message = FromAuthority::Answers(AuthorityMessage { anchor, answers });
        let real = stream::encode_from_authority(&message);
        assert_eq!(size, real[0].encoded_len() as u64, "{message:?}");
    }
}
