//! An API server that the test controls, and one node's part of a launch from its view.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::{self, Listener};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Challenge, Serial};
use proto::launch_report::What as ReportWhat;
use proto::node_command::What as Command;
use proto::node_event::What as Event;
use proto::node_service_server::{NodeService, NodeServiceServer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::PATIENCE;

/// The API server: it accepts registrations and streams of reports, and the test sets its answers.
pub(crate) struct Api {
    pub(crate) address: String,
    registrations: mpsc::UnboundedReceiver<proto::RegisterNodeRequest>,
    launches: mpsc::UnboundedReceiver<Launch>,
    forgetful: Arc<AtomicBool>,
    last_serial: Arc<AtomicU64>,
    taken: Taken,
    /// Directory in which sessions of its agents wait for the next agent.
    runtime: tempfile::TempDir,
    _stop: oneshot::Sender<()>,
}

struct Script {
    registrations: mpsc::UnboundedSender<proto::RegisterNodeRequest>,
    launches: mpsc::UnboundedSender<Launch>,
    forgetful: Arc<AtomicBool>,
    last_serial: Arc<AtomicU64>,
    taken: Taken,
    /// Identity that answers challenges.
    security: Security,
}

/// Number of the last event that was taken of each launch, by its id and its node.
type Taken = Arc<Mutex<HashMap<(String, u32), u64>>>;

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
            taken: Taken::default(),
            security: security.clone(),
        };
        let taken = Arc::clone(&script.taken);
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let service = NodeServiceServer::new(script);
            let stopped = async { drop(stopped.await) };
            listen::serve(vec![listener], Routes::new(service), stopped).await.unwrap();
        });
        let runtime = tempfile::tempdir().unwrap();
        Self { address, registrations, launches, forgetful, last_serial, taken, runtime, _stop: stop }
    }

    /// Writes a file with these settings for an agent.
    pub(crate) fn settings(&self, text: &str) -> PathBuf {
        let (file, path) = tempfile::NamedTempFile::new_in(self.runtime()).unwrap().keep().unwrap();
        drop(file);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Directory in which sessions of its agents wait for the next agent.
    pub(crate) fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    pub(crate) fn forget_nodes(&self) {
        self.forgetful.store(true, Ordering::Relaxed);
    }

    /// Acts as another API server from now on, without the events of launches.
    pub(crate) fn forget_events(&self) {
        self.taken.lock().clear();
    }

    /// Reports to agents that register from now on that launches up to this number have been signed.
    pub(crate) fn has_signed(&self, serial: u64) {
        self.last_serial.store(serial, Ordering::Relaxed);
    }

    pub(crate) async fn next_registration(&mut self) -> proto::RegisterNodeRequest {
        timeout(PATIENCE, self.registrations.recv()).await.expect("an agent registers").unwrap()
    }

    /// Returns true if no agent has opened a stream of reports that the test has not taken.
    pub(crate) fn no_launch_yet(&self) -> bool {
        self.launches.is_empty()
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
        let request = request.into_inner();
        let last_serial = self.last_serial.load(Ordering::Relaxed);
        let answer = <&Challenge>::try_from(&request.challenge[..]).ok().map(|challenge| {
            let last = Serial(last_serial);
            let signed = signature::sign_last_serial(&self.security, &request.node_id, challenge, last).unwrap();
            proto::SerialSignature { signature: signed.signature, signer: signed.signer }
        });
        self.registrations.send(request).unwrap();
        Ok(Response::new(proto::RegisterNodeResponse {
            heartbeat_ms: 50,
            last_serial,
            serial_signature: answer,
            ..Default::default()
        }))
    }

    async fn heartbeat(
        &self,
        _: Request<proto::HeartbeatRequest>,
    ) -> Result<Response<proto::HeartbeatResponse>, Status> {
        let register = self.forgetful.swap(false, Ordering::Relaxed);
        let last_serial = self.last_serial.load(Ordering::Relaxed);
        Ok(Response::new(proto::HeartbeatResponse { register, last_serial, ..Default::default() }))
    }

    async fn list_nodes(
        &self,
        _: Request<proto::ListNodesRequest>,
    ) -> Result<Response<proto::ListNodesResponse>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn renew_certificate(
        &self,
        _: Request<proto::RenewCertificateRequest>,
    ) -> Result<Response<proto::RenewCertificateResponse>, Status> {
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
        if of.again {
            let after = self.taken.lock().get(&(of.launch_id.clone(), of.node_index)).copied();
            let what = Some(Command::Resume(proto::Resume { after }));
            commands.send(Ok(proto::NodeCommand { what, ..Default::default() })).await.unwrap();
        }
        let taken = Arc::clone(&self.taken);
        // The test may have ended.
        let _ = self.launches.send(Launch { of, stream: Some((reports, commands)), taken, seen: Seen::default() });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn call_name(&self, _: Request<proto::NameRequest>) -> Result<Response<proto::NameAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn spawn_tasks(&self, _: Request<proto::SpawnRequest>) -> Result<Response<proto::SpawnAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    type ProxyUserStream = tonic::codegen::BoxStream<proto::ProxiedBytes>;

    async fn proxy_user(
        &self,
        _: Request<Streaming<proto::ProxiedBytes>>,
    ) -> Result<Response<Self::ProxyUserStream>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn meet_launches(&self, _: Request<proto::MeetRequest>) -> Result<Response<proto::MeetAnswer>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }

    async fn pass_to_set(&self, _: Request<proto::PassRequest>) -> Result<Response<proto::SetPass>, Status> {
        Err(Status::unimplemented("the script has no such scene"))
    }
}

/// Both directions of a stream of reports.
type Stream = (Streaming<proto::LaunchReport>, mpsc::Sender<Result<proto::NodeCommand, Status>>);

/// One node's part of a launch, as the API server sees it. Dropping it ends the stream.
pub(crate) struct Launch {
    pub(crate) of: proto::ReportFor,
    stream: Option<Stream>,
    taken: Taken,
    seen: Seen,
}

/// Events of a launch that were received.
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
        self.numbered(proto::NodeCommand { what: Some(what), ..Default::default() }).await;
    }

    pub(crate) async fn numbered(&self, command: proto::NodeCommand) {
        let (_, commands) = self.stream.as_ref().unwrap();
        commands.send(Ok(command)).await.unwrap();
    }

    /// Receives events until `condition` holds.
    pub(crate) async fn until(&mut self, condition: impl Fn(&Seen) -> bool) {
        let (seen, part) = (&mut self.seen, (self.of.launch_id.clone(), self.of.node_index));
        let (reports, _) = self.stream.as_mut().unwrap();
        let wait = async {
            while !condition(seen) {
                let report = reports.message().await.unwrap().expect("the stream goes on");
                match report.what {
                    Some(ReportWhat::Event(event)) => {
                        if event.sequence > 0 {
                            let last = self.taken.lock().insert(part.clone(), event.sequence).unwrap_or_default();
                            assert_eq!(event.sequence, last + 1, "each event comes once, in order");
                        }
                        event.what.into_iter().for_each(|what| seen.take(what));
                    }
                    Some(ReportWhat::Resumed(resumed)) => {
                        let known = *self.taken.lock().entry(part.clone()).or_insert(resumed.after);
                        assert_eq!(resumed.after, known, "the session goes on where it was told to");
                    }
                    other => panic!("{other:?}"),
                }
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
