//! Tools: processes that are not ranks, and inspect or control a launch (`PMIx_tool_init`).
//!
//! A tool is a separate job, with its own name or an assigned one. It never affects the state of the launch: it is in no collective, no
//! rank waits for it, and its end has no consequence. It sends queries and controls; it publishes no values, and starts nothing.

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::ids::{LocalRank, Rank};

use super::inquiries::signal_wanted;
use super::{Address, Server};
use crate::env::SERVER;
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::handshake::{self, Handshake};
use crate::wire::reader::Proc;
use crate::wire::request::{Request, command_name, command_of};
use crate::wire::{reply, status};

/// Maximum number of tools at a time.
const TOOLS_MAX: usize = 32;
/// Maximum number of unanswered questions of one tool; open questions of an earlier tool count for the next one in its slot.
pub(super) const QUESTIONS_MAX: usize = 64;
/// Maximum length of a tool's message, in bytes.
const MESSAGE_MAX: usize = 64 * 1024;
/// Maximum length of a tool's name in bytes, as in clients.
const NAME_MAX: usize = 255;

/// The only local rank in a tool's job.
const ALONE: LocalRank = LocalRank(0);

impl Server {
    pub(super) fn is_tool(&self, seat: Seat) -> bool {
        self.jobs[seat.job].is_tool()
    }

    /// Returns true if a tool has connected with the name of this rank: the rank itself, or a process that it started.
    pub fn has_tool(&self, seat: Seat) -> bool {
        self.named_tools.contains(&seat)
    }

    /// The job of a request without a job: the client's own, or for a tool the first launched job.
    pub(super) fn job_meant(&self, seat: Seat) -> JobIndex {
        if self.is_tool(seat) { JobIndex(0) } else { seat.job }
    }

    /// Admits a tool, if there is room. Further tools are disconnected without an answer: libpmix 4 treats any status as an acceptance.
    pub(super) fn admit_tool(
        &mut self,
        connection: ConnectionId,
        handshake: &Handshake<'_>,
        name: Option<Proc<'_>>,
    ) -> Result<(), String> {
        let (seat, given) = self.seat_for_tool(name)?;
        self.identify(connection, seat, handshake);
        self.named_tools.extend(name.and_then(|name| {
            let job = self.own_job(name.namespace)?;
            Some(Seat { job, local: self.jobs[job].local(Rank(name.rank))? })
        }));
        self.clients[connection].frames.limit(MESSAGE_MAX);
        let given = given.as_ref().map(|name| Proc { namespace: name.as_bytes(), rank: 0 });
        self.push_send(connection, handshake::welcome_tool(given, SERVER));
        if let Some(state) = self.rank_mut(seat) {
            state.connection = Some(connection);
        }
        Ok(())
    }

    /// Returns a tool's seat, and its name if the server assigned it.
    fn seat_for_tool(&mut self, name: Option<Proc<'_>>) -> Result<(Seat, Option<String>), String> {
        let launch = self.jobs.first().map(|job| job.namespace.job.id.clone());
        let launch = launch.ok_or("a tool that came before the first job")?;
        let own = match name {
            Some(name) if name.namespace.len() > NAME_MAX => return Err("a tool with too long a name".to_owned()),
            Some(name) => Some(String::from_utf8_lossy(name.namespace).into_owned()),
            None => None,
        };
        let given = own.is_none().then(|| format!("lattice-tool-{}", self.new_ticket().0));
        let called = own.or_else(|| given.clone()).unwrap_or_default();
        let is_free = |job: &&JobIndex| self.jobs[**job].ranks[ALONE].connection.is_none();
        let job = match self.tools.iter().find(is_free) {
            Some(&job) => job,
            None if self.tools.len() < TOOLS_MAX => {
                let job = self.jobs.add(JobState::tool(called.clone(), launch));
                self.tools.push(job);
                job
            }
            None => return Err(format!("a tool: {TOOLS_MAX} others are connected")),
        };
        self.jobs[job].namespace.name = called;
        let seat = Seat { job, local: ALONE };
        if let Some(state) = self.rank_mut(seat) {
            // It keeps the quota of the previous tool, which may have unanswered questions.
            state.rank = Rank(name.map_or(0, |name| name.rank));
            state.phase = Phase::Open;
            state.last_command = None;
        }
        Ok((seat, given))
    }

    /// Serves a request of a tool. All other requests would make it a part of the launch.
    pub(super) fn handle_tool_request(&mut self, address: Address, request: Request<'_>, payload: &Bytes) {
        match request {
            Request::JobInfo => self.tell_tool_its_job(address),
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
                Some(signal) => self.signal(address, &targets, signal),
                None => self.answer(address, status::NOT_SUPPORTED),
            },
            Request::Finalize => {
                if let Some(state) = self.rank_mut(address.identity.seat) {
                    state.phase = Phase::Finalized;
                }
                self.end_pulls(address.connection);
                self.answer(address, status::SUCCESS);
            }
            _ => {
                let name = command_of(address.identity.encoding, payload).map_or("", command_name);
                tracing::debug!("a tool asks for PMIx command {name}, which is not served to tools");
                self.answer(address, status::NOT_SUPPORTED);
            }
        }
    }

    /// Sends the facts about the job with the tool's name, for a tool that a rank has started. Otherwise sends only the tool's own name,
    /// because the tool has all facts about itself.
    fn tell_tool_its_job(&mut self, address: Address) {
        let identity = address.identity;
        let name = self.jobs[identity.seat.job].namespace.name.clone();
        let heading = reply::job_heading(identity.encoding, name.as_bytes(), identity.module);
        let job = self.own_job(name.as_bytes());
        let facts = job.map(|job| self.jobs[job].facts_here(identity.encoding)).unwrap_or_default();
        self.reply_in_parts(address, &heading, facts);
    }
}
