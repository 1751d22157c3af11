//! A node: its host, its agent, its fork server, the session of the launch and the ranks. Dispatches events to them.

mod agent;
mod fork_server;
mod session_host;

use pmi_core::ids::Rank;

use self::agent::Agent;
use self::fork_server::{End as SessionEnd, ForkServer, SessionState};
pub(crate) use self::session_host::LinkTarget;
use self::session_host::SessionHost;
use crate::connection::{ConnectionId, End, Host, Purpose};
use crate::event::{AgentEvent, Call, Message, NodeEvent, SessionEvent};
use crate::surroundings::Surroundings;
use crate::time::Time;

/// One host and its processes.
#[derive(Debug)]
pub(crate) struct Node {
    number: u32,
    agent: Option<Agent>,
    fork_server: ForkServer,
    /// The launch was on this node, so that no session of it begins again. A new agent detects by the serial number that
    /// the launch is an old one.
    has_had_launch: bool,
}

impl Node {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, agent: None, fork_server: ForkServer::new(number), has_had_launch: false }
    }

    fn host(&self) -> Host {
        Host(self.number)
    }

    // Queries.

    pub(crate) fn has_had_launch(&self) -> bool {
        self.has_had_launch
    }

    pub(crate) fn agent_process(&self) -> Option<u64> {
        self.agent.as_ref().map(Agent::process)
    }

    pub(crate) fn has_process(&self, process: u64) -> bool {
        let session = self.fork_server.session().map(SessionHost::process);
        self.agent_process() == Some(process) || session == Some(process)
    }

    /// Returns true if the agent with this process has the launch; `None` if there is no such agent.
    pub(crate) fn agent_has_launch(&self, process: u64) -> Option<bool> {
        self.agent.as_ref().filter(|agent| agent.process() == process).map(Agent::has_launch)
    }

    /// Returns the running ranks, if the launch has a session here.
    pub(crate) fn session_ranks(&self) -> Option<Vec<Rank>> {
        self.fork_server.session().map(SessionHost::alive)
    }

    /// Returns true if no process of the launch runs here.
    pub(crate) fn is_clean(&self) -> bool {
        self.fork_server.is_clean() && !self.agent.as_ref().is_some_and(Agent::has_launch)
    }

    // Starts and ends of host and agent.

    pub(crate) fn on_event(&mut self, event: &NodeEvent, around: &mut Surroundings) {
        match event {
            NodeEvent::NodeBack { .. } if !around.network.is_up(self.host()) => self.start_agent(around),
            NodeEvent::AgentBack { .. } if around.network.is_up(self.host()) && self.agent.is_none() => {
                self.start_agent(around);
            }
            NodeEvent::NodeBack { .. } | NodeEvent::AgentBack { .. } => {}
            NodeEvent::SessionGone { .. } => {
                if let (Some(end), Some(agent)) = (self.fork_server.session_gone(), &mut self.agent) {
                    agent.session_ended(end, &mut self.fork_server, around);
                }
            }
        }
    }

    /// Starts an agent, which adopts an existing session.
    pub(crate) fn start_agent(&mut self, around: &mut Surroundings) {
        let process = around.schedule.next_process();
        around.network.machine_runs(self.host());
        around.network.listen(End { host: self.host(), process });
        let kept = self.fork_server.kept();
        let agent = self.agent.insert(Agent::new(self.number, process, kept.is_some(), around.now()));
        match kept {
            Some(SessionState::Running) => self.fork_server.connect(process, around),
            Some(SessionState::Ended) => agent.session_ended(SessionEnd::Unseen, &mut self.fork_server, around),
            None => {}
        }
        agent.begin(around);
    }

    /// Kills the agent. Its session continues.
    pub(crate) fn kill_agent(&mut self, around: &mut Surroundings) {
        let Some(agent) = self.agent.take() else { return };
        if !self.has_had_launch {
            around.truth.may_not_begin = true;
            around.truth.struck.insert(self.number);
        }
        around.network.stop_listening(self.host());
        around.close_all(End { host: self.host(), process: agent.process() });
        self.fork_server.agent_lost(agent.process(), around);
    }

    /// Kills the agent and its fork server, which closes the door of the session.
    pub(crate) fn kill_service(&mut self, around: &mut Surroundings) {
        self.kill_agent(around);
        self.fork_server.close_door(around);
    }

    /// Kills the session, if it runs.
    pub(crate) fn kill_session(&mut self, around: &mut Surroundings) {
        if self.fork_server.running().is_some() {
            self.fork_server.kill_session(around);
        }
    }

    /// The host fails, with all its processes.
    pub(crate) fn crash(&mut self, around: &mut Surroundings) {
        if around.network.is_up(self.host()) {
            self.agent = None;
            self.fork_server.vanish();
            around.network.crash(&mut around.schedule, self.host());
        }
    }

    /// Kills a rank, if it is on this node.
    pub(crate) fn kill_rank(&mut self, rank: Rank, signal: i32, around: &mut Surroundings) {
        if let Some(session) = self.fork_server.session_mut()
            && session.has_rank(rank)
        {
            session.strike_rank(rank, signal, around);
        }
    }

    // The launch.

    /// The agent had registered before the launch was ordered.
    pub(crate) fn has_registered(&mut self, around: &mut Surroundings) {
        if let Some(agent) = &mut self.agent {
            agent.has_registered(around);
        }
    }

    /// Handles a call of the API server, or an answer of it.
    pub(crate) fn on_call(&mut self, call: Call, around: &mut Surroundings) {
        let fork_server = &mut self.fork_server;
        match call {
            Call::Start { caller, .. } => self.start_session(caller, around),
            Call::Abort { signal, .. } => {
                if let Some(agent) = &mut self.agent {
                    agent.abort(signal, fork_server, around);
                }
            }
            Call::Registered { agent, must_end, asked, .. } => {
                if let Some(agent) = self.agent.as_mut().filter(|known| known.process() == agent) {
                    agent.registered(must_end, asked, fork_server, around);
                }
            }
            Call::BeatAnswer { agent, again, asked, .. } => {
                if let Some(agent) = self.agent.as_mut().filter(|known| known.process() == agent) {
                    agent.beat_answered(again, asked, around);
                }
            }
            Call::SpawnAnswer { wish, answer, .. } => {
                let session = around.wishes[wish].session;
                if let Some(session) = fork_server.session_of(session) {
                    session.spawn_answered(wish, answer, around);
                }
            }
            _ => {}
        }
    }

    /// Handles the request to start the launch here.
    fn start_session(&mut self, caller: u64, around: &mut Surroundings) {
        let (node, host) = (self.number, self.host());
        if !around.network.is_up(host) {
            return;
        }
        let accepting = self.agent.as_mut().filter(|agent| !self.has_had_launch && !agent.has_launch());
        let Some(agent) = accepting else {
            return around.call(host, Host::API, Call::StartAnswer { node, caller, accepted: false });
        };
        self.has_had_launch = true;
        agent.take_launch();
        self.fork_server.fork_session(agent.process(), around);
        around.call(host, Host::API, Call::StartAnswer { node, caller, accepted: true });
        let time = around.some_time(100, 50_000);
        around.after(time, AgentEvent::OpenStream { node, agent: agent.process() });
    }

    pub(crate) fn on_agent_event(&mut self, event: AgentEvent, around: &mut Surroundings) {
        let (_, process) = event.agent();
        if let Some(agent) = self.agent.as_mut().filter(|agent| agent.process() == process) {
            agent.on_event(event, &mut self.fork_server, around);
        }
    }

    pub(crate) fn on_session_event(&mut self, event: SessionEvent, around: &mut Surroundings) {
        let (_, process) = event.session();
        // A number is used up even if the session that requested the process is gone.
        let pid = matches!(event, SessionEvent::Start { .. }).then(|| around.schedule.next_process());
        if let Some(session) = self.fork_server.session_of(process) {
            session.on_event(event, pid.unwrap_or_default(), around);
        }
    }

    // Connections.

    pub(crate) fn on_message(
        &mut self,
        connection: ConnectionId,
        end: End,
        message: Message,
        around: &mut Surroundings,
    ) {
        match message {
            Message::Frame { from, frame } => {
                if let Some(session) = self.fork_server.session_of(end.process) {
                    session.on_frame(from, frame, around);
                }
            }
            message => {
                if let Some(agent) = &mut self.agent {
                    agent.on_message(connection, message, &mut self.fork_server, around);
                }
            }
        }
    }

    pub(crate) fn on_broken(
        &mut self,
        connection: ConnectionId,
        purpose: Purpose,
        end: End,
        around: &mut Surroundings,
    ) {
        match purpose {
            Purpose::Report { .. } => {
                if let Some(agent) = &mut self.agent {
                    agent.stream_broke(connection, &mut self.fork_server, around);
                }
            }
            Purpose::Link => {
                if let Some(session) = self.fork_server.session_of(end.process) {
                    session.link_broke(connection, around);
                }
            }
            Purpose::Attachment => {}
        }
    }

    /// State of this node for a session of another node that opens a link.
    pub(crate) fn link_target(&self) -> LinkTarget {
        let session = self.fork_server.session().filter(|session| session.takes_links()).map(SessionHost::process);
        LinkTarget { session, has_ended: self.has_had_launch && session.is_none(), has_agent: self.agent.is_some() }
    }

    /// Opens a link of the session to another node, if it is still needed. Returns the link, and the session that accepts
    /// it.
    pub(crate) fn open_link(
        &mut self,
        session: u64,
        to: u32,
        since: Time,
        target: LinkTarget,
        around: &mut Surroundings,
    ) -> Option<(u64, ConnectionId)> {
        self.fork_server.session_of(session)?.open_link(to, since, target, around)
    }

    /// The session accepts a link.
    pub(crate) fn accept_link(&mut self, process: u64, from: u32, link: ConnectionId, around: &mut Surroundings) {
        if let Some(session) = self.fork_server.session_of(process) {
            session.accept_link(from, link, around);
        }
    }
}
