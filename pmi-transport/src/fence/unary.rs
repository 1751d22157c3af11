//! Fences with agents that speak `PmiFence` instead of links, as the design document of the protocol has it: one call to the head
//! of the launch brings a node's pairs, and its answer, or a call of `PmiFenceComplete` later, the pairs of all.
//!
//! The head takes such a call for the one frame that the node would have sent up, and the frames that go down to the node for the
//! call's answer. So such a node must be right below the head with nobody below itself: the launch's fences must be stars.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_core::kvs::Segment;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

use super::gather::Gather;
use super::node::FenceNode;
use super::pieces::{Assembly, Piece, cut};
use super::state::{Entry, State};
use crate::proto::v1::{
    FenceKey, FenceScope, FenceUp, LinkFrame, NodePiece, PmiFenceCompleteRequest, PmiFenceCompleteResponse,
    PmiFenceRequest, PmiFenceResponse, fence_scope::Kind, link_frame::What,
};

/// How long an agent may take to take the result of a fence for which it was answered early.
const COMPLETE_PATIENCE: Duration = Duration::from_secs(30);

/// What all nodes brought, or why the fence failed.
type Merged = Result<Vec<Bytes>, String>;

/// The calls of a launch that wait for their fences, and what their nodes have called before.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: HashMap<(FenceKey, NodeIndex), Call>,
    /// How many fences each node has called for.
    called: HashMap<NodeIndex, u64>,
}

#[derive(Debug)]
struct Call {
    runs: Assembly,
    answer: oneshot::Sender<Merged>,
}

impl Calls {
    /// Takes a frame for `node` if it answers a call; else gives it back.
    pub(super) fn take(&mut self, node: NodeIndex, frame: LinkFrame) -> Option<LinkFrame> {
        if self.waiting.is_empty() {
            return Some(frame);
        }
        let key = match &frame.what {
            Some(What::Down(down)) => down.key.clone(),
            Some(What::Failed(failed)) => failed.key.clone(),
            _ => None,
        };
        let Some(at) = key.map(|key| (key, node)).filter(|at| self.waiting.contains_key(at)) else {
            return Some(frame);
        };
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
}

impl Call {
    fn end(self) {
        let merged = self.runs.finish().ok_or_else(|| "the result ended inside a segment".to_owned());
        // The caller may have gone.
        let _ = self.answer.send(merged);
    }

    fn fail(self, reason: String) {
        let _ = self.answer.send(Err(reason));
    }
}

impl State {
    /// Brings the pairs of the node `caller` to a fence of all nodes; returns the fence's epoch and where its result will come.
    fn call(&mut self, caller: &str, request: &PmiFenceRequest) -> Result<(u64, oneshot::Receiver<Merged>), Status> {
        let id = request.launch_id.as_str();
        let chunk = self.chunk();
        let mut called = Err(Status::not_found(format!("launch {id} is not known here")));
        self.within(id, None, |entry, out| {
            called = place(entry, caller, request).and_then(|(node, epoch)| {
                let key = world(id, epoch);
                if entry.launch.has_ended(&key) || entry.calls.waiting.contains_key(&(key.clone(), node)) {
                    return Err(Status::already_exists(format!("fence {epoch} of {caller} was called for before")));
                }
                entry.calls.called.insert(node, epoch + 1);
                let (answer, merged) = oneshot::channel();
                entry.calls.waiting.insert((key.clone(), node), Call { runs: Assembly::default(), answer });
                let segment: Segment = request.kvs_entries.iter().collect();
                let position = node.0;
                let pieces = cut([segment.into_bytes()], chunk);
                let brought = pieces.map(|Piece { run, goes_on }| NodePiece { position, run, goes_on }).collect();
                entry.launch.on_frame(node, What::Up(FenceUp { key: Some(key), brought, last: true, part: 0 }), out);
                Ok((epoch, merged))
            });
        });
        called
    }
}

/// Which node calls, and for which of its fences; an error if it may not, or cannot be served.
fn place(entry: &Entry, caller: &str, request: &PmiFenceRequest) -> Result<(NodeIndex, u64), Status> {
    let membership = &entry.membership;
    let node = NodeIndex(request.node_index);
    if entry.by_name.get(caller) != Some(&node) {
        return Err(Status::permission_denied(format!("{caller} is not node {node} of the launch")));
    }
    if membership.me != NodeIndex(0) {
        return Err(Status::failed_precondition("this node is not the head of the launch"));
    }
    let nodes = membership.nodes.len() as u32;
    if Gather::new(node.0, nodes, membership.fan_out, entry.limits).neighbours() != [0] {
        return Err(Status::failed_precondition(
            "PmiFence is for launches whose fences are stars; this one needs Link",
        ));
    }
    let epoch = request.epoch.or_else(|| entry.calls.called.get(&node).copied()).unwrap_or(0);
    Ok((node, epoch))
}

/// A fence of all ranks of a launch's first job, which has ranks on all its nodes.
fn world(launch_id: &str, epoch: u64) -> FenceKey {
    let scope = FenceScope { kind: Kind::World.into(), ..FenceScope::default() };
    let job_id = format!("kvs_{launch_id}_0");
    FenceKey { launch_id: launch_id.to_owned(), job_id, scope: Some(scope), epoch, members: 0 }
}

impl FenceNode {
    /// Serves `PmiFence`, which the agent of the node `caller` calls: a fence of all ranks of the launch's first job, at its
    /// head. Who calls must have been proved by the transport.
    ///
    /// # Errors
    /// Refuses who is not the node that it says, a launch that this node is not the head of or whose fences are not stars, and
    /// a fence that was called for before. That a fence failed is not an error of the call, but said in its answer.
    pub async fn pmi_fence(&self, caller: &str, request: PmiFenceRequest) -> Result<PmiFenceResponse, Status> {
        let (epoch, merged) = self.change(|state| state.call(caller, &request))?;
        if request.answer_early {
            self.complete_later(caller.to_owned(), request, epoch, merged);
            return Ok(PmiFenceResponse { success: true, ..PmiFenceResponse::default() });
        }
        Ok(match pairs(merged.await) {
            Ok(merged_kvs) => PmiFenceResponse { success: true, merged_kvs, complete: true, message: String::new() },
            Err(message) => PmiFenceResponse { message, complete: true, ..PmiFenceResponse::default() },
        })
    }

    /// Serves `PmiFenceComplete`. This node brings its pairs over links and calls no `PmiFence`, so no other head has a fence to
    /// complete here.
    ///
    /// # Errors
    /// Always.
    pub async fn pmi_fence_complete(
        &self,
        caller: &str,
        request: PmiFenceCompleteRequest,
    ) -> Result<PmiFenceCompleteResponse, Status> {
        let PmiFenceCompleteRequest { launch_id, epoch, .. } = request;
        Err(Status::failed_precondition(format!("{caller} was not asked for fence {epoch} of launch {launch_id}")))
    }

    /// Hands over the result of a fence when it is there.
    fn complete_later(&self, caller: String, request: PmiFenceRequest, epoch: u64, merged: oneshot::Receiver<Merged>) {
        let reach = self.reach();
        self.spawn(async move {
            let (success, merged_kvs, message) = match pairs(merged.await) {
                Ok(pairs) => (true, pairs, String::new()),
                Err(message) => (false, HashMap::new(), message),
            };
            let PmiFenceRequest { launch_id, reply_to, .. } = request;
            let complete = PmiFenceCompleteRequest { launch_id, merged_kvs, epoch, success, message };
            let taken = timeout(COMPLETE_PATIENCE, reach.complete(&caller, &reply_to, complete)).await;
            let refused = match taken {
                Ok(Ok(())) => return,
                Ok(Err(status)) => status.message().to_owned(),
                Err(_) => format!("no answer within {COMPLETE_PATIENCE:?}"),
            };
            tracing::warn!(caller, reply_to, epoch, "the result of a fence was not taken: {refused}");
        });
    }
}

/// The pairs of all nodes; where several have one key, the last node's.
fn pairs(merged: Result<Merged, oneshot::error::RecvError>) -> Result<HashMap<String, String>, String> {
    let runs = merged.unwrap_or_else(|_| Err("the launch has ended here".into()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut pairs = HashMap::new();
    for run in runs {
        let segment = Segment::decode(run).map_err(|error| error.to_string())?;
        pairs.extend(segment.pairs().map(|(key, value)| (text(key), text(value))));
    }
    Ok(pairs)
}
