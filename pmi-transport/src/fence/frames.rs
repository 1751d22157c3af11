//! Properties of link frames: their launch, their storage cost, and their refusals.

use pmi_core::ids::NodeIndex;

use crate::limits::kept_cost;
use crate::proto::v1::{DataReply, FenceFailed, FenceKey, LinkFrame, data_reply, link_frame::What};

/// Launch id of a frame; empty if the frame names none. No launch has an empty id.
pub(super) fn launch_of(what: &What) -> &str {
    let key = match what {
        What::Up(frame) => frame.key.as_ref(),
        What::Down(frame) => frame.key.as_ref(),
        What::Failed(frame) => frame.key.as_ref(),
        What::Awaited(key) => Some(key),
        What::DataRequest(request) => return &request.launch_id,
        What::DataReply(reply) => return &reply.launch_id,
        What::Left(launch_id) => return launch_id,
    };
    key.map_or("", |key| &key.launch_id)
}

/// Storage charge for a frame in bytes: about its memory use.
pub(super) fn kept_bytes(what: &What) -> usize {
    const PIECE_COST: usize = 64;
    let names = match what {
        What::Up(frame) => frame.key.as_ref().map_or(0, key_bytes),
        What::Down(frame) => frame.key.as_ref().map_or(0, key_bytes),
        What::Failed(frame) => frame.key.as_ref().map_or(0, key_bytes),
        What::Awaited(key) => key_bytes(key),
        What::DataRequest(request) => request.launch_id.len(),
        What::DataReply(reply) => reply.launch_id.len(),
        What::Left(launch_id) => launch_id.len(),
    };
    let content = match what {
        What::Up(frame) => frame.brought.iter().map(|piece| PIECE_COST + piece.run.len()).sum(),
        What::Down(frame) => frame.run.len(),
        What::Failed(frame) => frame.reason.len(),
        What::DataRequest(request) => request.question.len().saturating_add(request.to_session.len()),
        What::DataReply(reply) => match &reply.result {
            Some(data_reply::Result::Data(data)) => data.len(),
            Some(data_reply::Result::Error(reason)) => reason.len(),
            None => 0,
        },
        What::Awaited(_) | What::Left(_) => 0,
    };
    kept_cost(names.saturating_add(content))
}

/// Storage charge for the names in a key, in bytes.
pub(super) fn key_bytes(key: &FenceKey) -> usize {
    let scope = key.scope.as_ref().map_or(0, |scope| scope.name.len());
    key.launch_id.len() + key.job_id.len() + scope
}

/// Node index for "no node" in a frame about a failed fence.
pub(super) const NOBODY: u32 = u32::MAX;

/// Cause of a failed fence, as in its frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Blame {
    Sender,
    Node(NodeIndex),
    Nobody,
}

impl Blame {
    /// The node as the cause, if there is one.
    pub(super) fn of(node: Option<NodeIndex>) -> Self {
        node.map_or(Self::Nobody, Self::Node)
    }

    /// The node that a frame from `sender` gives as the cause.
    pub(super) fn read(frame: &FenceFailed, sender: NodeIndex) -> Option<NodeIndex> {
        match frame.node {
            None => Some(sender),
            Some(NOBODY) => None,
            Some(node) => Some(NodeIndex(node)),
        }
    }
}

/// Frame that reports a failed fence.
pub(super) fn failed(key: &FenceKey, blame: Blame, reason: &str) -> LinkFrame {
    let node = match blame {
        Blame::Sender => None,
        Blame::Node(node) => Some(node.0),
        Blame::Nobody => Some(NOBODY),
    };
    let frame = FenceFailed { key: Some(key.clone()), node, reason: reason.to_owned() };
    LinkFrame { what: Some(What::Failed(frame)) }
}

/// Answer to a frame that cannot be served; `None` if its sender waits for no answer.
pub(super) fn refusal(what: &What, reason: &str) -> Option<LinkFrame> {
    match what {
        What::Up(frame) => frame.key.as_ref().map(|key| failed(key, Blame::Sender, reason)),
        What::Awaited(key) => Some(failed(key, Blame::Sender, reason)),
        What::DataRequest(request) => {
            let result = Some(data_reply::Result::Error(reason.to_owned()));
            let (launch_id, request_id) = (request.launch_id.clone(), request.request_id);
            let reply = DataReply { launch_id, request_id, result, goes_on: false };
            Some(LinkFrame { what: Some(What::DataReply(reply)) })
        }
        What::Down(_) | What::Failed(_) | What::DataReply(_) | What::Left(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{DataRequest, FenceDown, FenceUp};

    fn key() -> FenceKey {
        FenceKey { launch_id: "launch".into(), epoch: 7, ..FenceKey::default() }
    }

    fn one_of_each() -> [What; 6] {
        let launch_id = || "launch".to_owned();
        [
            What::Up(FenceUp { key: Some(key()), ..FenceUp::default() }),
            What::Down(FenceDown { key: Some(key()), ..FenceDown::default() }),
            What::Failed(FenceFailed { key: Some(key()), ..FenceFailed::default() }),
            What::Awaited(key()),
            What::DataRequest(DataRequest { launch_id: launch_id(), request_id: 3, ..DataRequest::default() }),
            What::DataReply(DataReply { launch_id: launch_id(), request_id: 3, ..DataReply::default() }),
        ]
    }

    #[test]
    fn every_frame_names_its_launch() {
        for what in one_of_each() {
            assert_eq!(launch_of(&what), "launch", "{what:?}");
        }
        assert_eq!(launch_of(&What::Up(FenceUp::default())), "", "a frame without a key");
    }

    #[test]
    fn exactly_the_frames_whose_senders_wait_are_refused_in_their_own_terms() {
        for what in one_of_each() {
            let refused = refusal(&what, "no").map(|frame| frame.what.expect("a refusal says something"));
            let waits = matches!(what, What::Up(_) | What::Awaited(_) | What::DataRequest(_));
            assert_eq!(refused.is_some(), waits, "{what:?}");
            match refused {
                Some(What::Failed(failed)) => {
                    assert_eq!((failed.key, failed.node, failed.reason.as_str()), (Some(key()), None, "no"));
                }
                Some(What::DataReply(reply)) => {
                    assert_eq!((reply.launch_id.as_str(), reply.request_id), ("launch", 3));
                    assert_eq!(reply.result, Some(data_reply::Result::Error("no".into())));
                }
                other => assert_eq!(other, None),
            }
        }
    }

    #[test]
    fn many_tiny_pieces_are_charged_more_than_their_bytes() {
        let up = |pieces: usize| What::Up(FenceUp { brought: vec![Default::default(); pieces], ..FenceUp::default() });
        assert_eq!(kept_bytes(&up(1000)) - kept_bytes(&up(0)), 64_000);
    }
}
