//! Calls to meetings of launches, and their answers.

use lattice_session::wire::{WireError, fence, meeting};
use pmi_core::services::MeetError;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::meet_answer::Outcome;

use crate::rendezvous::{Answer, Call, Introduced, Met};

/// The call that a message means. Jobs and segments are passed on as they came: those who take part check them.
///
/// # Errors
/// Refuses nodes that cannot be told.
pub(crate) fn decode_call(message: proto::MeetCall) -> Result<Call, WireError> {
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

/// The end of a meeting in a message.
pub(crate) fn encode_answer(answer: Answer) -> proto::MeetAnswer {
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
