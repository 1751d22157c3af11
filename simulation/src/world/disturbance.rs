//! Faults: what each one does to the cluster, and how it ends.

use std::time::Duration;

use lattice_session::timeouts;
use pmi_core::ids::Rank;

use super::{Call, Event, LEASE, World};
use crate::faults::{FaultKind, Way, Where};
use crate::network::{Host, KEEP_ALIVE};

impl World {
    pub(super) fn fault(&mut self, index: usize) {
        let kind = self.faults[index].kind;
        self.strike(kind);
        match kind {
            FaultKind::CrashNode { node, back } => {
                self.crash_node(node);
                self.after(back, Event::NodeBack { node });
            }
            FaultKind::KillAgent { node, back } => {
                self.kill_agent(node);
                self.after(back, Event::AgentBack { node });
            }
            FaultKind::KillService { node, back } => {
                self.kill_agent(node);
                self.close_door(node);
                self.after(back, Event::AgentBack { node });
            }
            FaultKind::KillSession { node } => {
                if self.nodes[node as usize].session.as_ref().is_some_and(|session| session.process != 0) {
                    self.kill_session(node);
                }
            }
            FaultKind::KillRank { rank, signal } => self.kill_rank(Rank(rank), signal),
            FaultKind::Pause { node, time } => {
                let until = self.now + time;
                let known = self.paused.entry(Host(node)).or_insert(until);
                *known = until.max(*known);
            }
            FaultKind::Cut { time, .. } | FaultKind::CutPair { time, .. } => {
                self.ways_of(kind).into_iter().for_each(|(from, to)| self.network.cut(from, to));
                if time >= KEEP_ALIVE {
                    self.after(KEEP_ALIVE, Event::FaultLasts(index));
                }
                self.after(time, Event::FaultOver(index));
            }
            FaultKind::Slow { host, times, time } => {
                self.network.slow_down(host.host(), times);
                self.after(time, Event::FaultOver(index));
            }
            FaultKind::Reset { host } => {
                for connection in self.network.of_host(host.host()) {
                    self.reset(connection);
                }
            }
            FaultKind::CrashApi { back } => {
                if self.api.server.is_some() {
                    self.kill_api();
                    self.after(back, Event::ApiBack);
                }
            }
            FaultKind::Disk { time } => {
                self.api.disk_fails = true;
                self.after(time, Event::FaultOver(index));
            }
            FaultKind::SetClock { seconds } => self.api.clock_set += seconds,
            FaultKind::KillClient => self.kill_client(),
            FaultKind::ResetClient => self.reset_client(),
            FaultKind::Signal { signal } => self.signal_launch(signal),
            FaultKind::Abort => {
                self.truth.is_ended_by_others = true;
                self.abort_launch();
            }
            FaultKind::StopReading { time } => self.stop_reading(time),
            // Before the first request it would be the first.
            FaultKind::StartAgain { node } if self.nodes[node as usize].has_had_launch => {
                self.call(Host::API, Host(node), Call::Start { node, caller: 0 });
            }
            FaultKind::StartAgain { .. } => {}
        }
    }

    fn stop_reading(&mut self, time: Duration) {
        self.stop_client(self.now + time);
    }

    /// A fault has lasted for as long as connections bear.
    pub(super) fn fault_lasts(&mut self, _: usize) {
        for connection in self.network.all_cut() {
            self.reset(connection);
        }
    }

    pub(super) fn fault_over(&mut self, index: usize) {
        let kind = self.faults[index].kind;
        match kind {
            FaultKind::Cut { .. } | FaultKind::CutPair { .. } => {
                self.ways_of(kind).into_iter().for_each(|(from, to)| self.network.heal(from, to));
                for (connection, to, message) in self.network.take_held() {
                    self.send(connection, to, message);
                }
            }
            FaultKind::Slow { host, .. } => self.network.speed_up(host.host()),
            FaultKind::Disk { .. } => self.api.disk_fails = false,
            _ => {}
        }
    }

    /// The ways on which nothing goes.
    fn ways_of(&self, kind: FaultKind) -> Vec<(Host, Host)> {
        match kind {
            FaultKind::Cut { host, way, .. } => {
                let host = host.host();
                let all = (0..self.scenario.nodes()).map(Host).chain([Host::API, Host::CLIENT]);
                let others = all.filter(|other| *other != host);
                others
                    .flat_map(|other| {
                        let inward = (way != Way::Out).then_some((other, host));
                        let outward = (way != Way::In).then_some((host, other));
                        inward.into_iter().chain(outward)
                    })
                    .collect()
            }
            FaultKind::CutPair { one, other, .. } if one != other => {
                vec![(Host(one), Host(other)), (Host(other), Host(one))]
            }
            _ => Vec::new(),
        }
    }

    /// Notes which nodes a launch may lose for a fault.
    fn strike(&mut self, kind: FaultKind) {
        let nodes: Vec<u32> = (0..self.scenario.nodes()).collect();
        let struck: Vec<u32> = match kind {
            FaultKind::CrashNode { node, .. }
            | FaultKind::KillService { node, .. }
            | FaultKind::KillSession { node } => vec![node],
            FaultKind::KillAgent { node, back } if back + timeouts::HEARTBEAT >= timeouts::LOST_AFTER => vec![node],
            FaultKind::Pause { time, .. } if time >= KEEP_ALIVE => nodes,
            FaultKind::Pause { node, time } if time >= timeouts::HEARTBEAT => vec![node],
            // Of two that do not reach each other, each takes the other for lost.
            FaultKind::Cut { .. } | FaultKind::Slow { .. } | FaultKind::Reset { host: Where::Node(_) } => nodes,
            FaultKind::CutPair { one, other, .. } => vec![one, other],
            // Nodes that were not asked, or not heard before its end.
            FaultKind::CrashApi { .. } => nodes,
            FaultKind::Disk { .. } | FaultKind::Reset { .. } => Vec::new(),
            _ => Vec::new(),
        };
        self.truth.struck.extend(struck);
        let ends_by_itself = matches!(kind, FaultKind::StopReading { time } if time > timeouts::NEXT_OWNER);
        let cuts_client = match kind {
            FaultKind::Cut { host: Where::Api, time, .. } => time >= KEEP_ALIVE,
            FaultKind::CrashApi { back } => back >= LEASE,
            FaultKind::Slow { host: Where::Api, .. } => true,
            _ => false,
        };
        self.truth.is_ended_by_others |= ends_by_itself || cuts_client;
    }
}

impl Where {
    fn host(self) -> Host {
        match self {
            Self::Node(node) => Host(node),
            Self::Api => Host::API,
        }
    }
}
