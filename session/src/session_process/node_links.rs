//! Links of a session to the sessions of the launch's other nodes. They carry fences, questions to servers of other nodes, and messages
//! between sessions.
//!
//! ```text
//! PMI server ──fence──> LinkedFence ─┐                            ┌─ SessionLinks ──> links that this session opened
//! PMI server ──ask───────────────────┴─> LaunchFences, FenceNode ─┤
//!            <─question── Control <──────────┤                    └─ links that came through the door
//! Failures  <─────────────────────────────────┘
//! ```
//!
//! A link is opened when the first rank on this node needs another node. The agent only forwards connections that arrive at its port. Links
//! do not depend on the agent after that.

use pmi_transport::task;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::frame::Frame;
use parking_lot::Mutex;
use pmi_core::deaths::Death;
use pmi_core::fence::Fence;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Job;
use pmi_transport::error_chain::chain;
use pmi_transport::fence::{FenceNode, Incoming, LaunchFences, Member, Membership, Outgoing, Questions, Transport};
use pmi_transport::session_link::{Handed, LinkError, SessionLinks};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use super::LinkTimes;
use super::linked_fence::{LinkedFence, NodeDeaths};
use super::living_nodes::LivingNodes;
use crate::gathered::{GatherOrder, Gathered, NodeSelection};
use crate::input_piece::InputPiece;
use crate::session_io::{AskError, Control, Nodes};
use crate::set::{ClusterSet, Confirmation, Sessions};
use crate::spec::SessionSpec;
use crate::timeouts;
use crate::wire;
use crate::wire::failure::{self, LaunchFailure};
use crate::wire::question::{self, Question};
use crate::wire::start::LinkTerms;

/// Limit of links that are being accepted: this number for each node of the launch, and [`ACCEPTING_MORE`] more in total.
const ACCEPTING_PER_NODE: usize = 2;
const ACCEPTING_MORE: usize = 16;

/// A failure of the launch, with the node of the session that reports it.
pub(super) type ReportedFailure = (NodeIndex, LaunchFailure);

/// A question to the sessions of several nodes, with the sender for the answer.
pub(super) struct NodeQuestion {
    pub(super) order: GatherOrder,
    pub(super) reply: oneshot::Sender<Result<Gathered, String>>,
}

/// A piece of input for this session and other sessions, with the sender for the nodes that have not received it.
pub(super) struct Arrived {
    pub(super) piece: InputPiece,
    pub(super) reply: oneshot::Sender<Result<Option<NodeSelection>, String>>,
}

/// Links of a session, and their users.
pub(super) struct NodeLinks {
    me: NodeIndex,
    links: Arc<SessionLinks>,
    /// Removed at the end.
    joined: Mutex<Option<Joined>>,
    members: Arc<[Member]>,
    fan_out: u32,
    node_deaths: NodeDeaths,
    /// By job.
    living: Mutex<HashMap<JobId, Arc<LivingNodes>>>,
}

/// Part of this node in the launch's fences.
#[derive(Clone)]
struct Joined {
    node: Arc<FenceNode>,
    fences: Arc<LaunchFences>,
}

impl NodeLinks {
    /// Links of the session of `spec`. Questions and messages of other nodes are passed to `receivers`. `times` limits the wait for nodes
    /// with an offline agent.
    pub(super) fn new(spec: &SessionSpec, terms: LinkTerms, times: LinkTimes, receivers: Receivers) -> Arc<Self> {
        let LinkTerms { key, nodes, fan_out } = terms;
        let (me, launch_id) = (spec.node, spec.launch_id.clone());
        let links = SessionLinks::new(key, &launch_id, me, Arc::clone(&nodes));
        let links = links.with_agent_lease(times.agent_lease).with_answer_timeout(times.answer);
        let links = Arc::new(links);
        let name = nodes.get(me.index()).map_or_else(String::new, |member| member.name.clone());
        let node = FenceNode::new(name, Arc::new(Links(Arc::clone(&links))));
        let (members, barrier) = (Arc::clone(&nodes), fan_out.barrier);
        let membership = Membership { launch_id, me, nodes, fan_out };
        let fences = Arc::new(node.join(membership, Arc::new(receivers)));
        let node_deaths = NodeDeaths::in_launch(&spec.settings);
        let (joined, living) = (Mutex::new(Some(Joined { node, fences })), Mutex::default());
        Arc::new(Self { me, links, joined, members, fan_out: barrier, node_deaths, living })
    }

    /// Accepts links until no more can arrive. Open links stay open after that.
    pub(super) async fn accept_all(self: Arc<Self>, mut arriving: mpsc::Receiver<Handed>) {
        let mut accepting = JoinSet::new();
        while let Some(handed) = arriving.recv().await {
            while accepting.try_join_next().is_some() {}
            let Some(Joined { node, .. }) = self.joined() else { continue };
            if accepting.len() >= ACCEPTING_PER_NODE * self.members.len() + ACCEPTING_MORE {
                continue;
            }
            let links = Arc::clone(&self.links);
            accepting.spawn(task::boxed(async move {
                // A caller that fails to authenticate gets no answer. The failure does not concern this session.
                let _ = links.accept(&node, handed).await;
            }));
        }
    }

    /// Leaves the launch. Fences that need this node fail. Pending answers and messages to other nodes are sent first, unless these nodes
    /// do not read. In any case, the other nodes receive a notice that this node leaves, and do not treat it as lost.
    pub(super) async fn close(&self) {
        let Some(Joined { node, fences }) = self.joined() else { return };
        // Answers that are not ready or not read in this time are not needed.
        let _ = timeout(timeouts::KILL / 2, fences.last_answers()).await;
        // Servers that are about to end may still hold the fences.
        fences.leave();
        *self.joined.lock() = None;
        drop((node, fences));
        let _ = timeout(timeouts::KILL / 2, self.links.flushed()).await;
    }

    /// This node.
    pub(super) fn me(&self) -> NodeIndex {
        self.me
    }

    /// Number of nodes of the launch.
    pub(super) fn nodes(&self) -> u32 {
        // A launch has fewer nodes than the index type can represent.
        self.members.len() as u32
    }

    /// Fan-out of the tree of the fences.
    pub(super) fn fan_out(&self) -> u32 {
        self.fan_out
    }

    /// Sends a message to the session of another node, and waits for the acknowledgement.
    pub(super) async fn tell(&self, node: NodeIndex, message: Bytes) -> Result<(), AskError> {
        let failed = |reason| AskError { node, reason };
        let joined = self.joined().ok_or_else(|| failed("the launch has ended here".to_owned()))?;
        joined.fences.tell(node, message).await.map_err(|error| failed(error.to_string()))
    }

    /// Sends a question to the session of another node, and waits for the answer.
    pub(super) async fn ask_session(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        let failed = |reason| AskError { node, reason };
        let joined = self.joined().ok_or_else(|| failed("the launch has ended here".to_owned()))?;
        joined.fences.ask_session(node, question).await.map_err(|error| failed(error.to_string()))
    }

    /// Nodes of a job with living ranks.
    fn living(&self, job: &Job) -> Arc<LivingNodes> {
        let mut living = self.living.lock();
        Arc::clone(living.entry(job.id.clone()).or_insert_with(|| Arc::new(LivingNodes::of(job))))
    }

    fn joined(&self) -> Option<Joined> {
        self.joined.lock().clone()
    }
}

#[async_trait]
impl Nodes for NodeLinks {
    fn fence(&self, job: &Job) -> Arc<dyn Fence> {
        let fences = self.joined().map(|joined| joined.fences);
        Arc::new(LinkedFence::new(job.id.clone(), self.me, self.living(job), fences, self.node_deaths))
    }

    fn ranks_died(&self, job: &Job, deaths: &[Death]) {
        let living = self.living(job);
        deaths.iter().for_each(|death| living.die(death.rank));
    }

    fn job_over(&self, job: &Job) {
        self.living.lock().remove(&job.id);
    }

    fn opening(&self) -> Option<watch::Receiver<usize>> {
        self.joined().map(|Joined { node, .. }| node.opening())
    }

    fn cut_off(&self, lost: NodeIndex) {
        if let Some(Joined { node, .. }) = self.joined() {
            self.links.cut_off(&node, lost, "the API server has declared it lost");
        }
    }

    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        let failed = |reason| AskError { node, reason };
        let joined = self.joined().ok_or_else(|| failed("the launch has ended here".to_owned()))?;
        joined.fences.ask(node, question).await.map_err(|error| failed(error.to_string()))
    }
}

impl Sessions for NodeLinks {
    fn send(&self, node: NodeIndex, frame: Bytes) -> Confirmation {
        let heard = self.joined().map(|joined| joined.fences.tell(node, frame));
        Box::pin(async move {
            let heard = heard.ok_or("the launch has ended here")?;
            heard.await.map_err(|error| error.to_string())
        })
    }
}

/// Receivers of questions and messages from other nodes. They do not keep the session alive after the permanent loss of its agent.
pub(super) struct Receivers {
    /// Receiver of questions from servers.
    pub(super) server: mpsc::WeakSender<Control>,
    /// Receiver of failures that sessions report.
    pub(super) session: mpsc::Sender<ReportedFailure>,
    /// The launch's set, once this session is a member.
    pub(super) set: Arc<OnceLock<ClusterSet>>,
    /// Receiver of questions from sessions.
    pub(super) gathering: mpsc::Sender<NodeQuestion>,
    /// Receiver of input that sessions forward.
    pub(super) input: mpsc::Sender<Arrived>,
    /// Number of nodes of the launch.
    pub(super) nodes: usize,
}

#[async_trait]
impl Questions for Receivers {
    async fn answer(&self, _: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        let ended = || "its part of the launch has ended".to_owned();
        let (reply, answer) = oneshot::channel();
        let control = self.server.upgrade().ok_or_else(ended)?;
        control.send(Control::Question { question, reply }).await.map_err(|_| ended())?;
        drop(control);
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn hear(&self, from: NodeIndex, message: Bytes) -> Result<Bytes, String> {
        let ended = || "its part of the launch has ended".to_owned();
        if Frame::begins(&message) {
            let set = self.set.get().ok_or("its launch is no set here")?;
            set.hear(from, message).await;
            return Ok(Bytes::new());
        }
        match question::decode(message.clone(), self.nodes).map_err(|error| error.to_string())? {
            Some(Question::Gather(order)) => {
                let (reply, answer) = oneshot::channel();
                self.gathering.send(NodeQuestion { order, reply }).await.map_err(|_| ended())?;
                answer.await.map_err(|_| ended())?.map(|gathered| wire::gathered::encode_answer(&gathered))
            }
            Some(Question::Input(piece)) => {
                let (offset, (reply, missed)) = (piece.offset, oneshot::channel());
                self.input.send(Arrived { piece, reply }).await.map_err(|_| ended())?;
                let missed = missed.await.map_err(|_| ended())??;
                Ok(wire::input::encode_answer(offset, missed.as_ref()))
            }
            None => {
                let failure = failure::decode(message).map_err(|error| error.to_string())?;
                self.session.send((from, failure)).await.map(|()| Bytes::new()).map_err(|_| ended())
            }
        }
    }
}

/// Opens links for the fences.
struct Links(Arc<SessionLinks>);

#[async_trait]
impl Transport for Links {
    async fn link(&self, node: &str, address: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        self.0.open(node, address, outgoing).await.map_err(|error| match &error {
            LinkError::NoLinks { .. } => Status::unimplemented(chain(&error)),
            // The session there has ended, usually without a failure.
            LinkError::Refused { .. } => Status::not_found(chain(&error)),
            _ => Status::unavailable(chain(&error)),
        })
    }
}
