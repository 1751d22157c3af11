//! Adapter for agents that use `PmiFence` instead of links, as in the protocol's design document. One call to the head of the
//! launch has a node's pairs. Its response, or a later call of `PmiFenceComplete`, has the pairs of all nodes.
//!
//! The adapter converts such a call into the single upward frame of that node, and the downward frames to the node into the
//! response. So such a node must be a leaf directly below the head: the launch's fences must be stars.

use std::collections::HashMap;
use std::time::Duration;

use pmi_core::ids::NodeIndex;
use pmi_core::kvs::Segment;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

use super::gather::Gather;
use super::launches::LaunchGuard;
use super::membership::Membership;
use super::node::FenceNode;
use super::pieces::{Piece, cut};
use super::pmi_fence_calls::{Merged, world};
use super::state::State;
use crate::proto::v1::{
    FenceUp, NodePiece, PmiFenceCompleteRequest, PmiFenceCompleteResponse, PmiFenceRequest, PmiFenceResponse,
    link_frame::What,
};

/// Time limit for an agent to accept the result of a fence after an early response.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(30);

impl State {
    /// Adds the pairs of the node `caller` to a fence of all nodes; returns the fence's epoch and the receiver of its result.
    fn call_pmi_fence(
        &mut self,
        caller: &str,
        request: &PmiFenceRequest,
    ) -> Result<(u64, oneshot::Receiver<Merged>), Status> {
        let id = request.launch_id.as_str();
        let mut fences =
            self.fences_of(id).ok_or_else(|| Status::not_found(format!("launch {id} is not known here")))?;
        let node = fences.check_caller(caller, request)?;
        let epoch = request.epoch.unwrap_or_else(|| fences.outbound.pmi_fence.next_epoch(id, node));
        let repeated = || Status::already_exists(format!("fence {epoch} of {caller} was called for before"));
        let key = world(id, epoch);
        if fences.joined.launch.has_ended(&key) {
            return Err(repeated());
        }
        let merged = fences.outbound.pmi_fence.add(key.clone(), node).ok_or_else(repeated)?;
        let segment: Segment = request.kvs_entries.iter().collect();
        let pieces = cut([segment.into_bytes()], fences.outbound.limits.chunk_bytes);
        let brought = pieces.map(|Piece { run, goes_on }| NodePiece { position: node.0, run, goes_on }).collect();
        fences.on_frame(caller, What::Up(FenceUp { key: Some(key), brought, last: true, ..FenceUp::default() }));
        Ok((epoch, merged))
    }
}

impl LaunchGuard<'_> {
    /// Returns the node of the caller; fails if it is refused, or cannot be served.
    fn check_caller(&self, caller: &str, request: &PmiFenceRequest) -> Result<NodeIndex, Status> {
        let node = NodeIndex(request.node_index);
        if self.joined.node_of(caller) != Some(node) {
            return Err(Status::permission_denied(format!("{caller} is not node {node} of the launch")));
        }
        let Membership { me, nodes, fan_out, .. } = &self.joined.membership;
        if *me != NodeIndex(0) {
            return Err(Status::failed_precondition("this node is not the head of the launch"));
        }
        let gather = Gather::new(node.0, nodes.len() as u32, *fan_out, self.outbound.limits);
        if gather.neighbours() != [0] {
            return Err(Status::failed_precondition("PmiFence is for launches with star fences; this one needs Link"));
        }
        Ok(node)
    }
}

impl FenceNode {
    /// Serves a `PmiFence` call of the agent of the node `caller`: a fence of all ranks of the launch's first job, at its head. The
    /// transport must have proved the caller's identity.
    ///
    /// # Errors
    /// Refuses a caller that is not the node in its request, a launch with another head or with fences that are not stars, and a
    /// repeated fence. A failed fence is not an error of the call: the response reports it.
    pub async fn pmi_fence(&self, caller: &str, request: PmiFenceRequest) -> Result<PmiFenceResponse, Status> {
        let (epoch, merged) = self.update(|state| state.call_pmi_fence(caller, &request))?;
        if request.answer_early {
            self.complete_later(caller.to_owned(), request, epoch, merged);
            return Ok(PmiFenceResponse { success: true, ..PmiFenceResponse::default() });
        }
        Ok(match pairs(merged.await) {
            Ok(merged_kvs) => PmiFenceResponse { success: true, merged_kvs, complete: true, message: String::new() },
            Err(message) => PmiFenceResponse { message, complete: true, ..PmiFenceResponse::default() },
        })
    }

    /// Serves `PmiFenceComplete`. This node sends its pairs over links and never calls `PmiFence`, so no other head has a fence to
    /// complete here.
    ///
    /// # Errors
    /// Always fails.
    pub async fn pmi_fence_complete(
        &self,
        caller: &str,
        request: PmiFenceCompleteRequest,
    ) -> Result<PmiFenceCompleteResponse, Status> {
        let PmiFenceCompleteRequest { launch_id, epoch, .. } = request;
        Err(Status::failed_precondition(format!("{caller} was not asked for fence {epoch} of launch {launch_id}")))
    }

    /// Sends the result of a fence once it is available.
    fn complete_later(&self, caller: String, request: PmiFenceRequest, epoch: u64, merged: oneshot::Receiver<Merged>) {
        let transport = self.transport();
        self.spawn(async move {
            let (success, merged_kvs, message) = match pairs(merged.await) {
                Ok(pairs) => (true, pairs, String::new()),
                Err(message) => (false, HashMap::new(), message),
            };
            let PmiFenceRequest { launch_id, reply_to, .. } = request;
            let complete = PmiFenceCompleteRequest { launch_id, merged_kvs, epoch, success, message };
            let taken = timeout(COMPLETE_TIMEOUT, transport.complete(&caller, &reply_to, complete)).await;
            let refused = match taken {
                Ok(Ok(())) => return,
                Ok(Err(status)) => status.message().to_owned(),
                Err(_) => format!("no answer within {COMPLETE_TIMEOUT:?}"),
            };
            tracing::warn!(caller, reply_to, epoch, "the result of a fence was not taken: {refused}");
        });
    }
}

/// Pairs of all nodes. If several nodes have the same key, the last node's value is used.
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
