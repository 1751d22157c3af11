//! Tools: processes that are not ranks, and inspect or control a launch (`PMIx_tool_init`).
//!
//! A tool is a separate job, with its own name or an assigned one. It never affects the state of the launch: it is in no collective, no
//! rank waits for it, and its end has no consequence. It sends queries and controls; it publishes no values, and starts nothing.

use std::collections::HashSet;

use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::ids::{LocalRank, Rank};

use super::client::Address;
use super::jobs::Jobs;
use super::launch::Launch;
use crate::env::SERVER;
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::handshake::{self, Handshake};
use crate::wire::reader::Proc;
use crate::wire::reply;

/// Maximum number of tools at a time.
const TOOLS_MAX: usize = 32;
/// Maximum length of a tool's message, in bytes.
const MESSAGE_MAX: usize = 64 * 1024;
/// Maximum length of a tool's name in bytes, as in clients.
const NAME_MAX: usize = 255;

/// The only local rank in a tool's job.
const ALONE: LocalRank = LocalRank(0);

/// Tools of a launch.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Jobs of tools, including the free ones for the next tool.
    jobs: Vec<JobIndex>,
    /// Ranks with names that tools have used: the ranks themselves, or processes that they started.
    named: HashSet<Seat>,
}

impl Tools {
    /// Returns true if a tool has connected with the name of this rank.
    pub(super) fn has(&self, seat: Seat) -> bool {
        self.named.contains(&seat)
    }

    /// Admits a tool, if there is room. Further tools are disconnected without an answer: libpmix 4 treats any status as an acceptance.
    pub(super) fn admit(
        &mut self,
        launch: &mut Launch,
        connection: ConnectionId,
        handshake: &Handshake<'_>,
        name: Option<Proc<'_>>,
    ) -> Result<(), String> {
        let (seat, given) = self.seat_for(launch, name)?;
        launch.identify(connection, seat, handshake);
        self.named.extend(name.and_then(|name| seat_named(&launch.jobs, name)));
        launch.clients[connection].frames.limit(MESSAGE_MAX);
        let given = given.as_ref().map(|name| Proc { namespace: name.as_bytes(), rank: 0 });
        launch.push_send(connection, handshake::welcome_tool(given, SERVER));
        if let Some(state) = launch.jobs.rank_mut(seat) {
            state.connection = Some(connection);
        }
        Ok(())
    }

    /// Returns a tool's seat, and its name if the server assigned it.
    fn seat_for(&mut self, launch: &mut Launch, name: Option<Proc<'_>>) -> Result<(Seat, Option<String>), String> {
        let id = launch.jobs.first().map(|job| job.namespace.job.id.clone());
        let id = id.ok_or("a tool that came before the first job")?;
        let own = match name {
            Some(name) if name.namespace.len() > NAME_MAX => return Err("a tool with too long a name".to_owned()),
            Some(name) => Some(String::from_utf8_lossy(name.namespace).into_owned()),
            None => None,
        };
        let given = own.is_none().then(|| format!("lattice-tool-{}", launch.new_ticket().0));
        let called = own.or_else(|| given.clone()).unwrap_or_default();
        let is_free = |job: &&JobIndex| launch.jobs[**job].ranks[ALONE].connection.is_none();
        let job = match self.jobs.iter().find(is_free) {
            Some(&job) => job,
            None if self.jobs.len() < TOOLS_MAX => {
                let job = launch.jobs.add(JobState::tool(called.clone(), id));
                self.jobs.push(job);
                job
            }
            None => return Err(format!("a tool: {TOOLS_MAX} others are connected")),
        };
        launch.jobs[job].namespace.name = called;
        let seat = Seat { job, local: ALONE };
        if let Some(state) = launch.jobs.rank_mut(seat) {
            // It keeps the quota of the previous tool, which may have unanswered questions.
            state.rank = Rank(name.map_or(0, |name| name.rank));
            state.phase = Phase::Open;
            state.last_command = None;
        }
        Ok((seat, given))
    }

    /// Drops the names of ranks of a removed job.
    pub(super) fn remove(&mut self, job: JobIndex) {
        self.named.retain(|seat| seat.job != job);
    }
}

/// Returns the rank of this node with that name.
fn seat_named(jobs: &Jobs, name: Proc<'_>) -> Option<Seat> {
    let job = jobs.own(name.namespace)?;
    Some(Seat { job, local: jobs[job].local(Rank(name.rank))? })
}

/// Sends the facts about the job with the tool's name, for a tool that a rank has started. Otherwise sends only the tool's own name,
/// because the tool has all facts about itself.
pub(super) fn send_job_info(launch: &mut Launch, address: Address) {
    let identity = address.identity;
    let name = launch.jobs[identity.seat.job].namespace.name.clone();
    let heading = reply::job_heading(identity.encoding, name.as_bytes(), identity.module);
    let job = launch.jobs.own(name.as_bytes());
    let facts = job.map(|job| launch.jobs[job].facts_here(identity.encoding)).unwrap_or_default();
    launch.reply_in_parts(address, &heading, facts);
}
