//! Rendezvous of launches, in messages between a session, its agent and the API server.

use pmi_core::kvs::{Segment, SegmentError};
use pmi_core::services::{MeetError, Meeting, Met, MetJob};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::meet_answer::Outcome;

use super::{WireError, job};
use crate::wire::fence::encode_nodes;

/// Encodes a rendezvous.
pub fn encode(meeting: Meeting) -> proto::MeetCall {
    proto::MeetCall {
        name: meeting.name,
        epoch: meeting.epoch.0,
        others: meeting.others,
        node_gaps: encode_nodes(&meeting.nodes),
        jobs: meeting.jobs.into_iter().map(encode_job).collect(),
        segments: meeting.segments.into_iter().map(Segment::into_bytes).collect(),
    }
}

/// Encodes a rendezvous as bytes, for another launch on this machine.
pub fn to_bytes(meeting: Meeting) -> Vec<u8> {
    encode(meeting).encode_to_vec()
}

fn encode_job(met: MetJob) -> proto::MetJob {
    proto::MetJob { namespace: met.namespace, job: Some(job::encode(&met.job)), hosts: hostlist::fold(&met.hosts) }
}

fn decode_job(met: proto::MetJob) -> Result<MetJob, WireError> {
    let hosts =
        hostlist::expand(&met.hosts).map_err(|source| WireError::Hosts { what: "the nodes of a job", source })?;
    let job = met.job.ok_or(WireError::Missing { what: "job that is met" })?;
    Ok(MetJob { namespace: met.namespace, job: job::decode(job, hosts.len())?, hosts })
}

/// Encodes the failure of a rendezvous.
pub fn encode_error(error: &MeetError) -> proto::MeetAnswer {
    let (outcome, message) = match error {
        MeetError::NotFound => (Outcome::NotFound, String::new()),
        MeetError::TooMuch { reason } => (Outcome::TooMuch, reason.clone()),
        MeetError::Unavailable { reason } => (Outcome::Unavailable, reason.clone()),
        other => (Outcome::Unavailable, other.to_string()),
    };
    proto::MeetAnswer { outcome: outcome.into(), message, ..Default::default() }
}

/// Decodes the answer to a rendezvous.
///
/// # Errors
/// Returns the error of the rendezvous; [`MeetError::Unavailable`] if jobs or segments of other launches cannot be decoded.
pub fn decode_answer(answer: proto::MeetAnswer) -> Result<Met, MeetError> {
    let unavailable = |reason: String| MeetError::Unavailable { reason };
    match Outcome::try_from(answer.outcome) {
        Ok(Outcome::Met) => {}
        Ok(Outcome::NotFound) => return Err(MeetError::NotFound),
        Ok(Outcome::TooMuch) => return Err(MeetError::TooMuch { reason: answer.message }),
        Ok(Outcome::Unavailable) => return Err(unavailable(answer.message)),
        Err(_) => return Err(unavailable(format!("the answer {} means nothing here", answer.outcome))),
    }
    let jobs = answer.jobs.into_iter().map(decode_job).collect::<Result<_, _>>();
    let segments = answer.segments.into_iter().map(Segment::decode).collect::<Result<_, SegmentError>>();
    Ok(Met {
        number: answer.number,
        jobs: jobs.map_err(|error| unavailable(error.to_string()))?,
        segments: segments.map_err(|error| unavailable(error.to_string()))?,
    })
}

/// Decodes the answer from bytes.
///
/// # Errors
/// Fails like [`decode_answer`].
pub fn answer_from_bytes(answer: &[u8]) -> Result<Met, MeetError> {
    let answer = proto::MeetAnswer::decode(answer);
    decode_answer(answer.map_err(|error| MeetError::Unavailable { reason: error.to_string() })?)
}
