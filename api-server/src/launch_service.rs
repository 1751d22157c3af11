//! The calls about launches that have been started.

use pmi_transport::task;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use lattice_session::wire;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::identity::{Caller, PeerClose, caller_of, close_of};
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
use super::launch::event::{NodeCommand, StatusDetail};
use super::launch::summary::Summary;
use super::launch::{LaunchHandle, Request as LaunchRequest};
use super::server::{Server, to_its_end};
use super::store::{self, EndedLaunch, StoreError};
use super::wire::client::{decode_request, encode_message, encode_node_status};
use super::wire::order::decode_placed;
use super::wire::summary;

/// Messages in transit to a client.
const TO_CLIENT: usize = 64;
/// Approximate bytes of a rank's progress in the status of its launch.
const RANK_BYTES: usize = 256;
/// Approximate bytes of a launch in the list of all launches.
const SUMMARY_BYTES: usize = 2048;

/// The longest reason for an abort, in characters; the rest is cut off.
const REASON_MAX: usize = 1000;

/// Answers calls about launches.
#[derive(Clone)]
pub(crate) struct Launching(pub Arc<Server>);

/// A launch that a call refers to.
enum Found {
    /// The launch has a task.
    Task(LaunchHandle),
    /// The launch has ended; this is its record.
    Ended(Box<EndedLaunch>),
}

/// Answer to a question about a launch.
enum Answer<T> {
    /// The task of the launch has answered.
    Task(LaunchHandle, T),
    /// The launch has ended; this is its record.
    Ended(Box<EndedLaunch>),
}

#[tonic::async_trait]
impl LaunchService for Launching {
    type AttachLaunchStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;

    async fn attach_launch(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachLaunchStream>, Status> {
        let caller = caller_of(&request)?.clone();
        let close = close_of(&request);
        let mut said = request.into_inner();
        let Some(AttachRequest { what: Some(attach_request::What::Attach(to)) }) = said.message().await? else {
            return Err(Status::invalid_argument("the first message must name the launch to follow"));
        };
        let (sender, receiver) = mpsc::channel(TO_CLIENT);
        let AttachTo { launch_id, after, tied } = to;
        let role = if tied { Role::Owner } else { Role::Viewer };
        let attach = |reply| LaunchRequest::Attach { after, role, client: sender.clone(), reply };
        let answers: Self::AttachLaunchStream = match self.ask(&caller, &launch_id, attach).await? {
            Answer::Task(handle, client) => {
                if tied && !is_user(&caller, handle.summary().uid) {
                    // From now on this caller controls the input, the signals and the end of the launch.
                    let attached = std::future::ready(Ok::<_, Status>(()));
                    audited(&caller, "take over launch", &launch_id, attached, nothing).await?;
                }
                follow(handle, client?, (said, close), sender);
                let messages = ReceiverStream::new(receiver);
                Box::pin(messages.map(|message| message.map(encode_message).map_err(Status::from)))
            }
            Answer::Ended(launch) => Box::pin(tokio_stream::iter(end(*launch, after)?.map(Ok))),
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
        let bytes = (handles.len() + if all { store::ENDED_MAX as usize } else { 0 }) * SUMMARY_BYTES;
        let _turn = self.0.answer_line.turn(&caller, bytes).await;
        let present = handles.iter().map(LaunchHandle::summary).filter(|launch| all || !launch.is_over());
        let mut launches: Vec<LaunchSummary> = present.map(|launch| summary::encode(&launch)).collect();
        if all {
            let ended = store::blocking(&self.0.store, |store| store.ended()).await;
            launches.extend(ended.map_err(|error| Status::unavailable(pmi_transport::error_chain::chain(&error)))?);
        }
        launches.retain(|launch| may_use(&caller, launch.uid, &launch.allocation_id));
        launches.sort_unstable_by(|one, other| age(one).cmp(&age(other)));
        launches.dedup_by(|one, other| one.id == other.id);
        Ok(Response::new(ListLaunchesResponse { launches }))
    }

    async fn get_launch(&self, request: Request<GetLaunchRequest>) -> Result<Response<LaunchStatus>, Status> {
        let caller = caller_of(&request)?.clone();
        let GetLaunchRequest { id, stacks } = request.into_inner();
        let detail = if stacks { StatusDetail::Stacks } else { StatusDetail::Progress };
        let bytes = match self.find(&caller, &id).await? {
            Found::Task(handle) => handle.summary().ranks as usize * RANK_BYTES,
            Found::Ended(launch) => return Ok(Response::new(ended(*launch))),
        };
        let _turn = self.0.answer_line.turn(&caller, bytes).await;
        let status = match self.ask(&caller, &id, |reply| LaunchRequest::Status(detail, reply)).await? {
            Answer::Task(handle, status) => LaunchStatus {
                summary: Some(summary::encode(&handle.summary())),
                nodes: status.nodes.iter().map(encode_node_status).collect(),
                cause: status.cause.as_ref().map(wire::cause::encode),
                usage: status.usage.map(wire::event::encode_usage),
            },
            Answer::Ended(launch) => ended(*launch),
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
            audited(&caller, "abort launch", &id, this.abort(&caller, &id, &reason), Aborted::in_words).await
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
            _ => Err(Status::failed_precondition(format!(
                "launch {id} has ended\ntry: lattice status {id}, which has its end; lattice launches shows those that run"
            ))),
        }
    }

    async fn abort(&self, caller: &Caller, id: &str, reason: &str) -> Result<Aborted, Status> {
        match self.find(caller, id).await? {
            Found::Task(handle) if !handle.summary().is_over() => {
                // All clients that follow the launch receive the reason.
                let reason = reason.chars().take(REASON_MAX).collect();
                handle.send(LaunchRequest::Abort { who: caller.to_string(), reason }).await;
                Ok(Aborted::Ends)
            }
            _ => Ok(Aborted::HadEnded),
        }
    }
}

/// Outcome of a permitted abort.
#[derive(Clone, Copy)]
enum Aborted {
    /// The launch was asked to end.
    Ends,
    /// The launch had ended already.
    HadEnded,
}

impl Aborted {
    fn in_words(&self) -> String {
        match self {
            Self::Ends => String::new(),
            Self::HadEnded => "it had ended already".to_owned(),
        }
    }
}

/// Returns the command that sends a signal to these ranks of a launch; to all ranks if none is named.
fn signal_command(signal: i32, ranks: Vec<RankRange>, launch: &Summary) -> Result<NodeCommand, Status> {
    if ranks.is_empty() {
        return Ok(NodeCommand::Signal(signal));
    }
    let named = wire::command::decode_ranges(&ranks).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let greatest = named.greatest();
    if greatest.0 >= launch.ranks {
        let (id, last) = (&launch.id, launch.ranks.saturating_sub(1));
        return Err(Status::invalid_argument(format!(
            "launch {id} has no rank {greatest}; it has ranks 0 to {last}\ntry: --ranks with some of them"
        )));
    }
    Ok(NodeCommand::SignalRanks(signal, named))
}

impl Launching {
    /// A launch of the caller. The id of a batch job refers to the launch that executes its script.
    async fn find(&self, caller: &Caller, id: &str) -> Result<Found, Status> {
        let found = match self.found(id).await? {
            Some(found) => found,
            None => {
                let script = self.script_of(id).await?.ok_or_else(|| unknown(id))?;
                self.found(&script).await?.ok_or_else(|| unknown(id))?
            }
        };
        let (owner, allocation) = match &found {
            Found::Task(handle) => (handle.summary().uid, handle.summary().allocation_id),
            Found::Ended(launch) => {
                let summary = launch.summary.as_ref();
                summary.map_or((0, String::new()), |summary| (summary.uid, summary.allocation_id.clone()))
            }
        };
        let whose = match (may_use(caller, owner, &allocation), caller) {
            (true, _) => return Ok(found),
            (false, Caller::UserIn { .. }) => "is not of the allocation that this node belongs to",
            (false, _) => "belongs to another user",
        };
        Err(Status::permission_denied(format!("launch {id} {whose}")))
    }

    async fn found(&self, id: &str) -> Result<Option<Found>, Status> {
        if let Some(handle) = self.0.find(id) {
            return Ok(Some(Found::Task(handle)));
        }
        let id = id.to_owned();
        let ended = store::blocking(&self.0.store, move |store| store.ended_launch(&id)).await;
        Ok(ended.map_err(|error| unreadable(&error))?.map(|ended| Found::Ended(Box::new(ended))))
    }

    /// The launch that executes, or has executed, the script of a batch job.
    async fn script_of(&self, id: &str) -> Result<Option<String>, Status> {
        let live = self.0.allocations.lock().await.find(id).cloned();
        let known = match live {
            Some(live) => Some(live),
            None => {
                let id = id.to_owned();
                let kept = store::blocking(&self.0.store, move |store| store.allocation(&id)).await;
                kept.map_err(|error| unreadable(&error))?
            }
        };
        let job = known.and_then(|allocation| allocation.batch);
        job.map(|job| job.launch.map(String::from).ok_or_else(|| not_begun(id))).transpose()
    }

    /// Asks the task of a launch of the caller. If the launch ends before its task answers, the record of the launch is the answer.
    async fn ask<T>(
        &self,
        caller: &Caller,
        id: &str,
        question: impl FnOnce(oneshot::Sender<T>) -> LaunchRequest,
    ) -> Result<Answer<T>, Status> {
        let handle = match self.find(caller, id).await? {
            Found::Task(handle) => handle,
            Found::Ended(launch) => return Ok(Answer::Ended(launch)),
        };
        if let Some(answer) = handle.ask(question).await {
            return Ok(Answer::Task(handle, answer));
        }
        match self.find(caller, id).await? {
            Found::Ended(launch) => Ok(Answer::Ended(launch)),
            Found::Task(_) => Err(unknown(id)),
        }
    }
}

/// Order of launches: by their start. Launches of a server that records only seconds are ordered by their ids within a second.
fn age(launch: &LaunchSummary) -> (u64, u32, &str) {
    (launch.started_at, launch.started_nanos, &launch.id)
}

/// Returns true for the user with this uid, including an administrator.
fn is_user(caller: &Caller, user: u32) -> bool {
    matches!(caller, Caller::User(uid) | Caller::UserIn { uid, .. } | Caller::Admin(Some(uid)) if *uid == user)
}

/// Forwards the messages of a client to a launch, until the client sends no more.
fn follow(
    handle: LaunchHandle,
    client: u64,
    (mut said, close): (Streaming<AttachRequest>, PeerClose),
    sender: ClientSender,
) {
    task::spawn(async move {
        loop {
            tokio::select! {
                biased;
                message = said.message() => match message {
                    Ok(Some(AttachRequest { what: Some(what) })) => {
                        let request = decode_request(what);
                        if !handle.send(LaunchRequest::Client { client, request }).await {
                            return;
                        }
                    }
                    // A message of a later version.
                    Ok(Some(AttachRequest { what: None })) => {}
                    Ok(None) => {
                        handle.send(LaunchRequest::Goodbye { client }).await;
                        return;
                    }
                    // The launch is also notified of the end of the client's answers.
                    Err(_) => {
                        if close.is_seen() {
                            handle.send(LaunchRequest::Closed { client }).await;
                        }
                        return;
                    }
                },
                () = sender.closed() => return,
            }
        }
    });
}

/// The messages to a client of a launch without stored events: the end of the launch, and a note that unprocessed messages are lost. The
/// end keeps its number, because a client ignores events that it has already seen.
///
/// # Errors
/// Fails for a launch without a stored placement of its ranks.
fn end(launch: EndedLaunch, after: u64) -> Result<impl Iterator<Item = AttachResponse>, Status> {
    let complete = launch.completion();
    let spec = launch.spec.ok_or_else(|| {
        let id = &complete.launch_id;
        Status::not_found(format!(
            "launch {id} has ended, and where its ranks were is not kept; see lattice status {id}"
        ))
    })?;
    let last = launch.last_event;
    // A client is ahead if it followed an earlier server with a clock that was ahead. The end must not look old to it.
    let is_missing = after.saturating_add(1) != last && after != last;
    let last = if after > last { after.saturating_add(1) } else { last };
    let spec = (0, attach_response::What::Spec(spec));
    let dropped = is_missing.then_some((0, attach_response::What::DroppedOutput(0)));
    let complete = (last, attach_response::What::Complete(complete));
    let messages = std::iter::once(spec).chain(dropped).chain([complete]);
    Ok(messages.map(|(sequence, what)| AttachResponse { sequence, node: 0, what: Some(what) }))
}

/// The status of a launch that is over.
fn ended(launch: EndedLaunch) -> LaunchStatus {
    let nodes = ended_nodes(&launch);
    let EndedLaunch { summary, complete, .. } = launch;
    let (cause, usage) = complete.map(|complete| (complete.cause, complete.usage)).unwrap_or_default();
    LaunchStatus { nodes, summary, cause, usage }
}

/// Ends of the ranks of each node. Ranks of spawned jobs are left out, because no placement includes them any more.
fn ended_nodes(ended: &EndedLaunch) -> Vec<NodeStatus> {
    let Ok(launch) = decode_placed(ended.spec.as_ref()) else { return Vec::new() };
    let exits: HashMap<u32, RankExitStatus> = ended.ends().map(|exit| (exit.rank, exit)).collect();
    // In a launch that did not start, no rank has an end.
    let has_run = !exits.is_empty();
    let status = |(index, node): (u32, &String)| {
        let ranks = launch.job.placement.ranks_on(NodeIndex(index));
        let progress = |rank: &Rank| {
            let exit = exits.get(&rank.0).copied();
            let (phase, lost) = (exit.map_or(0, |exit| exit.phase), has_run && exit.is_none());
            RankProgress { rank: rank.0, phase, exit, lost, ..Default::default() }
        };
        let ranks: Vec<RankProgress> = ranks.iter().map(progress).collect();
        let programs = vec![Bytes::new(); ranks.len()];
        NodeStatus { node_id: node.clone(), ranks, programs, ..Default::default() }
    };
    (0..).zip(&launch.hosts).map(status).collect()
}

fn unreadable(error: &StoreError) -> Status {
    Status::unavailable(pmi_transport::error_chain::chain(error))
}

fn not_begun(id: &str) -> Status {
    Status::not_found(format!(
        "the script of batch job {id} has not been started\ntry: lattice queue {id}, which has the reason"
    ))
}

fn unknown(id: &str) -> Status {
    Status::not_found(format!(
        "there is no launch or batch job {id}, or it ended long ago\ntry: lattice launches --all or lattice queue --all, which show those that are known"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_launch_has_a_number_that_is_new_to_its_client() {
        let check = |after: u64, number: u64, is_missing: bool| {
            let launch = EndedLaunch { last_event: 7, spec: Some(Default::default()), ..EndedLaunch::default() };
            let messages: Vec<AttachResponse> = end(launch, after).unwrap().collect();
            let [.., AttachResponse { sequence, what: Some(attach_response::What::Complete(_)), .. }] = &messages[..]
            else {
                panic!("{messages:?}");
            };
            assert_eq!((*sequence, messages.len() == 3), (number, is_missing), "after {after}");
        };
        check(0, 7, true);
        check(6, 7, false);
        check(7, 7, false);
        check(1000, 1001, true);
    }
}
