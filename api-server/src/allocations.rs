//! Allocations: whose they are, which nodes they have, and what happens to them when launches fail. Pure; the server makes
//! every change durable before it takes effect.
//!
//! A node belongs to one allocation at a time, until that is released. The states are those of [`allocation`]; what is asked of a
//! new one is checked in [`plan`].

pub(crate) mod allocation;
pub(crate) mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pmi_transport::identity::Caller;

pub(crate) use self::allocation::{Allocation, AllocationState};

/// All allocations.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    all: BTreeMap<String, Allocation>,
    /// By node, the allocation that it belongs to.
    owners: BTreeMap<String, String>,
}

/// An allocation that cannot be used as was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error("there is no allocation {id}, or it was released")]
    Unknown { id: String },
    #[error("allocation {id} belongs to another user")]
    NotYours { id: String },
    #[error("allocation {id} is {}, not running{}", state.word(), because(state))]
    NotRunning { id: String, state: AllocationState },
}

/// The reason of a state, if it has one.
fn because(state: &AllocationState) -> String {
    state.reason().map_or_else(String::new, |reason| format!(": {reason}"))
}

impl Allocations {
    /// Takes over what was kept.
    pub(crate) fn new(kept: impl IntoIterator<Item = Allocation>) -> Self {
        let mut allocations = Self::default();
        kept.into_iter().for_each(|allocation| allocations.put(allocation));
        allocations
    }

    /// Stores an allocation as it is now. Of those that have ended, only the store knows.
    pub(crate) fn put(&mut self, allocation: Allocation) {
        let id = allocation.id.clone();
        if allocation.state == AllocationState::Released {
            if let Some(before) = self.all.remove(&id) {
                before.nodes.iter().for_each(|node| drop(self.owners.remove(node)));
            }
            return;
        }
        if !self.all.contains_key(&id) {
            // It keeps its nodes for as long as it lives.
            self.owners.extend(allocation.nodes.iter().map(|node| (node.clone(), id.clone())));
        }
        self.all.insert(id, allocation);
    }

    /// The allocation that a node belongs to.
    pub(crate) fn owner(&self, node: &str) -> Option<&Allocation> {
        self.owners.get(node).and_then(|id| self.all.get(id))
    }

    /// An allocation that has not been released.
    pub(crate) fn find(&self, id: &str) -> Option<&Allocation> {
        self.all.get(id)
    }

    /// All allocations that have not been released.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.all.values()
    }

    /// An allocation of the caller's own; administrators own all.
    ///
    /// # Errors
    /// If there is none with this id, or it is another user's.
    pub(crate) fn of(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.find(id).ok_or_else(|| AllocationError::Unknown { id: id.to_owned() })?;
        match may_use(caller, allocation.uid) {
            true => Ok(allocation),
            false => Err(AllocationError::NotYours { id: id.to_owned() }),
        }
    }

    /// An allocation of the caller's own in which something may be launched.
    ///
    /// # Errors
    /// As [`Self::of`], and if it does not run.
    pub(crate) fn running(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.of(caller, id)?;
        match &allocation.state {
            AllocationState::Running => Ok(allocation),
            state => Err(AllocationError::NotRunning { id: id.to_owned(), state: state.clone() }),
        }
    }
}

/// Returns true if a caller may use what belongs to `owner`.
pub(crate) fn may_use(caller: &Caller, owner: u32) -> bool {
    match caller {
        Caller::Admin(_) => true,
        Caller::User(uid) => *uid == owner,
        Caller::Agent(_) | Caller::Api => false,
    }
}
