//! A node: its machine, its agent, its fork server, the session of the launch and the ranks.

use std::collections::BTreeMap;

use lattice_session::session_process::simulation::SimulatedSession;
use pmi_core::ids::Rank;

use super::agent::{Agent, Kept};
use super::{Call, Event, World};
use crate::network::{ConnectionId, Host, Purpose, Side};
use crate::rank::RankProcess;
use crate::time::Time;

/// One machine and what runs on it.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) is_up: bool,
    pub(super) agent: Option<Agent>,
    pub(super) session: Option<SessionHost>,
    /// What the fork server keeps for the next agent.
    pub(super) kept: Option<Kept>,
    /// The launch was here; no session of it begins again. A new agent knows by its serial number that it is an old one.
    pub(super) has_had_launch: bool,
}

/// The session process, and the processes that it has started.
pub(super) struct SessionHost {
    pub(super) process: u64,
    pub(super) machines: SimulatedSession,
    pub(super) ranks: BTreeMap<Rank, RankProcess>,
    /// The agent that it is connected to.
    pub(super) agent: Option<u64>,
    /// Since when it has none.
    pub(super) alone_since: Option<Time>,
    /// Links by node, the one that is written to.
    pub(super) links: BTreeMap<u32, ConnectionId>,
    /// Frames for links that are being opened.
    pub(super) opening: BTreeMap<u32, Vec<bytes::Bytes>>,
    pub(super) woken: Option<Time>,
    /// Time at which the last message to it or from it over the door arrives.
    pub(super) door: [Time; 2],
}

impl std::fmt::Debug for SessionHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionHost").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Node {
    pub(super) fn agent_process(&self) -> Option<u64> {
        self.agent.as_ref().map(|agent| agent.process)
    }

    pub(super) fn has_process(&self, process: u64) -> bool {
        let session = self.session.as_ref().map(|session| session.process);
        self.is_up && (self.agent_process() == Some(process) || session == Some(process))
    }

    pub(super) fn session_of(&mut self, process: u64) -> Option<&mut SessionHost> {
        self.session.as_mut().filter(|session| session.process == process)
    }
}

impl World {
    pub(super) fn called(&mut self, call: Call) {
        match call {
            Call::Start { node, caller } => self.start_session(node, caller),
            Call::Abort { node, signal } => self.abort_on(node, signal),
            Call::StartAnswer { node, caller, accepted } => self.start_answered(node, caller, accepted),
            Call::Register { node, agent, asked } => {
                let has_launch = self.agent_has_launch(node);
                if self.nodes[node as usize].agent_process() == Some(agent) {
                    self.node_registers(node, agent, has_launch, asked);
                }
            }
            Call::Beat { node, agent, asked } => {
                let has_launch = self.agent_has_launch(node);
                if self.nodes[node as usize].agent_process() == Some(agent) {
                    self.node_beats(node, agent, has_launch, asked);
                }
            }
            Call::Registered { node, agent, must_end, asked } => self.registered(node, agent, must_end, asked),
            Call::BeatAnswer { node, agent, again, asked } => self.beat_answered(node, agent, again, asked),
            Call::PortAnswer { node, caller, port } => self.port_answered(node, caller, port),
        }
    }

    /// A process learns that its connection is over.
    pub(super) fn side_broke(&mut self, connection: ConnectionId, purpose: Purpose, end: crate::network::End) {
        match (purpose, end.host) {
            (Purpose::Report { .. }, Host::API) => self.report_stream_broke(connection),
            (Purpose::Report { node }, _) => self.stream_broke(node, connection),
            (Purpose::Attachment, Host::API) => self.follower_gone(connection),
            (Purpose::Attachment, _) => self.attachment_broke(connection),
            (Purpose::Link, Host(node)) => self.link_broke(node, end.process, connection),
        }
    }

    /// The machine is gone, with everything on it.
    pub(super) fn crash_node(&mut self, node: u32) {
        let known = &mut self.nodes[node as usize];
        if !std::mem::replace(&mut known.is_up, false) {
            return;
        }
        known.agent = None;
        known.kept = None;
        let session = known.session.take();
        // Nobody has seen how they ended.
        self.truth.forget(session.iter().flat_map(|session| session.ranks.keys().copied()));
        self.drop_connections(Host(node));
    }

    /// The machine is there again.
    pub(super) fn node_back(&mut self, node: u32) {
        if !self.nodes[node as usize].is_up {
            self.start_agent(node);
        }
    }

    /// Ranks and session of a node are killed by its fork server, or by the kernel.
    pub(super) fn kill_session(&mut self, node: u32) {
        let Some(session) = self.nodes[node as usize].session.as_mut() else { return };
        let process = session.process;
        let ranks: Vec<Rank> = session.ranks.keys().copied().collect();
        session.ranks.clear();
        self.truth.forget(ranks.into_iter());
        self.close_all(crate::network::End { host: Host(node), process });
        let time = self.some_time(50, 20_000);
        self.after(time, Event::SessionGone { node });
        // Nothing of it runs any more.
        if let Some(session) = self.nodes[node as usize].session.as_mut() {
            session.process = 0;
            session.agent = None;
        }
    }

    /// The other side of a link, as the session sees it.
    pub(super) fn peer_of(&self, connection: ConnectionId, node: u32) -> Option<u32> {
        let known = self.network.get(connection)?;
        let hosts = [known.end(Side::Opener).host, known.end(Side::Accepter).host];
        hosts.into_iter().find(|host| *host != Host(node)).map(|host| host.0)
    }
}
