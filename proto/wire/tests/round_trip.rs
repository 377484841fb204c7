//! What is encoded, sent as bytes and decoded again is what it was, for every message; and no
//! bytes whatever make decoding panic.

mod support;

use proptest::prelude::*;
use prost::Message;
use quota_wire::convert::policy::UpdateParts;
use quota_wire::convert::stream::FromAuthority;
use quota_wire::convert::{answers, common, handshake, notice, policy, requests, stream, unary};
use quota_wire::{proto as wire, status};

/// As the other side reads it from the bytes.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(&message.encode_to_vec()[..]).expect("what was encoded can be decoded")
}

proptest! {
    #[test]
    fn requests_survive(message in support::holder_message()) {
        let encoded = sent(&stream::encode_requests(&message));
        prop_assert_eq!(stream::decode_from_holder(encoded), Ok(message));
    }

    #[test]
    fn answers_survive(message in support::authority_message()) {
        let message = FromAuthority::Answers(message);
        let encoded = stream::encode_from_authority(&message);
        prop_assert_eq!(encoded.len(), 1);
        prop_assert_eq!(stream::decode_from_authority(sent(&encoded[0])), Ok(message));
    }

    #[test]
    fn pushes_survive(message in prop_oneof![
        support::policy_notice().prop_map(FromAuthority::Policies),
        support::shard_map().prop_map(FromAuthority::ShardMap),
        support::not_owner().prop_map(FromAuthority::NotOwner),
        support::go_away().prop_map(FromAuthority::GoAway),
    ]) {
        let encoded = stream::encode_from_authority(&message);
        prop_assert_eq!(encoded.len(), 1);
        prop_assert_eq!(stream::decode_from_authority(sent(&encoded[0])), Ok(message));
    }

    #[test]
    fn the_handshake_survives(hello in support::hello(), welcome in support::welcome()) {
        let opened = stream::open_hello(sent(&stream::encode_hello(&hello))).expect("a hello");
        let spoken = handshake::decode_hello(opened, handshake::SPOKEN);
        prop_assert_eq!(spoken, Ok((1, hello)));
        let opened = stream::open_welcome(sent(&stream::encode_welcome(&welcome)));
        let read = handshake::decode_welcome(opened.expect("a welcome"), handshake::SPOKEN);
        prop_assert_eq!(read, Ok(welcome));
    }

    #[test]
    fn single_calls_survive(
        acquire in support::acquire(),
        acquired in support::acquired(),
        release in support::release(),
        watch in support::watch(),
    ) {
        let call = sent(&unary::encode_acquire(&acquire));
        prop_assert_eq!(unary::decode_acquire(call), Ok(acquire));
        let response = sent(&unary::encode_acquired(&acquired));
        prop_assert_eq!(unary::decode_acquired(response), Ok(acquired));
        let call = sent(&unary::encode_release(&release));
        prop_assert_eq!(unary::decode_release(call), Ok(release));
        prop_assert_eq!(unary::decode_watch(sent(&unary::encode_watch(&watch))), Ok(watch));
    }

    #[test]
    fn policies_survive(update in support::policies::policy_update()) {
        let mut parts = UpdateParts::default();
        let encoded = policy::encode_update(&update);
        let (last, before) = encoded.split_last().expect("one at least");
        for part in before {
            prop_assert_eq!(parts.push(sent(part)), Ok(None));
        }
        prop_assert_eq!(parts.push(sent(last)), Ok(Some(update)));
    }

    #[test]
    fn terms_and_refusals_survive(term in support::term(), refusal in support::refusal()) {
        prop_assert_eq!(common::decode_term("t", common::encode_term(term)), Ok(term));
        let refused = status::refused(refusal, None);
        let detail = status::detail(&refused).expect("every error has a detail");
        prop_assert_ne!(detail.reason(), wire::ErrorReason::Unspecified);
        if let quota_core::message::Refusal::Busy { retry_after } = refusal {
            prop_assert_eq!(status::retry_after(&detail), Some(retry_after));
        }
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
    }

    /// Random bytes hardly ever get past the first column; a legal message with a few bytes
    /// changed does.
    #[test]
    fn no_damage_makes_decoding_panic(
        requests in support::holder_message(),
        answers in support::authority_message(),
        update in support::policies::policy_update(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let messages = [
            stream::encode_requests(&requests).encode_to_vec(),
            stream::encode_from_authority(&FromAuthority::Answers(answers))[0].encode_to_vec(),
            policy::encode_update(&update)[0].encode_to_vec(),
        ];
        for mut bytes in messages {
            for (place, byte) in &damage {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *byte;
                }
            }
            decode_everything(&bytes);
        }
    }
}

/// Reads `bytes` as every message there is. What is accepted must encode again to what is read
/// the same.
fn decode_everything(bytes: &[u8]) {
    if let Ok(message) = wire::ClientMessage::decode(bytes) {
        if let Ok(hello) = stream::open_hello(message.clone()) {
            let _ = handshake::decode_hello(hello, handshake::SPOKEN);
        }
        if let Ok(accepted) = stream::decode_from_holder(message) {
            assert_eq!(requests::decode(requests::encode(&accepted)), Ok(accepted));
        }
    }
    if let Ok(message) = wire::ServerMessage::decode(bytes) {
        if let Ok(welcome) = stream::open_welcome(message.clone()) {
            let _ = handshake::decode_welcome(welcome, handshake::SPOKEN);
        }
        if let Ok(accepted) = stream::decode_from_authority(message) {
            for again in stream::encode_from_authority(&accepted) {
                assert_eq!(stream::decode_from_authority(again), Ok(accepted.clone()));
            }
        }
    }
    if let Ok(batch) = wire::RequestBatch::decode(bytes) {
        let _ = requests::decode(batch);
    }
    if let Ok(batch) = wire::AnswerBatch::decode(bytes) {
        let _ = answers::decode(&batch);
    }
    if let Ok(map) = wire::ShardMap::decode(bytes) {
        let _ = notice::decode_shard_map(map);
    }
    if let Ok(hello) = wire::Hello::decode(bytes) {
        let _ = handshake::decode_hello(hello, handshake::SPOKEN);
    }
    if let Ok(call) = wire::AcquireRequest::decode(bytes) {
        let _ = unary::decode_acquire(call);
    }
    if let Ok(response) = wire::AcquireResponse::decode(bytes) {
        let _ = unary::decode_acquired(response);
    }
    if let Ok(call) = wire::ReleaseRequest::decode(bytes) {
        let _ = unary::decode_release(call);
    }
    if let Ok(call) = wire::WatchPoliciesRequest::decode(bytes) {
        let _ = unary::decode_watch(call);
    }
    if let Ok(update) = wire::PolicyUpdate::decode(bytes) {
        let _ = UpdateParts::default().push(update);
    }
    let raw = tonic::Status::with_details(tonic::Code::Ok, "", bytes.to_vec().into());
    if let Some(detail) = status::detail(&raw) {
        let _ = status::retry_after(&detail);
    }
}
