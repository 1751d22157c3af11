//! Dispatch of messages to their handlers.

use std::sync::Arc;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::report::{EndReason, Sender};
use pmi_core::roster::Quota;

use super::inquiries::signal_wanted;
use super::{Action, Address, Client, Server};
use crate::clean_up::CleanUp;
use crate::namespace::Seat;
use crate::wire::forwarding::channel;
use crate::wire::reader::Proc;
use crate::wire::request::{Request, command_name, command_of};
use crate::wire::value::{Info, Value};
use crate::wire::{frame, reply, status, types};

impl Server {
    pub(super) fn handle_message(&mut self, connection: ConnectionId, tag: u32, payload: Bytes) {
        if self.settings.trace {
            self.trace(connection, Sender::Client, tag, &payload);
        }
        let Client { identity: Some(identity), .. } = self.clients[connection] else { return };
        if tag < frame::TAG_FIRST_REQUEST {
            // Heartbeats, and input for tools: the server has requested neither.
            return;
        }
        let address = Address { connection, tag, identity };
        if let Ok(code) = command_of(identity.encoding, &payload)
            && let Some(state) = self.rank_mut(identity.seat)
        {
            state.last_command = Some(command_name(code).into());
        }
        match Request::decode(identity.encoding, &payload) {
            Ok(request) if self.is_tool(identity.seat) => self.handle_tool_request(address, request, &payload),
            Ok(request) => self.handle_rank_request(address, request, &payload),
            Err(error) => match error.status() {
                Some(status) => {
                    let kind = if self.is_tool(identity.seat) { "tool" } else { "rank" };
                    tracing::warn!("a request of {kind} {} is refused: {error}", self.rank(identity.seat).rank);
                    self.answer(address, status);
                }
                None => self.offend(connection, Arc::new(error)),
            },
        }
    }

    pub(super) fn handle_rank_request(&mut self, address: Address, request: Request<'_>, payload: &Bytes) {
        let seat = address.identity.seat;
        match request {
            Request::JobInfo => self.tell_job(address),
            Request::Commit(scopes) => self.commit(address, &scopes),
            Request::Get { proc, infos, key } => self.get(address, proc, &infos, key),
            Request::Fence { procs, collect } => self.fence(address, &procs, collect),
            Request::Connect { procs } => self.connect(address, &procs),
            Request::Disconnect { procs } => self.disconnect(address, &procs),
            Request::GroupConstruct { name, procs, infos } => self.construct_group(address, name, &procs, &infos),
            Request::GroupDestruct { name } => self.destruct_group(address, name),
            Request::Finalize => self.finalize(address),
            Request::Abort { code, message } => self.abort(address, code, message),
            Request::Publish(infos) => self.publish(address, &infos),
            Request::Lookup { keys, infos } => self.look_up(address, &keys, &infos),
            Request::Unpublish { keys } => self.unpublish(address, &keys),
            Request::Spawn { infos, apps } => self.spawn(address, &infos, &apps),
            Request::Notify { status, range, infos } => self.notify(address, status, range, &infos, payload),
            Request::RegisterEvents(codes) => {
                let taken = self.clients[address.connection].interest.register(&codes);
                self.answer(address, if taken { status::SUCCESS } else { status::OUT_OF_RESOURCE });
            }
            Request::DeregisterEvents(codes) => {
                self.clients[address.connection].interest.deregister(&codes);
            }
            Request::Log(infos) => self.log(address, &infos),
            Request::JobControl { targets, infos } => self.control(address, &targets, &infos),
            Request::Allocate { directive, infos } => self.allocate(address, directive, &infos),
            Request::Query(queries) => self.query(address, &queries, payload),
            Request::PullOutput(pull) => self.pull(address, &pull),
            Request::PushInput(push) => self.push_input(address, &push),
            Request::EndPull { number } => self.end_pull(address, number),
            Request::Refresh { proc } => self.refresh(address, proc),
            Request::Unsupported(code) => self.refuse(address, seat, code),
        }
    }

    pub(super) fn answer(&mut self, address: Address, status: i32) {
        self.reply(address, &reply::status(address.identity.encoding, status));
    }

    fn tell_job(&mut self, address: Address) {
        let identity = address.identity;
        let job = &mut self.jobs[identity.seat.job];
        let heading = reply::job_heading(identity.encoding, job.namespace.name.as_bytes(), identity.module);
        let facts = job.facts_here(identity.encoding);
        self.reply_in_parts(address, &heading, facts);
    }

    fn finalize(&mut self, address: Address) {
        let seat = address.identity.seat;
        let Some(state) = self.rank_mut(seat) else { return };
        state.phase = Phase::Finalized;
        let rank = state.rank;
        self.jobs[seat.job].has_left = true;
        self.end_pulls(address.connection);
        self.answer(address, status::SUCCESS);
        self.give_up_on(seat.job, rank);
        self.look_for_deserters();
    }

    fn abort(&mut self, address: Address, code: i32, message: &[u8]) {
        let seat = address.identity.seat;
        // Open MPI 4.1 sends this in place of an empty text.
        let message = if message == b"N/A" { b"" } else { message };
        let message = String::from_utf8_lossy(message).into_owned();
        self.answer(address, status::SUCCESS);
        let rank = self.rank(seat).rank;
        self.end(seat.job, EndReason::Abort { rank, code: Some(code), whole_job: true, message });
    }

    /// Forwards texts: all of them, or none if too many bytes wait for the host.
    fn log(&mut self, address: Address, infos: &[Info<'_>]) {
        let seat = address.identity.seat;
        let rank = self.rank(seat).rank;
        let texts: Vec<(bool, &[u8])> = infos.iter().filter_map(text_of).collect();
        if texts.is_empty() {
            return self.answer(address, status::NOT_SUPPORTED);
        }
        let bytes: usize = texts.iter().map(|(_, text)| text_cost(text.len())).sum();
        if self.unheard.saturating_add(bytes) > self.settings.texts_max {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        self.unheard += bytes;
        for (on_stderr, text) in texts {
            let channel = if on_stderr { channel::STDERR } else { channel::STDOUT };
            self.handle_output(seat, channel, text);
            let text = Bytes::copy_from_slice(text);
            self.actions.push_back(Action::Say { job: seat.job, rank, on_stderr, text });
        }
        self.answer(address, status::SUCCESS);
    }

    /// The host has forwarded a text of `bytes` bytes from a rank: there is room for further texts.
    pub fn handle_heard(&mut self, bytes: usize) {
        self.unheard = self.unheard.saturating_sub(text_cost(bytes));
    }

    /// Sends a signal, or registers files to remove at the end; other controls of a job are not supported.
    fn control(&mut self, address: Address, targets: &[Proc<'_>], infos: &[Info<'_>]) {
        let seat = address.identity.seat;
        if let Some(signal) = signal_wanted(infos) {
            return self.signal(address, targets, signal);
        }
        let Some(clean_up) = CleanUp::from_infos(infos) else {
            return self.answer(address, status::NOT_SUPPORTED);
        };
        let own = self.jobs[seat.job].namespace.name.clone();
        let rank = self.rank(seat).rank.0;
        let mine = |target: &Proc<'_>| {
            target.namespace == own.as_bytes() && (target.rank == rank || target.rank == types::RANK_WILDCARD)
        };
        if !targets.iter().all(mine) {
            return self.answer(address, status::NOT_SUPPORTED);
        }
        let Some(registered) = self.jobs[seat.job].clean_up(seat.local) else { return };
        // A program that runs again registers the files of its previous run.
        if registered.contains(&clean_up) {
            return self.answer(address, status::SUCCESS);
        }
        let paths: usize = registered.iter().map(CleanUp::len).sum();
        let fits = paths + clean_up.len() <= CleanUp::PATHS_MAX;
        if fits {
            let files = clean_up.removed_files();
            registered.push(clean_up);
            if !files.is_empty() {
                self.actions.push_back(Action::Registered { files });
            }
        }
        self.answer(address, if fits { status::SUCCESS } else { status::OUT_OF_RESOURCE });
    }

    /// Refuses a command that is not served; clients continue without it.
    fn refuse(&mut self, address: Address, seat: Seat, code: u8) {
        let bit = 1 << (code % 64);
        if self.refused & bit == 0 {
            self.refused |= bit;
            let (rank, name) = (self.rank(seat).rank, command_name(code));
            tracing::warn!("rank {rank} asks for PMIx command {code} ({name}), which is not served");
        }
        self.answer(address, status::NOT_SUPPORTED);
    }
}

/// Returns a text for one of the rank's streams, and true for standard error.
fn text_of<'a>(info: &Info<'a>) -> Option<(bool, &'a [u8])> {
    let on_stderr = match info.key {
        b"pmix.log.stderr" => true,
        b"pmix.log.stdout" => false,
        _ => return None,
    };
    match info.value {
        Value::Text(text) => Some((on_stderr, text)),
        _ => None,
    }
}

/// Bytes that a text counts for until the host has forwarded it.
fn text_cost(bytes: usize) -> usize {
    bytes.saturating_add(Quota::PAIR_COST)
}
