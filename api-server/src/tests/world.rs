//! A cluster in one thread: the real server with real connections, and agents that each test controls.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::timeouts;
use parking_lot::Mutex;
use pmi_transport::address::Address;
use pmi_transport::connect::{self, Channel};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::{self, Listener};
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::launch_service_client::LaunchServiceClient;
use pmi_transport::proto::v1::node_agent_service_server::{NodeAgentService, NodeAgentServiceServer};
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::*;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::allocations::plan::AllocationSettings;
use crate::clock::STANDSTILL;
use crate::config::{Config, Identity};
use crate::launch::settings::LaunchSettings;
use crate::launch::spool::SpoolLimits;
use crate::launch_quota::LaunchShares;
use crate::listed_nodes::ListedNodes;
use crate::routes;
use crate::server::{Parts, Server};
use crate::start_policy::StartPolicy;
use crate::store::{LaunchRecord, RedbStore, Store};

/// Protects against hangs; no step takes long.
const DEADLINE: Duration = Duration::from_secs(60);
/// The user of most tests.
pub(super) const USER: Caller = Caller::User(1000);

/// Waits for something that must happen.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it takes too long")
}

/// Advances the time, in steps that are no standstill of the server.
pub(super) async fn pass(time: Duration) {
    tokio::time::pause();
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(STANDSTILL / 2);
        tokio::time::advance(step).await;
        left -= step;
    }
    tokio::time::resume();
}

/// A server, and agents named node0, node1, ...
pub(super) struct World {
    store: Arc<dyn Store>,
    address: Address,
    stop: Option<oneshot::Sender<()>>,
    policy: StartPolicy,
    settings: LaunchSettings,
    pub agents: Vec<Agent>,
}

impl World {
    /// Starts a server and registers `nodes` agents.
    pub(super) async fn new(nodes: usize) -> Self {
        Self::on(Arc::new(RedbStore::in_memory().unwrap()), nodes).await
    }

    /// The same, with launches that the first node forwards to the next one, and so on.
    pub(super) async fn relayed(nodes: usize) -> Self {
        let settings = LaunchSettings { relay_above: 1, relay_fan_out: 1, ..Default::default() };
        Self::with(Arc::new(RedbStore::in_memory().unwrap()), nodes, StartPolicy::default(), settings).await
    }

    /// The same with this policy.
    pub(super) async fn under(policy: StartPolicy, nodes: usize) -> Self {
        Self::with(Arc::new(RedbStore::in_memory().unwrap()), nodes, policy, LaunchSettings::default()).await
    }

    /// The same with the state in `store`.
    pub(super) async fn on(store: Arc<dyn Store>, nodes: usize) -> Self {
        Self::with(store, nodes, StartPolicy::default(), LaunchSettings::default()).await
    }

    async fn with(store: Arc<dyn Store>, nodes: usize, policy: StartPolicy, settings: LaunchSettings) -> Self {
        let (address, stop) = serve(&store, &policy, settings).await;
        let mut world = Self { store, address, stop: Some(stop), policy, settings, agents: Vec::new() };
        for index in 0..nodes {
            let agent = Agent::start(&format!("node{index}")).await;
            world.agents.push(agent);
            world.register(index, 1, &[]).await;
        }
        world
    }

    /// Ends the server, and starts another one with the stored state.
    pub(super) async fn restart(&mut self) {
        drop(self.stop.take());
        let (address, stop) = serve(&self.store, &self.policy, self.settings).await;
        (self.address, self.stop) = (address, Some(stop));
    }

    /// The stored record of a running launch.
    pub(super) fn kept(&self, launch: &str) -> LaunchRecord {
        let is_it = |record: &LaunchRecord| record.summary.as_ref().is_some_and(|summary| summary.id == launch);
        self.store.read().unwrap().launches.into_iter().find(is_it).expect("it was started")
    }

    /// Connection of `caller` to the server.
    pub(super) fn channel(&self, caller: &Caller) -> Channel {
        channel(&self.address, caller)
    }

    pub(super) fn allocations(&self, caller: &Caller) -> AllocationServiceClient<Channel> {
        AllocationServiceClient::new(self.channel(caller))
    }

    pub(super) fn launches(&self) -> LaunchServiceClient<Channel> {
        LaunchServiceClient::new(self.channel(&USER))
    }

    pub(super) fn nodes(&self, index: usize) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel(&Caller::Agent(format!("node{index}"))))
    }

    /// Registers an agent; returns the launches that it must end.
    pub(super) async fn register(&self, index: usize, incarnation: u64, launches: &[&str]) -> Vec<String> {
        let request = RegisterNodeRequest {
            node_id: format!("node{index}"),
            grpc_address: self.agents[index].address.to_string(),
            cores: 4,
            incarnation,
            launches: launches.iter().map(|&id| id.to_owned()).collect(),
            ..Default::default()
        };
        soon(self.nodes(index).register_node(request)).await.unwrap().into_inner().unknown_launches
    }

    /// An allocation of all nodes.
    pub(super) async fn allocate(&self, requeue: RequeuePolicy) -> String {
        let num_nodes = self.agents.len() as u32;
        let request = CreateAllocationRequest { num_nodes, requeue: requeue.into(), ..Default::default() };
        soon(self.allocations(&USER).create_allocation(request)).await.unwrap().into_inner().id
    }

    /// Starts `ranks` ranks in a new allocation, and opens the report streams of all nodes.
    pub(super) async fn launch(&self, ranks: u32) -> Running {
        let allocation = self.allocate(RequeuePolicy::Never).await;
        self.launch_in(&LaunchTasksRequest { num_tasks: ranks, ..order(&allocation) }).await
    }

    pub(super) async fn launch_in(&self, request: &LaunchTasksRequest) -> Running {
        let answer = soon(self.allocations(&USER).launch_tasks(request.clone())).await.unwrap().into_inner();
        let mut reports = Vec::new();
        let nodes = hostlist::expand(&answer.spec.as_ref().unwrap().nodes).unwrap();
        for (index, node) in nodes.iter().enumerate() {
            let agent: usize = node.trim_start_matches("node").parse().unwrap();
            reports.push(self.report(&answer.task_launch_id, agent, index as u32).await);
        }
        Running { id: answer.task_launch_id, reports }
    }

    /// An agent's first report stream.
    pub(super) async fn report(&self, launch: &str, agent: usize, index: u32) -> Report {
        self.open(launch, agent, index, false).await
    }

    /// An agent's report stream after one that broke, and the number of the last event that the server received.
    pub(super) async fn report_again(&self, launch: &str, agent: usize, index: u32) -> (Report, Option<u64>) {
        let mut report = self.open(launch, agent, index, true).await;
        let Some(node_command::What::Resume(Resume { after })) = report.command().await else { panic!("no word") };
        (report, after)
    }

    async fn open(&self, launch: &str, agent: usize, index: u32, again: bool) -> Report {
        let (sender, receiver) = mpsc::channel(64);
        let of = ReportFor { launch_id: launch.to_owned(), node_id: format!("node{agent}"), node_index: index, again };
        sender.send(LaunchReport { what: Some(launch_report::What::Of(of)) }).await.unwrap();
        let answer = soon(self.nodes(agent).report_launch(ReceiverStream::new(receiver))).await.unwrap();
        Report { events: sender, commands: answer.into_inner() }
    }

    /// Follows a launch as its owner.
    pub(super) async fn attach(&self, launch: &str, after: u64) -> Follower {
        attach(self.launches(), AttachTo { launch_id: launch.to_owned(), after, tied: true }).await
    }

    /// Follows a launch as a viewer.
    pub(super) async fn look(&self, launch: &str, after: u64) -> Follower {
        attach(self.launches(), AttachTo { launch_id: launch.to_owned(), after, tied: false }).await
    }

    /// Follows a launch that must end without this client. Then the client dies.
    pub(super) async fn attach_and_die(&self, launch: &str) {
        let (address, launch_id) = (self.address.clone(), launch.to_owned());
        let client = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = LaunchServiceClient::new(channel(&address, &USER));
                attach(client, AttachTo { launch_id, after: 0, tied: true }).await.hear().await.unwrap();
            });
            // The end of the runtime closes all its connections, at any point of their work.
        });
        soon(tokio::task::spawn_blocking(|| client.join())).await.unwrap().unwrap();
    }
}

fn channel(address: &Address, caller: &Caller) -> Channel {
    let security = Security::Insecure { name: caller.clone() };
    connect::channel(address, &Caller::Api, &security).unwrap()
}

async fn attach(mut client: LaunchServiceClient<Channel>, to: AttachTo) -> Follower {
    let (sender, receiver) = mpsc::channel(64);
    sender.send(AttachRequest { what: Some(attach_request::What::Attach(to)) }).await.unwrap();
    let answer = soon(client.attach_launch(ReceiverStream::new(receiver))).await.unwrap();
    Follower { say: sender, hear: answer.into_inner() }
}

async fn serve(
    store: &Arc<dyn Store>,
    policy: &StartPolicy,
    settings: LaunchSettings,
) -> (Address, oneshot::Sender<()>) {
    let (server, proxied) = server_on(store, policy, settings);
    tokio::spawn(Arc::clone(&server).take_up());
    tokio::spawn(Arc::clone(&server).tend_queue());
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &server.security).await.unwrap();
    let address = listener.local_address();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(listen::serve(vec![listener, proxied], routes(&server), async {
        let _ = stopped.await;
    }));
    (address, stop)
}

/// A server that takes over the state in `store`.
pub(super) fn server_on(
    store: &Arc<dyn Store>,
    policy: &StartPolicy,
    launches: LaunchSettings,
) -> (Arc<Server>, Listener) {
    let security = Security::Insecure { name: Caller::Api };
    let config = Config {
        listen: Vec::new(),
        port_range: None,
        socket: None,
        // Files next to this path do not remain after the test.
        state: std::env::temp_dir().join("lattice-test.redb"),
        inventory: None,
        metrics: None,
        identity: Identity::Insecure,
        allocations: AllocationSettings::default(),
        policy: policy.clone(),
        renewal: None,
        lease: timeouts::LEASE,
        launches,
        launch_shares: LaunchShares { launches: 4, spec_bytes: 1 << 20, all_spec_bytes: 8 << 20 },
        spool: SpoolLimits::default(),
        fabric: None,
    };
    let (proxy, proxied) = Listener::proxied();
    let parts = Parts { store: Arc::clone(store), fabric: None, renewal: None, proxy, listed: ListedNodes::default() };
    (Server::new(config, security, parts).unwrap(), proxied)
}

/// A request as our own client creates it. Only the number of ranks may differ.
pub(super) fn order(allocation: &str) -> LaunchTasksRequest {
    let app = AppSpec { program: "./app".into(), directory: "/".into(), ..Default::default() };
    let spec = LaunchSpec {
        apps: vec![app],
        job: Some(Job { apps: vec![App::default()], ..Default::default() }),
        ..Default::default()
    };
    LaunchTasksRequest { allocation_id: allocation.to_owned(), num_tasks: 1, spec: Some(spec), ..Default::default() }
}

/// A started launch, and the report streams of its nodes.
pub(super) struct Running {
    pub id: String,
    pub reports: Vec<Report>,
}

/// An agent's side of a report stream.
pub(super) struct Report {
    events: mpsc::Sender<LaunchReport>,
    commands: Streaming<NodeCommand>,
}

impl Report {
    pub(super) async fn tell(&self, what: node_event::What) {
        let event = NodeEvent { what: Some(what), ..Default::default() };
        let report = LaunchReport { what: Some(launch_report::What::Event(event)) };
        soon(self.events.send(report)).await.unwrap();
    }

    /// Reports the event of the session with this number.
    pub(super) async fn tell_numbered(&self, sequence: u64, what: node_event::What) {
        let event = NodeEvent { what: Some(what), sequence, commands_taken: 0 };
        soon(self.events.send(LaunchReport { what: Some(launch_report::What::Event(event)) })).await.unwrap();
    }

    /// Reports that the session continues after this event, and has processed commands up to that number.
    pub(super) async fn resumed(&self, after: u64, commands_taken: u64) {
        let resumed = Resumed { after, commands_taken, stream: 0 };
        soon(self.events.send(LaunchReport { what: Some(launch_report::What::Resumed(resumed)) })).await.unwrap();
    }

    /// The next command; `None` at the end of the stream.
    pub(super) async fn command(&mut self) -> Option<node_command::What> {
        self.numbered().await.and_then(|command| command.what)
    }

    /// The next command with its number, or an acknowledgement; `None` at the end of the stream.
    pub(super) async fn numbered(&mut self) -> Option<NodeCommand> {
        soon(self.commands.message()).await.ok().flatten()
    }

    /// Reports the start of a rank, and its end.
    pub(super) async fn run(&self, rank: u32, exit_code: i32, phase: RankPhase) {
        self.tell(node_event::What::Started(RankStarted { rank, pid: 100 + rank, ..Default::default() })).await;
        self.tell(node_event::What::Exited(exit(rank, exit_code, phase))).await;
    }

    pub(super) async fn finish(&self) {
        self.tell(node_event::What::Report(SessionReport::default())).await;
    }

    pub(super) async fn output(&self, rank: u32, bytes: usize) {
        let data = vec![b'x'; bytes].into();
        self.tell(node_event::What::Output(RankOutput { rank, on_stderr: false, data })).await;
    }

    /// Answers the next question, which must be the next command. Each rank comes with true if it waits.
    pub(super) async fn answer(&mut self, ranks: &[(u32, bool)]) {
        use node_command::What::{AskProgress, AskUsage};
        let Some(AskProgress(question) | AskUsage(question)) = self.command().await else { panic!("no question") };
        let progress = |&(rank, waiting): &(u32, bool)| RankProgress {
            rank,
            pid: 100 + rank,
            phase: RankPhase::Initialized.into(),
            last_command: Some("put".to_owned()),
            waiting,
            waits_for_all: waiting,
            ..Default::default()
        };
        let progress = Progress { question, ranks: ranks.iter().map(progress).collect(), stacks: None };
        self.tell(node_event::What::Progress(progress)).await;
    }
}

pub(super) fn exit(rank: u32, exit_code: i32, phase: RankPhase) -> RankExitStatus {
    RankExitStatus { rank, exit_code, phase: phase.into(), ..Default::default() }
}

/// A client's side of an attached stream.
pub(super) struct Follower {
    pub say: mpsc::Sender<AttachRequest>,
    pub hear: Streaming<AttachResponse>,
}

impl Follower {
    pub(super) async fn say(&self, what: attach_request::What) {
        soon(self.say.send(AttachRequest { what: Some(what) })).await.unwrap();
    }

    /// The next message, except for messages about the start.
    pub(super) async fn hear(&mut self) -> Result<AttachResponse, Status> {
        loop {
            let message = soon(self.hear.message()).await?;
            let message = message.ok_or_else(|| Status::unavailable("the stream is at its end"))?;
            if !matches!(message.what, Some(attach_response::What::Starting(_))) {
                return Ok(message);
            }
        }
    }

    /// The next event.
    pub(super) async fn event(&mut self) -> node_event::What {
        loop {
            if let Some(attach_response::What::Event(event)) = self.hear().await.unwrap().what {
                return event.what.unwrap();
            }
        }
    }

    /// Skips everything up to the end, and acknowledges the end.
    pub(super) async fn complete(&mut self) -> LaunchCompleteNotification {
        loop {
            let message = self.hear().await.unwrap();
            if let Some(attach_response::What::Complete(complete)) = message.what {
                let acknowledge = Some(attach_request::What::Acknowledge(message.sequence));
                // The message has no receiver if the launch ended long ago.
                let _ = self.say.send(AttachRequest { what: acknowledge }).await;
                return complete;
            }
        }
    }
}

/// An agent that accepts launches by default, and records the requests that it receives.
pub(super) struct Agent {
    address: Address,
    pub seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// The answer to the next launches; `None` to accept them.
    pub refusal: Option<LaunchProcessesResponse>,
    pub launched: Vec<LaunchProcessesRequest>,
    pub aborted: Vec<AbortProcessesRequest>,
    /// Launches that the agent must report to the API server directly.
    pub directly: Vec<String>,
    /// The streams on which its reports are fetched.
    pub fetched: Vec<Fetched>,
}

/// A relay's side of the stream on which its reports are fetched.
pub(super) type Fetched = (Streaming<RelayedCommands>, mpsc::Sender<Result<RelayedReports, Status>>);

impl Agent {
    async fn start(name: &str) -> Self {
        let security = Security::Insecure { name: Caller::Agent(name.to_owned()) };
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &security).await.unwrap();
        let address = listener.local_address();
        let seen = Arc::<Mutex<Seen>>::default();
        let service = NodeAgentServiceServer::new(Scripted(Arc::clone(&seen)));
        tokio::spawn(listen::serve(vec![listener], Routes::new(service), std::future::pending()));
        Self { address, seen }
    }
}

struct Scripted(Arc<Mutex<Seen>>);

#[tonic::async_trait]
impl NodeAgentService for Scripted {
    async fn launch_processes(
        &self,
        request: Request<LaunchProcessesRequest>,
    ) -> Result<Response<LaunchProcessesResponse>, Status> {
        let mut seen = self.0.lock();
        seen.launched.push(request.into_inner());
        let accepted = LaunchProcessesResponse { accepted: true, ..Default::default() };
        Ok(Response::new(seen.refusal.clone().unwrap_or(accepted)))
    }

    async fn abort_processes(
        &self,
        request: Request<AbortProcessesRequest>,
    ) -> Result<Response<AbortProcessesResponse>, Status> {
        self.0.lock().aborted.push(request.into_inner());
        Ok(Response::new(AbortProcessesResponse {}))
    }

    async fn pmi_fence(&self, _: Request<PmiFenceRequest>) -> Result<Response<PmiFenceResponse>, Status> {
        Err(Status::unimplemented("no fences here"))
    }

    async fn pmi_fence_complete(
        &self,
        _: Request<PmiFenceCompleteRequest>,
    ) -> Result<Response<PmiFenceCompleteResponse>, Status> {
        Err(Status::unimplemented("no fences here"))
    }

    async fn retire_vni(&self, _: Request<RetireVniRequest>) -> Result<Response<RetireVniResponse>, Status> {
        Ok(Response::new(RetireVniResponse { clear: true, left: String::new() }))
    }

    async fn list_cxi_services(
        &self,
        _: Request<ListCxiServicesRequest>,
    ) -> Result<Response<ListCxiServicesResponse>, Status> {
        Ok(Response::new(ListCxiServicesResponse::default()))
    }

    type RelayReportsStream = ReceiverStream<Result<RelayedReports, Status>>;

    async fn relay_reports(
        &self,
        request: Request<Streaming<RelayedCommands>>,
    ) -> Result<Response<Self::RelayReportsStream>, Status> {
        let (sender, receiver) = mpsc::channel(64);
        self.0.lock().fetched.push((request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn report_directly(
        &self,
        request: Request<ReportDirectlyRequest>,
    ) -> Result<Response<ReportDirectlyResponse>, Status> {
        self.0.lock().directly.push(request.into_inner().launch_id);
        Ok(Response::new(ReportDirectlyResponse {}))
    }

    type LinkStream = ReceiverStream<Result<LinkFrame, Status>>;

    async fn link(&self, _: Request<Streaming<LinkFrame>>) -> Result<Response<Self::LinkStream>, Status> {
        Err(Status::unimplemented("no fences here"))
    }
}
