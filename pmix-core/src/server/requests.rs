//! Dispatch of messages to their handlers.

use std::sync::Arc;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::report::Sender;

use super::Server;
use super::action::Action;
use super::allocations::allocate;
use super::client::{Address, Client};
use super::ends::{abort, finalize, offend};
use super::events::notify;
use super::host::{push_input, spawn};
use super::inquiries::signal_wanted;
use super::launch::Launch;
use super::names::{look_up, unpublish};
use super::tools;
use crate::clean_up::CleanUp;
use crate::wire::reader::Proc;
use crate::wire::request::{Request, command_name, command_of};
use crate::wire::value::Info;
use crate::wire::{frame, reply, status, types};

impl Server {
    pub(super) fn handle_message(&mut self, connection: ConnectionId, tag: u32, payload: Bytes) {
        let launch = &mut self.launch;
        if launch.settings.trace {
            launch.trace(connection, Sender::Client, tag, &payload);
        }
        let Client { identity: Some(identity), .. } = launch.clients[connection] else { return };
        if tag < frame::TAG_FIRST_REQUEST {
            // Heartbeats, and input for tools: the server has requested neither.
            return;
        }
        let address = Address { connection, tag, identity };
        if let Ok(code) = command_of(identity.encoding, &payload)
            && let Some(state) = launch.jobs.rank_mut(identity.seat)
        {
            state.last_command = Some(command_name(code).into());
        }
        let is_tool = launch.jobs.is_tool(identity.seat);
        match Request::decode(identity.encoding, &payload) {
            Ok(request) if is_tool => self.handle_tool_request(address, request, &payload),
            Ok(request) => self.handle_rank_request(address, request, &payload),
            Err(error) => match error.status() {
                Some(status) => {
                    let kind = if is_tool { "tool" } else { "rank" };
                    tracing::warn!("a request of {kind} {} is refused: {error}", launch.jobs.rank(identity.seat).rank);
                    launch.answer(address, status);
                }
                None => offend(launch, &mut self.streams, connection, Arc::new(error)),
            },
        }
    }

    fn handle_rank_request(&mut self, address: Address, request: Request<'_>, payload: &Bytes) {
        let Self { launch, data, collectives, streams, inquiries, publishers, refused, .. } = self;
        match request {
            Request::JobInfo => send_job_info(launch, address),
            Request::Commit(scopes) => data.commit(launch, address, &scopes),
            Request::Get { proc, infos, key } => data.get(launch, address, proc, &infos, key),
            Request::Fence { procs, collect } => collectives.fence(launch, address, &procs, collect),
            Request::Connect { procs } => collectives.connect(launch, address, &procs),
            Request::Disconnect { procs } => collectives.disconnect(launch, address, &procs),
            Request::GroupConstruct { name, procs, infos } => {
                collectives.construct_group(launch, address, name, &procs, &infos);
            }
            Request::GroupDestruct { name } => collectives.groups.destruct(launch, address, name),
            Request::Finalize => {
                if let Some(rank) = finalize(launch, streams, address) {
                    data.give_up_on(launch, address.identity.seat.job, rank);
                    collectives.look_for_deserters(launch);
                }
            }
            Request::Abort { code, message } => abort(launch, address, code, message),
            Request::Publish(infos) => publishers.publish(launch, address, &infos),
            Request::Lookup { keys, infos } => look_up(launch, address, &keys, &infos),
            Request::Unpublish { keys } => unpublish(launch, address, &keys),
            Request::Spawn { infos, apps } => spawn(launch, address, &infos, &apps),
            Request::Notify { status, range, infos } => notify(launch, address, status, range, &infos, payload),
            Request::RegisterEvents(codes) => {
                let taken = launch.clients[address.connection].interest.register(&codes);
                launch.answer(address, if taken { status::SUCCESS } else { status::OUT_OF_RESOURCE });
            }
            Request::DeregisterEvents(codes) => launch.clients[address.connection].interest.deregister(&codes),
            Request::Log(infos) => streams.log(launch, address, &infos),
            Request::JobControl { targets, infos } => match signal_wanted(&infos) {
                Some(signal) => inquiries.signal(launch, address, &targets, signal),
                None => register_clean_up(launch, address, &targets, &infos),
            },
            Request::Allocate { directive, infos } => allocate(launch, address, directive, &infos),
            Request::Query(queries) => inquiries.query(launch, &collectives.groups, address, &queries, payload),
            Request::PullOutput(pull) => streams.pull(launch, address, &pull),
            Request::PushInput(push) => push_input(launch, address, &push),
            Request::EndPull { number } => streams.end_pull(launch, address, number),
            Request::Refresh { proc } => data.refresh(launch, address, proc),
            Request::Unsupported(code) => refuse(launch, refused, address, code),
        }
    }

    /// Serves a request of a tool. All other requests would make it a part of the launch.
    fn handle_tool_request(&mut self, address: Address, request: Request<'_>, payload: &Bytes) {
        let launch = &mut self.launch;
        match request {
            Request::JobInfo => tools::send_job_info(launch, address),
            Request::Get { .. }
            | Request::Query(_)
            | Request::Lookup { .. }
            | Request::Notify { .. }
            | Request::RegisterEvents(_)
            | Request::DeregisterEvents(_)
            | Request::PullOutput(_)
            | Request::PushInput(_)
            | Request::EndPull { .. } => self.handle_rank_request(address, request, payload),
            Request::JobControl { targets, infos } => match signal_wanted(&infos) {
                Some(signal) => self.inquiries.signal(launch, address, &targets, signal),
                None => launch.answer(address, status::NOT_SUPPORTED),
            },
            Request::Finalize => {
                finalize(launch, &mut self.streams, address);
            }
            _ => {
                let name = command_of(address.identity.encoding, payload).map_or("", command_name);
                tracing::debug!("a tool asks for PMIx command {name}, which is not served to tools");
                launch.answer(address, status::NOT_SUPPORTED);
            }
        }
    }
}

/// Sends the facts about the job of a rank.
fn send_job_info(launch: &mut Launch, address: Address) {
    let identity = address.identity;
    let job = &mut launch.jobs[identity.seat.job];
    let heading = reply::job_heading(identity.encoding, job.namespace.name.as_bytes(), identity.module);
    let facts = job.facts_here(identity.encoding);
    launch.reply_in_parts(address, &heading, facts);
}

/// Refuses a command that is not served; clients continue without it. `refused` has one bit for each command: each warning is logged
/// once.
fn refuse(launch: &mut Launch, refused: &mut u64, address: Address, code: u8) {
    let bit = 1 << (code % 64);
    if *refused & bit == 0 {
        *refused |= bit;
        let (rank, name) = (launch.jobs.rank(address.identity.seat).rank, command_name(code));
        tracing::warn!("rank {rank} asks for PMIx command {code} ({name}), which is not served");
    }
    launch.answer(address, status::NOT_SUPPORTED);
}

/// Registers files to remove at the end of a rank; other controls of a job are not supported.
fn register_clean_up(launch: &mut Launch, address: Address, targets: &[Proc<'_>], infos: &[Info<'_>]) {
    let seat = address.identity.seat;
    let Some(clean_up) = CleanUp::from_infos(infos) else {
        return launch.answer(address, status::NOT_SUPPORTED);
    };
    let own = launch.jobs[seat.job].namespace.name.as_bytes();
    let rank = launch.jobs.rank(seat).rank.0;
    let is_own =
        |target: &Proc<'_>| target.namespace == own && (target.rank == rank || target.rank == types::RANK_WILDCARD);
    if !targets.iter().all(is_own) {
        return launch.answer(address, status::NOT_SUPPORTED);
    }
    let Some(registered) = launch.jobs[seat.job].clean_up(seat.local) else { return };
    // A program that runs again registers the files of its previous run.
    if registered.contains(&clean_up) {
        return launch.answer(address, status::SUCCESS);
    }
    let paths: usize = registered.iter().map(CleanUp::len).sum();
    let fits = paths + clean_up.len() <= CleanUp::PATHS_MAX;
    if fits {
        let files = clean_up.removed_files();
        registered.push(clean_up);
        if !files.is_empty() {
            launch.actions.push_back(Action::Registered { files });
        }
    }
    launch.answer(address, if fits { status::SUCCESS } else { status::OUT_OF_RESOURCE });
}
