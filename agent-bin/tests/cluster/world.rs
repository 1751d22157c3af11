//! A scripted API server, agents as real processes, and what the tests ask of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pmi_transport::connect::{self, Channel};
use pmi_transport::hostlist;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::{self, Listener};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::launch_report::What as ReportWhat;
use proto::node_agent_service_client::NodeAgentServiceClient;
use proto::node_command::What as Command;
use proto::node_event::What as Event;
use proto::node_service_server::{NodeService, NodeServiceServer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming, async_trait};

/// Long enough for the slowest machine; reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of the user `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// Says so, where a test needs root.
pub(crate) fn ignored_when_not_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("not root: nothing to see");
    }
    !root
}

/// The API server: it takes registrations and streams of reports, and the test says what it answers.
pub(crate) struct Api {
    pub(crate) address: String,
    registrations: mpsc::UnboundedReceiver<proto::RegisterNodeRequest>,
    launches: mpsc::UnboundedReceiver<Launch>,
    forgetful: Arc<AtomicBool>,
    last_serial: Arc<AtomicU64>,
    _stop: oneshot::Sender<()>,
}

struct Script {
    registrations: mpsc::UnboundedSender<proto::RegisterNodeRequest>,
    launches: mpsc::UnboundedSender<Launch>,
    forgetful: Arc<AtomicBool>,
    last_serial: Arc<AtomicU64>,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::start_as(&Security::Insecure { name: Caller::Api }).await
    }

    pub(crate) async fn start_as(security: &Security) -> Self {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), security).await.unwrap();
        let address = listener.local_address().to_string();
        let (registered, registrations) = mpsc::unbounded_channel();
        let (reported, launches) = mpsc::unbounded_channel();
        let forgetful = Arc::new(AtomicBool::new(false));
        let last_serial = Arc::new(AtomicU64::new(0));
        let script = Script {
            registrations: registered,
            launches: reported,
            forgetful: Arc::clone(&forgetful),
            last_serial: Arc::clone(&last_serial),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let service = NodeServiceServer::new(script);
            let stopped = async { drop(stopped.await) };
            listen::serve(vec![listener], Routes::new(service), stopped).await.unwrap();
        });
        Self { address, registrations, launches, forgetful, last_serial, _stop: stop }
    }

    pub(crate) fn forget_nodes(&self) {
        self.forgetful.store(true, Ordering::Relaxed);
    }

    /// Says to agents that register from now on that launches up to this number have been signed.
    pub(crate) fn has_signed(&self, serial: u64) {
        self.last_serial.store(serial, Ordering::Relaxed);
    }

    pub(crate) async fn next_registration(&mut self) -> proto::RegisterNodeRequest {
        timeout(PATIENCE, self.registrations.recv()).await.expect("an agent registers").unwrap()
    }

    pub(crate) async fn next_launch(&mut self) -> Launch {
        timeout(PATIENCE, self.launches.recv()).await.expect("an agent reports").unwrap()
    }
}

#[async_trait]
impl NodeService for Script {
    async fn register_node(
        &self,
        request: Request<proto::RegisterNodeRequest>,
    ) -> Result<Response<proto::RegisterNodeResponse>, Status> {
        self.registrations.send(request.into_inner()).unwrap();
        let last_serial = self.last_serial.load(Ordering::Relaxed);
        Ok(Response::new(proto::RegisterNodeResponse { heartbeat_ms: 50, unknown_launches: Vec::new(), last_serial }))
    }

    async fn heartbeat(
        &self,
        _: Request<proto::HeartbeatRequest>,
    ) -> Result<Response<proto::HeartbeatResponse>, Status> {
        Ok(Response::new(proto::HeartbeatResponse { register: self.forgetful.swap(false, Ordering::Relaxed) }))
    }

    async fn list_nodes(
        &self,
        _: Request<proto::ListNodesRequest>,
    ) -> Result<Response<proto::ListNodesResponse>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn drain_nodes(
        &self,
        _: Request<proto::DrainNodesRequest>,
    ) -> Result<Response<proto::DrainNodesResponse>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn resume_nodes(
        &self,
        _: Request<proto::ResumeNodesRequest>,
    ) -> Result<Response<proto::ResumeNodesResponse>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    type ReportLaunchStream = ReceiverStream<Result<proto::NodeCommand, Status>>;

    async fn report_launch(
        &self,
        request: Request<Streaming<proto::LaunchReport>>,
    ) -> Result<Response<Self::ReportLaunchStream>, Status> {
        let mut reports = request.into_inner();
        let Some(ReportWhat::Of(of)) = reports.message().await?.and_then(|report| report.what) else {
            return Err(Status::invalid_argument("the first message does not say what is reported"));
        };
        let (commands, receiver) = mpsc::channel(16);
        // A test that has seen enough is gone.
        let _ = self.launches.send(Launch { of, stream: Some((reports, commands)), seen: Seen::default() });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn call_name(&self, _: Request<proto::NameRequest>) -> Result<Response<proto::NameAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn spawn_tasks(&self, _: Request<proto::SpawnRequest>) -> Result<Response<proto::SpawnAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn meet_launches(&self, _: Request<proto::MeetRequest>) -> Result<Response<proto::MeetAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }
}

/// Both directions of a stream of reports.
type Stream = (Streaming<proto::LaunchReport>, mpsc::Sender<Result<proto::NodeCommand, Status>>);

/// One node's part of a launch, as the API server sees it. Dropping it ends the stream.
pub(crate) struct Launch {
    pub(crate) of: proto::ReportFor,
    stream: Option<Stream>,
    seen: Seen,
}

/// What was seen of a launch.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) output_bytes: usize,
    pub(crate) stdin_taken: u64,
    pub(crate) pids: Vec<i32>,
    pub(crate) programs: Vec<String>,
    pub(crate) progress: Option<proto::Progress>,
    pub(crate) cause: Option<proto::Cause>,
    pub(crate) report: Option<proto::SessionReport>,
}

impl std::ops::Deref for Launch {
    type Target = Seen;

    fn deref(&self) -> &Seen {
        &self.seen
    }
}

impl Launch {
    pub(crate) async fn command(&self, what: Command) {
        let (_, commands) = self.stream.as_ref().unwrap();
        commands.send(Ok(proto::NodeCommand { what: Some(what) })).await.unwrap();
    }

    /// Takes events in until `condition` holds.
    pub(crate) async fn until(&mut self, condition: impl Fn(&Seen) -> bool) {
        let seen = &mut self.seen;
        let (reports, _) = self.stream.as_mut().unwrap();
        let wait = async {
            while !condition(seen) {
                let report = reports.message().await.unwrap().expect("the stream goes on");
                let Some(ReportWhat::Event(event)) = report.what else { panic!("{report:?}") };
                seen.take(event.what.unwrap());
            }
        };
        timeout(PATIENCE, wait).await.expect("it happens in time");
    }

    pub(crate) async fn until_report(&mut self) -> proto::SessionReport {
        self.until(|seen| seen.report.is_some()).await;
        self.seen.report.clone().unwrap()
    }

    /// Breaks the stream.
    pub(crate) async fn break_off(self) {
        let (_, commands) = self.stream.unwrap();
        commands.send(Err(Status::unavailable("the script breaks it"))).await.unwrap();
    }

    /// Ends the stream as an API server does after the report.
    pub(crate) async fn end(mut self) {
        let (mut reports, commands) = self.stream.take().unwrap();
        drop(commands);
        timeout(PATIENCE, async { while let Ok(Some(_)) = reports.message().await {} }).await.unwrap();
    }
}

impl Seen {
    fn take(&mut self, event: Event) {
        match event {
            Event::Started(started) => {
                self.pids.push(started.pid as i32);
                self.programs.push(String::from_utf8(started.program.to_vec()).unwrap());
            }
            Event::Output(output) => {
                self.output_bytes += output.data.len();
                let text = String::from_utf8_lossy(&output.data).into_owned();
                if output.on_stderr { self.stderr += &text } else { self.stdout += &text }
            }
            Event::StdinTaken(bytes) => self.stdin_taken += bytes,
            Event::Progress(progress) => self.progress = Some(progress),
            Event::Ending(cause) => {
                assert_eq!(self.cause.replace(cause), None, "the first cause is told once");
            }
            Event::Report(report) => self.report = Some(report),
            _ => {}
        }
    }
}

/// An agent, killed at the latest when the test is over.
pub(crate) struct Agent {
    process: tokio::process::Child,
    pub(crate) registration: proto::RegisterNodeRequest,
}

impl Agent {
    pub(crate) async fn start(api: &mut Api, node: &str) -> Self {
        Self::start_with(api, node, &[]).await
    }

    pub(crate) async fn start_with(api: &mut Api, node: &str, flags: &[&str]) -> Self {
        let address = api.address.clone();
        let common = ["--insecure", "--allow-root", "--node-id", node, "--listen", "127.0.0.1:0", "--api", &address];
        Self::start_from(api, "/dev/null".as_ref(), &[&common, flags].concat()).await
    }

    /// An agent with this configuration, and flags.
    pub(crate) async fn start_from(api: &mut Api, config: &Path, flags: &[&str]) -> Self {
        let process = tokio::process::Command::new(env!("CARGO_BIN_EXE_lattice-agent"))
            .arg("--config")
            .arg(config)
            .args(flags)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let registration = api.next_registration().await;
        Self { process, registration }
    }

    fn client(&self, caller: &str) -> NodeAgentServiceClient<Channel> {
        self.client_as(&Security::Insecure { name: caller.parse().unwrap() })
    }

    pub(crate) fn client_as(&self, security: &Security) -> NodeAgentServiceClient<Channel> {
        let address = self.registration.grpc_address.parse().unwrap();
        let peer = Caller::Agent(self.registration.node_id.clone());
        NodeAgentServiceClient::new(connect::channel(&address, &peer, security).unwrap())
    }

    /// Asks for a launch, and takes its stream of reports.
    pub(crate) async fn launch(&self, api: &mut Api, spec: proto::LaunchSpec) -> Launch {
        let answer = self.ask(&spec, 0).await;
        assert!(answer.accepted, "{answer:?}");
        let launch = api.next_launch().await;
        assert_eq!((&launch.of.launch_id, &launch.of.node_id), (&spec.launch_id, &self.registration.node_id));
        launch
    }

    pub(crate) async fn send(&self, request: proto::LaunchProcessesRequest) -> proto::LaunchProcessesResponse {
        self.client("lattice:///api").launch_processes(request).await.unwrap().into_inner()
    }

    pub(crate) async fn ask(&self, spec: &proto::LaunchSpec, node_index: u32) -> proto::LaunchProcessesResponse {
        let request = proto::LaunchProcessesRequest { node_index, ..request(spec) };
        self.send(request).await
    }

    pub(crate) async fn ask_as(&self, caller: &str, spec: &proto::LaunchSpec) -> Result<bool, Status> {
        let answer = self.client(caller).launch_processes(request(spec)).await;
        answer.map(|answer| answer.into_inner().accepted)
    }

    /// Asks for a launch on this node and those after it.
    pub(crate) async fn ask_through(
        &self,
        spec: &proto::LaunchSpec,
        relay_nodes: u32,
        relay_fan_out: u32,
    ) -> proto::LaunchProcessesResponse {
        let request = proto::LaunchProcessesRequest { relay_nodes, relay_fan_out, ..request(spec) };
        self.send(request).await
    }

    pub(crate) async fn abort(&self, launch_id: &str, signal: i32) {
        let request =
            proto::AbortProcessesRequest { launch_id: launch_id.to_owned(), reason: "a test".to_owned(), signal };
        self.client("lattice:///api").abort_processes(request).await.unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.start_kill().unwrap();
    }

    pub(crate) fn terminate(&self) {
        let pid = Pid::from_raw(self.process.id().unwrap() as i32);
        nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap()
    }
}

pub(crate) fn request(spec: &proto::LaunchSpec) -> proto::LaunchProcessesRequest {
    proto::LaunchProcessesRequest {
        launch_id: spec.launch_id.clone(),
        spec: spec.encode_to_vec().into(),
        serial: 1,
        ..Default::default()
    }
}

/// A launch of `ranks` ranks on each node, whose ranks run a shell script.
pub(crate) fn launch_on(agents: &[&Agent], ranks: u32, script: &str) -> proto::LaunchSpec {
    static LAUNCHES: AtomicU32 = AtomicU32::new(0);
    let launch_id = format!("t{}x{}", std::process::id(), LAUNCHES.fetch_add(1, Ordering::Relaxed));
    let nodes = agents.len() as u32;
    let all = |part: fn(&proto::RegisterNodeRequest) -> &String| {
        hostlist::fold(&agents.iter().map(|agent| part(&agent.registration)).collect::<Vec<_>>())
    };
    let variable = |name: &'static str, value: String| proto::Variable { name: name.into(), value: value.into() };
    let home = std::env::var("HOME").unwrap_or_else(|_| "/".to_owned());
    proto::LaunchSpec {
        uid: nix::unistd::getuid().as_raw(),
        nodes: all(|node| &node.node_id),
        addresses: all(|node| &node.grpc_address),
        job: Some(proto::Job {
            id: format!("kvs_{launch_id}_0"),
            blocks: vec![proto::Block { first_node: 0, nodes, ranks_per_node: ranks }],
            apps: vec![proto::App { ranks: ranks * nodes, appnum: 0 }],
            ..Default::default()
        }),
        apps: vec![proto::AppSpec {
            program: "sh".into(),
            args: vec!["-c".into(), Bytes::copy_from_slice(script.as_bytes())],
            directory: "/".into(),
            ..Default::default()
        }],
        environment: vec![variable("PATH", std::env::var("PATH").unwrap()), variable("TEST_HOME", home)],
        secret: vec![7; 16].into(),
        output_window: u32::MAX,
        launch_id,
        ..Default::default()
    }
}

/// The real MPICH's hello, compiled for this test; `None`, and a word about it, where there is no MPICH.
pub(crate) fn mpich_hello() -> Option<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("hello.c"), directory.path().join("hello"));
    let text = r#"
        #include <mpi.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            int rank, size, sum;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            printf("%d of %d, sum %d\n", rank, size, sum);
            MPI_Finalize();
            return sum == size * (size - 1) / 2 ? 0 : 1;
        }"#;
    fs::write(&source, text).unwrap();
    let compiled = std::process::Command::new("mpicc.mpich").arg("-o").arg(&program).arg(&source).status();
    match compiled {
        Ok(status) if status.success() => Some((directory, program)),
        other => {
            println!("no mpicc.mpich here: {other:?}");
            None
        }
    }
}

/// Looks again and again until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let look = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Whether the process runs; a zombie does not.
pub(crate) fn runs(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat[stat.rfind(')').unwrap()..].starts_with(") Z"),
        Err(_) => false,
    }
}

/// All processes that carry the mark of a launch.
pub(crate) fn with_tag(launch_id: &str) -> Vec<i32> {
    let mark = format!("LATTICE_LAUNCH_ID={launch_id}");
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all.filter(carries).collect()
}

pub(crate) fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 1..].split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn kill(pid: i32) {
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Whether a process waits for something to read.
pub(crate) fn is_asleep_in_read(pid: i32) -> bool {
    // The calls of a sleeping process, by number: read, poll and recvfrom.
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    matches!(call.split(' ').next(), Some("0" | "7" | "45"))
}

/// All that an HTTP server says.
pub(crate) async fn http_get(address: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

/// What the agent says of settings, on either stream, and its exit code.
pub(crate) fn check_config(flags: &[&str]) -> (String, Option<i32>) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_lattice-agent"))
        .args(["--check-config", "--config", "/dev/null"])
        .args(flags)
        .output()
        .unwrap();
    (String::from_utf8([output.stdout, output.stderr].concat()).unwrap(), output.status.code())
}
