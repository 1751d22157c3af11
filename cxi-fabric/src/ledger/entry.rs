//! Entries of a ledger's journal. No entry holds a secret.

use serde::{Deserialize, Serialize};

use super::grant::{Grant, Phase};
use crate::fabric::{Service, ServiceName, ServiceRequest};
use crate::vni::Vni;

/// One step in the life of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// Next serial number at the time when a journal was compacted.
    Mark {
        /// The number in the next name.
        serial: u64,
        /// The VNI given out last.
        last: Option<Vni>,
    },
    /// The manager is about to be asked for a service.
    Intended {
        /// For which.
        request: ServiceRequest,
    },
    /// The service exists.
    Made {
        /// Our name for it.
        name: ServiceName,
        /// The manager's name, and its VNI.
        service: Service,
    },
    /// The service is about to be deleted.
    Ending {
        /// Name of the service.
        name: ServiceName,
    },
    /// The manager has it no more.
    Deleted {
        /// Name of the service.
        name: ServiceName,
    },
    /// A node has nothing left of it.
    Confirmed {
        /// Name of the service.
        name: ServiceName,
        /// Name of the node.
        node: String,
    },
}

impl Entry {
    /// Name of the service that it is about.
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
    /// The entries that make it again.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let name = self.request.name.clone();
        let mut entries = vec![Entry::Intended { request: self.request.clone() }];
        let made = self.service.clone().map(|service| Entry::Made { name: name.clone(), service });
        let Phase::Ending { is_deleted, unconfirmed } = &self.phase else {
            entries.extend(made);
            return entries;
        };
        let was_held = !unconfirmed.is_empty();
        // In this order nodes have to confirm; in the other one they do not.
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
