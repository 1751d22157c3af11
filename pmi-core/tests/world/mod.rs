//! All servers of several jobs and nodes in one thread. The fence between them keeps its contract, and its seed varies the rest: it is
//! slow, reorders results between nodes and scopes, and moves the borders of segments. No socket, no clock, no sleep.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, HashMap, VecDeque};

use pmi_core::claim::ClaimKeys;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::fence::{Contribution, FenceError, FenceId, Merged};
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::segment::Segment;
use pmi_core::server::{Action, ConnectionId, EndReason, Server, Settings, Ticket, Trace};
use pmi_core::services::{Answer, Call, NameCall, NameUser, Names, Published, SpawnRequest};

/// A source of numbers that depend only on the seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Number of a job in a [`World`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct JobIndex(pub(crate) usize);

/// A spawn without an answer from the world's host.
pub(crate) struct AskedSpawn {
    pub(crate) job: JobIndex,
    pub(crate) rank: Rank,
    pub(crate) request: SpawnRequest,
    node: NodeIndex,
    ticket: Ticket,
}

/// Jobs, their servers and the data in transit between them.
pub(crate) struct World {
    jobs: Vec<RunningJob>,
    rounds: HashMap<(JobIndex, FenceId), BTreeMap<NodeIndex, Contribution>>,
    /// Results of fences in transit to their nodes.
    deliveries: Vec<Delivery>,
    /// Selects the next delivery; without it the oldest one is next.
    dice: Option<Dice>,
    names: Names,
    pub(crate) spawns: VecDeque<AskedSpawn>,
}

struct RunningJob {
    job: Job,
    nodes: BTreeMap<NodeIndex, Node>,
    /// Place of each rank.
    places: Vec<(NodeIndex, LocalRank)>,
    lost: Option<NodeIndex>,
}

/// One server, and its output.
struct Node {
    server: Server,
    connections: Vec<ConnectionId>,
    output: HashMap<ConnectionId, Vec<u8>>,
    closed: Vec<ConnectionId>,
    /// Ended connections that the server has not read to the end.
    unseen_ends: Vec<ConnectionId>,
    ended: Option<EndReason>,
    deaths: Vec<Death>,
    traces: Vec<Trace>,
}

struct Delivery {
    job: JobIndex,
    node: NodeIndex,
    id: FenceId,
    result: Result<Merged, FenceError>,
}

impl World {
    /// A world with fences that deliver in the order of their completion.
    pub(crate) fn kind() -> Self {
        Self {
            jobs: Vec::new(),
            rounds: HashMap::new(),
            deliveries: Vec::new(),
            dice: None,
            names: Names::default(),
            spawns: VecDeque::new(),
        }
    }

    /// A world with fences that deliver in any order.
    pub(crate) fn unkind(seed: u64) -> Self {
        Self { dice: Some(Dice::new(seed)), ..Self::kind() }
    }

    /// Starts the servers of a job on all nodes that hold a rank, and connects every rank.
    pub(crate) fn start(&mut self, job: Job, settings: Settings) -> JobIndex {
        let index = self.start_unconnected(job, settings);
        for node in self.jobs[index.0].nodes.values_mut() {
            let locals = node.server.ranks().len() as u32;
            node.connections = (0..locals).map(|local| node.server.connect(LocalRank(local)).unwrap()).collect();
        }
        index
    }

    /// The same without connections: the ranks connect through `PMI_PORT`.
    pub(crate) fn start_unconnected(&mut self, job: Job, settings: Settings) -> JobIndex {
        let servers =
            (0..job.placement.nodes()).map(NodeIndex).map(|node| (node, Server::new(job.clone(), node, settings)));
        let inhabited = servers.filter(|(_, server)| server.ranks().len() > 0);
        let nodes = inhabited.map(|(node, server)| (node, Node::new(server))).collect();
        let place = |rank| Some((job.placement.node_of(rank)?, job.placement.local_rank(rank)?));
        let places = (0..job.size()).map(|rank| place(Rank(rank)).expect("a rank of the job")).collect();
        self.jobs.push(RunningJob { job, nodes, places, lost: None });
        JobIndex(self.jobs.len() - 1)
    }

    /// Begins the conversation with a program without a launcher, as the only rank of `job`.
    pub(crate) fn adopt(&mut self, job: JobIndex) {
        let node = self.node(job, NodeIndex(0));
        let connection = node.server.adopt(LocalRank(0)).unwrap();
        node.connections = vec![connection];
        self.collect(job, NodeIndex(0));
    }

    /// Connects a rank to its node through `PMI_PORT`. The world maps the connection to the rank; the server does not yet.
    pub(crate) fn come_through_port(&mut self, job: JobIndex, rank: Rank) {
        let (node, local) = self.place(job, rank);
        let node = self.node(job, node);
        node.connections.resize(node.server.ranks().len(), ConnectionId(u32::MAX));
        node.connections[local.index()] = node.server.accept();
    }

    /// Requires keys from ranks that connect through the node's port.
    pub(crate) fn require_keys(&mut self, job: JobIndex, node: NodeIndex, keys: ClaimKeys) {
        self.node(job, node).server.require_keys(keys);
    }

    /// Opens a connection through `PMI_PORT` to a node.
    pub(crate) fn accept(&mut self, job: JobIndex, node: NodeIndex) -> ConnectionId {
        self.node(job, node).server.accept()
    }

    fn node(&mut self, job: JobIndex, node: NodeIndex) -> &mut Node {
        self.jobs[job.0].nodes.get_mut(&node).expect("the node holds a rank")
    }

    fn place(&self, job: JobIndex, rank: Rank) -> (NodeIndex, LocalRank) {
        self.jobs[job.0].places[rank.index()]
    }

    fn connection(&mut self, job: JobIndex, rank: Rank) -> (NodeIndex, ConnectionId) {
        let (node, local) = self.place(job, rank);
        (node, self.node(job, node).connections[local.index()])
    }

    pub(crate) fn job(&self, job: JobIndex) -> &Job {
        &self.jobs[job.0].job
    }

    /// The server of a rank.
    pub(crate) fn server_of(&mut self, job: JobIndex, rank: Rank) -> &Server {
        let (node, _) = self.place(job, rank);
        &self.node(job, node).server
    }

    /// All servers of a job.
    pub(crate) fn servers(&self, job: JobIndex) -> impl Iterator<Item = &Server> {
        self.jobs[job.0].nodes.values().map(|node| &node.server)
    }

    /// Passes bytes of a rank to its server; fences stay open until [`World::step`].
    pub(crate) fn send(&mut self, job: JobIndex, rank: Rank, bytes: &[u8]) {
        let (node, connection) = self.connection(job, rank);
        self.send_on(job, node, connection, bytes);
    }

    pub(crate) fn send_on(&mut self, job: JobIndex, node: NodeIndex, connection: ConnectionId, bytes: &[u8]) {
        self.node(job, node).server.push_bytes(connection, bytes);
        while self.node(job, node).server.handle_next(connection) {
            self.collect(job, node);
        }
        self.collect(job, node);
    }

    /// Passes a whole line to a rank's server, completes all fences, and returns the bytes to the rank.
    pub(crate) fn ask(&mut self, job: JobIndex, rank: u32, message: &str) -> String {
        self.send(job, Rank(rank), message.as_bytes());
        self.settle();
        self.told(job, rank)
    }

    /// Bytes to a rank since the last call, as text.
    pub(crate) fn told(&mut self, job: JobIndex, rank: u32) -> String {
        String::from_utf8_lossy(&self.take(job, Rank(rank))).into_owned()
    }

    /// Bytes to a rank since the last call.
    pub(crate) fn take(&mut self, job: JobIndex, rank: Rank) -> Vec<u8> {
        let (node, connection) = self.connection(job, rank);
        self.take_on(job, node, connection)
    }

    pub(crate) fn take_on(&mut self, job: JobIndex, node: NodeIndex, connection: ConnectionId) -> Vec<u8> {
        self.node(job, node).output.remove(&connection).unwrap_or_default()
    }

    pub(crate) fn disconnect(&mut self, job: JobIndex, rank: Rank) {
        let (node, connection) = self.connection(job, rank);
        self.node(job, node).server.handle_disconnect(connection);
        self.collect(job, node);
    }

    /// Disconnects a rank while the server is busy with other connections.
    pub(crate) fn disconnect_unseen(&mut self, job: JobIndex, rank: Rank) {
        let (node, connection) = self.connection(job, rank);
        self.node(job, node).unseen_ends.push(connection);
    }

    /// A rank's process returns status 0.
    pub(crate) fn exit(&mut self, job: JobIndex, rank: Rank) {
        let (node, local) = self.place(job, rank);
        self.node(job, node).server.handle_exit(local);
        self.collect(job, node);
    }

    /// A rank's process is killed, and its host tolerates that.
    pub(crate) fn kill(&mut self, job: JobIndex, rank: Rank) {
        let (node, local) = self.place(job, rank);
        self.node(job, node).server.handle_borne_failure(local, DeathKind::Killed);
        self.collect(job, node);
    }

    /// Reports to all nodes the deaths that any of them has reported since the last call, and returns the dead ranks.
    pub(crate) fn spread_deaths(&mut self, job: JobIndex) -> Vec<Rank> {
        let nodes = &mut self.jobs[job.0].nodes;
        let deaths: Vec<Death> = nodes.values_mut().flat_map(|node| std::mem::take(&mut node.deaths)).collect();
        nodes.values_mut().for_each(|node| node.server.handle_deaths(&deaths));
        let nodes: Vec<NodeIndex> = nodes.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.collect(job, node));
        deaths.into_iter().map(|death| death.rank).collect()
    }

    /// A node is lost: every open and later fence that needs it fails on all other nodes.
    pub(crate) fn lose(&mut self, job: JobIndex, node: NodeIndex) {
        self.jobs[job.0].lost = Some(node);
        let open: Vec<_> = self.rounds.keys().filter(|(of, _)| *of == job).cloned().collect();
        for (_, id) in open {
            self.fail_without(job, &id, node);
        }
    }

    pub(crate) fn answer(&mut self, asked: &AskedSpawn, answer: Answer) {
        self.node(asked.job, asked.node).server.handle_answer(asked.ticket, &answer);
        self.collect(asked.job, asked.node);
    }

    /// Returns true if the server has closed the connection.
    pub(crate) fn is_closed(&mut self, job: JobIndex, node: NodeIndex, connection: ConnectionId) -> bool {
        self.node(job, node).closed.contains(&connection)
    }

    /// Reason why the job had to end, from the first node that reports one.
    pub(crate) fn ended(&self, job: JobIndex) -> Option<&EndReason> {
        self.jobs[job.0].nodes.values().find_map(|node| node.ended.as_ref())
    }

    /// Reasons why it had to end, node by node.
    pub(crate) fn endings(&self, job: JobIndex) -> Vec<(NodeIndex, Option<&EndReason>)> {
        self.jobs[job.0].nodes.iter().map(|(index, node)| (*index, node.ended.as_ref())).collect()
    }

    /// Every message traced on the node of a rank.
    pub(crate) fn traces(&mut self, job: JobIndex, rank: Rank) -> &[Trace] {
        let (node, _) = self.place(job, rank);
        &self.node(job, node).traces
    }

    /// Delivers the result of one fence to one node; returns false when none is in transit.
    pub(crate) fn step(&mut self) -> bool {
        if self.deliveries.is_empty() {
            return false;
        }
        let next = self.dice.as_mut().map_or(0, |dice| dice.below(self.deliveries.len()));
        let Delivery { job, node, id, result } = self.deliveries.remove(next);
        self.node(job, node).server.handle_fence(&id, result);
        self.collect(job, node);
        true
    }

    /// Steps until nothing is in transit.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    fn collect(&mut self, job: JobIndex, node: NodeIndex) {
        while let Some(action) = self.node(job, node).server.poll_action() {
            let state = self.node(job, node);
            match action {
                Action::Send { connection, bytes } => {
                    assert!(state.ended.is_none(), "node {node} sends {bytes:?} after the end of its job");
                    state.output.entry(connection).or_default().extend_from_slice(&bytes);
                }
                Action::Close { connection } => state.closed.push(connection),
                // The world always handles the bytes of a connection at once, but not its end.
                Action::ReadOut { connection } => {
                    if state.unseen_ends.contains(&connection) {
                        state.server.handle_disconnect(connection);
                    }
                }
                // Each rank is one process here.
                Action::Restarted { .. } | Action::AskForSender { .. } | Action::SecondProcess { .. } => {}
                Action::End(reason) => {
                    assert!(state.ended.is_none(), "node {node} reports its end twice: {reason:?}");
                    state.ended = Some(reason);
                }
                Action::Died(death) => state.deaths.push(death),
                Action::Trace(trace) => state.traces.push(trace),
                Action::Fence { id, contribution } => self.arrive(job, node, id, contribution),
                Action::Call { ticket, rank, call } => self.call(job, node, ticket, rank, call),
                other => panic!("an action that this world does not know: {other:?}"),
            }
        }
    }

    fn call(&mut self, job: JobIndex, node: NodeIndex, ticket: Ticket, rank: Rank, call: Call) {
        let answer = match call {
            Call::Name(NameCall::Publish { service, port, lifetime, range }) => {
                let publisher = NameUser { rank: rank.0, ..NameUser::default() };
                Answer::Named(self.names.publish(service, Published { publisher, port, lifetime, range }))
            }
            Call::Name(NameCall::Lookup { service, range, .. }) => {
                Answer::Port(self.names.look_up(&NameUser::default(), &service, &range))
            }
            Call::Name(NameCall::Unpublish { service, publisher }) => {
                Answer::Named(self.names.unpublish(&NameUser::default(), &service, publisher))
            }
            Call::Spawn(request) => {
                self.spawns.push_back(AskedSpawn { job, rank, request, node, ticket });
                return;
            }
            other => panic!("a call that this world does not know: {other:?}"),
        };
        // The running `collect` carries out the resulting actions.
        self.node(job, node).server.handle_answer(ticket, &answer);
    }

    fn arrive(&mut self, job: JobIndex, node: NodeIndex, id: FenceId, contribution: Contribution) {
        let key = (job, id);
        let round = self.rounds.entry(key.clone()).or_default();
        assert!(round.insert(node, contribution).is_none(), "node {node} is twice in {:?}", key.1);
        let arrived = round.len();
        let members = self.members(job, &key.1);
        if let Some(lost) = self.jobs[job.0].lost
            && members.contains(&lost)
        {
            return self.fail_without(job, &key.1, lost);
        }
        if arrived < members.len() {
            return;
        }
        let round = self.rounds.remove(&key).expect("it was found above");
        assert!(round.keys().eq(&members), "{:?} of {members:?} was joined by {:?}", key.1, round.keys());
        // The contract: in the order of the nodes, which is the order of the map.
        let mut segments: Vec<Segment> = round.into_values().flat_map(|brought| brought.segments).collect();
        if let Some(dice) = &mut self.dice {
            segments = move_borders(&segments, dice);
        }
        let merged = Merged::from(segments);
        for node in members {
            self.deliveries.push(Delivery { job, node, id: key.1.clone(), result: Ok(merged.clone()) });
        }
    }

    fn members(&self, job: JobIndex, id: &FenceId) -> Vec<NodeIndex> {
        id.scope.members(&self.jobs[job.0].nodes.keys().copied().collect::<Vec<_>>()).to_vec()
    }

    fn fail_without(&mut self, job: JobIndex, id: &FenceId, lost: NodeIndex) {
        if !self.members(job, id).contains(&lost) {
            return;
        }
        let waiting = self.rounds.remove(&(job, id.clone())).unwrap_or_default();
        for node in waiting.into_keys().filter(|&node| node != lost) {
            let reason = "connection reset".to_owned();
            let result = Err(FenceError::NodeLost { node: lost, epoch: id.epoch, reason });
            self.deliveries.push(Delivery { job, node, id: id.clone(), result });
        }
    }
}

/// The same pairs in other segments: neighbours joined, and segments split between two pairs.
fn move_borders(segments: &[Segment], dice: &mut Dice) -> Vec<Segment> {
    let pairs: Vec<_> = segments.iter().flat_map(Segment::pairs).collect();
    let mut rest = &pairs[..];
    std::iter::from_fn(|| {
        let (taken, behind) = rest.split_at(rest.len().min(1 + dice.below(4)));
        rest = behind;
        (!taken.is_empty()).then(|| taken.iter().copied().collect())
    })
    .collect()
}

impl Node {
    fn new(server: Server) -> Self {
        Self {
            server,
            connections: Vec::new(),
            output: HashMap::new(),
            closed: Vec::new(),
            unseen_ends: Vec::new(),
            ended: None,
            deaths: Vec::new(),
            traces: Vec::new(),
        }
    }
}
