//! An API server that a test controls, at a Unix socket with the real protocol; and the real `lattice` as its client.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use pmi_transport::address::Address;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::{Listener, serve};
use pmi_transport::proto::v1::allocation_service_server::{AllocationService, AllocationServiceServer};
use pmi_transport::proto::v1::launch_service_server::{LaunchService, LaunchServiceServer};
use pmi_transport::proto::v1::node_service_server::{NodeService, NodeServiceServer};
use pmi_transport::proto::v1::*;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// Time limit against hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
pub(crate) const LAUNCH: &str = "k3jq09zmf2";

/// Waits for an event that must occur.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it should have happened by now")
}

/// The server, and the requests that it received.
pub(crate) struct Fake {
    directory: TempDir,
    asked: mpsc::UnboundedReceiver<ReceivedRequest>,
}

/// A request that the server received.
#[derive(Debug)]
pub(crate) enum ReceivedRequest {
    Launch(Box<LaunchTasksRequest>),
    Attach(Box<Conversation>),
    Signal(SignalLaunchRequest),
    Abort(AbortLaunchRequest),
    Create(Box<CreateAllocationRequest>),
    Release(ReleaseAllocationRequest),
    Drain(DrainNodesRequest),
    Resume(ResumeNodesRequest),
    /// A list was requested, with or without past entries.
    List {
        all: bool,
    },
}

/// Recorded answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) allocations: Vec<Allocation>,
    pub(crate) launches: Vec<LaunchStatus>,
    /// The nodes; `None` for a server of an older version, which does not support the request.
    pub(crate) nodes: Option<ListNodesResponse>,
    /// Hostlist of nodes that are drained and unknown.
    pub(crate) unknown: String,
    /// Refusals of the first requests for allocations, and of the first requests to end a launch.
    pub(crate) refusals: VecDeque<Status>,
    /// The requested allocation in each successive query, before it runs.
    pub(crate) queued: VecDeque<Allocation>,
}

/// A client that follows a launch: its messages, and a channel for answers.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) to: AttachTo,
    said: Streaming<AttachRequest>,
    tell: mpsc::Sender<Result<AttachResponse, Status>>,
}

impl Conversation {
    /// Sends an answer to the client, as the event with this number.
    pub(crate) async fn tell(&self, sequence: u64, node: u32, what: attach_response::What) {
        let response = AttachResponse { sequence, node, what: Some(what) };
        self.tell.send(Ok(response)).await.expect("the client listens");
    }

    pub(crate) async fn tell_event(&self, sequence: u64, node: u32, what: node_event::What) {
        self.tell(sequence, node, attach_response::What::Event(NodeEvent { what: Some(what), ..Default::default() }))
            .await;
    }

    pub(crate) async fn output(&self, sequence: u64, node: u32, rank: u32, text: &str) {
        let output = RankOutput { rank, on_stderr: false, data: text.to_owned().into() };
        self.tell_event(sequence, node, node_event::What::Output(output)).await;
    }

    pub(crate) async fn complete(&self, sequence: u64, cause: Option<Cause>) {
        let complete = LaunchCompleteNotification { success: cause.is_none(), cause, ..Default::default() };
        self.tell(sequence, 0, attach_response::What::Complete(complete)).await;
    }

    /// Ends the connection with a status.
    pub(crate) async fn fail(self, status: Status) {
        self.tell.send(Err(status)).await.expect("the client listens");
    }

    /// Next message of the client; `None` if the client has closed the stream.
    pub(crate) async fn hear(&mut self) -> Option<attach_request::What> {
        soon(self.said.message()).await.expect("the connection lasts").and_then(|request| request.what)
    }

    /// Next message of the client that is not an acknowledgement.
    pub(crate) async fn hear_wish(&mut self) -> Option<attach_request::What> {
        loop {
            match self.hear().await {
                Some(attach_request::What::Acknowledge(_)) => {}
                wish => return wish,
            }
        }
    }

    /// Waits until the client has acknowledged this event.
    pub(crate) async fn hear_acknowledged(&mut self, sequence: u64) {
        while self.hear().await.expect("an acknowledgement") != attach_request::What::Acknowledge(sequence) {}
    }
}

impl Fake {
    /// Starts a server without any data.
    pub(crate) async fn start() -> Self {
        Self::answering(Answers::default()).await
    }

    /// Starts a server with these answers.
    pub(crate) async fn answering(answers: Answers) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Unix(directory.path().join("api.sock"));
        let security = Security::Insecure { name: Caller::Api };
        let listener = Listener::bind(&address, &security).await.unwrap();
        let (asked, asking) = mpsc::unbounded_channel();
        let mut routes = Routes::builder();
        let service = Service { asked, answers: Arc::new(Mutex::new(answers)) };
        routes.add_service(AllocationServiceServer::new(service.clone()));
        routes.add_service(NodeServiceServer::new(service.clone()));
        routes.add_service(LaunchServiceServer::new(service));
        tokio::spawn(async move { serve(vec![listener], routes.routes(), std::future::pending()).await.unwrap() });
        Self { directory, asked: asking }
    }

    /// The real `lattice` with these words, in an environment that names this server and an allocation.
    pub(crate) fn lattice(&self, line: &str) -> Command {
        // A script that runs the tests in the background may have set interrupts to be ignored.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_lattice")])
            .args(line.split_whitespace())
            .env("HOME", self.directory.path());
        command.env("LATTICE_API_URL", format!("unix:{}/api.sock", self.directory.path().display()));
        command.env("LATTICE_ALLOC_ID", "7f3k").env_remove("XDG_CONFIG_HOME").env("TZ", "UTC");
        // Hides launches of this machine.
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// A directory of the test.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Next request.
    pub(crate) async fn asked(&mut self) -> ReceivedRequest {
        soon(self.asked.recv()).await.expect("the server lives")
    }

    /// Next client that follows the launch. It receives `spec` first.
    pub(crate) async fn attached(&mut self, spec: LaunchSpec) -> Conversation {
        match self.asked().await {
            ReceivedRequest::Attach(conversation) => {
                conversation.tell(0, 0, attach_response::What::Spec(spec)).await;
                *conversation
            }
            other => panic!("{other:?} instead of an attach"),
        }
    }

    /// Starts `lattice launch` with these words, and takes its launch request and its attach request.
    pub(crate) async fn launched(&mut self, line: &str) -> (Child, LaunchTasksRequest, Conversation) {
        let child = self.lattice(&format!("launch {line}")).stdin(Stdio::piped()).spawn().unwrap();
        let request = match self.asked().await {
            ReceivedRequest::Launch(request) => *request,
            other => panic!("{other:?} instead of a launch"),
        };
        let conversation = self.attached(spec()).await;
        (child, request, conversation)
    }
}

/// Two ranks on two nodes. The first rank reads standard input, and the client may send four bytes at once.
pub(crate) fn spec() -> LaunchSpec {
    LaunchSpec {
        launch_id: LAUNCH.to_owned(),
        allocation_id: "7f3k".to_owned(),
        nodes: "node[0-1]".to_owned(),
        addresses: "10.0.0.[1-2]:50052".to_owned(),
        job: Some(Job {
            id: format!("kvs_{LAUNCH}_0"),
            blocks: vec![Block { first_node: 0, nodes: 2, ranks_per_node: 1 }],
            apps: vec![App { ranks: 2, appnum: 0 }],
            ..Job::default()
        }),
        apps: vec![AppSpec { program: "./app".into(), directory: "/".into(), ..AppSpec::default() }],
        stdin: Some(StdinTarget { target: Some(stdin_target::Target::Rank(0)) }),
        stdin_window: 4,
        ..LaunchSpec::default()
    }
}

#[derive(Clone)]
struct Service {
    asked: mpsc::UnboundedSender<ReceivedRequest>,
    answers: Arc<Mutex<Answers>>,
}

impl Service {
    fn note(&self, asked: ReceivedRequest) {
        self.asked.send(asked).expect("the test listens");
    }

    fn answers(&self) -> Answers {
        self.answers.lock().unwrap().clone()
    }

    fn allocation(&self, id: &str) -> Result<Response<Allocation>, Status> {
        let found = self.answers().allocations.into_iter().find(|allocation| allocation.id == id);
        found.map(Response::new).ok_or_else(|| Status::not_found(format!("there is no allocation {id}")))
    }
}

#[tonic::async_trait]
impl AllocationService for Service {
    async fn launch_tasks(
        &self,
        request: Request<LaunchTasksRequest>,
    ) -> Result<Response<LaunchTasksResponse>, Status> {
        let request = request.into_inner();
        if request.allocation_id == "pending" {
            return Err(Status::failed_precondition("allocation pending is pending; launches need a running one"));
        }
        let (task_launch_id, notes) = match request.plan_only {
            true => (String::new(), vec!["2 ranks on 1 cores of node0".to_owned()]),
            false => (LAUNCH.to_owned(), Vec::new()),
        };
        self.note(ReceivedRequest::Launch(Box::new(request)));
        Ok(Response::new(LaunchTasksResponse {
            task_launch_id,
            spec: Some(spec()),
            notes,
            lease_ms: 0,
            absent: Vec::new(),
        }))
    }

    async fn create_allocation(
        &self,
        request: Request<CreateAllocationRequest>,
    ) -> Result<Response<Allocation>, Status> {
        self.note(ReceivedRequest::Create(Box::new(request.into_inner())));
        if let Some(refusal) = self.answers.lock().unwrap().refusals.pop_front() {
            return Err(refusal);
        }
        if let Some(queued) = self.answers.lock().unwrap().queued.pop_front() {
            return Ok(Response::new(queued));
        }
        Ok(Response::new(Allocation { id: "7f3k".to_owned(), state: 2, ..Allocation::default() }))
    }

    async fn get_allocation(&self, request: Request<GetAllocationRequest>) -> Result<Response<Allocation>, Status> {
        if let Some(queued) = self.answers.lock().unwrap().queued.pop_front() {
            return Ok(Response::new(queued));
        }
        self.allocation(&request.into_inner().id)
    }

    async fn list_allocations(
        &self,
        request: Request<ListAllocationsRequest>,
    ) -> Result<Response<ListAllocationsResponse>, Status> {
        self.note(ReceivedRequest::List { all: request.into_inner().all });
        Ok(Response::new(ListAllocationsResponse { allocations: self.answers().allocations }))
    }

    async fn release_allocation(
        &self,
        request: Request<ReleaseAllocationRequest>,
    ) -> Result<Response<Allocation>, Status> {
        let request = request.into_inner();
        self.note(ReceivedRequest::Release(request.clone()));
        self.allocation(&request.id)
    }
}

#[tonic::async_trait]
impl LaunchService for Service {
    type AttachLaunchStream = ReceiverStream<Result<AttachResponse, Status>>;

    async fn attach_launch(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachLaunchStream>, Status> {
        let mut said = request.into_inner();
        let Some(AttachRequest { what: Some(attach_request::What::Attach(to)) }) = said.message().await? else {
            return Err(Status::invalid_argument("the first message must be an attach"));
        };
        let (tell, told) = mpsc::channel(64);
        self.note(ReceivedRequest::Attach(Box::new(Conversation { to, said, tell })));
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn list_launches(
        &self,
        request: Request<ListLaunchesRequest>,
    ) -> Result<Response<ListLaunchesResponse>, Status> {
        self.note(ReceivedRequest::List { all: request.into_inner().all });
        let launches = self.answers().launches.into_iter().filter_map(|launch| launch.summary).collect();
        Ok(Response::new(ListLaunchesResponse { launches }))
    }

    async fn get_launch(&self, request: Request<GetLaunchRequest>) -> Result<Response<LaunchStatus>, Status> {
        let id = request.into_inner().id;
        let is_meant = |launch: &LaunchStatus| launch.summary.as_ref().is_some_and(|summary| summary.id == id);
        let found = self.answers().launches.into_iter().find(is_meant);
        found.map(Response::new).ok_or_else(|| Status::not_found(format!("there is no launch {id}")))
    }

    async fn signal_launch(
        &self,
        request: Request<SignalLaunchRequest>,
    ) -> Result<Response<SignalLaunchResponse>, Status> {
        self.note(ReceivedRequest::Signal(request.into_inner()));
        Ok(Response::new(SignalLaunchResponse {}))
    }

    async fn abort_launch(
        &self,
        request: Request<AbortLaunchRequest>,
    ) -> Result<Response<AbortLaunchResponse>, Status> {
        self.note(ReceivedRequest::Abort(request.into_inner()));
        if let Some(refusal) = self.answers.lock().unwrap().refusals.pop_front() {
            return Err(refusal);
        }
        Ok(Response::new(AbortLaunchResponse {}))
    }
}

#[tonic::async_trait]
impl NodeService for Service {
    type ReportLaunchStream = ReceiverStream<Result<NodeCommand, Status>>;

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        self.answers().nodes.map(Response::new).ok_or_else(|| Status::unimplemented(""))
    }

    async fn drain_nodes(&self, request: Request<DrainNodesRequest>) -> Result<Response<DrainNodesResponse>, Status> {
        self.note(ReceivedRequest::Drain(request.into_inner()));
        Ok(Response::new(DrainNodesResponse { unknown: self.answers().unknown }))
    }

    async fn resume_nodes(
        &self,
        request: Request<ResumeNodesRequest>,
    ) -> Result<Response<ResumeNodesResponse>, Status> {
        self.note(ReceivedRequest::Resume(request.into_inner()));
        Ok(Response::new(ResumeNodesResponse {}))
    }

    async fn register_node(&self, _: Request<RegisterNodeRequest>) -> Result<Response<RegisterNodeResponse>, Status> {
        Err(only_of_agents())
    }

    async fn heartbeat(&self, _: Request<HeartbeatRequest>) -> Result<Response<HeartbeatResponse>, Status> {
        Err(only_of_agents())
    }

    async fn renew_certificate(
        &self,
        _: Request<RenewCertificateRequest>,
    ) -> Result<Response<RenewCertificateResponse>, Status> {
        Err(only_of_agents())
    }

    async fn report_launch(
        &self,
        _: Request<Streaming<LaunchReport>>,
    ) -> Result<Response<Self::ReportLaunchStream>, Status> {
        Err(only_of_agents())
    }

    async fn call_name(&self, _: Request<NameRequest>) -> Result<Response<NameAnswer>, Status> {
        Err(only_of_agents())
    }

    async fn spawn_tasks(&self, _: Request<SpawnRequest>) -> Result<Response<SpawnAnswer>, Status> {
        Err(only_of_agents())
    }

    type ProxyUserStream = tonic::codegen::BoxStream<ProxiedBytes>;

    async fn proxy_user(&self, _: Request<Streaming<ProxiedBytes>>) -> Result<Response<Self::ProxyUserStream>, Status> {
        Err(only_of_agents())
    }

    async fn meet_launches(&self, _: Request<MeetRequest>) -> Result<Response<MeetAnswer>, Status> {
        Err(only_of_agents())
    }

    async fn pass_to_set(&self, _: Request<PassRequest>) -> Result<Response<SetPass>, Status> {
        Err(Status::not_found("no set of yours lives here"))
    }
}

fn only_of_agents() -> Status {
    Status::unimplemented("agents ask this, commands do not")
}
