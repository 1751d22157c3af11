//! The session process of a node: its state machines, and the environment of the session. This is the door to its agent, links to
//! other sessions, and the processes of its ranks.

mod links;
mod ranks;
mod spawns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use lattice_session::session_process::simulation::{SessionEffect, SimulatedSession, Windows};
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;
use proto::link_frame::What;

pub(crate) use self::links::LinkTarget;
use self::links::NodeLink;
use crate::connection::{End, Host};
use crate::event::{AgentEvent, NodeEvent, SessionEvent};
use crate::rank::RankProcess;
use crate::surroundings::{LEASE, SpawnWish, Surroundings};
use crate::time::Time;

/// The session process, and its child processes.
pub(super) struct SessionHost {
    node: u32,
    /// 0 after the end of the process.
    process: u64,
    was_killed: bool,
    machines: SimulatedSession,
    ranks: BTreeMap<Rank, RankProcess>,
    door: Door,
    /// Links by node.
    links: BTreeMap<u32, NodeLink>,
    /// Frames for links that are being opened.
    opening: BTreeMap<u32, Vec<Bytes>>,
    /// Time at which the session left the launch.
    left_at: Option<Time>,
    /// All events were sent to the agent. The session exits when no frames wait for links any more.
    exit_waits: bool,
    woken: Option<Time>,
    /// Unanswered requests of its ranks for new jobs.
    wishes: BTreeSet<usize>,
}

/// Connection of a session to its agent.
#[derive(Debug)]
struct Door {
    agent: Option<u64>,
    /// Time since when there is no agent.
    alone_since: Option<Time>,
    /// Arrival times of the last message to the agent and of the last message to the session.
    to_agent: Time,
    to_session: Time,
}

impl fmt::Debug for SessionHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHost").field("process", &self.process).finish_non_exhaustive()
    }
}

impl SessionHost {
    /// Creates the session of the launch, with the process of its agent.
    pub(super) fn new(node: u32, agent: u64, around: &mut Surroundings) -> Self {
        let windows = Windows {
            output: around.scenario.output_window,
            input: around.scenario.input.as_ref().map_or(0, |input| input.window),
        };
        let fan_out = around.scenario.fan_out;
        let (now, spec) = (around.now(), around.scenario.spec(node));
        Self {
            node,
            machines: SimulatedSession::new(spec, fan_out, windows, around.shown(Host(node))),
            process: around.schedule.next_process(),
            was_killed: false,
            ranks: BTreeMap::new(),
            door: Door { agent: Some(agent), alone_since: None, to_agent: now, to_session: now },
            links: BTreeMap::new(),
            opening: BTreeMap::new(),
            left_at: None,
            exit_waits: false,
            woken: None,
            wishes: BTreeSet::new(),
        }
    }

    // The process.

    pub(super) fn process(&self) -> u64 {
        self.process
    }

    pub(super) fn has_ended(&self) -> bool {
        self.process == 0
    }

    pub(super) fn was_killed(&self) -> bool {
        self.was_killed
    }

    fn end(&self) -> End {
        End { host: Host(self.node), process: self.process }
    }

    /// Handles an event of the session. `pid` is the number for a new process of a rank.
    pub(super) fn on_event(&mut self, event: SessionEvent, pid: u64, around: &mut Surroundings) {
        match event {
            SessionEvent::ToSession { agent, bytes, .. } => self.hear_agent(agent, bytes, around),
            SessionEvent::SessionWake { at, .. } => self.wake(at, around),
            SessionEvent::SessionAlone { since, .. } => self.alone(since, around),
            // `open_link` handles this event, because it needs the state of the other node.
            SessionEvent::OpenLink { .. } => {}
            SessionEvent::Start { rank, .. } => self.start_rank(rank, pid, around),
            SessionEvent::Step { rank, .. } => self.step_rank(rank, around),
            SessionEvent::ToServer { rank, bytes, .. } => {
                self.input(around, |session, now| session.rank_said(rank, &bytes, now));
            }
            SessionEvent::ToRank { rank, bytes, .. } => self.rank_hears(rank, &bytes, around),
            SessionEvent::Print { rank, line, .. } => self.print(rank, line, around),
            SessionEvent::Signal { rank, signal, .. } => self.signal_rank(rank, signal, around),
            SessionEvent::Dies { rank, signal, .. } => self.rank_dies(rank, signal, around),
            SessionEvent::Reaped { rank, .. } => self.reaped(rank, around),
            SessionEvent::Spawn { wish, .. } => self.ask_for_job(wish, around),
            SessionEvent::Swept { .. } => self.input(around, SimulatedSession::swept),
        }
    }

    /// Passes an input to the state machines.
    fn input(&mut self, around: &mut Surroundings, act: impl FnOnce(&mut SimulatedSession, Instant)) {
        act(&mut self.machines, around.shown(Host(self.node)));
        self.carry_out(around);
    }

    /// Executes all effects of the state machines, and schedules their next wake-up.
    pub(super) fn carry_out(&mut self, around: &mut Surroundings) {
        while let Some(effect) = self.machines.poll_effect() {
            self.carry_out_one(effect, around);
        }
        if self.has_ended() {
            return;
        }
        if self.machines.has_left() {
            self.leave_links(around);
        }
        let clock = around.schedule.clock(Host(self.node));
        if let Some(at) = self.machines.next_wake().map(|wake| clock.when(wake))
            && self.woken.is_none_or(|woken| at < woken)
        {
            self.woken = Some(at);
            around.at(at, SessionEvent::SessionWake { node: self.node, session: self.process, at });
        }
    }

    fn carry_out_one(&mut self, effect: SessionEffect, around: &mut Surroundings) {
        let (node, session) = (self.node, self.process);
        match effect {
            SessionEffect::Start(rank) => {
                let time = around.some_time(200, 30_000);
                around.after(time, SessionEvent::Start { node, session, rank });
            }
            SessionEffect::Signal(rank, signal) => {
                let (time, signal) = (around.some_time(5, 200), signal as i32);
                around.after(time, SessionEvent::Signal { node, session, rank, signal });
            }
            SessionEffect::Sweep => {
                let time = around.some_time(50, 20_000);
                around.after(time, SessionEvent::Swept { node, session });
            }
            SessionEffect::ToRank(rank, bytes) => {
                let earliest = around.now() + around.some_time(5, 100);
                let at = self.ranks.get_mut(&rank).map_or(earliest, |known| known.arrives_at(earliest));
                around.at(at, SessionEvent::ToRank { node, session, rank, bytes });
            }
            SessionEffect::HangUp(_) => {}
            SessionEffect::InputReady(rank) => self.input_ready(rank, around),
            SessionEffect::InputCut(rank) => around.truth.input_cut(rank),
            SessionEffect::Spawn { call, parent, rank, request } => {
                let wish = SpawnWish { session: self.process, call, parent, rank, request };
                self.wish_for_job(wish, around);
            }
            SessionEffect::ToAgent(bytes) => self.say_to_agent(bytes, around),
            // A session opens no link only to announce that it has left.
            SessionEffect::ToNode(to, frame) if matches!(frame.what, Some(What::Left(_))) && !self.is_linked(to.0) => {}
            SessionEffect::ToNode(to, frame) => self.send_frame(to.0, frame.encode_to_vec().into(), around),
            SessionEffect::Exit => self.exit(around),
        }
    }

    fn wake(&mut self, at: Time, around: &mut Surroundings) {
        if self.woken == Some(at) {
            self.woken = None;
            self.input(around, SimulatedSession::on_time);
        }
    }

    /// Ends the session after it has sent all its events.
    fn exit(&mut self, around: &mut Surroundings) {
        self.exit_waits = !self.opening.is_empty();
        if self.exit_waits {
            return;
        }
        let (end, alive) = (self.end(), self.alive());
        self.process = 0;
        if !alive.is_empty() {
            around.truth.wrong(format!("I4: the session of node {} has ended, and ranks {alive:?} run", self.node));
        }
        around.close_all(end);
        let time = around.some_time(50, 5_000);
        around.after(time, NodeEvent::SessionGone { node: self.node });
    }

    /// Kills the session and its ranks.
    pub(super) fn kill(&mut self, around: &mut Surroundings) {
        self.ranks.clear();
        around.close_all(self.end());
        (self.process, self.was_killed) = (0, true);
        self.door.agent = None;
    }

    // The door.

    /// Connects another agent.
    pub(super) fn agent_comes(&mut self, agent: u64, around: &mut Surroundings) {
        (self.door.agent, self.door.alone_since) = (Some(agent), None);
        self.input(around, SimulatedSession::agent_came);
    }

    /// Handles the end of an agent, which may be that of the session.
    pub(super) fn agent_lost(&mut self, agent: u64, around: &mut Surroundings) {
        if self.door.agent != Some(agent) {
            return;
        }
        let since = around.now();
        (self.door.agent, self.door.alone_since) = (None, Some(since));
        self.input(around, SimulatedSession::agent_lost);
        around.after(LEASE, SessionEvent::SessionAlone { node: self.node, session: self.process, since });
    }

    /// Ends a session that has had no agent for the maximum time.
    fn alone(&mut self, since: Time, around: &mut Surroundings) {
        if self.door.alone_since == Some(since) {
            around.truth.struck.insert(self.node);
            around.truth.left_alone.insert(self.node);
            self.input(around, SimulatedSession::agent_gone);
        }
    }

    /// Closes the door: no agent can connect any more.
    pub(super) fn door_closed(&mut self, around: &mut Surroundings) {
        (self.door.agent, self.door.alone_since) = (None, None);
        self.input(around, SimulatedSession::agent_gone);
    }

    fn say_to_agent(&mut self, bytes: Bytes, around: &mut Surroundings) {
        let earliest = around.now() + around.some_time(5, 200);
        self.door.to_agent = self.door.to_agent.max(earliest);
        if let Some(agent) = self.door.agent {
            around.at(self.door.to_agent, AgentEvent::FromSession { node: self.node, agent, bytes });
        }
    }

    /// The agent sends bytes, which arrive at `earliest` or later.
    pub(super) fn take_from_agent(&mut self, bytes: Bytes, earliest: Time, around: &mut Surroundings) {
        self.door.to_session = self.door.to_session.max(earliest);
        if let Some(agent) = self.door.agent {
            let event = SessionEvent::ToSession { node: self.node, session: self.process, agent, bytes };
            around.at(self.door.to_session, event);
        }
    }

    fn hear_agent(&mut self, agent: u64, bytes: Bytes, around: &mut Surroundings) {
        if self.door.agent == Some(agent)
            && let Ok(message) = proto::ToSession::decode(bytes)
        {
            self.input(around, |session, now| session.on_agent(message, now));
        }
    }
}
