//! The calls about launches that have been started.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use lattice_session::wire;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::identity::{Caller, caller_of};
use pmi_transport::proto::v1::launch_service_server::LaunchService;
use pmi_transport::proto::v1::{
    AbortLaunchRequest, AbortLaunchResponse, AttachRequest, AttachResponse, AttachTo, GetLaunchRequest, LaunchStatus,
    LaunchSummary, ListLaunchesRequest, ListLaunchesResponse, NodeStatus, RankExitStatus, RankProgress, RankRange,
    SignalLaunchRequest, SignalLaunchResponse, attach_request, attach_response,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::allocations::may_use;
use super::audit::{audited, nothing};
use super::launch::attachments::{Role, SIGNAL_MAX};
use super::launch::client_message::ClientSender;
use super::launch::event::NodeCommand;
use super::launch::summary::Summary;
use super::launch::{LaunchHandle, Request as LaunchRequest};
use super::server::{Server, to_its_end};
use super::store::{self, LaunchRecord};
use super::wire::client::{decode_request, encode_message, encode_node_status};
use super::wire::order::decode_launch;
use super::wire::summary;

/// Messages on their way to a client.
const TO_CLIENT: usize = 64;

/// The longest reason for an abort, in characters; the rest is cut off.
const REASON_MAX: usize = 1000;

/// Answers calls about launches.
#[derive(Clone)]
pub(crate) struct Launching(pub Arc<Server>);

/// A launch that somebody asks about.
enum Found {
    /// The launch has a task.
    Task(LaunchHandle),
    /// The launch has ended; this is kept of it.
    Record(Box<LaunchRecord>),
}

/// Answer to a question about a launch.
enum Answer<T> {
    /// Its task has answered.
    Task(LaunchHandle, T),
    /// The launch has ended; this is kept of it.
    Record(Box<LaunchRecord>),
}

#[tonic::async_trait]
impl LaunchService for Launching {
    type AttachLaunchStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;

    async fn attach_launch(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachLaunchStream>, Status> {
        let caller = caller_of(&request)?.clone();
        let mut said = request.into_inner();
        let Some(AttachRequest { what: Some(attach_request::What::Attach(to)) }) = said.message().await? else {
            return Err(Status::invalid_argument("the first message must say which launch to follow"));
        };
        let (sender, receiver) = mpsc::channel(TO_CLIENT);
        let AttachTo { launch_id, after, tied } = to;
        let role = if tied { Role::Owner } else { Role::Viewer };
        let attach = |reply| LaunchRequest::Attach { after, role, client: sender.clone(), reply };
        let answers: Self::AttachLaunchStream = match self.ask(&caller, &launch_id, attach).await? {
            Answer::Task(handle, client) => {
                follow(handle, client?, said, sender);
                let messages = ReceiverStream::new(receiver);
                Box::pin(messages.map(|message| message.map(encode_message).map_err(Status::from)))
            }
            Answer::Record(record) => Box::pin(tokio_stream::iter(end(*record, after).map(Ok))),
        };
        Ok(Response::new(answers))
    }

    async fn list_launches(
        &self,
        request: Request<ListLaunchesRequest>,
    ) -> Result<Response<ListLaunchesResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let all = request.into_inner().all;
        let handles = self.0.handles();
        let present = handles.iter().map(LaunchHandle::summary).filter(|launch| all || !launch.is_over());
        let mut launches: Vec<LaunchSummary> = present.map(|launch| summary::encode(&launch)).collect();
        if all {
            let kept = store::blocking(&self.0.store, |store| store.read()).await;
            let kept = kept.map_err(|error| Status::unavailable(pmi_transport::error_chain::chain(&error)))?;
            let ended = kept.launches.into_iter().filter(|record| record.complete.is_some());
            launches.extend(ended.filter_map(|record| record.summary));
        }
        launches.retain(|launch| may_use(&caller, launch.uid));
        launches.sort_by(|one, other| (one.started_at, &one.id).cmp(&(other.started_at, &other.id)));
        launches.dedup_by(|one, other| one.id == other.id);
        Ok(Response::new(ListLaunchesResponse { launches }))
    }

    async fn get_launch(&self, request: Request<GetLaunchRequest>) -> Result<Response<LaunchStatus>, Status> {
        let caller = caller_of(&request)?.clone();
        let id = request.into_inner().id;
        let status = match self.ask(&caller, &id, LaunchRequest::Status).await? {
            Answer::Task(handle, status) => LaunchStatus {
                summary: Some(summary::encode(&handle.summary())),
                nodes: status.nodes.iter().map(encode_node_status).collect(),
                cause: status.cause.as_ref().map(wire::cause::encode),
                usage: status.usage.map(wire::event::encode_usage),
            },
            Answer::Record(record) => ended(*record),
        };
        Ok(Response::new(status))
    }

    async fn signal_launch(
        &self,
        request: Request<SignalLaunchRequest>,
    ) -> Result<Response<SignalLaunchResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let SignalLaunchRequest { id, signal, ranks } = request.into_inner();
        let this = self.clone();
        let signalled = to_its_end(async move {
            let signalled = this.signal(&caller, &id, signal, ranks);
            audited(&caller, "signal launch", &id, signalled, |()| format!("signal {signal}")).await
        });
        signalled.await?;
        Ok(Response::new(SignalLaunchResponse {}))
    }

    async fn abort_launch(
        &self,
        request: Request<AbortLaunchRequest>,
    ) -> Result<Response<AbortLaunchResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let AbortLaunchRequest { id, reason } = request.into_inner();
        let this = self.clone();
        let aborted = to_its_end(async move {
            audited(&caller, "abort launch", &id, this.abort(&caller, &id, &reason), nothing).await
        });
        aborted.await?;
        Ok(Response::new(AbortLaunchResponse {}))
    }
}

impl Launching {
    async fn signal(&self, caller: &Caller, id: &str, signal: i32, ranks: Vec<RankRange>) -> Result<(), Status> {
        if !(1..=SIGNAL_MAX).contains(&signal) {
            return Err(Status::invalid_argument(format!("{signal} is no signal; there are 1 to {SIGNAL_MAX}")));
        }
        match self.find(caller, id).await? {
            Found::Task(handle) if !handle.summary().is_over() => {
                let command = signal_command(signal, ranks, &handle.summary())?;
                handle.send(LaunchRequest::Signal(command)).await;
                Ok(())
            }
            _ => Err(Status::failed_precondition(format!("launch {id} has ended"))),
        }
    }

    async fn abort(&self, caller: &Caller, id: &str, reason: &str) -> Result<(), Status> {
        if let Found::Task(handle) = self.find(caller, id).await? {
            // It is told to everybody who follows the launch.
            let reason = reason.chars().take(REASON_MAX).collect();
            handle.send(LaunchRequest::Abort { who: caller.to_string(), reason }).await;
        }
        Ok(())
    }
}

/// Returns the command that sends a signal to these ranks of a launch; to all, if none is named.
fn signal_command(signal: i32, ranks: Vec<RankRange>, launch: &Summary) -> Result<NodeCommand, Status> {
    if ranks.is_empty() {
        return Ok(NodeCommand::Signal(signal));
    }
    let named = wire::command::decode_ranges(&ranks).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let greatest = named.greatest();
    if greatest.0 >= launch.ranks {
        let (id, last) = (&launch.id, launch.ranks.saturating_sub(1));
        return Err(Status::invalid_argument(format!("launch {id} has no rank {greatest}; it has ranks 0 to {last}")));
    }
    Ok(NodeCommand::SignalRanks(signal, named))
}

impl Launching {
    /// One of the caller's own launches.
    async fn find(&self, caller: &Caller, id: &str) -> Result<Found, Status> {
        let found = match self.0.find(id) {
            Some(handle) => Found::Task(handle),
            None => {
                let wanted = id.to_owned();
                let record = store::blocking(&self.0.store, move |store| store.launch(&wanted)).await;
                let record = record.map_err(|error| Status::unavailable(pmi_transport::error_chain::chain(&error)))?;
                Found::Record(Box::new(record.ok_or_else(|| unknown(id))?))
            }
        };
        let owner = match &found {
            Found::Task(handle) => handle.summary().uid,
            Found::Record(record) => record.summary.as_ref().map_or(0, |summary| summary.uid),
        };
        match may_use(caller, owner) {
            true => Ok(found),
            false => Err(Status::permission_denied(format!("launch {id} belongs to another user"))),
        }
    }

    /// Asks the task of one of the caller's own launches. One that is over may have ended before it answers; then its record tells.
    async fn ask<T>(
        &self,
        caller: &Caller,
        id: &str,
        question: impl FnOnce(oneshot::Sender<T>) -> LaunchRequest,
    ) -> Result<Answer<T>, Status> {
        let handle = match self.find(caller, id).await? {
            Found::Task(handle) => handle,
            Found::Record(record) => return Ok(Answer::Record(record)),
        };
        if let Some(answer) = handle.ask(question).await {
            return Ok(Answer::Task(handle, answer));
        }
        match self.find(caller, id).await? {
            Found::Record(record) => Ok(Answer::Record(record)),
            Found::Task(_) => Err(unknown(id)),
        }
    }
}

/// Listens to what a client of a launch says for as long as it says something.
fn follow(handle: LaunchHandle, client: u64, mut said: Streaming<AttachRequest>, sender: ClientSender) {
    tokio::spawn(async move {
        loop {
            tokio::select! {
                message = said.message() => match message {
                    Ok(Some(AttachRequest { what: Some(what) })) => {
                        let request = decode_request(what);
                        if !handle.send(LaunchRequest::Client { client, request }).await {
                            return;
                        }
                    }
                    // Of a later version.
                    Ok(Some(AttachRequest { what: None })) => {}
                    Ok(None) => {
                        handle.send(LaunchRequest::Goodbye { client }).await;
                        return;
                    }
                    // Its answers' end tells the launch.
                    Err(_) => return,
                },
                () = sender.closed() => return,
            }
        }
    });
}

/// The messages to a client of a launch whose events are kept no more: its end, and that what the client has not dealt with is lost.
/// The end has the number that it had: a client passes over what it takes for known.
fn end(record: LaunchRecord, after: u64) -> impl Iterator<Item = AttachResponse> {
    let spec = record.spec.unwrap_or_default();
    let complete = record.complete.unwrap_or_default();
    // Of a record without a number nothing is known but that its end comes last.
    let last = if record.last_event == 0 { u64::MAX } else { record.last_event };
    let is_missing = after.saturating_add(1) < last;
    let spec = (0, attach_response::What::Spec(spec));
    let dropped = is_missing.then_some((0, attach_response::What::DroppedOutput(0)));
    let complete = (last, attach_response::What::Complete(complete));
    let messages = std::iter::once(spec).chain(dropped).chain([complete]);
    messages.map(|(sequence, what)| AttachResponse { sequence, node: 0, what: Some(what) })
}

/// The status of a launch that is over.
fn ended(record: LaunchRecord) -> LaunchStatus {
    let cause = record.complete.as_ref().and_then(|complete| complete.cause.clone());
    let usage = record.complete.as_ref().and_then(|complete| complete.usage);
    LaunchStatus { nodes: ended_nodes(&record), summary: record.summary, cause, usage }
}

/// Ends of the ranks of each node; those of spawned jobs are in nobody's placement any more, and left out.
fn ended_nodes(record: &LaunchRecord) -> Vec<NodeStatus> {
    let Ok(launch) = decode_launch(record) else { return Vec::new() };
    let exits = record.complete.iter().flat_map(|complete| &complete.ranks).map(|exit| (exit.rank, *exit));
    let exits: HashMap<u32, RankExitStatus> = exits.collect();
    let status = |(index, node): (u32, &String)| {
        let ranks = launch.job.placement.ranks_on(NodeIndex(index));
        let progress = |rank: &Rank| {
            let exit = exits.get(&rank.0).copied();
            RankProgress { rank: rank.0, phase: exit.map_or(0, |exit| exit.phase), exit, ..Default::default() }
        };
        let ranks: Vec<RankProgress> = ranks.iter().map(progress).collect();
        let programs = vec![Bytes::new(); ranks.len()];
        NodeStatus { node_id: node.clone(), ranks, programs, ..Default::default() }
    };
    (0..).zip(&launch.hosts).map(status).collect()
}

fn unknown(id: &str) -> Status {
    Status::not_found(format!("there is no launch {id}, or it ended long ago"))
}
