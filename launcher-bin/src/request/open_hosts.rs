//! Hosts of a launch until their slots are known. A name without a number has a slot for each core of its node, or for each object in a
//! placement by objects. The nodes and their cores are known only when the ranks get their places.

use std::num::NonZeroU32;

use lattice_dialects::hostfile::{self, Hosts};
use lattice_session::request::{Candidates, PlacementRequest};

/// Hosts of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenHosts {
    hosts: Hosts,
    /// Number of ranks that share the slots, if sharing is allowed.
    shared_by: Option<u32>,
}

impl OpenHosts {
    pub(super) fn new(hosts: Hosts, shared_by: Option<u32>) -> Self {
        Self { hosts, shared_by }
    }

    /// True if the slots are known without the nodes.
    pub(super) fn is_counted(&self) -> bool {
        self.hosts.is_counted()
    }

    /// Names of the hosts, for renaming.
    pub(super) fn names_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.hosts.0.iter_mut().map(|host| &mut host.name)
    }

    /// The same hosts under other names.
    #[must_use]
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        for host in &mut self.hosts.0 {
            host.name = name(&host.name).unwrap_or_else(|| std::mem::take(&mut host.name));
        }
        self
    }

    /// Stores the hosts with their slots in the request. `room` returns the number of ranks that a node takes.
    ///
    /// # Errors
    /// Fails if `room` fails.
    pub(crate) fn settle<E>(
        self,
        request: &mut PlacementRequest,
        room: impl Fn(&str) -> Result<Option<NonZeroU32>, E>,
    ) -> Result<(), E> {
        let mut hosts = self.hosts.counted(room)?;
        if let Some(ranks) = self.shared_by {
            hostfile::add_slots(&mut hosts, ranks.into());
        }
        request.candidates = Candidates::Hostfile(hosts);
        Ok(())
    }
}
