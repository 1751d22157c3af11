//! Calls to meetings of launches, and answers to them.

use pmi_core::services::MeetError;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::meet_answer::Outcome;

use super::{WireError, fence, meeting};
use crate::rendezvous::{Answer, Call, Introduced, Met};

/// Decodes a call. Its jobs and segments stay encoded, because the participants validate them.
///
/// # Errors
/// Fails like [`fence::decode_nodes`].
pub fn decode_call(message: proto::MeetCall) -> Result<Call, WireError> {
    let length = message.encoded_len();
    let introduced = |job: proto::MetJob| Introduced { encoded: job.encode_to_vec().into(), namespace: job.namespace };
    Ok(Call {
        nodes: fence::decode_nodes(&message.node_gaps)?,
        name: message.name,
        epoch: message.epoch,
        others: message.others,
        jobs: message.jobs.into_iter().map(introduced).collect(),
        segments: message.segments,
        length,
    })
}

/// Decodes a call from bytes, from another launch on this machine.
///
/// # Errors
/// Fails for invalid bytes, and like [`decode_call`].
pub fn call_from_bytes(call: &[u8]) -> Result<Call, WireError> {
    decode_call(proto::MeetCall::decode(call)?)
}

/// Encodes the result of a meeting as bytes.
pub fn answer_to_bytes(answer: Answer) -> Vec<u8> {
    encode_answer(answer).encode_to_vec()
}

/// Encodes the result of a meeting as a message.
pub fn encode_answer(answer: Answer) -> proto::MeetAnswer {
    answer.and_then(encode_met).unwrap_or_else(|error| meeting::encode_error(&error))
}

fn encode_met(met: Met) -> Result<proto::MeetAnswer, MeetError> {
    let jobs = met.jobs.into_iter().map(|job| proto::MetJob::decode(job.encoded));
    let unreadable = |error: prost::DecodeError| MeetError::Unavailable { reason: error.to_string() };
    Ok(proto::MeetAnswer {
        outcome: Outcome::Met.into(),
        number: met.number,
        jobs: jobs.collect::<Result<_, _>>().map_err(unreadable)?,
        segments: met.segments,
        message: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::NodeIndex;
    use proptest::prelude::*;

    use super::*;

    fn job(namespace: &str) -> proto::MetJob {
        let job = proto::Job { id: "kvs_a_0".to_owned(), ..proto::Job::default() };
        proto::MetJob { namespace: namespace.to_owned(), job: Some(job), hosts: "node[0-1]".to_owned() }
    }

    proptest! {
        #[test]
        fn what_a_node_brings_is_passed_on_as_it_came(
            namespaces in proptest::collection::vec("kvs_[a-z]{1,5}_0", 0..4),
            segments in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..4),
            (number, epoch) in any::<(u64, u64)>(),
        ) {
            let message = proto::MeetCall {
                name: "connect".to_owned(),
                epoch,
                node_gaps: vec![0, 1],
                jobs: namespaces.iter().map(|namespace| job(namespace)).collect(),
                segments: segments.into_iter().map(Into::into).collect(),
                ..proto::MeetCall::default()
            };
            let call = decode_call(message.clone()).unwrap();
            prop_assert_eq!((call.name.as_str(), call.epoch, call.length), ("connect", epoch, message.encoded_len()));
            let answer = encode_answer(Ok(Met { number, jobs: call.jobs, segments: call.segments }));
            prop_assert_eq!((answer.outcome(), answer.number), (Outcome::Met, number));
            prop_assert_eq!((answer.jobs, answer.segments), (message.jobs, message.segments));
        }
    }

    #[test]
    fn the_nodes_that_take_part_are_told_as_gaps() {
        let nodes = |node_gaps: &[u32]| {
            decode_call(proto::MeetCall { node_gaps: node_gaps.to_vec(), ..proto::MeetCall::default() })
                .map(|call| call.nodes)
        };
        assert_eq!(nodes(&fence::encode_nodes(&[NodeIndex(1), NodeIndex(4)])).unwrap(), [NodeIndex(1), NodeIndex(4)]);
        assert!(nodes(&[u32::MAX, u32::MAX]).is_err());
    }

    #[test]
    fn a_meeting_that_does_not_take_place_is_answered_with_the_reason() {
        let reason = || "too many".to_owned();
        let cases = [
            (MeetError::NotFound, Outcome::NotFound, ""),
            (MeetError::TooMuch { reason: reason() }, Outcome::TooMuch, "too many"),
            (MeetError::Unavailable { reason: reason() }, Outcome::Unavailable, "too many"),
        ];
        for (error, outcome, message) in cases {
            let answer = encode_answer(Err(error));
            assert_eq!((answer.outcome(), answer.message.as_str()), (outcome, message));
            assert!(answer.jobs.is_empty() && answer.segments.is_empty());
        }
    }
}
