//! A session in its own process, under the user's uid. The agent and the sessions of other nodes connect to it through one door.
//!
//! ```text
//!              StartSession, commands, answers, questions
//! agent  ──────────────────────────────────────────────────────>  session process ──> ranks
//!        <──────────────────────────────────────────────────────
//!            events (output as far as it has credit), calls, replies, report
//! ```
//!
//! The process starts as the fork server's user. At its [`door`] it waits for its order, which the fork server has checked, and for the
//! agent's connection. It changes to the user that the fork server names before it reads any data from a user or an agent. When the
//! connection ends, the session continues and waits for another agent at the door. It ends the launch on this node if no agent connects in
//! time, or if the door is closed.

mod agent_calls;
mod confirmations;
mod credit;
pub mod door;
mod failure_policy;
mod failures;
mod fence_course;
pub mod frames;
mod gatherer;
mod gathering;
mod incoming;
mod input_relay;
mod job_nodes;
mod kept_events;
mod linked_fence;
mod living_nodes;
mod node_links;
mod other_nodes;
mod outgoing;
mod serving;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod stdin;
mod waiting;

use std::any::Any;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::BytesMut;
use cxi_fabric::secret::keep_out_of_core_dumps;
use nix::unistd::Uid;
use rank_spawner::{
    Account, AccountError, BecomeError, ChildMain, DescriptorSocket, Limit, OwnCgroup, PamError, PamSession,
    Privileges, become_user,
};
use tokio::runtime::Builder;

pub use self::door::Admitted;
use self::door::Ordered;
use self::frames::{ToAgent, read_frame};
use self::serving::Start;
use crate::cause::{Cause, CauseKind, StartClass};
use crate::event::{Event, Report};
use crate::timeouts;
use crate::wire::order::StartOrder;
use crate::wire::{self, WireError};

/// Capacity of the event queue between the session and the socket. Events that wait for credit do not count.
const EVENTS: usize = 64;

/// Settings of all sessions of a node, fixed before the fork server starts.
#[derive(Clone, Debug)]
pub struct Terms {
    /// True if the user's programs may gain privileges by setuid bits.
    pub setuid_programs: bool,
    /// Limits that the process sets while it still has the privilege.
    pub limits: Vec<Limit>,
    /// Time for which the session continues without an agent.
    pub agent_lease: Duration,
    /// PAM service that opens the user's PAM session; `None` without PAM.
    pub pam: Option<PamTerms>,
    /// See [`SessionIo::topology_in_environment`](crate::session_io::SessionIo::topology_in_environment).
    pub topology_in_environment: bool,
    /// Starts the log of the process, after the change to the user. It may start threads. The result is dropped when the session is over.
    pub log: fn() -> Box<dyn Any>,
}

impl Terms {
    /// Timeouts of links to sessions of other nodes.
    fn link_times(&self) -> LinkTimes {
        let pam_timeout = self.pam.as_ref().map(|pam| pam.within);
        LinkTimes { agent_lease: self.agent_lease, answer: timeouts::link_answer(pam_timeout) }
    }
}

/// Timeouts of a session for sessions of other nodes.
#[derive(Clone, Copy, Debug)]
struct LinkTimes {
    /// Time for which sessions continue without an agent.
    agent_lease: Duration,
    /// Time for a called session to answer.
    answer: Duration,
}

/// Settings of the PAM sessions of a node.
#[derive(Clone, Debug)]
pub struct PamTerms {
    /// Name of the service.
    pub service: String,
    /// Time limit for opening a session.
    pub within: Duration,
}

/// Reason why a session did not start. It is reported as the first cause of the launch.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Become(#[from] BecomeError),
    #[error("PAM service {service} lets in no session of user {name} ({uid}): {error}")]
    Pam { service: String, name: String, uid: u32, error: PamError },
    #[error("cannot set the limits that PAM has for user {uid}: {}", errno.desc())]
    PamLimits { uid: u32, errno: nix::errno::Errno },
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("cannot set up a session: {0}")]
    System(#[from] io::Error),
}

/// Work of a process that keeps its user. The arguments are the user of the order, the order, and the agent's connection, which gets the
/// answer.
pub type Errand = Box<dyn Fn(u32, StartOrder, UnixStream)>;

/// Returns the main function of session processes, and of processes that run an errand instead of a session. For
/// [`rank_spawner::ForkServer::fork`].
pub fn main(terms: Terms, errand: Errand) -> ChildMain {
    // An error means that the agent is gone or sent an invalid message. No process can receive a report.
    Box::new(move |door, cgroup| drop(live(&terms, &errand, door, cgroup)))
}

fn live(terms: &Terms, errand: &Errand, door: DescriptorSocket, cgroup: Option<OwnCgroup>) -> io::Result<()> {
    // This setup does not depend on the user, so it runs before the order arrives. No launch waits for it.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let _ = Account::of(Uid::effective().as_raw());
    let Some(ordered) = door::order(&door)? else { return Ok(()) };
    let pam = match &terms.pam {
        Some(pam) => {
            let Some(process) = door::pam_process(&door)? else { return Ok(()) };
            Some((pam, process))
        }
        None => None,
    };
    let Some(mut socket) = door::first_agent(&door)? else { return Ok(()) };
    if ordered.admitted.host.is_empty() {
        let order = StartOrder::decode(ordered.order.read()?).map_err(io::Error::other)?;
        errand(ordered.admitted.uid, order, socket);
        return Ok(());
    }
    match begin(terms, &ordered, pam, &mut socket) {
        Ok(Some(start)) => {
            let _log = (terms.log)();
            // All tasks run on this thread, so they run within this span.
            let _launch = tracing::error_span!("session", launch = start.launch_id()).entered();
            let result = runtime.block_on(start.serve(socket, door, cgroup, terms));
            // A thread that is stuck in a system call is abandoned.
            runtime.shutdown_background();
            result
        }
        Ok(None) => Ok(()),
        Err(refusal) => tell_refusal(&mut socket, &ordered.admitted.host, &refusal),
    }
}

/// Changes to the user after PAM has accepted the user, then reads the launch; `None` if the agent has disconnected.
fn begin(
    terms: &Terms,
    ordered: &Ordered,
    pam: Option<(&PamTerms, UnixStream)>,
    socket: &mut UnixStream,
) -> Result<Option<Start>, Refusal> {
    let privileges = Privileges { setuid_programs: terms.setuid_programs, limits: terms.limits.clone() };
    let account = Account::of(ordered.admitted.uid).or_else(|error| match error {
        // A user without an account entry can run as the user of this process.
        AccountError::Unknown { uid } if uid == Uid::effective().as_raw() => Ok(nameless(uid)),
        error => Err(error),
    })?;
    let session = pam.map(|(terms, process)| let_in(terms, process, &account)).transpose()?.unwrap_or_default();
    become_user(&account, &privileges)?;
    // The order has the key of the launch's links. The kernel may have made the process dumpable again when it changed its user.
    keep_out_of_core_dumps()?;
    let Some(start) = read_frame(socket)? else { return Ok(None) };
    let order = StartOrder::decode(ordered.order.read()?)?;
    let start = Start::new(wire::start::decode(order, start)?, session.environment, &account);
    start.descriptors().reserve();
    Ok(Some(start))
}

/// Waits until the user's PAM session is open, and sets its limits.
fn let_in(terms: &PamTerms, process: UnixStream, account: &Account) -> Result<PamSession, Refusal> {
    let uid = account.uid;
    let session = PamSession::opened(process, terms.within).map_err(|error| {
        let (service, name) = (terms.service.clone(), account.name.clone());
        Refusal::Pam { service, name, uid, error }
    })?;
    session.set_limits().map_err(|errno| Refusal::PamLimits { uid, errno })?;
    Ok(session)
}

fn nameless(uid: u32) -> Account {
    let gid = nix::unistd::getegid().as_raw();
    Account { uid, gid, name: uid.to_string(), home: "/".into(), shell: "/bin/sh".into() }
}

/// Reports that no rank was started. The agent receives the events of a session that failed at once.
fn tell_refusal(socket: &mut UnixStream, host: &str, refusal: &Refusal) -> io::Result<()> {
    let kind = CauseKind::NotStarted { reason: refusal.to_string(), class: StartClass::System };
    let cause = Cause { host: host.to_owned(), kind };
    let mut bytes = BytesMut::new();
    for event in [wire::event::encode(&Event::Ending(cause)), wire::event::encode_report(&Report::default())] {
        ToAgent::event(event).append_to(&mut bytes);
    }
    socket.write_all(&bytes)
}

#[cfg(test)]
mod tests;
