//! PMIx server of a simulated session, with the state of its driver: timers, and the time for which other nodes need it.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::fence::{Contribution, FenceError, FenceId, Merged};
use pmi_core::ids::{LocalRank, NodeIndex};
use pmi_core::server::{EndReason, FenceStatus, Progress};
use pmix_core::server::{Action, Need, Server, Settings, Ticket};
use pmix_core::{JobIndex, Namespace, NodeFacts, Seat};

use crate::spec::SessionSpec;

/// Suffix of the launched job's namespace. The real suffix is secret.
const SECRET: &str = "secret";

/// An effect that the server requests.
pub(super) enum PmixEffect {
    Send(LocalRank, Bytes),
    Close(LocalRank),
    Fence(FenceId, Contribution),
    Ask(Ticket, NodeIndex, Bytes),
    Reply(Ticket, Bytes),
    Died(Death),
    End(EndReason),
}

/// The server and its driver's state.
pub(super) struct Pmix {
    server: Server,
    job: JobIndex,
    /// By local rank.
    connections: Vec<Option<ConnectionId>>,
    timers: BTreeMap<Ticket, Instant>,
    need: Need,
}

impl Pmix {
    /// Returns a server of the launched job, which has `ranks` ranks on this node.
    pub(super) fn new(spec: &SessionSpec, ranks: usize) -> Self {
        let mut server = Server::new(Settings { exchange: spec.settings.pmi.exchange.into(), ..Settings::default() });
        let job = server.add(Namespace {
            name: format!("{}.{SECRET}", spec.job.id),
            job: spec.job.clone(),
            node: spec.node,
            hosts: spec.hosts.clone(),
            allocation: spec.allocation_id.clone(),
            directory: None,
            parent: None,
            here: NodeFacts { topology: None, places: Vec::new() },
            command: Bytes::new(),
            sets: Vec::new(),
        });
        Self { server, job, connections: vec![None; ranks], timers: BTreeMap::new(), need: Need::Over }
    }

    fn seat(&self, local: LocalRank) -> Seat {
        Seat { job: self.job, local }
    }

    pub(super) fn need(&self) -> Need {
        self.need
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.timers.values().min().copied()
    }

    pub(super) fn on_time(&mut self, now: Instant) {
        let due: Vec<Ticket> = self.timers.extract_if(.., |_, at| *at <= now).map(|(ticket, _)| ticket).collect();
        due.into_iter().for_each(|ticket| self.server.handle_timer(ticket));
    }

    /// Handles the connection of a rank.
    pub(super) fn connect(&mut self, local: LocalRank) {
        self.connections[local.index()] = Some(self.server.accept());
    }

    pub(super) fn handle_bytes(&mut self, local: LocalRank, bytes: &[u8]) {
        if let Some(connection) = self.connections[local.index()] {
            self.server.handle_bytes(connection, bytes);
        }
    }

    /// Closes a rank's connection after the exit of its process.
    fn hang_up(&mut self, local: LocalRank) {
        if let Some(connection) = self.connections[local.index()].take() {
            self.server.handle_disconnect(connection);
        }
    }

    pub(super) fn handle_exit(&mut self, local: LocalRank) {
        self.hang_up(local);
        self.server.handle_exit(self.seat(local));
    }

    pub(super) fn handle_borne_failure(&mut self, local: LocalRank, kind: DeathKind) {
        self.hang_up(local);
        self.server.handle_borne_failure(self.seat(local), kind);
    }

    pub(super) fn handle_death(&mut self, local: LocalRank) {
        self.hang_up(local);
        self.server.handle_death(self.seat(local));
    }

    pub(super) fn handle_deaths(&mut self, deaths: &[Death]) {
        self.server.handle_deaths(self.job, deaths);
    }

    pub(super) fn handle_fence(&mut self, id: &FenceId, result: Result<Merged, FenceError>) {
        self.server.handle_fence(self.job, id, result);
    }

    pub(super) fn handle_question(&mut self, question: &Bytes) -> Ticket {
        self.server.handle_question(question)
    }

    pub(super) fn handle_peer_answer(&mut self, ticket: Ticket, answer: Option<&Bytes>) {
        self.server.handle_peer_answer(ticket, answer);
    }

    pub(super) fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.server.progress(self.seat(local))
    }

    pub(super) fn pending_fences(&self) -> Vec<FenceStatus> {
        self.server.pending_fences(self.job)
    }

    pub(super) fn poll_effect(&mut self, now: Instant) -> Option<PmixEffect> {
        loop {
            let action = self.server.poll_action()?;
            if let Some(effect) = self.effect_of(action, now) {
                return Some(effect);
            }
        }
    }

    fn effect_of(&mut self, action: Action, now: Instant) -> Option<PmixEffect> {
        let local_of = |connection: ConnectionId| {
            let at = self.connections.iter().position(|known| *known == Some(connection))?;
            Some(LocalRank(at as u32))
        };
        match action {
            Action::Send { connection, bytes } => Some(PmixEffect::Send(local_of(connection)?, bytes)),
            Action::SendAndTell { connection, bytes } => {
                let local = local_of(connection)?;
                self.server.handle_sent(connection);
                Some(PmixEffect::Send(local, bytes))
            }
            Action::Close { connection } => Some(PmixEffect::Close(local_of(connection)?)),
            Action::Fence { id, contribution, .. } => Some(PmixEffect::Fence(id, contribution)),
            Action::Ask { ticket, node, question } => Some(PmixEffect::Ask(ticket, node, question)),
            Action::Reply { ticket, answer } => Some(PmixEffect::Reply(ticket, answer)),
            Action::Died { death, .. } => Some(PmixEffect::Died(death)),
            Action::End { reason, .. } => Some(PmixEffect::End(reason)),
            Action::SetTimer { ticket, after } => {
                self.timers.insert(ticket, now + after);
                None
            }
            Action::CancelTimer { ticket } => {
                self.timers.remove(&ticket);
                None
            }
            Action::Needed(need) => {
                self.need = need;
                None
            }
            Action::Say { text, .. } => {
                self.server.handle_heard(text.len());
                None
            }
            // Ranks of the simulation send no calls to the host, register no files and have no tools.
            _ => None,
        }
    }
}
