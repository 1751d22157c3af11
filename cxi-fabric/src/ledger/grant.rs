//! One service in the ledger: what was asked for, what the manager made, and how far its life is.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::fabric::{Credentials, Service, ServiceRequest};
use crate::vni::Vni;

/// Service that exists or may exist.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) request: ServiceRequest,
    /// Known once the manager has told.
    pub(super) service: Option<Service>,
    pub(super) phase: Phase,
    /// True from the time that the host was told to make it until it has reported. In no journal: after a crash no call is under way.
    pub(super) is_being_made: bool,
}

/// Part of its life that a service is in; the module above draws them.
#[derive(Debug)]
pub(super) enum Phase {
    Creating,
    Held(Keys),
    Ending { is_deleted: bool, unconfirmed: BTreeSet<String> },
}

/// The credentials of a service that exists.
#[derive(Debug)]
pub(super) enum Keys {
    Missing,
    Fetching,
    Here { credentials: Credentials, until: Option<Instant> },
}

impl Grant {
    pub(super) fn vni(&self) -> Option<Vni> {
        self.service.as_ref().map(|service| service.vni).or(self.request.vni)
    }

    pub(super) fn is_current(&self) -> bool {
        !matches!(self.phase, Phase::Ending { .. })
    }

    pub(super) fn state(&self) -> &'static str {
        match &self.phase {
            Phase::Creating => "creating",
            Phase::Held(_) => "held",
            Phase::Ending { is_deleted: true, .. } => "quarantined",
            Phase::Ending { .. } => "ending",
        }
    }

    /// Begins to end. Nodes can hold something only of a service whose credentials could be had.
    pub(super) fn end(&mut self) {
        let unconfirmed = match self.phase {
            Phase::Creating => BTreeSet::new(),
            Phase::Held(_) => self.request.nodes.iter().cloned().collect(),
            Phase::Ending { .. } => return,
        };
        self.phase = Phase::Ending { is_deleted: false, unconfirmed };
    }
}
