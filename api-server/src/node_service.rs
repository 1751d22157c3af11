//! The calls of node agents, and the list of nodes. An agent makes calls for its own node only.

use pmi_transport::task;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use lattice_session::rendezvous::Participant;
use lattice_session::timeouts::HEARTBEAT;
use lattice_session::wire;
use lattice_session::wire::{placed, rendezvous};
use pmi_core::ids::JobId;
use pmi_core::services::{MeetError, NameError, SpawnError};
use pmi_transport::error_chain::chain;
use pmi_transport::identity::{Caller, caller_of, certificate_of, source_of};
use pmi_transport::proto::v1::node_service_server::NodeService;
use pmi_transport::proto::v1::{
    DrainNodesRequest, DrainNodesResponse, HeartbeatRequest, HeartbeatResponse, LaunchReport, ListNodesRequest,
    ListNodesResponse, MeetAnswer, MeetRequest, NameAnswer, NameRequest, NodeCommand, PassRequest, ProxiedBytes,
    RegisterNodeRequest, RegisterNodeResponse, RenewCertificateRequest, RenewCertificateResponse, ResumeNodesRequest,
    ResumeNodesResponse, SerialSignature, SetPass, SpawnAnswer, SpawnCall, SpawnRequest, launch_report, proxied_bytes,
};
use pmi_transport::signature::{self, Challenge, Serial, Signature};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::audit::{audited, nothing};
use super::launch::event::SpawnAsked;
use super::launch::report_stream::{ReportStream, TO_NODE};
use super::launch::{LaunchHandle, Request as LaunchRequest};
use super::nodes::RegisterError;
use super::proxying;
use super::renewal::RenewalError;
use super::server::attending::refuse_loopback;
use super::server::{Server, to_its_end};
use super::session_calls::{CallId, Unanswered};
use super::sets::{Asker, Granted, PassError};
use super::versions;
use super::wire::registry::{decode_registration, encode_listed};
use super::wire::session_answer::SessionAnswer;
use crate::launch_id::LaunchId;

/// Answers agents.
pub(crate) struct Reporting(pub Arc<Server>);

impl Reporting {
    /// Signs the number of the last launch for a node, if its fork server requests it.
    fn answer_to(&self, challenge: &[u8], node: &str, last: Serial) -> Result<Option<SerialSignature>, Status> {
        if challenge.is_empty() {
            return Ok(None);
        }
        let challenge = <&Challenge>::try_from(challenge);
        let challenge = challenge.map_err(|_| Status::invalid_argument("a challenge has 32 bytes"))?;
        let signed = signature::sign_last_serial(&self.0.security, node, challenge, last);
        let Signature { signature, signer } = signed.map_err(|error| Status::internal(chain(&error)))?;
        Ok(Some(SerialSignature { signature, signer }))
    }
}

#[tonic::async_trait]
impl NodeService for Reporting {
    async fn register_node(
        &self,
        request: Request<RegisterNodeRequest>,
    ) -> Result<Response<RegisterNodeResponse>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let (certificate, from) = (certificate_of(&request).map(<[u8]>::to_vec), source_of(&request));
        let told = request.into_inner();
        tracing::info!(node = told.node_id, address = told.grpc_address, "a node registers");
        // Launches that are signed from here on may be sent to this agent.
        let last = self.0.serials.last();
        let serial_signature = self.answer_to(&told.challenge, &told.node_id, last)?;
        let (server, node) = (Arc::clone(&self.0), told.node_id.clone());
        let registered = to_its_end(async move {
            refuse_loopback(&told.grpc_address, from)?;
            server.register(decode_registration(told), last).await
        });
        let unknown_launches = registered.await.map_err(|error| {
            if !matches!(error, RegisterError::Rival { .. }) {
                tracing::warn!(node, "the registration is refused: {error}");
            }
            Status::from(error)
        })?;
        self.0.nodes.lock().shown(&node, &certificate.unwrap_or_default());
        let heartbeat_ms = HEARTBEAT.as_millis() as u64;
        let lease_ms = self.0.config.lease.as_millis() as u64;
        let certificate_s = self.0.renewal.as_ref().map_or(0, |renewal| renewal.validity().as_secs());
        Ok(Response::new(RegisterNodeResponse {
            heartbeat_ms,
            unknown_launches: unknown_launches.into_iter().map(String::from).collect(),
            last_serial: last.0,
            lease_ms,
            certificate_s,
            serial_signature,
        }))
    }

    async fn renew_certificate(
        &self,
        request: Request<RenewCertificateRequest>,
    ) -> Result<Response<RenewCertificateResponse>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let caller = caller_of(&request)?.clone();
        let present = certificate_of(&request).map(<[u8]>::to_vec).ok_or(RenewalError::NoCertificate)?;
        let renewal = self.0.renewal.clone().ok_or(RenewalError::NoAuthority)?;
        let RenewCertificateRequest { node_id, request } = request.into_inner();
        let renewed = to_its_end(async move {
            let renewed = renewal.renew(node_id, present, request.to_vec());
            audited(&caller, "renew certificate", "", renewed, nothing).await
        });
        Ok(Response::new(RenewCertificateResponse { certificate: renewed.await? }))
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<HeartbeatResponse>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        if let Some(certificate) = certificate_of(&request) {
            self.0.nodes.lock().shown(&request.get_ref().node_id, certificate);
        }
        let HeartbeatRequest { node_id, incarnation, launches, revoked_digest, challenge } = request.into_inner();
        let last = self.0.serials.last();
        let serial_signature = self.answer_to(&challenge, &node_id, last)?;
        let register = self.0.nodes.lock().heartbeat(&node_id, incarnation, self.0.clock.now());
        if !register {
            self.0.hear_of_work(&node_id, &launches);
        }
        let list = self.0.security.revocations();
        let is_news = revoked_digest.is_some_and(|known| known != *list.digest());
        if is_news && list.text().is_empty() && !self.0.has_warned_of_list.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                node = node_id,
                "agents have a list of revoked certificates, and this server has none: what was revoked is valid here; put crl.pem beside ca.pem"
            );
        }
        let revoked = if is_news { list.text().clone() } else { Bytes::new() };
        Ok(Response::new(HeartbeatResponse { register, last_serial: last.0, revoked, serial_signature }))
    }

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        let launches = self.0.launches_by_node();
        let count = |node: &str| launches.get(node).copied().unwrap_or_default();
        let listed = self.0.nodes.lock().list(self.0.clock.now(), count);
        let nodes = listed.into_iter().map(encode_listed).collect();
        Ok(Response::new(ListNodesResponse { nodes, version: versions::OURS.to_owned() }))
    }

    async fn drain_nodes(&self, request: Request<DrainNodesRequest>) -> Result<Response<DrainNodesResponse>, Status> {
        let (server, caller) = (Arc::clone(&self.0), caller_of(&request)?.clone());
        let DrainNodesRequest { nodes, reason } = request.into_inner();
        let drained = to_its_end(async move {
            audited(&caller, "drain nodes", &nodes, server.drain(&caller, &nodes, &reason), nothing).await
        });
        Ok(Response::new(DrainNodesResponse { unknown: hostlist::fold(&drained.await?) }))
    }

    async fn resume_nodes(
        &self,
        request: Request<ResumeNodesRequest>,
    ) -> Result<Response<ResumeNodesResponse>, Status> {
        let (server, caller) = (Arc::clone(&self.0), caller_of(&request)?.clone());
        let nodes = request.into_inner().nodes;
        let resumed = to_its_end(async move {
            audited(&caller, "resume nodes", &nodes, server.undrain(&caller, &nodes), nothing).await
        });
        resumed.await?;
        Ok(Response::new(ResumeNodesResponse {}))
    }

    type ReportLaunchStream = ReceiverStream<Result<NodeCommand, Status>>;

    async fn report_launch(
        &self,
        request: Request<Streaming<LaunchReport>>,
    ) -> Result<Response<Self::ReportLaunchStream>, Status> {
        let caller = caller_of(&request)?.clone();
        let mut told = request.into_inner();
        let Some(LaunchReport { what: Some(launch_report::What::Of(of)) }) = told.message().await? else {
            return Err(Status::invalid_argument("the first message must name the launch of the report"));
        };
        check_is(&caller, &of.node_id)?;
        let stream = ReportStream::of(self.launch(&of.launch_id)?, &of)?;
        let metrics = Arc::clone(&self.0.metrics);
        let told = told.map(move |report| {
            metrics.count_report_message();
            report
        });
        let (sender, receiver) = mpsc::channel(TO_NODE);
        task::spawn(stream.run(told, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type ProxyUserStream = ReceiverStream<Result<ProxiedBytes, Status>>;

    async fn proxy_user(
        &self,
        request: Request<Streaming<ProxiedBytes>>,
    ) -> Result<Response<Self::ProxyUserStream>, Status> {
        let agent = caller_of(&request)?.clone();
        let mut told = request.into_inner();
        let Some(ProxiedBytes { what: Some(proxied_bytes::What::Of(of)) }) = told.message().await? else {
            return Err(Status::invalid_argument("the first message must name the node of the connection"));
        };
        check_is(&agent, &of.node_id)?;
        let caller = self.0.user_on(&of.node_id, of.uid).await;
        let connection = self.0.proxy.connect(caller).await;
        let connection = connection.ok_or_else(|| Status::unavailable("the API server is ending"))?;
        let (sender, receiver) = mpsc::channel(TO_NODE);
        task::spawn(proxying::pass_on(told, connection, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn call_name(&self, request: Request<NameRequest>) -> Result<Response<NameAnswer>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let NameRequest { launch_id, node_id, call, call_id } = request.into_inner();
        let launch_id = LaunchId::from(launch_id);
        let handle = self.launch_on(&launch_id, &node_id)?;
        let call = call.ok_or_else(no_call)?;
        let (server, launch) = (Arc::clone(&self.0), launch_id.clone());
        let make = async move {
            let answer = match wire::call::decode_name(call) {
                Ok(call) => server.call_name(handle.summary().uid, &launch, call).await,
                Err(error) => Err(NameError::Unavailable { reason: error.to_string() }),
            };
            SessionAnswer::Name(wire::call::encode_name_answer(&answer))
        };
        match self.answer_once(launch_id, &node_id, call_id, make).await? {
            SessionAnswer::Name(answer) => Ok(Response::new(answer)),
            _ => Err(another_call(call_id)),
        }
    }

    async fn spawn_tasks(&self, request: Request<SpawnRequest>) -> Result<Response<SpawnAnswer>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let SpawnRequest { launch_id, node_id, call, call_id } = request.into_inner();
        let launch_id = LaunchId::from(launch_id);
        let handle = self.launch_on(&launch_id, &node_id)?;
        let node = handle.index_of(&node_id).ok_or_else(|| not_on(&launch_id, &node_id))?;
        let asked = SpawnAsked { node, call: call_id };
        let call = call.ok_or_else(no_call)?;
        let server = Arc::clone(&self.0);
        let make = async move {
            let answer = server.spawn(&handle, asked, call).await;
            if answer.is_err() {
                let due = server.refusal_pace.refuse(handle.summary().uid, server.clock.now());
                server.clock.sleep_until(due).await;
            }
            SessionAnswer::Spawn(wire::call::encode_spawn_answer(&answer))
        };
        match self.answer_once(launch_id, &node_id, call_id, make).await? {
            SessionAnswer::Spawn(answer) => Ok(Response::new(answer)),
            _ => Err(another_call(call_id)),
        }
    }

    async fn meet_launches(&self, request: Request<MeetRequest>) -> Result<Response<MeetAnswer>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let MeetRequest { launch_id, node_id, call, call_id } = request.into_inner();
        let launch_id = LaunchId::from(launch_id);
        let handle = self.launch_on(&launch_id, &node_id)?;
        let node = handle.index_of(&node_id).ok_or_else(|| not_on(&launch_id, &node_id))?;
        let call = call.ok_or_else(no_call)?;
        let (server, launch) = (Arc::clone(&self.0), launch_id.clone());
        let make = async move {
            let participant = Participant { uid: handle.summary().uid, launch: &launch, node };
            let answer = match rendezvous::decode_call(call) {
                Ok(call) => server.meet(participant, call).await,
                Err(error) => Err(MeetError::Unavailable { reason: error.to_string() }),
            };
            SessionAnswer::Meet(rendezvous::encode_answer(answer))
        };
        match self.answer_once(launch_id, &node_id, call_id, make).await? {
            SessionAnswer::Meet(answer) => Ok(Response::new(answer)),
            _ => Err(another_call(call_id)),
        }
    }

    async fn pass_to_set(&self, request: Request<PassRequest>) -> Result<Response<SetPass>, Status> {
        let caller = caller_of(&request)?.clone();
        let PassRequest { to, from, launch_id, node_id } = request.into_inner();
        let (uid, asker) = match &caller {
            Caller::User(uid) | Caller::Admin(Some(uid)) => (*uid, Asker::Command(from)),
            Caller::Agent(_) => {
                check_is(&caller, &node_id)?;
                (self.launch_on(&launch_id, &node_id)?.summary().uid, Asker::Launch(&launch_id))
            }
            other => {
                let text =
                    format!("{other} connects to no sets; users with a certificate, or at the API server's socket, do");
                return Err(Status::permission_denied(text));
            }
        };
        let (to, now) = (placed::set(to), self.0.clock.now());
        let granting = async { self.0.sets.pass(uid, asker, to, now) };
        let made = |granted: &Granted| format!("set {}", granted.from);
        let on = to.map_or_else(String::new, |to| to.to_string());
        let granted = audited(&caller, "pass to set", &on, granting, made).await?;
        let (address, pass) = granted.pass.unzip();
        let pass = wire::pass::SetPass { from: granted.from, address: address.unwrap_or_default(), pass };
        Ok(Response::new(wire::pass::encode(&pass)))
    }
}

impl From<PassError> for Status {
    fn from(error: PassError) -> Self {
        let message = chain(&error);
        match error {
            PassError::NoSet(_) | PassError::NotFounded(_) => Self::not_found(message),
            PassError::Full => Self::resource_exhausted(message),
            PassError::Random(_) => Self::unavailable(message),
        }
    }
}

impl Server {
    /// Lets a launch start the job that a session requests.
    async fn spawn(&self, launch: &LaunchHandle, asked: SpawnAsked, call: SpawnCall) -> Result<JobId, SpawnError> {
        let refused = |reason: String| SpawnError::Refused { reason };
        let (parent, rank, request) = wire::call::decode_spawn(call).map_err(|error| refused(error.to_string()))?;
        let programs = request.apps.iter().map(|app| OsStr::from_bytes(&app.program));
        self.config.policy.check_spawn(programs).map_err(|error| refused(error.to_string()))?;
        let spawn = |reply| LaunchRequest::Spawn { asked, parent, rank, request, reply };
        launch.ask(spawn).await.unwrap_or_else(|| Err(refused("the launch is over".to_owned())))
    }
}

impl Reporting {
    /// The answer to a session's call, which `make` computes unless the call was made before.
    async fn answer_once(
        &self,
        launch: LaunchId,
        node: &str,
        number: u64,
        make: impl Future<Output = SessionAnswer> + Send + 'static,
    ) -> Result<SessionAnswer, Status> {
        let answer = self.0.session_calls.answer(CallId { launch, node, number }, make).await;
        answer.map_err(|error| match error {
            Unanswered::TooMany => Status::resource_exhausted(error.to_string()),
            // Not unavailable, because an unavailable call is repeated.
            Unanswered::LaunchOver => Status::not_found(error.to_string()),
        })
    }

    fn launch(&self, id: &str) -> Result<LaunchHandle, Status> {
        self.0.find(id).ok_or_else(|| Status::not_found(format!("there is no launch {id}, or it has ended")))
    }

    /// A launch that runs on a node.
    fn launch_on(&self, id: &str, node: &str) -> Result<LaunchHandle, Status> {
        self.launch(id).and_then(|handle| if handle.runs_on(node) { Ok(handle) } else { Err(not_on(id, node)) })
    }
}

/// Refuses a request about a node if it does not come from the agent of that node.
pub(crate) fn check_speaker<T>(request: &Request<T>, node: &str) -> Result<(), Status> {
    check_is(caller_of(request)?, node)
}

fn check_is(caller: &Caller, node: &str) -> Result<(), Status> {
    match caller {
        Caller::Agent(own) if own == node => Ok(()),
        other => Err(Status::permission_denied(format!("{other} cannot speak for node {node}"))),
    }
}

fn no_call() -> Status {
    Status::invalid_argument("the request has no call")
}

fn another_call(number: u64) -> Status {
    Status::invalid_argument(format!("call {number} of the session was another one"))
}

fn not_on(launch: &str, node: &str) -> Status {
    Status::failed_precondition(format!("launch {launch} does not run on {node}"))
}
