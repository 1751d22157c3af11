//! Entries of a ledger's journal. No entry has a secret.

use serde::{Deserialize, Serialize};

use super::grant::{Grant, Phase};
use crate::fabric::{Service, ServiceName, ServiceRequest};
use crate::vni::Vni;

/// One state change of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// Serial number at the time when the journal was compacted.
    Mark {
        /// Serial number of the next name.
        serial: u64,
        /// VNI assigned last.
        last: Option<Vni>,
    },
    /// A request for a service is about to be sent to the manager.
    Intended {
        /// The request.
        request: ServiceRequest,
    },
    /// The service exists.
    Made {
        /// This cluster's name of the service.
        name: ServiceName,
        /// The manager's identifier, and the VNI.
        service: Service,
    },
    /// The service is about to be deleted.
    Ending {
        /// Name of the service.
        name: ServiceName,
    },
    /// The manager no longer has the service.
    Deleted {
        /// Name of the service.
        name: ServiceName,
    },
    /// A node holds nothing of the service.
    Confirmed {
        /// Name of the service.
        name: ServiceName,
        /// Name of the node.
        node: String,
    },
}

impl Entry {
    /// Name of the entry's service.
    pub fn name(&self) -> Option<&ServiceName> {
        match self {
            Self::Mark { .. } => None,
            Self::Intended { request } => Some(&request.name),
            Self::Made { name, .. } | Self::Ending { name } | Self::Deleted { name } | Self::Confirmed { name, .. } => {
                Some(name)
            }
        }
    }
}

impl Grant {
    /// Entries that restore this grant.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let name = self.request.name.clone();
        let mut entries = vec![Entry::Intended { request: self.request.clone() }];
        let made = self.service.clone().map(|service| Entry::Made { name: name.clone(), service });
        let Phase::Ending { is_deleted, unconfirmed } = &self.phase else {
            entries.extend(made);
            return entries;
        };
        let was_held = !unconfirmed.is_empty();
        // If `Made` precedes `Ending`, nodes have to confirm; in the other order they do not.
        if was_held {
            entries.extend(made.clone());
        }
        entries.push(Entry::Ending { name: name.clone() });
        if !was_held {
            entries.extend(made);
        }
        let confirmed = self.request.nodes.iter().filter(|node| was_held && !unconfirmed.contains(*node));
        entries.extend(confirmed.map(|node| Entry::Confirmed { name: name.clone(), node: node.clone() }));
        entries.extend(is_deleted.then_some(Entry::Deleted { name }));
        entries
    }
}
