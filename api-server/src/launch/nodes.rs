//! A launch and its nodes: their report streams, what they tell, and what is asked of them.

use std::collections::HashMap;
use std::time::Duration;

use lattice_session::timeouts;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1::{
    Cause, LaunchStatus, MissingRank, NodeEvent, NodeStatus, Nothing, Notice, Progress, RankExitStatus, RankProgress,
    StuckStart, cause::Kind, node_command, node_event, notice,
};
use tokio::time::Instant;

use super::Part;
use super::fan_out::{self, Recipient};
use super::inquiry::Inquiry;
use super::judge::Standing;
use super::judge::desertion::Desertion;
use super::outbox::Outbox;
use super::task::{Launch, Phase, Purpose};

/// How often nodes are asked for exits that wait behind output; more than they have to answer in.
const ASK_FOR_EXITS: Duration = Duration::from_secs(2);
/// The most notices of a node that are passed on; a healthy one has a handful.
const NOTICES_MAX: u32 = 64;

/// One node of the launch.
#[derive(Debug)]
pub(super) struct Link {
    pub recipient: Recipient,
    pub outbox: Outbox,
    stream: Stream,
    notices: u32,
    aborted: Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Missing { since: Instant },
    Open { number: u64 },
}

/// Whether a node was told by a call of its own that the launch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aborted {
    No,
    InOrder,
    AtOnce { since: Instant },
}

impl Link {
    pub(super) fn new(recipient: Recipient, now: Instant) -> Self {
        let stream = Stream::Missing { since: now };
        Self { recipient, outbox: Outbox::default(), stream, notices: 0, aborted: Aborted::No }
    }
}

impl Launch {
    /// A node begins to report, or does so again over a new stream.
    pub(super) fn on_opened(&mut self, node: u32, number: u64) {
        if !self.judge.standing(node).is_live() {
            if !self.unwritten.holds(node) {
                self.nodes[node as usize].outbox.close();
            }
            return;
        }
        let again = self.judge.standing(node) == Standing::Reporting || self.resumed;
        self.judge.reports(node);
        self.nodes[node as usize].stream = Stream::Open { number };
        if !again {
            return;
        }
        let grant = self.journal.renew(node);
        self.grant(grant.map(|bytes| (node, bytes)));
        // What was said before the stream broke may not have arrived.
        if self.ending.is_some() {
            self.nodes[node as usize].outbox.push(node_command::What::GiveUp(Nothing {}));
        }
        if self.released {
            self.nodes[node as usize].outbox.push(node_command::What::Release(Nothing {}));
        }
        if self.resumed {
            self.inquire(Purpose::Desertion);
        }
    }

    /// A report stream ended. One that was replaced does not matter.
    pub(super) fn on_closed(&mut self, node: u32, number: u64) {
        let link = &mut self.nodes[node as usize];
        if link.stream == (Stream::Open { number }) {
            link.stream = Stream::Missing { since: Instant::now() };
        }
    }

    /// Something happened on a node. What comes over a stream that was replaced happened before, and counts.
    pub(super) fn on_event(&mut self, node: u32, event: NodeEvent) {
        use node_event::What;
        if !self.judge.standing(node).is_live() {
            return;
        }
        self.server.metrics.count_event();
        match event.what {
            Some(What::Started(ref started)) if self.judge.started(node, started) => {
                self.start_news.due = true;
                self.keep(node, event);
            }
            Some(What::Output(ref output)) if self.judge.owns(node, output.rank) => self.keep(node, event),
            // News that is none, or that is not this node's to tell.
            Some(What::Started(_) | What::Output(_)) => {}
            Some(What::Exited(exit)) => self.on_exited(node, exit),
            Some(What::Notice(notice)) => self.on_notice(node, notice),
            Some(What::Ending(cause)) => self.on_ending(node, cause),
            Some(What::StdinTaken(bytes)) => {
                let flow = self.input.taken(node, bytes);
                self.pass_on(flow);
            }
            Some(What::Spawned(spawned)) => self.on_spawned(node, spawned),
            Some(What::Progress(progress)) => self.on_progress(node, &progress),
            Some(What::Waiting(waiting)) => {
                self.judge.waits(node, &waiting.ranks);
                self.look_for_deserters();
            }
            Some(What::Report(report)) => {
                self.judge.over(node, &report);
                self.unwritten.note_over(node);
                self.look_for_deserters();
                self.on_gone(node);
            }
            Some(What::Trace(_)) => self.keep(node, event),
            // Of a later version.
            None => {}
        }
    }

    /// Keeps an event for the client.
    fn keep(&mut self, node: u32, event: NodeEvent) {
        match self.journal.push(node, event) {
            Ok(grant) => self.grant(grant.map(|bytes| (node, bytes))),
            Err(overrun) => self.give_up(node, &overrun.to_string()),
        }
    }

    fn on_exited(&mut self, node: u32, exit: RankExitStatus) {
        if !self.judge.exited(node, &exit) {
            return;
        }
        self.keep(node, NodeEvent { what: Some(node_event::What::Exited(exit)) });
        self.look_for_deserters();
        self.release_when_idle();
    }

    /// When no rank is left anywhere, nodes that have none need not wait for spawned jobs any more.
    pub(super) fn release_when_idle(&mut self) {
        if !self.released && self.judge.all_exited() && self.spawns.is_empty() {
            self.released = true;
            self.tell_all(&node_command::What::Release(Nothing {}));
        }
    }

    fn on_notice(&mut self, node: u32, notice: Notice) {
        let link = &mut self.nodes[node as usize];
        link.notices += 1;
        if link.notices > NOTICES_MAX {
            return;
        }
        let several = self.nodes.len() > 1;
        match notice.what {
            // Every node speaks of its own ranks. The client is told once, of all.
            Some(notice::What::Silent(silent)) if several => self.silence.add(silent, Instant::now()),
            Some(notice::What::Stuck(_)) if several && self.stuck_told => {}
            Some(notice::What::Stuck(stuck)) if several => {
                self.stuck_told = true;
                self.inquire(Purpose::Stuck(stuck));
            }
            what => self.keep(node, notice_event(what)),
        }
    }

    /// Tells the client of silent ranks, when all nodes have told of theirs.
    pub(super) fn tell_of_silence(&mut self, now: Instant, all: bool) {
        for silent in self.silence.take(now, all) {
            self.keep(0, notice_event(Some(notice::What::Silent(silent))));
        }
    }

    fn on_ending(&mut self, node: u32, cause: Cause) {
        match cause.kind.clone() {
            Some(Kind::FenceTimeout(timeout)) if self.nodes.len() > 1 => {
                let host = cause.host.clone();
                // Nothing that follows from it shall become the cause while the other nodes are asked.
                if self.judge.fail(cause) {
                    self.inquire(Purpose::FenceTimeout { node, host, timeout });
                }
            }
            Some(_) => self.hear(node, cause),
            None => self.give_up(node, "it ended its part for a reason that this version does not know"),
        }
    }

    fn on_progress(&mut self, node: u32, progress: &Progress) {
        self.judge.learn(node, progress);
        self.inquiries.answer(node, progress);
    }

    /// Asks for exits that nodes cannot tell of, now and then while ranks wait: a rank's exit comes after all output of its node, and
    /// that may wait for a client that reads nothing.
    pub(super) fn ask_for_exits(&mut self, now: Instant) {
        let is_due = now >= self.asked_for_exits + ASK_FOR_EXITS && self.judge.does_anybody_wait();
        if is_due && self.judge.live().any(|node| self.journal.is_held_up(node)) {
            self.asked_for_exits = now;
            self.inquire(Purpose::Exits);
        }
    }

    fn look_for_deserters(&mut self) {
        match self.judge.desertion() {
            Some(Desertion::Certain(cause)) => self.fail(cause),
            Some(Desertion::Suspected) => {
                self.suspicion.get_or_insert_with(Instant::now);
            }
            None => self.suspicion = None,
        }
    }

    /// A node does not do its part: it is lost to the launch. If its agent is there, its allocation keeps it until the agent says
    /// that nothing is left there; an agent that is not says what it has when it registers, and gets nothing new before.
    fn give_up(&mut self, node: u32, reason: &str) {
        if self.judge.standing(node).is_live() {
            let host = self.judge.host(node);
            if self.server.nodes.lock().up(host).is_some() {
                self.server.leftovers.lock().leave(host, &self.spec.launch_id);
            }
            self.lose(node, reason);
        }
    }

    /// A node is lost: nothing more is expected of it, and it is told to end its part if it still hears that.
    pub(super) fn lose(&mut self, node: u32, reason: &str) {
        if matches!(self.phase, Phase::Over { .. }) || !self.judge.standing(node).is_live() {
            return;
        }
        tracing::warn!(node = self.judge.host(node), reason, "a node is lost");
        self.server.metrics.count_lost_node();
        let first = self.judge.lost(node, reason);
        if first {
            self.announce(Some(node));
        }
        self.abort_on(node, reason, nix::libc::SIGKILL);
        self.unwritten.note();
        self.nodes[node as usize].outbox.close();
        self.on_gone(node);
    }

    /// Nothing more is to be expected of a node.
    pub(super) fn on_gone(&mut self, node: u32) {
        let is_lost = self.judge.standing(node) == Standing::Lost;
        self.parts.lock()[node as usize] = if is_lost { Part::Lost } else { Part::Ended };
        self.inquiries.leave(node);
        let flow = self.input.leave(node);
        self.pass_on(flow);
        self.spawn_lost(node);
        self.release_when_idle();
    }

    fn abort_on(&self, node: u32, reason: &str, signal: i32) {
        let recipient = self.nodes[node as usize].recipient.clone();
        let (channels, id) = (self.server.channels.clone(), self.spec.launch_id.clone());
        tokio::spawn(fan_out::abort(channels, recipient, id, reason.to_owned(), signal));
    }

    /// Looks for nodes that should report and do not.
    pub(super) fn check_streams(&mut self, now: Instant) {
        let Phase::Active { nodes_by } = self.phase else { return };
        let live: Vec<u32> = self.judge.live().collect();
        for node in live {
            let Stream::Missing { since } = self.nodes[node as usize].stream else { continue };
            match self.judge.standing(node) {
                Standing::Awaited if now >= nodes_by => self.give_up(node, self.unreported()),
                Standing::Reporting if now >= since + timeouts::REPORT_AGAIN => {
                    self.give_up(node, "its connection broke, and it did not come back");
                }
                _ => {}
            }
        }
    }

    /// Whether the report stream of a node broke, and it is not known yet whether the node is lost.
    pub(super) fn misses_a_report(&self) -> bool {
        let reported = |&node: &u32| self.judge.standing(node) == Standing::Reporting;
        let broken = |node: u32| matches!(self.nodes[node as usize].stream, Stream::Missing { .. });
        self.judge.live().filter(reported).any(broken)
    }

    fn unreported(&self) -> &'static str {
        match self.resumed {
            true => "it did not report again when the API server had been started anew",
            false => "it accepted the launch and never reported",
        }
    }

    /// Looks for nodes that take too long to end their part.
    pub(super) fn check_stragglers(&mut self, now: Instant) {
        let Some(ending) = self.ending else { return };
        if !matches!(self.phase, Phase::Active { .. }) {
            return;
        }
        let graced = ending + self.grace();
        let late = now >= graced + timeouts::END;
        if self.overruled && now >= graced {
            self.stop_waiting();
        }
        let live: Vec<u32> = self.judge.live().collect();
        for node in live {
            let reports = matches!(self.nodes[node as usize].stream, Stream::Open { .. });
            match self.nodes[node as usize].aborted {
                // Commands lie ready for when it reports; but it may never.
                Aborted::No if !reports && now >= ending + timeouts::REPORT_AGAIN / 3 => {
                    self.nodes[node as usize].aborted = Aborted::InOrder;
                    self.abort_on(node, "the launch is ending", nix::libc::SIGTERM);
                }
                // Its output waits for the owner, and it for its output.
                _ if self.journal.is_held_up(node) => {}
                Aborted::No | Aborted::InOrder if late => {
                    self.nodes[node as usize].aborted = Aborted::AtOnce { since: now };
                    self.abort_on(node, "the launch should have ended", nix::libc::SIGKILL);
                }
                Aborted::AtOnce { since } if now >= since + timeouts::LAST => {
                    self.give_up(node, "it did not end its part of the launch");
                }
                _ => {}
            }
        }
    }

    /// How long its ranks may take to end.
    fn grace(&self) -> Duration {
        let grace = self.spec.patience.unwrap_or_default();
        let grace = Duration::from_millis(grace.after_failure_ms.max(grace.after_interrupt_ms));
        if self.overruled { grace.min(timeouts::GRACE_OF_OTHERS) } else { grace }
    }

    /// Asks all nodes how far their ranks are.
    pub(super) fn inquire(&mut self, purpose: Purpose) {
        let reporting = |&node: &u32| self.judge.standing(node) == Standing::Reporting;
        let nodes: Vec<u32> = self.judge.live().filter(reporting).collect();
        let number = self.inquiries.ask(purpose, nodes.clone(), self.nodes.len(), Instant::now());
        for node in nodes {
            self.nodes[node as usize].outbox.push(node_command::What::AskProgress(number));
        }
    }

    /// Carries out what questions were asked for, when they are answered.
    pub(super) fn close_inquiries(&mut self) {
        for inquiry in self.inquiries.take_closed(Instant::now()) {
            let (waiting, answers) = (inquiry.waiting(), &inquiry.answers);
            match &inquiry.purpose {
                Purpose::Status(_) => self.tell_status(inquiry),
                Purpose::Stuck(told) => {
                    let missing: Vec<MissingRank> = inquiry.missing(&told.missing);
                    let stuck = StuckStart { after_ms: told.after_ms, waiting: waiting.max(told.waiting), missing };
                    self.keep(0, notice_event(Some(notice::What::Stuck(stuck))));
                }
                Purpose::FenceTimeout { node, host, timeout } => {
                    let missing = inquiry.missing(&timeout.missing);
                    let waiting = waiting.max(timeout.waiting);
                    let timeout = pmi_transport::proto::v1::FenceTimeout { missing, waiting, ..timeout.clone() };
                    let kind = Some(Kind::FenceTimeout(timeout));
                    self.judge.complete_cause(Cause { host: host.clone(), kind });
                    self.announce(Some(*node));
                }
                // The answers have told the judge.
                Purpose::Exits => self.look_for_deserters(),
                Purpose::Desertion => {
                    self.suspicion = None;
                    match self.judge.confirm(answers) {
                        Some(cause) => self.fail(cause),
                        None => self.look_for_deserters(),
                    }
                }
            }
        }
    }

    fn tell_status(&self, inquiry: Inquiry<Purpose>) {
        let Inquiry { purpose: Purpose::Status(reply), answers, .. } = inquiry else { return };
        let status = |(node, answer): (u32, &Option<Progress>)| {
            let (known, programs) = self.judge.known(NodeIndex(node));
            let silent = answer.is_none() && self.judge.standing(node).is_live();
            let told = answer.iter().flat_map(|progress| &progress.ranks).map(|rank| (rank.rank, rank));
            let told: HashMap<u32, &RankProgress> = told.collect();
            let ranks = known.into_iter().map(|rank| told.get(&rank.rank).map_or(rank, |&told| told.clone())).collect();
            NodeStatus { node_id: self.judge.host(node).to_owned(), silent, ranks, programs }
        };
        let nodes = (0..).zip(&answers).map(status).collect();
        let summary = Some(self.summary_now());
        // Who asked may have gone.
        let _ = reply.send(LaunchStatus { summary, nodes, cause: self.judge.cause().cloned() });
    }
}

/// A notice as an event.
fn notice_event(what: Option<notice::What>) -> NodeEvent {
    NodeEvent { what: Some(node_event::What::Notice(Notice { what })) }
}
