//! Calls of `PmiFence` that wait for their fence, as a pure table of calls and their frames. [`pmi_fence`](super::pmi_fence) serves
//! the calls.

use std::collections::HashMap;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use tokio::sync::oneshot;

use super::pieces::{Assembly, Piece};
use crate::proto::v1::{FenceKey, FenceScope, LinkFrame, fence_scope::Kind, link_frame::What};

/// Runs of all nodes, or the reason why the fence failed.
pub(super) type Merged = Result<Vec<Bytes>, String>;

/// Calls of `PmiFence` that wait for their fences, and the next epochs.
#[derive(Debug, Default)]
pub(super) struct PmiFenceCalls {
    waiting: HashMap<(FenceKey, NodeIndex), Call>,
    /// Epoch after the last fence of each node, by launch.
    epochs: HashMap<String, HashMap<NodeIndex, u64>>,
}

#[derive(Debug)]
struct Call {
    runs: Assembly,
    answer: oneshot::Sender<Merged>,
}

impl PmiFenceCalls {
    /// Takes a frame for `node` if it answers a call; otherwise returns it, for sending over a link.
    pub(super) fn take(&mut self, node: NodeIndex, frame: LinkFrame) -> Option<LinkFrame> {
        if self.waiting.is_empty() {
            return Some(frame);
        }
        let key = match &frame.what {
            Some(What::Down(down)) => down.key.clone(),
            Some(What::Failed(failed)) => failed.key.clone(),
            _ => None,
        };
        let Some(at) = key.map(|key| (key, node)) else { return Some(frame) };
        let Some(mut call) = self.waiting.remove(&at) else { return Some(frame) };
        match frame.what {
            Some(What::Down(down)) => {
                call.runs.push(Piece { run: down.run, goes_on: down.goes_on });
                if down.last {
                    call.end();
                } else {
                    self.waiting.insert(at, call);
                }
            }
            Some(What::Failed(failed)) => call.fail(failed.reason),
            _ => {}
        }
        None
    }

    /// Drops the state of a launch that was left; open calls fail.
    pub(super) fn forget(&mut self, launch_id: &str) {
        if self.epochs.remove(launch_id).is_some() {
            self.waiting.retain(|(key, _), _| key.launch_id != launch_id);
        }
    }

    /// Returns the epoch of a node's next fence, for a call without an epoch.
    pub(super) fn next_epoch(&self, launch_id: &str, node: NodeIndex) -> u64 {
        self.epochs.get(launch_id).and_then(|epochs| epochs.get(&node)).copied().unwrap_or(0)
    }

    /// Adds a call; `None` if this node has an open call for this fence.
    pub(super) fn add(&mut self, key: FenceKey, node: NodeIndex) -> Option<oneshot::Receiver<Merged>> {
        let (launch_id, epoch) = (key.launch_id.clone(), key.epoch);
        let at = (key, node);
        if self.waiting.contains_key(&at) {
            return None;
        }
        let (answer, merged) = oneshot::channel();
        self.waiting.insert(at, Call { runs: Assembly::default(), answer });
        self.epochs.entry(launch_id).or_default().insert(node, epoch.saturating_add(1));
        Some(merged)
    }
}

impl Call {
    fn end(self) {
        let merged = self.runs.finish().ok_or_else(|| "the result ended inside a segment".to_owned());
        // The caller may have ended.
        let _ = self.answer.send(merged);
    }

    fn fail(self, reason: String) {
        let _ = self.answer.send(Err(reason));
    }
}

/// Key of a fence of all ranks of a launch's first job, which has ranks on all its nodes.
pub(super) fn world(launch_id: &str, epoch: u64) -> FenceKey {
    let scope = FenceScope { kind: Kind::World.into(), ..FenceScope::default() };
    let job_id = format!("kvs_{launch_id}_0");
    FenceKey { launch_id: launch_id.to_owned(), job_id, scope: Some(scope), epoch, members: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::frames::{Blame, failed};
    use crate::proto::v1::FenceDown;

    const NODE: NodeIndex = NodeIndex(2);

    fn down(epoch: u64, run: &'static str, goes_on: bool, last: bool) -> LinkFrame {
        let key = Some(world("abc", epoch));
        let frame = FenceDown { key, run: run.into(), goes_on, last, ..FenceDown::default() };
        LinkFrame { what: Some(What::Down(frame)) }
    }

    #[test]
    fn frames_of_its_fence_become_the_calls_answer_and_all_others_go_on() {
        let mut calls = PmiFenceCalls::default();
        assert!(calls.take(NODE, down(0, "early", false, true)).is_some(), "nobody calls");
        let mut merged = calls.add(world("abc", 0), NODE).unwrap();
        assert!(calls.take(NodeIndex(1), down(0, "another node's", false, true)).is_some());
        assert!(calls.take(NODE, down(1, "another fence's", false, true)).is_some());
        assert!(calls.take(NODE, down(0, "one ", true, false)).is_none());
        assert!(merged.try_recv().is_err());
        assert!(calls.take(NODE, down(0, "whole", false, true)).is_none());
        assert_eq!(merged.try_recv(), Ok(Ok(vec!["one whole".into()])));
    }

    #[test]
    fn a_fence_that_fails_or_a_launch_that_is_left_ends_the_call() {
        let mut calls = PmiFenceCalls::default();
        let mut merged = [0, 1].map(|epoch| calls.add(world("abc", epoch), NODE).unwrap());
        let mut other = calls.add(world("other", 0), NODE).unwrap();
        assert!(calls.take(NODE, failed(&world("abc", 0), Blame::Sender, "gone")).is_none());
        calls.forget("abc");
        assert_eq!(merged[0].try_recv(), Ok(Err("gone".to_owned())));
        assert_eq!(merged[1].try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(other.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }

    #[test]
    fn calls_without_an_epoch_count_the_fences_of_their_launch() {
        let mut calls = PmiFenceCalls::default();
        assert_eq!(calls.next_epoch("abc", NODE), 0);
        let _first = calls.add(world("abc", 0), NODE);
        assert!(calls.add(world("abc", 0), NODE).is_none(), "one call for one fence");
        assert_eq!([calls.next_epoch("abc", NODE), calls.next_epoch("other", NODE)], [1, 0]);
        calls.forget("abc");
        assert_eq!(calls.next_epoch("abc", NODE), 0);
    }
}
