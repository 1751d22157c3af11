//! The fork server of a node: forks the session, keeps its door for the next agent, kills it and detects its end.

use bytes::Bytes;

use super::session_host::SessionHost;
use crate::event::NodeEvent;
use crate::surroundings::Surroundings;

/// State of a session for the next agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    Running,
    /// The session has ended, and none of its processes runs.
    Ended,
}

/// End of a session process, as reported to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The session had sent all events, and was not needed any more.
    InOrder,
    /// Sent events that the agent has not received are lost.
    Killed,
    /// The session ended while there was no agent.
    Unseen,
}

/// The fork server and its session.
#[derive(Debug)]
pub(super) struct ForkServer {
    node: u32,
    session: Option<SessionHost>,
    kept: Option<SessionState>,
}

impl ForkServer {
    pub(super) fn new(node: u32) -> Self {
        Self { node, session: None, kept: None }
    }

    pub(super) fn kept(&self) -> Option<SessionState> {
        self.kept
    }

    pub(super) fn session(&self) -> Option<&SessionHost> {
        self.session.as_ref()
    }

    pub(super) fn session_mut(&mut self) -> Option<&mut SessionHost> {
        self.session.as_mut()
    }

    /// Returns the session, if it has this process.
    pub(super) fn session_of(&mut self, process: u64) -> Option<&mut SessionHost> {
        self.session.as_mut().filter(|session| session.process() == process)
    }

    /// Returns the session, if its process has not ended.
    pub(super) fn running(&mut self) -> Option<&mut SessionHost> {
        self.session.as_mut().filter(|session| !session.has_ended())
    }

    /// Returns true if it has no session, and has no session to report to an agent.
    pub(super) fn is_clean(&self) -> bool {
        self.session.is_none() && self.kept.is_none()
    }

    /// Forks the session of the launch.
    pub(super) fn fork_session(&mut self, agent: u64, around: &mut Surroundings) {
        let session = SessionHost::new(self.node, agent, around);
        if self.session.replace(session).is_some() {
            around.truth.wrong(format!("I3: node {} starts the launch twice", self.node));
        }
        self.kept = Some(SessionState::Running);
        if let Some(session) = &mut self.session {
            session.carry_out(around);
        }
    }

    /// Connects a new agent to the session of the previous agent.
    pub(super) fn connect(&mut self, agent: u64, around: &mut Surroundings) {
        if let Some(session) = self.running() {
            session.agent_comes(agent, around);
        }
    }

    /// An agent has ended.
    pub(super) fn agent_lost(&mut self, agent: u64, around: &mut Surroundings) {
        if let Some(session) = self.running() {
            session.agent_lost(agent, around);
        }
    }

    /// The fork server and its agent have ended.
    pub(super) fn close_door(&mut self, around: &mut Surroundings) {
        self.kept = None;
        if let Some(session) = self.running() {
            session.door_closed(around);
        }
    }

    /// The agent sends bytes to the session.
    pub(super) fn say(&mut self, bytes: Bytes, around: &mut Surroundings) {
        let earliest = around.now() + around.some_time(5, 200);
        if let Some(session) = self.running() {
            session.take_from_agent(bytes, earliest, around);
        }
    }

    /// Kills the ranks and the session, as the fork server or the kernel does.
    pub(super) fn kill_session(&mut self, around: &mut Surroundings) {
        let Some(session) = &mut self.session else { return };
        session.kill(around);
        let time = around.some_time(50, 20_000);
        around.after(time, NodeEvent::SessionGone { node: self.node });
    }

    /// Handles the end of the session. Returns the kind of its end, if there was a session.
    pub(super) fn session_gone(&mut self) -> Option<End> {
        let session = self.session.take_if(|session| session.has_ended())?;
        self.kept = self.kept.map(|_| SessionState::Ended);
        Some(if session.was_killed() { End::Killed } else { End::InOrder })
    }

    /// Removes the session, which need not be reported to an agent any more.
    pub(super) fn forget(&mut self) {
        self.kept = None;
    }

    /// The host has failed.
    pub(super) fn vanish(&mut self) {
        (self.session, self.kept) = (None, None);
    }
}
