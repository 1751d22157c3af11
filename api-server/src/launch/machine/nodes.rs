//! The part of a launch that communicates with its nodes: the state of the nodes, their streams, and queries to them.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind};
use lattice_session::event::{Notice, RankProgress};
use lattice_session::gathered::Gathered;
use lattice_session::map_hash::MapHash;
use lattice_session::rank_ranges::RankRanges;
use pmi_core::deaths::Death;
use pmi_core::ids::{NodeIndex, Rank};
use tokio::time::Instant;

use super::desertion::{Desertion, DesertionWatch};
use super::effect::Effects;
use super::event::{FIRST_NODE, NodeCommand, NodeStatus, SessionRole, Status, StatusDetail};
use super::facts::{Facts, Origin};
use super::gathering::{self, Gathering};
use super::intake::Intake;
use super::late_stacks::LateStacks;
use super::progress_query::{Answer, Extent, Missing, ProgressQueries, ProgressQuery, Way};
use super::silent_ranks::{SilentRanks, SilentReport};
use super::state::{LaunchState, NodePhase};
use super::streams::{NodeStream, Output, Overdue};

/// The nodes of a launch.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(super) state: LaunchState,
    /// Hash of the map that every node must have.
    pub(super) map: MapHash,
    /// By node.
    pub(super) streams: Vec<NodeStream>,
    /// By node.
    pub(super) intake: Vec<Intake>,
    pub(super) queries: ProgressQueries<Purpose>,
    pub(super) gathering: Gathering,
    pub(super) desertion: DesertionWatch,
    pub(super) silent: SilentRanks,
    pub(super) stacks: LateStacks,
    /// Dead ranks to report to nodes at the next tick. The delay merges the reports of ranks that die together.
    pub(super) untold_deaths: Vec<Death>,
    /// Nodes that have reconnected to a new server. At the next tick, they are queried for their waiting ranks. The delay merges the queries to
    /// nodes that reconnect together.
    pub(super) returned: Vec<NodeIndex>,
    stuck: StuckNotice,
    pub(super) idle: Idle,
}

/// Purpose of a query to nodes about their progress.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// A caller requests the status. The answer goes to this number.
    Status { ticket: u64, detail: StatusDetail },
    /// A node reports that the start is stuck.
    Stuck { after: Duration, waiting: usize, missing: Vec<Missing> },
    /// Ranks have waited for this time in a fence of all ranks after their start-up.
    LongWait { since: Duration },
    /// A node reports that a fence has timed out, and ends its ranks. All other nodes wait for the cause.
    FenceTimeout { node: NodeIndex, host: String, limit: Duration, waiting: usize, missing: Vec<Missing> },
    /// Confirm the suspicion that ranks wait for a rank that finalized.
    Desertion,
    /// The server is new, and does not know which ranks wait.
    Waits,
    /// The exit of a missing rank may wait after output that its node has no credit for.
    Exits,
}

/// State of the notice of a stuck start. Every node sends this notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StuckNotice {
    Untold,
    Told,
}

/// Need for nodes without ranks, on which jobs may be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    Needed,
    /// No rank is left that could spawn a job. The nodes were ordered to end.
    Released,
}

/// Consequence of a node's notice.
#[derive(Debug)]
pub(crate) enum Noted {
    /// The notice is forwarded unchanged.
    PassOn(Notice),
    /// All nodes must be queried first.
    Ask(Purpose),
    /// The notice waits for notices of other nodes, or is a repetition.
    Kept,
}

impl Nodes {
    pub(crate) fn new(facts: &Facts, now: Instant) -> Self {
        Self {
            state: LaunchState::new(&facts.nodes, &facts.placement),
            map: MapHash::of(&facts.placement, &facts.nodes),
            streams: facts.nodes.iter().map(|_| NodeStream::new(now)).collect(),
            intake: facts.nodes.iter().map(|_| Intake::new(facts.origin)).collect(),
            queries: ProgressQueries::default(),
            gathering: Gathering::new(facts.gather_above),
            desertion: DesertionWatch::new(now),
            silent: SilentRanks::default(),
            stacks: LateStacks::default(),
            untold_deaths: Vec::new(),
            returned: Vec::new(),
            stuck: StuckNotice::Untold,
            idle: Idle::Needed,
        }
    }

    /// Sends a command to every live node.
    pub(crate) fn command_live(&self, command: &NodeCommand, effects: &mut Effects) {
        for node in self.state.live() {
            effects.command(node, command.clone());
        }
    }

    /// Reports new dead ranks to all nodes.
    pub(crate) fn tell_deaths(&mut self, effects: &mut Effects) {
        if !self.untold_deaths.is_empty() {
            let deaths = mem::take(&mut self.untold_deaths).into();
            self.command_live(&NodeCommand::Deaths(deaths), effects);
        }
    }

    /// Queries all reporting nodes for the progress of their ranks.
    pub(crate) fn ask(&mut self, purpose: Purpose, now: Instant, effects: &mut Effects) {
        let nodes = self.state.nodes_in(NodePhase::Reporting);
        self.ask_these(nodes, purpose, now, effects);
    }

    /// Queries nodes that have reconnected to a new server for their waiting ranks, in one query.
    pub(crate) fn ask_returned(&mut self, now: Instant, effects: &mut Effects) {
        let mut nodes = mem::take(&mut self.returned);
        nodes.retain(|&node| self.state.phase(node) == NodePhase::Reporting);
        if !nodes.is_empty() {
            self.ask_these(nodes, Purpose::Waits, now, effects);
        }
    }

    fn ask_these(&mut self, nodes: Vec<NodeIndex>, purpose: Purpose, now: Instant, effects: &mut Effects) {
        // Only status queries from users need the usage of processes.
        let (question, extent): (fn(u64) -> NodeCommand, _) = match purpose {
            Purpose::Status { detail: StatusDetail::Stacks, .. } => (NodeCommand::AskStacks, Extent::Stacks),
            Purpose::Status { detail: StatusDetail::Progress, .. } => (NodeCommand::AskUsage, Extent::Progress),
            _ => (NodeCommand::AskProgress, Extent::Progress),
        };
        let is_gathered = matches!(purpose, Purpose::Status { .. }) && self.gathering.takes(nodes.len(), now);
        let way = if is_gathered { Way::Gathered } else { Way::Directly };
        let kept = match purpose {
            // Each answer is applied on arrival, so none is kept.
            Purpose::Exits => 0,
            _ => self.state.node_count(),
        };
        match self.queries.open(purpose, (extent, way), &nodes, kept, now) {
            Some(number) if is_gathered => {
                self.gathering.want(extent, number);
                self.gather(extent, now, effects);
            }
            Some(number) => nodes.into_iter().for_each(|node| effects.command(node, question(number))),
            None => {}
        }
    }

    /// Sends the next query to the root, unless a query of this extent is in progress.
    fn gather(&mut self, extent: Extent, now: Instant, effects: &mut Effects) {
        let Some(number) = self.gathering.take_next(extent) else { return };
        let nodes = self.state.nodes_in(NodePhase::Reporting);
        if !self.gathering.takes(nodes.len(), now) {
            return self.ask_directly(number, extent, &nodes, now, effects);
        }
        if let Some((root, command)) = self.gathering.begin(extent, number, nodes, now) {
            effects.command(root, command);
        }
    }

    /// Queries nodes directly because the root's answer does not include them.
    fn ask_directly(&mut self, number: u64, extent: Extent, nodes: &[NodeIndex], now: Instant, effects: &mut Effects) {
        self.queries.ask_directly(number, extent, now);
        for &node in nodes.iter().filter(|&&node| self.state.phase(node) == NodePhase::Reporting) {
            effects.command(
                node,
                match extent {
                    Extent::Progress => NodeCommand::AskUsage(number),
                    Extent::Stacks => NodeCommand::AskStacks(number),
                },
            );
        }
    }

    /// A root has reported the collected answers. Nodes that are not included are queried directly.
    pub(crate) fn on_gathered(
        &mut self,
        node: NodeIndex,
        question: u64,
        gathered: Gathered,
        now: Instant,
        effects: &mut Effects,
    ) {
        let Some((extent, open)) = self.gathering.on_answer(node, question) else { return };
        let ranks = &self.state.ranks;
        let answers = gathering::by_node(gathered, &open.nodes, ranks.size(), |rank| ranks.node_of(rank));
        let mut unheard = open.nodes;
        unheard.retain(|node| answers.iter().all(|(told, _)| told != node));
        for (node, answer) in answers {
            self.queries.on_gathered(node, question, extent, answer);
        }
        if !unheard.is_empty() {
            self.ask_directly(question, extent, &unheard, now, effects);
        }
        self.gather(extent, now, effects);
    }

    /// Queries nodes directly if their root has not answered.
    pub(crate) fn check_gathering(&mut self, now: Instant, effects: &mut Effects) {
        for (extent, open) in self.gathering.take_failed(now) {
            self.ask_directly(open.number, extent, &open.nodes, now, effects);
            self.gather(extent, now, effects);
        }
    }

    /// Accepts a notice of a node. With several nodes, clients receive one merged notice.
    pub(crate) fn on_notice(&mut self, node: NodeIndex, notice: Notice, now: Instant) -> Noted {
        if !self.streams[node.index()].admits_notice() {
            return Noted::Kept;
        }
        match notice {
            notice if self.streams.len() == 1 => Noted::PassOn(notice),
            Notice::Silent { ranks, size, ended, after, library } => {
                self.silent.add(SilentReport { ranks, size, ended, after, library }, now);
                Noted::Kept
            }
            Notice::Stacks { stacks } => {
                self.stacks.add(stacks, now);
                Noted::Kept
            }
            Notice::Stuck { .. } if self.stuck == StuckNotice::Told => Noted::Kept,
            Notice::Stuck { after, waiting, missing } => {
                self.stuck = StuckNotice::Told;
                Noted::Ask(Purpose::Stuck { after, waiting, missing })
            }
            notice => Noted::PassOn(notice),
        }
    }

    /// Makes nodes report the call stacks of late ranks.
    pub(crate) fn look_at_late_ranks(&self, late: &[Missing], effects: &mut Effects) {
        let mut by_node: BTreeMap<NodeIndex, Vec<(u32, u32)>> = BTreeMap::new();
        for (rank, _) in late {
            if let Some(node) = self.state.ranks.node_of(*rank) {
                by_node.entry(node).or_default().push((rank.0, rank.0));
            }
        }
        for (node, mut ranks) in by_node {
            ranks.truncate(RankRanges::MAX);
            if let Ok(ranks) = RankRanges::new(&ranks) {
                effects.command(node, NodeCommand::LookAtStacks(ranks));
            }
        }
    }

    /// Returns true if the report stream of a node broke, and it is unknown yet whether the node is lost.
    pub(crate) fn misses_a_report(&self) -> bool {
        let reporting = |&node: &NodeIndex| self.state.phase(node) == NodePhase::Reporting;
        self.state.live().filter(reporting).any(|node| self.streams[node.index()].is_missing())
    }

    /// The time from which a held cause counts. `None` without one, or while the loss of a node is still unclear: such a loss has priority.
    pub(crate) fn hold_ends(&self) -> Option<Instant> {
        self.state.cause.hold_ends().filter(|_| !self.misses_a_report())
    }

    /// The nodes that should report and do not, each with the reason for its loss.
    pub(crate) fn silent_nodes(
        &self,
        nodes_by: Instant,
        origin: Origin,
        now: Instant,
    ) -> Vec<(NodeIndex, &'static str)> {
        let unreported = match origin {
            Origin::Resumed => "it did not report again when the API server had been started anew",
            Origin::Here => "it accepted the launch and never reported",
        };
        let why = |node: NodeIndex| {
            let stream = &self.streams[node.index()];
            match self.state.phase(node) {
                NodePhase::Awaited if stream.is_overdue(now) && now >= nodes_by => Some((node, unreported)),
                NodePhase::Reporting if stream.is_overdue(now) => {
                    Some((node, "its connection broke, and it did not come back"))
                }
                _ => None,
            }
        };
        self.state.live().filter_map(why).collect()
    }

    /// The nodes that exceed the time limit for their part of a launch that has been ending since `ending`, each with the measure that is due.
    pub(crate) fn overdue_nodes(
        &mut self,
        ending: Instant,
        grace: Duration,
        output_of: impl Fn(NodeIndex) -> Output,
        now: Instant,
    ) -> Vec<(NodeIndex, Overdue)> {
        let live: Vec<NodeIndex> = self.state.live().collect();
        let mut due = Vec::new();
        for node in live {
            let overdue = self.streams[node.index()].overdue(ending, grace, output_of(node), now);
            due.extend(overdue.map(|overdue| (node, overdue)));
        }
        due
    }

    /// Searches for ranks that left while other ranks wait for them. Returns the cause, if it is certain.
    pub(crate) fn look_for_deserters(&mut self, now: Instant) -> Option<Cause> {
        let desertion = self.state.desertion();
        if desertion == Some(Desertion::Suspected) {
            self.desertion.suspect(now);
        } else {
            self.desertion.clear();
        }
        match desertion {
            Some(Desertion::Certain(cause)) => Some(cause),
            Some(Desertion::Suspected) | None => None,
        }
    }

    /// Queries nodes for facts that they do not report on their own: ranks that wait for a finalized rank, and exits that wait after output.
    pub(crate) fn ask_about_desertion(
        &mut self,
        output_of: impl Fn(NodeIndex) -> Output,
        now: Instant,
        effects: &mut Effects,
    ) {
        let held_up = |node| output_of(node) == Output::HeldUp;
        if self.state.does_anybody_wait() && self.state.live().any(held_up) && self.desertion.asks_for_exits(now) {
            self.ask(Purpose::Exits, now, effects);
        }
        let asked = self.queries.any(|purpose| matches!(purpose, Purpose::Desertion));
        if !asked && self.desertion.is_to_be_confirmed(now) {
            self.ask(Purpose::Desertion, now, effects);
        }
    }

    fn role(&self, node: NodeIndex) -> Option<SessionRole> {
        let role = if node == FIRST_NODE { SessionRole::Shepherd } else { SessionRole::Lamb };
        (self.streams.len() > 1 && self.state.phase(node).is_live()).then_some(role)
    }

    /// Returns the progress of all ranks, from the answers of nodes and from earlier reports.
    pub(crate) fn status(&self, query: &ProgressQuery<Purpose>) -> Status {
        let mut known = self.state.ranks.known(self.streams.len());
        let mut node = |(index, answer): (NodeIndex, &Option<Arc<Answer>>)| {
            let answered: HashMap<Rank, &RankProgress> =
                answer.iter().flat_map(|answer| &answer.ranks).map(|rank| (rank.rank, rank)).collect();
            let programs = answer.iter().flat_map(|answer| &answer.programs);
            let programs: HashMap<Rank, &Bytes> = programs.map(|(rank, program)| (*rank, program)).collect();
            let current = |(rank, program): (RankProgress, Bytes)| {
                let program =
                    programs.get(&rank.rank).filter(|told| !told.is_empty()).map_or(program, |&told| told.clone());
                (answered.get(&rank.rank).map_or(rank, |&progress| progress.clone()), program)
            };
            NodeStatus {
                node: self.state.host(index).to_owned(),
                silent: answer.is_none() && self.state.phase(index).is_live(),
                role: self.role(index),
                ranks: mem::take(&mut known[index.index()]).into_iter().map(current).collect(),
                stacks: answer.iter().flat_map(|answer| answer.stacks.iter().flatten()).cloned().collect(),
                left_out: answer.as_ref().map_or(0, |answer| answer.left_out),
            }
        };
        Status {
            nodes: self.state.all().zip(&query.answers).map(&mut node).collect(),
            cause: self.state.cause().cloned(),
            usage: self.state.usage(),
        }
    }
}

/// The cause of a fence that timed out, completed with the missing ranks that the nodes reported.
pub(crate) fn completed_timeout(query: &ProgressQuery<Purpose>) -> Option<(NodeIndex, Cause)> {
    let Purpose::FenceTimeout { node, host, limit, waiting, missing } = &query.purpose else { return None };
    let kind = CauseKind::FenceTimeout {
        limit: *limit,
        waiting: query.waiting().max(*waiting),
        missing: query.missing(missing),
    };
    Some((*node, Cause { host: host.clone(), kind }))
}
