//! Nodes of a job in one thread: servers without sockets, scripted clients, and a fence that waits for every node.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::deaths::DeathKind;
use pmi_core::fence::{Contribution, Exchange, FenceId, Merged, Scope};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::{ConnectionId, EndReason};
use pmi_core::services::{
    JobProcesses, MeetError, Meeting, Met, NameCall, NameError, NameRequest, NameUser, Names, Published, SignalError,
    SpawnError,
};
use pmix_core::server::{Action, Need, Server, Settings, Ticket};
use pmix_core::services::{Answer, Call};
use pmix_core::wire::Encoding;
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::{JobIndex, Namespace, NodeFacts, Seat};

pub(crate) struct World {
    pub(crate) nodes: Vec<Server>,
    /// Bytes sent to each connection and not read yet.
    unread: HashMap<(usize, ConnectionId), Vec<u8>>,
    closed: Vec<(usize, ConnectionId)>,
    rounds: HashMap<FenceId, Vec<(usize, JobIndex, Contribution)>>,
    names: Names,
    /// Participants of the meeting of launches, with their nodes and tickets.
    pub(crate) meeting: Vec<(usize, Ticket, Meeting)>,
    /// Questions between nodes: the receiver and its ticket, mapped to the sender and its ticket.
    asked: HashMap<(usize, Ticket), (usize, Ticket)>,
    /// The node that gives no answer.
    pub(crate) lost: Option<usize>,
    /// Holds answers of nodes in transit, in [`Self::late`].
    pub(crate) delays_answers: bool,
    /// Answers in transit: the node that asked, its ticket, and the bytes.
    pub(crate) late: Vec<(usize, Ticket, Bytes)>,
    /// Number of questions between nodes.
    pub(crate) questions: usize,
    /// Sent messages of at least 64 KiB, to clients and to other nodes.
    pub(crate) large: Vec<Bytes>,
    /// Length of the longest answer of a node to another.
    pub(crate) largest: usize,
    /// Timers on each node that have neither expired nor been cancelled.
    pub(crate) timers: Vec<(usize, Ticket)>,
    /// The times of all timers that were ever set, in their order.
    pub(crate) limits: Vec<Duration>,
    /// Calls of ranks to the host, other than meetings.
    pub(crate) calls: Vec<Call>,
    /// Spawns without an answer from the host so far, with their nodes and tickets.
    pub(crate) spawns: Vec<(usize, Ticket)>,
    /// Processes on the host of each node.
    pub(crate) processes: HashMap<usize, JobProcesses>,
    /// Signals requested from hosts: the node, the ranks, the number.
    pub(crate) signals: Vec<(usize, Vec<Rank>, i32)>,
    pub(crate) end: Option<EndReason>,
    /// Dead ranks without which the other ranks continue, as reported by their servers.
    pub(crate) deaths: Vec<Rank>,
    /// Ranks that a second process has claimed, as their servers report.
    pub(crate) second: Vec<Rank>,
    pub(crate) registered: Vec<PathBuf>,
    pub(crate) said: Vec<Bytes>,
    /// Whether each node requests output of its ranks.
    pub(crate) pulled: BTreeMap<usize, bool>,
    /// Clients that have not taken their last forwarded message; `None` while all clients read at once.
    pub(crate) slow: Option<Vec<(usize, ConnectionId)>>,
    settings: Settings,
    /// Bytes of data that fences carry to all nodes, where they may withhold it.
    pub(crate) frame: u64,
    /// The last need of each node's server.
    pub(crate) needed: BTreeMap<usize, Need>,
    /// Names of the complete fences, in their order.
    pub(crate) fences: Vec<String>,
    /// Number of pairs that all nodes together contributed to each of them.
    pub(crate) brought: Vec<usize>,
}

/// A rank with the behaviour of its library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) node: usize,
    pub(crate) connection: ConnectionId,
    pub(crate) encoding: Encoding,
}

/// A message of a server: its tag and payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) tag: u32,
    pub(crate) payload: Vec<u8>,
}

impl World {
    /// Creates jobs `job0`, `job1` and so on, with `counts[i]` ranks of each on node `i`.
    pub(crate) fn new(jobs: usize, counts: &[u32]) -> Self {
        Self::exchanging(Exchange::Full, jobs, counts)
    }

    /// The same, with this distribution of the data of fences.
    pub(crate) fn exchanging(exchange: Exchange, jobs: usize, counts: &[u32]) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            unread: HashMap::new(),
            closed: Vec::new(),
            rounds: HashMap::new(),
            names: Names::default(),
            meeting: Vec::new(),
            asked: HashMap::new(),
            lost: None,
            delays_answers: false,
            late: Vec::new(),
            questions: 0,
            large: Vec::new(),
            largest: 0,
            timers: Vec::new(),
            limits: Vec::new(),
            calls: Vec::new(),
            spawns: Vec::new(),
            processes: HashMap::new(),
            signals: Vec::new(),
            end: None,
            deaths: Vec::new(),
            second: Vec::new(),
            registered: Vec::new(),
            said: Vec::new(),
            pulled: BTreeMap::new(),
            slow: None,
            settings: Settings { exchange, ..Settings::default() },
            frame: 0,
            needed: BTreeMap::new(),
            fences: Vec::new(),
            brought: Vec::new(),
        };
        let names: Vec<String> = (0..jobs).map(|job| format!("job{job}")).collect();
        world.add_launch(&names.iter().map(String::as_str).collect::<Vec<_>>(), counts);
        world
    }

    /// Delivers the answers in transit.
    pub(crate) fn deliver_late_answers(&mut self) {
        self.delays_answers = false;
        for (asker, ticket, answer) in std::mem::take(&mut self.late) {
            self.nodes[asker].handle_peer_answer(ticket, Some(&answer));
            self.run();
        }
    }

    /// Creates one job with `questions_per_rank` unanswered questions for each rank.
    pub(crate) fn with_questions(questions_per_rank: usize, counts: &[u32]) -> Self {
        let mut world = Self::new(0, &[]);
        world.settings.questions_per_rank = questions_per_rank;
        world.add_launch(&["job0"], counts);
        world
    }

    /// Adds a launch on separate nodes: each of its jobs has `counts[i]` ranks on the i-th of them.
    pub(crate) fn add_launch(&mut self, names: &[&str], counts: &[u32]) {
        for node in 0..counts.len() as u32 {
            let mut server = Server::new(self.settings);
            for &name in names {
                let placement = Placement::block(counts);
                let job = Job { placement, ..Job::on_one_node(JobId::new(name).unwrap(), counts.iter().sum()) };
                let hosts = (0..counts.len()).map(|node| format!("n{node}")).collect();
                let name = name.to_owned();
                server.add(Namespace {
                    name,
                    job,
                    node: NodeIndex(node),
                    hosts,
                    allocation: None,
                    directory: None,
                    parent: None,
                    here: NodeFacts::default(),
                    command: Bytes::new(),
                    sets: Vec::new(),
                });
            }
            self.nodes.push(server);
        }
    }

    /// Adds a node with a separate launch that serves this job.
    pub(crate) fn add_job(&mut self, namespace: Namespace) -> usize {
        let mut server = Server::new(Settings::default());
        server.add(namespace);
        self.nodes.push(server);
        self.nodes.len() - 1
    }

    /// Answers every spawn with this result.
    pub(crate) fn end_spawns(&mut self, result: &Result<JobId, SpawnError>) {
        for (node, ticket) in std::mem::take(&mut self.spawns) {
            self.nodes[node].handle_answer(ticket, &Answer::Spawned(result.clone()));
        }
        self.run();
    }

    /// Ends the meeting of all participants: with this refusal, or with all contributions.
    pub(crate) fn end_meeting(&mut self, refusal: Option<MeetError>) {
        let meeting = std::mem::take(&mut self.meeting);
        let came = || meeting.iter().map(|(.., meeting)| meeting);
        let met = Met {
            number: 1 << 63,
            jobs: came().flat_map(|meeting| meeting.jobs.clone()).collect(),
            segments: came().flat_map(|meeting| meeting.segments.clone()).collect(),
        };
        let answer = Answer::Met(refusal.map_or(Ok(met), Err));
        for (node, ticket, _) in meeting {
            self.nodes[node].handle_answer(ticket, &answer);
        }
        self.run();
    }

    /// Connects and performs the handshake; `None` if the server closes the connection.
    pub(crate) fn join(&mut self, node: usize, namespace: &str, rank: u32, encoding: Encoding) -> Option<Client> {
        let (version, module) = match encoding {
            Encoding::Fixed => ("3.2.5a1", "v3"),
            Encoding::Flex => ("5.0.11rc1", "v41"),
        };
        self.join_as(node, (namespace, rank), version, module)
    }

    /// The same for a client of this version, with this name for its encoding.
    pub(crate) fn join_as(
        &mut self,
        node: usize,
        (namespace, rank): (&str, u32),
        version: &str,
        module: &str,
    ) -> Option<Client> {
        let encoding = if ["v21", "v3"].contains(&module) { Encoding::Fixed } else { Encoding::Flex };
        let mut payload = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0\0".to_vec();
        payload.extend(format!("{namespace}\0").bytes());
        payload.extend(rank.to_be_bytes());
        payload.extend(format!("{version}\0{module}\0\u{1}hash\0").bytes());
        let mut bytes = vec![0xff; 8];
        bytes.extend((payload.len() as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        let connection = self.nodes[node].accept();
        let client = Client { node, connection, encoding };
        self.begin(client);
        self.send_raw(client, &bytes);
        if self.is_closed(client) {
            return None;
        }
        let welcome = self.take_unread(client);
        assert_eq!(welcome[..4], [0; 4]);
        Some(client)
    }

    /// Reuses the number of a closed connection.
    pub(crate) fn begin(&mut self, client: Client) {
        self.closed.retain(|&closed| closed != (client.node, client.connection));
        self.take_unread(client);
    }

    /// Takes all bytes that were sent to a client.
    pub(crate) fn take_unread(&mut self, client: Client) -> Vec<u8> {
        self.unread.remove(&(client.node, client.connection)).unwrap_or_default()
    }

    pub(crate) fn is_closed(&self, client: Client) -> bool {
        self.closed.contains(&(client.node, client.connection))
    }

    pub(crate) fn send_raw(&mut self, client: Client, bytes: &[u8]) {
        self.nodes[client.node].handle_bytes(client.connection, bytes);
        self.run();
    }

    /// Sends a request with this command, followed by the output of `write`.
    pub(crate) fn send(&mut self, client: Client, tag: u32, command: u8, write: impl FnOnce(&mut Writer)) {
        let mut payload = Writer::new(client.encoding);
        payload.one();
        payload.byte(command);
        write(&mut payload);
        let message = pmix_core::wire::frame::message(tag, &payload.into_bytes());
        self.send_raw(client, &message);
    }

    /// The next message to a client.
    pub(crate) fn receive(&mut self, client: Client) -> Option<Message> {
        let unread = self.unread.get_mut(&(client.node, client.connection))?;
        let header: [u8; 16] = unread.get(..16)?.try_into().unwrap();
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let end = 16 + word(8) as usize;
        let payload = unread[16..end].to_vec();
        unread.drain(..end);
        Some(Message { tag: word(4), payload })
    }

    /// The status that a client received, and the bytes after it; `None` if the client waits.
    pub(crate) fn status(&mut self, client: Client) -> Option<(i32, Vec<u8>)> {
        let message = self.receive(client)?;
        let mut reader = Reader::new(client.encoding, &message.payload);
        reader.one().unwrap();
        Some((reader.i32().unwrap(), reader.rest().to_vec()))
    }

    /// Ends every wait that has a limit.
    pub(crate) fn let_time_pass(&mut self) {
        for (node, ticket) in std::mem::take(&mut self.timers) {
            self.nodes[node].handle_timer(ticket);
        }
        self.run();
    }

    /// A rank of the first job writes to a stream; no bytes mean its end.
    pub(crate) fn write(&mut self, node: usize, local: u32, channel: u16, bytes: &[u8]) {
        self.nodes[node].handle_output(seat(0, local), channel, bytes);
        self.run();
    }

    /// All clients take forwarded messages at once, from now on.
    pub(crate) fn read_all(&mut self) {
        for (node, connection) in self.slow.take().unwrap_or_default() {
            self.nodes[node].handle_sent(connection);
        }
        self.run();
    }

    pub(crate) fn hang_up(&mut self, client: Client) {
        self.nodes[client.node].handle_disconnect(client.connection);
        self.run();
    }

    pub(crate) fn exit(&mut self, node: usize, local: u32) {
        self.nodes[node].handle_exit(seat(0, local));
        self.run();
    }

    /// A rank's process ends in this way, and its host tolerates that.
    pub(crate) fn kill(&mut self, node: usize, local: u32, kind: DeathKind) {
        self.nodes[node].handle_borne_failure(seat(0, local), kind);
        self.run();
    }

    pub(crate) fn run(&mut self) {
        for node in 0..self.nodes.len() {
            while let Some(action) = self.nodes[node].poll_action() {
                self.carry_out(node, action);
            }
        }
    }

    fn carry_out(&mut self, node: usize, action: Action) {
        match action {
            Action::Send { connection, bytes } => {
                self.note_large(&bytes);
                self.unread.entry((node, connection)).or_default().extend(bytes);
            }
            Action::SendAndTell { connection, bytes } => {
                self.unread.entry((node, connection)).or_default().extend(bytes);
                match &mut self.slow {
                    Some(slow) => slow.push((node, connection)),
                    None => self.nodes[node].handle_sent(connection),
                }
            }
            Action::Pulled(pulled) => assert_ne!(self.pulled.insert(node, pulled).unwrap_or_default(), pulled),
            Action::Close { connection } => self.closed.push((node, connection)),
            Action::Fence { job, id, contribution } => {
                let round = self.rounds.entry(id.clone()).or_default();
                round.push((node, job, contribution));
                let Scope::Foreign { nodes, .. } = &id.scope else { panic!("{id:?} is no fence of PMIx") };
                if round.len() == nodes.len() {
                    let mut round = self.rounds.remove(&id).unwrap();
                    round.sort_by_key(|(node, ..)| *node);
                    let segments = round.iter().flat_map(|(.., brought)| &brought.segments);
                    self.brought.push(segments.map(|segment| segment.pairs().count()).sum());
                    let merged = self.merged(round.iter().map(|(.., brought)| brought));
                    if let Scope::Foreign { name, .. } = &id.scope {
                        self.fences.push(name.to_string());
                    }
                    for (node, job, _) in round {
                        self.nodes[node].handle_fence(job, &id, Ok(merged.clone()));
                    }
                    self.run();
                }
            }
            Action::Call { ticket, call: Call::Meet(meeting), .. } => self.meeting.push((node, ticket, meeting)),
            Action::Call { ticket, call: call @ Call::Spawn(_), .. } => {
                self.spawns.push((node, ticket));
                self.calls.push(call);
            }
            Action::Call { ticket, call: Call::Look, .. } => {
                let seen = self.processes.get(&node).cloned().unwrap_or_default();
                self.nodes[node].handle_answer(ticket, &Answer::Seen(seen));
            }
            Action::Call { ticket, call: Call::Signal { ranks, signal }, .. } => {
                let known = if signal == 99 { Err(SignalError::NoSuchSignal { signal }) } else { Ok(()) };
                self.signals.push((node, ranks, signal));
                self.nodes[node].handle_answer(ticket, &Answer::Signalled(known));
            }
            Action::Call { ticket, job, rank, call } => {
                self.calls.push(call.clone());
                let user =
                    NameUser { job: format!("job{}", job.0), host: format!("node{node}"), ..NameUser::default() };
                let answer = at_once(call.ask(&Table(std::sync::Mutex::new(&mut self.names), user), rank));
                self.nodes[node].handle_answer(ticket, &answer);
            }
            Action::Ask { ticket, node: other, question } => {
                self.questions += 1;
                let other = other.index();
                if self.lost == Some(other) {
                    return self.nodes[node].handle_peer_answer(ticket, None);
                }
                let at_other = self.nodes[other].handle_question(&question);
                self.asked.insert((other, at_other), (node, ticket));
                self.run();
            }
            Action::Reply { ticket, answer } => {
                self.largest = self.largest.max(answer.len());
                self.note_large(&answer);
                let (asker, ticket) = self.asked.remove(&(node, ticket)).expect("a question is answered twice");
                if self.delays_answers {
                    return self.late.push((asker, ticket, answer));
                }
                self.nodes[asker].handle_peer_answer(ticket, Some(&answer));
                self.run();
            }
            Action::SetTimer { ticket, after } => {
                self.timers.push((node, ticket));
                self.limits.push(after);
            }
            Action::CancelTimer { ticket } => self.timers.retain(|&timer| timer != (node, ticket)),
            Action::Say { text, .. } => self.said.push(text),
            Action::Died { death, .. } => self.deaths.push(death.rank),
            Action::SecondProcess { rank, .. } => self.second.push(rank),
            Action::Registered { files } => self.registered.extend(files),
            Action::End { reason, .. } => self.end = Some(reason),
            Action::Needed(Need::Over) => assert!(self.needed.remove(&node).is_some()),
            Action::Needed(need) => assert_ne!(self.needed.insert(node, need), Some(need)),
            other => panic!("{other:?} was not expected"),
        }
    }

    fn note_large(&mut self, bytes: &Bytes) {
        if bytes.len() >= 64 << 10 {
            self.large.push(bytes.clone());
        }
    }

    /// Result of a fence: all contributions, except the withheld data.
    fn merged<'a>(&self, brought: impl Iterator<Item = &'a Contribution> + Clone) -> Merged {
        let segments: Vec<_> = brought.clone().flat_map(|brought| brought.segments.clone()).collect();
        let bytes = segments.iter().map(|segment| segment.as_bytes().len() as u64).sum();
        let withholds = match brought.clone().next().map(|first| first.exchange) {
            Some(Exchange::Auto) => bytes > self.frame,
            Some(Exchange::Lazy) => bytes > 0,
            Some(Exchange::Full) | None => false,
        };
        if !withholds {
            return segments.into();
        }
        let first = brought.take(1).flat_map(|brought| brought.segments.clone()).collect();
        Merged { segments: first, withheld: bytes }
    }
}

/// A fence over a whole job.
pub(crate) fn whole(namespace: &'static str) -> [Proc<'static>; 1] {
    [Proc { namespace: namespace.as_bytes(), rank: RANK_WILDCARD }]
}

pub(crate) fn seat(job: usize, local: u32) -> Seat {
    Seat { job: JobIndex(job), local: LocalRank(local) }
}

/// Writes a list of processes after its count, and an empty list of infos.
pub(crate) fn procs(procs: &[Proc<'_>]) -> impl FnOnce(&mut Writer) {
    move |out| {
        out.count(procs.len());
        out.group(procs.len());
        procs.iter().for_each(|&proc| out.proc(proc));
        out.count(0);
    }
}

/// The same with the directive for a collecting fence.
pub(crate) fn collecting(procs: &[Proc<'_>]) -> impl FnOnce(&mut Writer) {
    move |out| {
        out.count(procs.len());
        out.group(procs.len());
        procs.iter().for_each(|&proc| out.proc(proc));
        out.count(1);
        out.group(1);
        out.info(&Info::new("pmix.collect", Value::Bool(true)));
    }
}

/// Names in memory; no lookup waits here.
struct Table<'a>(std::sync::Mutex<&'a mut Names>, NameUser);

#[async_trait::async_trait]
impl pmi_core::services::Services for Table<'_> {
    async fn name(&self, NameRequest { user, call }: NameRequest) -> Result<Bytes, NameError> {
        let mut names = self.0.lock().unwrap();
        let user = NameUser { rank: user.rank, ..self.1.clone() };
        match call {
            NameCall::Publish { service, port, lifetime, range } => {
                names.publish(service, Published { publisher: user, port, lifetime, range }).map(|()| Bytes::new())
            }
            NameCall::Lookup { service, range, .. } => names.look_up(&user, &service, &range),
            NameCall::Unpublish { service, publisher } => {
                names.unpublish(&user, &service, publisher).map(|()| Bytes::new())
            }
            NameCall::Leave => {
                names.leave(&user);
                Ok(Bytes::new())
            }
        }
    }
}

/// Runs a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a call waited"),
    }
}
