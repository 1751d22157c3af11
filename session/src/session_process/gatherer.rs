//! Answers questions to the sessions of several nodes, from the API server and from sessions above this one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::task;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::gathering::Gathering;
use super::node_links::{NodeLinks, NodeQuestion};
use super::outgoing::program_of;
use crate::gathered::{GatherDetail, GatherOrder, Gathered, GatheredStacks, NodeAnswer, RankAnswer};
use crate::session_io::{Control, RanksAnswer};
use crate::wire;
use crate::wire::question::{self, Question};

/// Limit of open questions. Further questions are refused.
const OPEN_MAX: usize = 16;
/// Limit of the time for a question, even if the question specifies more.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Connections of a session that gathers answers.
#[derive(Clone)]
pub(super) struct Gatherer {
    pub(super) links: Arc<NodeLinks>,
    /// The session; this weak sender does not keep it alive.
    pub(super) control: mpsc::WeakSender<Control>,
}

impl Gatherer {
    /// Answers questions until the queue of questions is closed.
    pub(super) async fn run(self, mut questions: mpsc::Receiver<NodeQuestion>) {
        let mut open = JoinSet::new();
        while let Some(NodeQuestion { order, reply }) = questions.recv().await {
            while open.try_join_next().is_some() {}
            let me = self.links.me().0;
            if order.nodes.nodes().next() != Some(me) {
                // Sends fail when the asking session has stopped waiting, here and below.
                let _ = reply.send(Err(format!("it is node {me}, and not the first of those that are asked")));
            } else if open.len() >= OPEN_MAX {
                let _ = reply.send(Err(format!("it gathers {OPEN_MAX} answers already")));
            } else {
                let this = self.clone();
                open.spawn(task::boxed(async move {
                    let _ = reply.send(Ok(this.gather(order).await));
                }));
            }
        }
    }

    async fn gather(&self, order: GatherOrder) -> Gathered {
        let order = GatherOrder { time: order.time.min(TIME_MAX), ..order };
        let own = task::boxed(self.clone().own(order.detail));
        let mut own = std::pin::pin!(own);
        let mut is_own_awaited = true;
        let mut gathering = Gathering::new(order, self.links.fan_out(), Instant::now());
        let mut asking = JoinSet::new();
        loop {
            while let Some((node, below)) = gathering.poll_ask(Instant::now()) {
                let links = Arc::clone(&self.links);
                asking.spawn(task::boxed(async move { (node, ask(&links, node, below).await) }));
            }
            if let Some(gathered) = gathering.poll_answer(Instant::now()) {
                return gathered;
            }
            tokio::select! {
                told = &mut own, if is_own_awaited => {
                    is_own_awaited = false;
                    gathering.on_own(told);
                }
                Some(Ok((node, answer))) = asking.join_next() => gathering.on_answer(node, answer, Instant::now()),
                () = sleep_until(gathering.wake()) => gathering.on_time(Instant::now()),
            }
        }
    }

    /// Returns this session's data about its own ranks.
    async fn own(self, detail: GatherDetail) -> Result<Gathered, String> {
        let ended = || "its part of the launch has ended".to_owned();
        let (reply, told) = oneshot::channel();
        let control = self.control.upgrade().ok_or_else(ended)?;
        control.send(Control::Tell { detail, reply }).await.map_err(|_| ended())?;
        drop(control);
        let RanksAnswer { ranks, stacks } = told.await.map_err(|_| ended())?;
        let rank = |progress: crate::event::RankProgress| {
            let running = progress.pid.filter(|_| progress.exit.is_none());
            RankAnswer { program: running.map_or_else(Bytes::new, program_of), progress }
        };
        let ranks = ranks.into_iter().map(rank).collect();
        let answer = NodeAnswer { node: self.links.me(), ranks, left_out: 0 };
        let stacks = stacks.map(|stacks| GatheredStacks { stacks, left_out: 0 });
        Ok(Gathered { nodes: vec![answer], stacks, unheard: Vec::new() })
    }
}

async fn ask(links: &NodeLinks, node: NodeIndex, order: GatherOrder) -> Result<Gathered, String> {
    let time = order.time;
    let question = question::encode(&Question::Gather(order));
    let answer = timeout(time, links.ask_session(node, question)).await;
    let answer = answer.map_err(|_| "it did not answer in time".to_owned())?.map_err(|error| error.reason)?;
    wire::gathered::decode_answer(answer).map_err(|error| error.to_string())
}
