//! The start and the end of each fault in the cluster.

use pmi_core::ids::Rank;

use super::World;
use crate::connection::{Host, KEEP_ALIVE};
use crate::event::{Call, FaultEvent, NodeEvent};
use crate::faults::FaultKind;

impl World {
    pub(super) fn fault(&mut self, event: FaultEvent) {
        match event {
            FaultEvent::Fault(number) => self.strike(number),
            FaultEvent::FaultLasts(_) => self.around.network.reset_cut(&mut self.around.schedule),
            FaultEvent::FaultOver(number) => self.fault_over(self.faults[number].kind),
            FaultEvent::PauseOver(host) => self.pause_over(host),
        }
    }

    fn strike(&mut self, number: usize) {
        let kind = self.faults[number].kind;
        let nodes = self.around.scenario.nodes();
        self.around.truth.struck.extend(kind.struck(nodes));
        self.around.truth.is_ended_by_others |= kind.may_end_launch();
        let around = &mut self.around;
        match kind {
            FaultKind::CrashNode { node, back } => {
                self.nodes[node as usize].crash(around);
                around.after(back, NodeEvent::NodeBack { node });
            }
            FaultKind::KillAgent { node, back } => {
                self.nodes[node as usize].kill_agent(around);
                around.after(back, NodeEvent::AgentBack { node });
            }
            FaultKind::KillService { node, back } => {
                self.nodes[node as usize].kill_service(around);
                around.after(back, NodeEvent::AgentBack { node });
            }
            FaultKind::KillSession { node } => self.nodes[node as usize].kill_session(around),
            FaultKind::KillRank { rank, signal } => {
                self.nodes.iter_mut().for_each(|node| node.kill_rank(Rank(rank), signal, around));
            }
            FaultKind::Pause { node, time } => {
                let until = around.now() + time;
                self.pause(Host(node), until);
            }
            FaultKind::CrashApi { back } => self.api.crash(back, around),
            FaultKind::SetClock { seconds } => self.api.set_clock(seconds),
            FaultKind::Abort => self.api.abort_launch(around),
            FaultKind::KillClient => self.client.kill(around),
            FaultKind::ResetClient => self.client.reset(around),
            FaultKind::Signal { signal } => self.client.signal(signal, around),
            FaultKind::StopReading { time } => self.client.stop_reading(around.now() + time),
            // Before the first start request this request would be the first one.
            FaultKind::StartAgain { node } if self.nodes[node as usize].has_had_launch() => {
                around.call(Host::API, Host(node), Call::Start { node, caller: 0 });
            }
            FaultKind::StartAgain { .. } => {}
            FaultKind::Cut { .. }
            | FaultKind::CutPair { .. }
            | FaultKind::Slow { .. }
            | FaultKind::Reset { .. }
            | FaultKind::Disk { .. } => self.disturb(number, kind),
        }
    }

    /// Starts a fault with a duration, and schedules its end.
    fn disturb(&mut self, number: usize, kind: FaultKind) {
        let nodes = self.around.scenario.nodes();
        let around = &mut self.around;
        match kind {
            FaultKind::Cut { time, .. } | FaultKind::CutPair { time, .. } => {
                kind.ways(nodes).into_iter().for_each(|(from, to)| around.network.cut(from, to));
                if time >= KEEP_ALIVE {
                    around.after(KEEP_ALIVE, FaultEvent::FaultLasts(number));
                }
            }
            FaultKind::Slow { host, times, .. } => around.network.slow_down(host.host(), times),
            FaultKind::Reset { host } => {
                return around.network.reset_host(&mut around.schedule, host.host());
            }
            FaultKind::Disk { .. } => {
                around.truth.disk_failed = true;
                self.api.set_disk_fails(true);
            }
            _ => return,
        }
        around.after(kind.lasts(), FaultEvent::FaultOver(number));
    }

    fn fault_over(&mut self, kind: FaultKind) {
        let nodes = self.around.scenario.nodes();
        let around = &mut self.around;
        match kind {
            FaultKind::Cut { .. } | FaultKind::CutPair { .. } => {
                around.network.heal(&mut around.schedule, &kind.ways(nodes));
            }
            FaultKind::Slow { host, .. } => around.network.speed_up(host.host()),
            FaultKind::Disk { .. } => self.api.set_disk_fails(false),
            _ => {}
        }
    }
}
