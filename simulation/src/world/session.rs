//! The session process of a node, its door, its links, and the processes of its ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::cause::RankExit;
use lattice_session::session_process::simulation::{SessionEffect, SimulatedSession};
use nix::sys::signal::Signal;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use prost::Message as _;

use super::agent::Kept;
use super::node::SessionHost;
use super::{Event, LEASE, Message, World};
use crate::network::{ConnectionId, End, Host, KEEP_ALIVE, Purpose};
use crate::rank::{Deed, RankProcess};
use crate::scenario::OnTerm;
use crate::time::Time;

/// Pause before a link is tried again whose other end is not there yet.
const LINK_PAUSE: Duration = Duration::from_millis(100);
/// Time for which it is tried.
const LINK_TRIES: Duration = Duration::from_secs(5);

impl World {
    /// The fork server starts the session of the launch.
    pub(super) fn fork_session(&mut self, node: u32, agent: u64) {
        let now = self.at(Host(node));
        let (fan_out, window) = (self.scenario.fan_out, self.scenario.output_window);
        let machines = SimulatedSession::new(self.scenario.spec(node), fan_out, window, now);
        let session = SessionHost {
            process: self.next_process(),
            machines,
            ranks: BTreeMap::new(),
            agent: Some(agent),
            alone_since: None,
            links: BTreeMap::new(),
            opening: BTreeMap::new(),
            woken: None,
            door: [self.now; 2],
        };
        if self.nodes[node as usize].session.replace(session).is_some() {
            self.truth.wrong(format!("I3: node {node} starts the launch twice"));
        }
        self.nodes[node as usize].kept = Some(Kept::Running);
        self.carry_out_session(node);
    }

    /// Gives the session an input.
    fn with_session(&mut self, node: u32, process: u64, act: impl FnOnce(&mut SimulatedSession, std::time::Instant)) {
        let now = self.at(Host(node));
        if let Some(session) = self.nodes[node as usize].session_of(process) {
            act(&mut session.machines, now);
            self.carry_out_session(node);
        }
    }

    fn carry_out_session(&mut self, node: u32) {
        while let Some(session) = &mut self.nodes[node as usize].session
            && let Some(effect) = session.machines.poll_effect()
        {
            let process = session.process;
            self.carry_out_session_effect(node, process, effect);
        }
        let clock = self.clock(Host(node));
        let Some(session) = self.nodes[node as usize].session.as_mut().filter(|session| session.process != 0) else {
            return;
        };
        let process = session.process;
        if session.machines.has_left() && !session.links.is_empty() {
            let links: Vec<ConnectionId> = std::mem::take(&mut session.links).into_values().collect();
            session.opening.clear();
            let end = End { host: Host(node), process };
            for link in links {
                if let Some(side) = self.network.get(link).and_then(|known| known.side_of(end)) {
                    self.close(link, side);
                }
            }
        }
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        if let Some(at) = session.machines.next_wake().map(|wake| clock.when(wake))
            && session.woken.is_none_or(|woken| at < woken)
        {
            session.woken = Some(at);
            self.schedule(at, Event::SessionWake { node, session: process, at });
        }
    }

    fn carry_out_session_effect(&mut self, node: u32, session: u64, effect: SessionEffect) {
        match effect {
            SessionEffect::Start(rank) => {
                let time = self.some_time(200, 30_000);
                self.after(time, Event::Start { node, session, rank });
            }
            SessionEffect::Signal(rank, signal) => {
                let (time, signal) = (self.some_time(5, 200), signal as i32);
                self.after(time, Event::Signal { node, session, rank, signal });
            }
            SessionEffect::Sweep => {
                let time = self.some_time(50, 20_000);
                self.after(time, Event::Swept { node, session });
            }
            SessionEffect::ToRank(rank, bytes) => {
                let time = self.some_time(5, 100);
                self.after(time, Event::ToRank { node, session, rank, bytes });
            }
            SessionEffect::HangUp(_) => {}
            SessionEffect::ToAgent(bytes) => self.session_to_agent(node, session, bytes),
            SessionEffect::ToNode(to, frame) => self.send_frame(node, session, to.0, frame.encode_to_vec().into()),
            SessionEffect::Exit => self.session_exits(node, session),
        }
    }

    pub(super) fn session_wake(&mut self, node: u32, process: u64, at: Time) {
        if let Some(session) = self.nodes[node as usize].session_of(process)
            && session.woken == Some(at)
        {
            session.woken = None;
            self.with_session(node, process, SimulatedSession::on_time);
        }
    }

    /// The session has said everything, and exits.
    fn session_exits(&mut self, node: u32, process: u64) {
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        let alive: Vec<Rank> = session.ranks.keys().copied().collect();
        session.process = 0;
        if !alive.is_empty() {
            self.truth.wrong(format!("I4: the session of node {node} has ended, and ranks {alive:?} run"));
        }
        self.close_all(End { host: Host(node), process });
        let time = self.some_time(50, 5_000);
        self.after(time, Event::SessionGone { node });
    }

    /// The fork server has seen the session end.
    pub(super) fn session_gone(&mut self, node: u32) {
        let known = &mut self.nodes[node as usize];
        if known.session.as_ref().is_some_and(|session| session.process == 0) {
            known.session = None;
            known.kept = known.kept.map(|_| Kept::Ended);
            self.session_ended(node, true);
        }
    }

    // The door.

    /// An agent connects to the session that the one before has left.
    pub(super) fn connect_session(&mut self, node: u32, agent: u64) {
        let Some(session) = self.nodes[node as usize].session.as_mut().filter(|session| session.process != 0) else {
            return;
        };
        (session.agent, session.alone_since) = (Some(agent), None);
        let process = session.process;
        self.with_session(node, process, SimulatedSession::agent_came);
    }

    /// The agent of a session is gone.
    pub(super) fn session_loses_agent(&mut self, node: u32, agent: u64) {
        let since = self.now;
        let Some(session) = self.nodes[node as usize].session.as_mut() else { return };
        if session.process == 0 || session.agent != Some(agent) {
            return;
        }
        (session.agent, session.alone_since) = (None, Some(since));
        let process = session.process;
        self.with_session(node, process, SimulatedSession::agent_lost);
        self.after(LEASE, Event::SessionAlone { node, session: process, since });
    }

    /// A session that has had no agent for as long as it may ends.
    pub(super) fn session_alone(&mut self, node: u32, process: u64, since: Time) {
        if self.nodes[node as usize].session_of(process).is_some_and(|session| session.alone_since == Some(since)) {
            self.truth.struck.insert(node);
            self.with_session(node, process, SimulatedSession::agent_gone);
        }
    }

    /// The fork server is gone, and the agent with it: the door is closed.
    pub(super) fn close_door(&mut self, node: u32) {
        let known = &mut self.nodes[node as usize];
        known.kept = None;
        let Some(session) = known.session.as_mut().filter(|session| session.process != 0) else { return };
        (session.agent, session.alone_since) = (None, None);
        let process = session.process;
        self.with_session(node, process, SimulatedSession::agent_gone);
    }

    fn session_to_agent(&mut self, node: u32, process: u64, bytes: Bytes) {
        let earliest = self.now + self.some_time(5, 200);
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        session.door[0] = session.door[0].max(earliest);
        let (at, agent) = (session.door[0], session.agent);
        if let Some(agent) = agent {
            self.schedule(at, Event::FromSession { node, agent, bytes });
        }
    }

    pub(super) fn agent_to_session(&mut self, node: u32, bytes: Bytes) {
        let earliest = self.now + self.some_time(5, 200);
        let Some(session) = self.nodes[node as usize].session.as_mut().filter(|session| session.process != 0) else {
            return;
        };
        session.door[1] = session.door[1].max(earliest);
        let (at, process, agent) = (session.door[1], session.process, session.agent);
        if let Some(agent) = agent {
            self.schedule(at, Event::ToSession { node, session: process, agent, bytes });
        }
    }

    pub(super) fn session_hears(&mut self, node: u32, process: u64, agent: u64, bytes: Bytes) {
        let is_of_now =
            self.nodes[node as usize].session_of(process).is_some_and(|session| session.agent == Some(agent));
        if is_of_now && let Ok(message) = proto::ToSession::decode(bytes) {
            self.with_session(node, process, |session, now| session.on_agent(message, now));
        }
    }

    // Links.

    fn send_frame(&mut self, node: u32, process: u64, to: u32, frame: Bytes) {
        let since = self.now;
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        if let Some(&link) = session.links.get(&to) {
            return self.send_on_link(node, process, link, frame);
        }
        let waiting = session.opening.entry(to).or_default();
        let is_first = waiting.is_empty();
        waiting.push(frame);
        if is_first {
            let time = self.some_time(100, 3000);
            self.after(time, Event::OpenLink { node, session: process, to, since });
        }
    }

    fn send_on_link(&mut self, node: u32, process: u64, link: ConnectionId, frame: Bytes) {
        self.journal.hash(&frame);
        let end = End { host: Host(node), process };
        if let Some(side) = self.network.get(link).and_then(|known| known.side_of(end)) {
            self.send(link, side.other(), Message::Frame { from: node, frame });
        }
    }

    pub(super) fn open_link(&mut self, node: u32, process: u64, to: u32, since: Time) {
        let is_cut = self.network.is_cut(Host(node), Host(to)) || self.network.is_cut(Host(to), Host(node));
        let other = &self.nodes[to as usize];
        let can_have = other.is_up && !is_cut;
        let peer = other.session.as_ref().filter(|session| session.process != 0 && !session.machines.has_left());
        let (peer, ended) = (peer.map(|session| session.process), other.has_had_launch && peer.is_none());
        let has_agent = other.agent.is_some();
        let now = self.now;
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        if session.machines.has_left() || !session.opening.contains_key(&to) {
            return;
        }
        let tries = if is_cut {
            KEEP_ALIVE
        } else if has_agent {
            LINK_TRIES
        } else {
            LEASE
        };
        match peer.filter(|_| can_have && has_agent) {
            Some(peer) => {
                let frames = session.opening.remove(&to).unwrap_or_default();
                let (me, other) = (End { host: Host(node), process }, End { host: Host(to), process: peer });
                let link = self.network.open(Purpose::Link, me, other);
                if let Some(session) = self.nodes[node as usize].session_of(process) {
                    session.links.insert(to, link);
                }
                if let Some(session) = self.nodes[to as usize].session_of(peer) {
                    session.links.entry(node).or_insert(link);
                }
                frames.into_iter().for_each(|frame| self.send_on_link(node, process, link, frame));
            }
            None if now > since + tries || (ended && can_have) => {
                session.opening.remove(&to);
                self.with_session(node, process, |session, now| {
                    session.link_broke(NodeIndex(to), "no link can be opened", now);
                });
            }
            None => self.after(LINK_PAUSE, Event::OpenLink { node, session: process, to, since }),
        }
    }

    pub(super) fn frame_comes(&mut self, _: ConnectionId, end: End, from: u32, frame: &Bytes) {
        if let Ok(frame) = proto::LinkFrame::decode(frame.clone()) {
            self.with_session(end.host.0, end.process, |session, now| session.on_node(NodeIndex(from), frame, now));
        }
    }

    pub(super) fn link_broke(&mut self, node: u32, process: u64, link: ConnectionId) {
        let Some(peer) = self.peer_of(link, node) else { return };
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        if session.links.get(&peer) == Some(&link) {
            session.links.remove(&peer);
        }
        let end = End { host: Host(node), process };
        if let Some(side) = self.network.get(link).and_then(|known| known.side_of(end)) {
            self.network.shut(link, side.other());
        }
        self.with_session(node, process, |session, now| {
            session.link_broke(NodeIndex(peer), "its link broke", now);
        });
    }

    // Ranks.

    pub(super) fn start_rank(&mut self, node: u32, process: u64, rank: Rank) {
        let pid = (1 << 24) + self.next_process() as u32;
        let is_missing = self.scenario.programs[rank.index()].is_missing;
        let known = RankProcess::new(rank, &self.scenario);
        let Some(session) = self.nodes[node as usize].session_of(process) else { return };
        if is_missing {
            return self.with_session(node, process, |session, now| {
                session.rank_not_started(rank, "no such program", now);
            });
        }
        session.ranks.insert(rank, known);
        self.with_session(node, process, |session, now| session.rank_started(rank, pid, now));
        self.rank_goes_on(node, process, rank);
    }

    fn rank(&mut self, node: u32, process: u64, rank: Rank) -> Option<&mut RankProcess> {
        self.nodes[node as usize].session_of(process)?.ranks.get_mut(&rank)
    }

    /// A rank takes its next step soon.
    fn rank_goes_on(&mut self, node: u32, session: u64, rank: Rank) {
        let pace = self.scenario.programs[rank.index()].pace;
        let time = self.some_time(1, 2 * pace.as_micros() as u64);
        if let Some(known) = self.rank(node, session, rank)
            && !std::mem::replace(&mut known.is_stepping, true)
        {
            self.after(time, Event::Step { node, session, rank });
        }
    }

    pub(super) fn step_rank(&mut self, node: u32, session: u64, rank: Rank) {
        let Some(known) = self.nodes[node as usize].session_of(session).and_then(|known| known.ranks.get_mut(&rank))
        else {
            return;
        };
        known.is_stepping = false;
        let Some(deed) = known.step(&mut self.truth) else { return };
        match deed {
            Deed::Ask(text) | Deed::Say(text) => {
                let (time, bytes) = (self.some_time(5, 100), text.into());
                self.after(time, Event::ToServer { node, session, rank, bytes });
                self.rank_goes_on(node, session, rank);
            }
            Deed::Print => {
                known.lines += 1;
                let (number, length) = (known.lines, self.scenario.programs[rank.index()].line);
                let line = format!("{number} {}\n", "x".repeat(length));
                self.print(node, session, rank, line.into());
            }
            Deed::Exit(exit) => self.rank_ends(node, session, rank, exit),
            Deed::Nothing => {}
        }
    }

    /// A rank writes to its output; it waits while the session does not read.
    pub(super) fn print(&mut self, node: u32, session: u64, rank: Rank, line: Bytes) {
        if self.rank(node, session, rank).is_none() {
            return;
        }
        let mut is_read = false;
        let bytes = line.clone();
        self.with_session(node, session, |session, now| is_read = session.rank_printed(rank, bytes, now));
        if is_read {
            self.rank_goes_on(node, session, rank);
        } else {
            self.after(Duration::from_millis(20), Event::Print { node, session, rank, line });
        }
    }

    pub(super) fn server_hears(&mut self, node: u32, session: u64, rank: Rank, bytes: &Bytes) {
        self.with_session(node, session, |session, now| session.rank_said(rank, bytes, now));
    }

    pub(super) fn rank_hears(&mut self, node: u32, session: u64, rank: Rank, bytes: &Bytes) {
        let known = self.nodes[node as usize].session_of(session).and_then(|known| known.ranks.get_mut(&rank));
        if known.is_some_and(|known| known.read(bytes, &mut self.truth)) {
            self.rank_goes_on(node, session, rank);
        }
    }

    pub(super) fn signal_rank(&mut self, node: u32, session: u64, rank: Rank, signal: i32) {
        if self.rank(node, session, rank).is_none() {
            return;
        }
        let on_term = self.scenario.programs[rank.index()].on_term;
        let time = match (signal, on_term) {
            (9, _) => Duration::ZERO,
            (_, OnTerm::Ignores) => return,
            _ => self.some_time(10, 300_000),
        };
        self.after(time, Event::Dies { node, session, rank, signal });
    }

    pub(super) fn rank_dies(&mut self, node: u32, session: u64, rank: Rank, signal: i32) {
        let exit = match (signal, self.scenario.programs[rank.index()].on_term) {
            (9, _) | (_, OnTerm::Dies | OnTerm::Ignores) => RankExit::Signal { signal, core_dumped: false },
            (_, OnTerm::Exits) => RankExit::Code(128 + signal),
        };
        self.rank_ends(node, session, rank, exit);
    }

    /// The process of a rank ends; what it wrote before arrives before that is known.
    fn rank_ends(&mut self, node: u32, session: u64, rank: Rank, exit: RankExit) {
        let Some(known) = self.nodes[node as usize].session_of(session) else { return };
        if known.ranks.remove(&rank).is_some() {
            self.journal.note(self.now, format_args!("rank {rank} {exit}"));
            self.truth.exited(rank, exit);
            let time = self.some_time(150, 5_000);
            self.after(time, Event::Reaped { node, session, rank });
        }
    }

    pub(super) fn reaped(&mut self, node: u32, session: u64, rank: Rank) {
        if let Some(&exit) = self.truth.exits.get(&rank) {
            self.with_session(node, session, |session, now| session.rank_exited(rank, exit, now));
        }
    }

    /// Somebody kills a rank.
    pub(super) fn kill_rank(&mut self, rank: Rank, signal: i32) {
        let Signal::SIGKILL = Signal::try_from(signal).unwrap_or(Signal::SIGKILL) else {
            return self.each_node_with(rank, |world, node, session| world.signal_rank(node, session, rank, signal));
        };
        self.each_node_with(rank, |world, node, session| world.rank_dies(node, session, rank, signal));
    }

    fn each_node_with(&mut self, rank: Rank, act: impl Fn(&mut Self, u32, u64)) {
        for node in 0..self.scenario.nodes() {
            let session = self.nodes[node as usize].session.as_ref();
            if let Some(process) =
                session.filter(|session| session.ranks.contains_key(&rank)).map(|known| known.process)
            {
                act(self, node, process);
            }
        }
    }

    pub(super) fn swept(&mut self, node: u32, session: u64) {
        self.with_session(node, session, SimulatedSession::swept);
    }

    /// Returns true if nothing of the launch runs on a node.
    pub(super) fn is_node_clean(&self, node: u32) -> bool {
        let known = &self.nodes[node as usize];
        !known.is_up
            || (known.session.is_none()
                && known.kept.is_none()
                && known.agent.as_ref().is_none_or(|agent| agent.launch.is_none()))
    }
}
