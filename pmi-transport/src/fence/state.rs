//! What a node knows of launches and links, and how frames find their way between them. Everything here happens under one lock,
//! is short, and waits for nothing; what it decides to send is queued before the lock is given back, so frames keep their order.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::budget::Budget;
use super::counted::Counted;
use super::launch::{Launch, Outbox, expects_answer, failed};
use super::links::{Links, Outgoing, Sent, StreamId};
use super::node::{Member, Membership, Questions};
use super::recent::Recent;
use super::strays::{Strays, launch_of};
use super::unary::Calls;
use super::{AskError, FenceError, Limits};
use crate::proto::v1::{DataReply, DataRequest, FenceKey, LinkFrame, data_reply, link_frame::What};

/// How many launches that this node has left are remembered.
const REMEMBERED: usize = 1024;

/// What a fence comes to.
type Ending = Result<Vec<Bytes>, FenceError>;
/// A fence that was begun, and how its caller hears of its end.
type Begun = (FenceKey, oneshot::Receiver<Ending>);

/// What follows from an input and needs a runtime.
pub(super) enum Deed {
    /// Open a link.
    Open { id: StreamId, name: String, address: String, outgoing: Outgoing },
    /// Look for the answer to another node's question; the task goes to the launch.
    Answer { launch_id: String, from: NodeIndex, request: DataRequest, questions: Arc<dyn Questions> },
    /// A node does not read what it is sent: it is lost.
    Lose { name: String },
}

/// The launches and links of one node.
pub(super) struct State {
    launches: HashMap<String, Entry>,
    left: Recent<String, ()>,
    strays: Strays,
    pub(super) post: Post,
    joins: u64,
    pub(super) is_ticking: bool,
}

/// Where frames leave, and what else follows from inputs.
pub(super) struct Post {
    limits: Limits,
    /// Of frames that wait for ranks.
    held: Budget,
    pub(super) links: Links,
    pub(super) counted: Counted,
    pub(super) deeds: Vec<Deed>,
}

/// A launch in which this node takes part.
pub(super) struct Entry {
    join: u64,
    pub(super) launch: Launch,
    pub(super) membership: Membership,
    pub(super) by_name: HashMap<String, NodeIndex>,
    pub(super) limits: Limits,
    pub(super) calls: Calls,
    waiters: HashMap<FenceKey, oneshot::Sender<Ending>>,
    asked: HashMap<u64, (NodeIndex, oneshot::Sender<Result<Bytes, AskError>>)>,
    next_request: u64,
    questions: Arc<dyn Questions>,
    /// The tasks that look for answers; they end with the entry.
    answering: JoinSet<()>,
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            launches: HashMap::new(),
            left: Recent::new(REMEMBERED),
            strays: Strays::new(limits.all_stray_bytes),
            post: Post {
                limits,
                held: Budget::new(limits.all_held_bytes),
                links: Links::new(limits.all_link_bytes),
                counted: Counted::default(),
                deeds: Vec::new(),
            },
            joins: 0,
            is_ticking: false,
        }
    }

    /// Takes up a launch, and the frames that came for it; returns a number that names this membership.
    pub(super) fn join(&mut self, membership: Membership, questions: Arc<dyn Questions>) -> u64 {
        self.joins += 1;
        let id = membership.launch_id.clone();
        let nodes = membership.nodes.iter().map(|member| member.name.clone());
        // A launch has fewer nodes than an index can tell.
        let count = membership.nodes.len() as u32;
        let entry = Entry {
            join: self.joins,
            launch: Launch::within(&self.post.held, membership.me, count, membership.fan_out, self.post.limits),
            by_name: nodes.zip((0..).map(NodeIndex)).collect(),
            membership,
            limits: self.post.limits,
            calls: Calls::default(),
            waiters: HashMap::new(),
            asked: HashMap::new(),
            next_request: 0,
            questions,
            answering: JoinSet::new(),
        };
        self.left.forget(&id);
        self.launches.insert(id.clone(), entry);
        for stray in self.strays.claim(&id) {
            self.on_frame(&stray.from, stray.what);
        }
        self.joins
    }

    /// Ends the membership `join`, and fails what others wait for.
    pub(super) fn leave(&mut self, id: &str, join: u64) {
        if self.launches.get(id).is_none_or(|entry| entry.join != join) {
            return;
        }
        let Some(mut entry) = self.launches.remove(id) else { return };
        self.left.insert(id.to_owned(), ());
        let mut out = Outbox::default();
        let nothing = Launch::new(entry.membership.me, 0, entry.membership.fan_out, self.post.limits);
        std::mem::replace(&mut entry.launch, nothing).leave(&mut out);
        self.post.deliver(&mut entry, out);
    }

    /// Begins a fence.
    pub(super) fn begin(
        &mut self,
        (id, join): (&str, u64),
        key: FenceKey,
        members: &[NodeIndex],
        segments: Vec<Bytes>,
    ) -> Result<Begun, FenceError> {
        let ended = FenceError::LaunchEnded { epoch: Epoch(key.epoch) };
        let mut begun = None;
        self.within(id, Some(join), |entry, out| {
            begun = Some(entry.launch.begin(key, members, segments, out).map(|key| {
                let (waiter, result) = oneshot::channel();
                entry.waiters.insert(key.clone(), waiter);
                (key, result)
            }));
        });
        begun.unwrap_or(Err(ended))
    }

    /// The caller of a fence has gone.
    pub(super) fn give_up(&mut self, id: &str, join: u64, key: &FenceKey) {
        self.within(id, Some(join), |entry, out| {
            entry.waiters.remove(key);
            entry.launch.give_up(key, out);
        });
    }

    /// Asks a node; returns the number of the question, by which it can be withdrawn.
    pub(super) fn ask(
        &mut self,
        (id, join): (&str, u64),
        node: NodeIndex,
        question: Bytes,
    ) -> Result<(u64, oneshot::Receiver<Result<Bytes, AskError>>), AskError> {
        let mut asked = Err(AskError::LaunchEnded);
        self.within(id, Some(join), |entry, out| {
            let nodes = entry.membership.nodes.len() as u32;
            if node.0 >= nodes {
                asked = Err(AskError::NoSuchNode { node, nodes });
                return;
            }
            entry.next_request += 1;
            let (request_id, from_node) = (entry.next_request, entry.membership.me.0);
            let (answer, receiver) = oneshot::channel();
            entry.asked.insert(request_id, (node, answer));
            let request = DataRequest { launch_id: id.to_owned(), request_id, from_node, question };
            out.frames.push((node, LinkFrame { what: Some(What::DataRequest(request)) }));
            asked = Ok((request_id, receiver));
        });
        asked
    }

    pub(super) fn withdraw(&mut self, id: &str, request_id: u64) {
        if let Some(entry) = self.launches.get_mut(id) {
            entry.asked.remove(&request_id);
        }
    }

    /// Sends the answer to another node's question.
    pub(super) fn answer(&mut self, id: &str, to: NodeIndex, reply: DataReply) {
        self.within(id, None, |_, out| out.frames.push((to, LinkFrame { what: Some(What::DataReply(reply)) })));
    }

    /// Gives a launch the task that looks for an answer.
    pub(super) fn adopt(&mut self, id: &str, task: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        if let Some(entry) = self.launches.get_mut(id) {
            entry.answering.spawn_on(task, runtime);
        }
    }

    /// The tasks that look for answers, to be waited for.
    pub(super) fn take_answering(&mut self, id: &str, join: u64) -> JoinSet<()> {
        let entry = self.launches.get_mut(id).filter(|entry| entry.join == join);
        entry.map(|entry| std::mem::take(&mut entry.answering)).unwrap_or_default()
    }

    /// Takes a frame that came on a link of the node `from`.
    pub(super) fn on_frame(&mut self, from: &str, what: What) {
        self.post.counted.frames += 1;
        let Some(entry) = self.launches.get_mut(launch_of(&what)) else { return self.on_stray(from, what) };
        let Some(&from) = entry.by_name.get(from) else {
            self.post.counted.foreign += 1;
            return;
        };
        match what {
            What::DataRequest(request) => self.on_question(from, request),
            What::DataReply(reply) => self.on_answer(from, reply),
            what => {
                let mut out = Outbox::default();
                entry.launch.on_frame(from, what, &mut out);
                self.post.deliver(entry, out);
            }
        }
    }

    /// Takes a frame of a launch in which this node takes no part.
    fn on_stray(&mut self, from: &str, what: What) {
        let id = launch_of(&what);
        if id.is_empty() {
            self.post.counted.foreign += 1;
        } else if self.left.get(&id.to_owned()).is_some() {
            self.post.counted.late += 1;
            self.refuse(from, &what, "it has left the launch");
        } else if let Some(what) = self.strays.keep(from, what, self.post.limits.stray_bytes) {
            self.post.counted.dropped += 1;
            self.refuse(from, &what, "it knows no such launch, and cannot keep more");
        }
    }

    /// Fails what needs the node `name`: the fences that run, and with `is_for_good` those to come.
    pub(super) fn lost(&mut self, name: &str, reason: &str, is_for_good: bool) {
        let ids: Vec<_> = self
            .launches
            .iter()
            .filter(|(_, entry)| entry.by_name.contains_key(name))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.within(&id, None, |entry, out| {
                let Some(&node) = entry.by_name.get(name) else { return };
                entry.launch.lost(node, &format!("{name} was lost: {reason}"), is_for_good, out);
                let asked = std::mem::take(&mut entry.asked);
                for (request, (asked_node, answer)) in asked {
                    if asked_node == node {
                        // Whoever asked may have gone.
                        let _ = answer.send(Err(AskError::NodeLost { node, reason: reason.to_owned() }));
                    } else {
                        entry.asked.insert(request, (asked_node, answer));
                    }
                }
            });
        }
    }

    /// What has to be done about once a second; false if there is nothing to do any more.
    pub(super) fn tick(&mut self) -> bool {
        for stray in self.strays.expire(self.post.limits.stray_time) {
            self.post.counted.dropped += 1;
            self.refuse(&stray.from, &stray.what, "it was never told of the launch");
        }
        let ids: Vec<_> = self.launches.keys().cloned().collect();
        for id in ids {
            self.within(&id, None, |entry, out| entry.launch.tick(out));
        }
        self.is_ticking = !self.strays.is_empty() || !self.launches.is_empty();
        self.is_ticking
    }

    pub(super) fn needs_ticks(&self) -> bool {
        !self.is_ticking && (!self.strays.is_empty() || !self.launches.is_empty())
    }

    pub(super) fn chunk(&self) -> usize {
        self.post.limits.chunk
    }

    fn on_question(&mut self, from: NodeIndex, request: DataRequest) {
        let id = request.launch_id.clone();
        let Some(entry) = self.launches.get_mut(&id) else { return };
        while entry.answering.try_join_next().is_some() {}
        if entry.answering.len() < self.post.limits.questions {
            let questions = Arc::clone(&entry.questions);
            self.post.deeds.push(Deed::Answer { launch_id: id, from, request, questions });
        } else {
            self.post.counted.dropped += 1;
            let reply = refusal(&request, "it looks for too many answers already");
            self.answer(&id, from, reply);
        }
    }

    fn on_answer(&mut self, from: NodeIndex, reply: DataReply) {
        let Some(entry) = self.launches.get_mut(&reply.launch_id) else { return };
        // A question has one answer, of the node that was asked.
        if entry.asked.get(&reply.request_id).is_none_or(|(node, _)| *node != from) {
            self.post.counted.late += 1;
            return;
        }
        let Some((node, answer)) = entry.asked.remove(&reply.request_id) else { return };
        let result = match reply.result {
            Some(data_reply::Result::Data(data)) => Ok(data),
            Some(data_reply::Result::Error(reason)) => Err(AskError::Refused { node, reason }),
            None => Err(AskError::Refused { node, reason: "its answer is empty".into() }),
        };
        // Whoever asked may have gone.
        let _ = answer.send(result);
    }

    /// Answers a frame that cannot be served, if its sender waits for something.
    fn refuse(&mut self, to: &str, what: &What, reason: &str) {
        if !expects_answer(what) {
            return;
        }
        let frame = match what {
            What::Up(frame) => frame.key.as_ref().map(|key| failed(key, None, reason)),
            What::Awaited(key) => Some(failed(key, None, reason)),
            What::DataRequest(request) => Some(LinkFrame { what: Some(What::DataReply(refusal(request, reason))) }),
            What::Down(_) | What::Failed(_) | What::DataReply(_) => None,
        };
        if let Some(frame) = frame {
            self.post.links.answer(to, frame, self.post.limits.link_bytes);
        }
    }

    /// Lets a launch do something, and sees to what comes of it.
    pub(super) fn within(&mut self, id: &str, join: Option<u64>, act: impl FnOnce(&mut Entry, &mut Outbox)) {
        let Some(entry) = self.launches.get_mut(id) else { return };
        if join.is_none_or(|join| entry.join == join) {
            let mut out = Outbox::default();
            act(entry, &mut out);
            self.post.deliver(entry, out);
        }
    }
}

impl Post {
    fn deliver(&mut self, entry: &mut Entry, out: Outbox) {
        self.counted += out.counted;
        for (node, frame) in out.frames {
            if let Some(frame) = entry.calls.take(node, frame) {
                self.send(&entry.membership.nodes[node.index()], frame);
            }
        }
        for (key, result) in out.ended {
            if let Some(waiter) = entry.waiters.remove(&key) {
                // Whoever waited may have gone.
                let _ = waiter.send(result);
            }
        }
    }

    fn send(&mut self, to: &Member, frame: LinkFrame) {
        match self.links.send(&to.name, frame, self.limits.link_bytes) {
            Sent::Queued => {}
            Sent::Opening(id, outgoing) => {
                let (name, address) = (to.name.clone(), to.address.clone());
                self.deeds.push(Deed::Open { id, name, address, outgoing });
            }
            Sent::Stuck => {
                self.counted.dropped += 1;
                self.deeds.push(Deed::Lose { name: to.name.clone() });
            }
        }
    }
}

fn refusal(request: &DataRequest, reason: &str) -> DataReply {
    let result = Some(data_reply::Result::Error(reason.to_owned()));
    DataReply { launch_id: request.launch_id.clone(), request_id: request.request_id, result }
}
