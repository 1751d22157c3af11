//! One service in the ledger: the request, the manager's result, and the phase.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::fabric::{Credentials, Service, ServiceRequest};
use crate::vni::Vni;

/// Service that exists or may exist.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) request: ServiceRequest,
    /// `None` until the manager has answered.
    pub(super) service: Option<Service>,
    pub(super) phase: Phase,
    /// True from the order to make the service until the host's report. Not in the journal: after a crash no call is running.
    pub(super) is_being_made: bool,
}

/// Phase of a service; the parent module has the diagram.
#[derive(Debug)]
pub(super) enum Phase {
    Creating,
    Held(Keys),
    Ending { is_deleted: bool, unconfirmed: BTreeSet<String> },
}

/// Credentials of an existing service.
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

    /// Starts the end of the service. Nodes can hold something of it only if its credentials were available.
    pub(super) fn end(&mut self) {
        let unconfirmed = match self.phase {
            Phase::Creating => BTreeSet::new(),
            Phase::Held(_) => self.request.nodes.iter().cloned().collect(),
            Phase::Ending { .. } => return,
        };
        self.phase = Phase::Ending { is_deleted: false, unconfirmed };
    }
}
