//! Answers to requests to start a launch.

use pmi_transport::proto::v1 as proto;

use super::super::refusal::{Refusal, RefusalReason};

/// The answer to a launch that was accepted or refused.
pub(in super::super) fn encode(result: Result<(), Refusal>) -> proto::LaunchProcessesResponse {
    match result {
        Ok(()) => proto::LaunchProcessesResponse { accepted: true, ..Default::default() },
        Err(Refusal { reason, message, node_id }) => {
            proto::LaunchProcessesResponse { accepted: false, message, reason: encode_reason(reason).into(), node_id }
        }
    }
}

/// The refusal in an answer of the agent `asked`.
///
/// # Errors
/// Fails with that refusal; a refusal without the name of a node is from `asked` itself.
pub(in super::super) fn decode(answer: proto::LaunchProcessesResponse, asked: &str) -> Result<(), Refusal> {
    if answer.accepted {
        return Ok(());
    }
    let reason = decode_reason(answer.reason());
    let node_id = if answer.node_id.is_empty() { asked.to_owned() } else { answer.node_id };
    Err(Refusal { reason, message: answer.message, node_id })
}

fn encode_reason(reason: RefusalReason) -> proto::RefusalReason {
    match reason {
        RefusalReason::Busy => proto::RefusalReason::Busy,
        RefusalReason::UnsupportedCapability => proto::RefusalReason::UnsupportedCapability,
        RefusalReason::MalformedRequest => proto::RefusalReason::MalformedRequest,
        RefusalReason::AlreadyRunning => proto::RefusalReason::AlreadyRunning,
        RefusalReason::User => proto::RefusalReason::User,
        RefusalReason::Signature => proto::RefusalReason::Signature,
        RefusalReason::Unreachable => proto::RefusalReason::Unreachable,
        RefusalReason::Restarting => proto::RefusalReason::Restarting,
        RefusalReason::Unspecified => proto::RefusalReason::Unspecified,
    }
}

fn decode_reason(reason: proto::RefusalReason) -> RefusalReason {
    match reason {
        proto::RefusalReason::Busy => RefusalReason::Busy,
        proto::RefusalReason::UnsupportedCapability => RefusalReason::UnsupportedCapability,
        proto::RefusalReason::MalformedRequest => RefusalReason::MalformedRequest,
        proto::RefusalReason::AlreadyRunning => RefusalReason::AlreadyRunning,
        proto::RefusalReason::User => RefusalReason::User,
        proto::RefusalReason::Signature => RefusalReason::Signature,
        proto::RefusalReason::Unreachable => RefusalReason::Unreachable,
        proto::RefusalReason::Restarting => RefusalReason::Restarting,
        proto::RefusalReason::Unspecified => RefusalReason::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_goes_through_a_relay_unchanged() {
        for number in 0..=8 {
            let reason = decode_reason(proto::RefusalReason::try_from(number).unwrap());
            let refusal = Refusal { reason, message: "no uid 7".into(), node_id: "n7".into() };
            let answer = encode(Err(refusal.clone()));
            assert_eq!(answer.reason, number);
            assert_eq!(decode(answer, "relay"), Err(refusal));
        }
        assert_eq!(decode(encode(Ok(())), "relay"), Ok(()));
    }

    #[test]
    fn a_refusal_without_a_name_is_that_of_the_agent_that_was_asked() {
        let unknown = proto::LaunchProcessesResponse { reason: 99, ..Default::default() };
        let refusal = decode(unknown, "n1").unwrap_err();
        assert_eq!((refusal.node_id.as_str(), refusal.reason), ("n1", RefusalReason::Unspecified));
    }
}
