//! Ledger of VNIs and services, and of their clean-up: a state machine without clock, network or disk.
//!
//! ```text
//!              intend             made            release                       both are true
//!   (nothing) ────────> Creating ──────> Held ──────────────> Ending ─────────────────────────> (forgotten; the VNI is free)
//!                          │                                  │  deleted at the manager
//!                          └─ failed, or found after a crash ─┘  confirmed by every node
//! ```
//!
//! The host queries the ledger ([`Ledger::want`], [`Ledger::due`]), does the returned work, and reports the result. Before the work, the
//! host makes the entries of [`Ledger::unwritten`] durable. The entries of an earlier run, in order, restore the ledger.
//!
//! Credentials are only in memory. After a restart they are fetched again, so no journal has a key.

mod entry;
mod grant;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use thiserror::Error;

pub use entry::Entry;

use self::grant::{Grant, Keys, Phase};
use crate::fabric::{
    ClusterName, Credentials, Listed, NameError, Numbering, Service, ServiceId, ServiceName, ServiceRequest,
};
use crate::vni::{Vni, VniError, VniPool, VniRange};

/// Request of a launch for credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Name of the allocation; all its launches share one service.
    pub allocation: String,
    /// Nodes of the allocation.
    pub nodes: Vec<String>,
    /// User of the ranks.
    pub uid: u32,
}

/// Next step of a launch towards its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The credentials are available.
    Ready(Credentials),
    /// Another launch of the allocation is fetching them; call again after the next report.
    Wait,
    /// Make the service; report by [`Ledger::made`] or [`Ledger::failed`].
    Create(ServiceRequest),
    /// Fetch the credentials of an existing service; report by [`Ledger::equipped`], [`Ledger::unequipped`] or [`Ledger::vanished`].
    Fetch(ServiceName, Service),
}

/// Work that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Delete the service; report by [`Ledger::deleted`].
    Delete(ServiceName, ServiceId),
    /// Find the service of a request with a lost answer; report by [`Ledger::found`].
    Find(ServiceRequest),
    /// Query these nodes for leftovers of the VNI, which is in every service that they made for it; report by [`Ledger::confirmed`].
    Confirm(ServiceName, Vni, Vec<String>),
}

/// Effect of a failed call to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call certainly changed nothing.
    None,
    /// The call may have been carried out.
    Unknown,
}

/// Error of a launch that gets no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No VNI is left.
    #[error(transparent)]
    Vni(#[from] VniError),
    /// The allocation's name is not valid in a service name.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// State of one service, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Name of the service.
    pub name: ServiceName,
    /// Allocation of the service.
    pub allocation: String,
    /// VNI, if known.
    pub vni: Option<Vni>,
    /// `creating`, `held`, `ending` or `quarantined`.
    pub state: &'static str,
    /// Nodes that still have to confirm.
    pub unconfirmed: Vec<String>,
}

/// Services that exist or may exist.
#[derive(Debug)]
pub struct Ledger {
    cluster: ClusterName,
    /// Determines if a service may be deleted before the nodes have confirmed.
    numbering: Numbering,
    pool: VniPool,
    grants: BTreeMap<ServiceName, Grant>,
    /// Serial number of the next name.
    serial: u64,
    unwritten: Vec<Entry>,
    /// Services that have ended since the last call of `over`, with VNIs that are free again.
    over: Vec<(ServiceName, Option<Vni>)>,
}

impl Ledger {
    /// Restores the ledger of a cluster from the entries of its earlier run; none for a new cluster. Services that were being made end,
    /// since no launch waits for them. Held services stay; the caller must release those of ended allocations ([`Ledger::allocations`]).
    pub fn recover(
        cluster: ClusterName,
        numbering: Numbering,
        range: VniRange,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Self {
        let pool = VniPool::new(range, None);
        let grants = BTreeMap::new();
        let (unwritten, over) = (Vec::new(), Vec::new());
        let mut ledger = Self { cluster, numbering, pool, grants, serial: 0, unwritten, over };
        entries.into_iter().for_each(|entry| ledger.apply(entry));
        let is_orphan = |grant: &Grant| matches!(grant.phase, Phase::Creating);
        let orphans: Vec<_> =
            ledger.grants.iter().filter(|(_, grant)| is_orphan(grant)).map(|(name, _)| name.clone()).collect();
        orphans.into_iter().for_each(|name| ledger.record(Entry::Ending { name }));
        ledger
    }

    /// Takes the entries that must be durable before any other action.
    #[must_use]
    pub fn unwritten(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.unwritten)
    }

    /// Takes the services that have ended since the last call, with their VNIs, which are free again.
    #[must_use]
    pub fn over(&mut self) -> Vec<(ServiceName, Option<Vni>)> {
        std::mem::take(&mut self.over)
    }

    /// Smallest list of entries that restores this ledger; it may replace a long journal.
    pub fn compacted(&self) -> Vec<Entry> {
        let mark = Entry::Mark { serial: self.serial, last: self.pool.last() };
        // The mark is last, because each intended service increases the serial number.
        self.grants.values().flat_map(Grant::entries).chain([mark]).collect()
    }

    /// Decides the next step of a launch towards its credentials, at `now`.
    ///
    /// # Errors
    /// Fails if no VNI is left, or the allocation's name is not valid in a service name.
    pub fn want(&mut self, need: &Need, now: Instant) -> Result<Answer, LedgerError> {
        if let Some((name, grant)) = self.current_mut(&need.allocation) {
            return Ok(match (&mut grant.phase, &grant.service) {
                (Phase::Held(Keys::Here { credentials, until }), _) if until.is_none_or(|until| now < until) => {
                    Answer::Ready(credentials.clone())
                }
                (Phase::Held(keys @ (Keys::Missing | Keys::Here { .. })), Some(service)) => {
                    *keys = Keys::Fetching;
                    Answer::Fetch(name.clone(), service.clone())
                }
                _ => Answer::Wait,
            });
        }
        let name = ServiceName::new(&self.cluster, &need.allocation, self.serial)?;
        let (vni, job_vni) = self.choose()?;
        let Need { allocation, nodes, uid } = need.clone();
        let request = ServiceRequest { name, allocation, vni, job_vni, nodes, uid };
        self.record(Entry::Intended { request: request.clone() });
        self.set_being_made(&request.name, true);
        Ok(Answer::Create(request))
    }

    /// VNIs of the next service, if this cluster assigns them: all that it needs, or none.
    fn choose(&mut self) -> Result<(Option<Vni>, Option<Vni>), VniError> {
        let Numbering::Ours { job_vni } = self.numbering else { return Ok((None, None)) };
        let own = self.pool.reserve()?;
        let job = job_vni.then(|| self.pool.reserve()).transpose().inspect_err(|_| self.pool.free(own))?;
        Ok((Some(own), job))
    }

    /// Credentials of the allocation, if they are in memory.
    pub fn ready(&self, allocation: &str, now: Instant) -> Option<&Credentials> {
        let grant = self.grants.values().find(|grant| grant.request.allocation == allocation && grant.is_current())?;
        match &grant.phase {
            Phase::Held(Keys::Here { credentials, until }) if until.is_none_or(|until| now < until) => {
                Some(credentials)
            }
            _ => None,
        }
    }

    /// Reports that the manager made the service. Returns true if it is still wanted; then fetch its credentials.
    pub fn made(&mut self, name: &ServiceName, service: Service) -> bool {
        self.set_being_made(name, false);
        self.record(Entry::Made { name: name.clone(), service });
        let Some(Grant { phase: Phase::Held(keys), .. }) = self.grants.get_mut(name) else { return false };
        *keys = Keys::Fetching;
        true
    }

    /// Reports that the call to make the service failed. Unless it certainly made nothing, a search for the service becomes due.
    pub fn failed(&mut self, name: &ServiceName, effect: Effect) {
        self.set_being_made(name, false);
        self.record(Entry::Ending { name: name.clone() });
        match effect {
            Effect::None => self.deleted(name),
            Effect::Unknown => {}
        }
    }

    /// Stores the service's credentials, received at `now`.
    pub fn equipped(&mut self, name: &ServiceName, credentials: Credentials, now: Instant) {
        if let Some(Grant { phase: Phase::Held(keys), .. }) = self.grants.get_mut(name) {
            let until = credentials.lifetime.map(|lifetime| now + lifetime);
            *keys = Keys::Here { credentials, until };
        }
    }

    /// Reports that the credentials could not be fetched; the next launch tries again.
    pub fn unequipped(&mut self, name: &ServiceName) {
        if let Some(Grant { phase: Phase::Held(keys @ Keys::Fetching), .. }) = self.grants.get_mut(name) {
            *keys = Keys::Missing;
        }
    }

    /// Reports that the manager does not have the service; the next launch makes another.
    pub fn vanished(&mut self, name: &ServiceName) {
        self.record(Entry::Ending { name: name.clone() });
        self.deleted(name);
    }

    /// True if launches may get the service's credentials.
    pub fn is_held(&self, name: &ServiceName) -> bool {
        self.grants.get(name).is_some_and(|grant| matches!(grant.phase, Phase::Held(_)))
    }

    /// Reports that the allocation, or all its launches, have ended.
    pub fn release(&mut self, allocation: &str) {
        if let Some(name) = self.current_mut(allocation).map(|(name, _)| name.clone()) {
            self.record(Entry::Ending { name });
        }
    }

    /// Work that is due now. Each task is repeated until it is reported as done. A service that is being made has no task at the manager: a
    /// search could come before the call takes effect.
    pub fn due(&self) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (name, grant) in &self.grants {
            let Phase::Ending { is_deleted, unconfirmed } = &grant.phase else { continue };
            let may_delete = self.numbering != Numbering::Managers || unconfirmed.is_empty();
            if !is_deleted && may_delete && !grant.is_being_made {
                tasks.push(match &grant.service {
                    Some(service) => Task::Delete(name.clone(), service.id.clone()),
                    None => Task::Find(grant.request.clone()),
                });
            }
            if let (false, Some(vni)) = (unconfirmed.is_empty(), grant.vni()) {
                tasks.push(Task::Confirm(name.clone(), vni, unconfirmed.iter().cloned().collect()));
            }
        }
        tasks
    }

    /// Reports the result of the search for a request with a lost answer.
    pub fn found(&mut self, name: &ServiceName, service: Option<Service>) {
        match service {
            Some(service) => self.record(Entry::Made { name: name.clone(), service }),
            None => self.deleted(name),
        }
    }

    /// Reports that the manager has deleted the service, or never had it.
    pub fn deleted(&mut self, name: &ServiceName) {
        self.record(Entry::Deleted { name: name.clone() });
    }

    /// Reports that the node holds nothing of the service.
    pub fn confirmed(&mut self, name: &ServiceName, node: &str) {
        self.record(Entry::Confirmed { name: name.clone(), node: node.to_owned() });
    }

    /// Reports that the node holds nothing of any service: it was rebooted, or removed from the cluster permanently.
    pub fn node_is_empty(&mut self, node: &str) {
        let names: Vec<_> = self.grants.keys().cloned().collect();
        names.iter().for_each(|name| self.confirmed(name, node));
    }

    /// Services in a manager's list that belong to this cluster and are not in the ledger. They are from an earlier run with a lost
    /// journal, and may be deleted.
    pub fn strangers(&self, listed: Vec<Listed>) -> Vec<Listed> {
        let is_stranger = |name: &ServiceName| name.is_of(&self.cluster) && !self.grants.contains_key(name);
        listed.into_iter().filter(|listed| listed.name.as_ref().is_some_and(is_stranger)).collect()
    }

    /// Allocations that have a service, or are getting one.
    pub fn allocations(&self) -> BTreeSet<String> {
        self.grants.values().filter(|grant| grant.is_current()).map(|grant| grant.request.allocation.clone()).collect()
    }

    /// All services, for lists.
    pub fn views(&self) -> Vec<View> {
        let view = |(name, grant): (&ServiceName, &Grant)| View {
            name: name.clone(),
            allocation: grant.request.allocation.clone(),
            vni: grant.vni(),
            state: grant.state(),
            unconfirmed: match &grant.phase {
                Phase::Ending { unconfirmed, .. } => unconfirmed.iter().cloned().collect(),
                _ => Vec::new(),
            },
        };
        self.grants.iter().map(view).collect()
    }

    fn current_mut(&mut self, allocation: &str) -> Option<(&ServiceName, &mut Grant)> {
        self.grants.iter_mut().find(|(_, grant)| grant.request.allocation == allocation && grant.is_current())
    }

    fn set_being_made(&mut self, name: &ServiceName, is_being_made: bool) {
        if let Some(grant) = self.grants.get_mut(name) {
            grant.is_being_made = is_being_made;
        }
    }

    /// Applies a new entry, and stores it for the journal if it changes the state.
    fn record(&mut self, entry: Entry) {
        if self.matters(&entry) {
            let of = entry.name().and_then(|name| Some((name.clone(), self.grants.get(name)?.vni())));
            self.unwritten.push(entry.clone());
            self.apply(entry);
            self.over.extend(of.filter(|(name, _)| !self.grants.contains_key(name)));
        }
    }

    /// Reports may be repeated, late, or about a forgotten service.
    fn matters(&self, entry: &Entry) -> bool {
        let Some(name) = entry.name() else { return true };
        let grant = self.grants.get(name);
        match (entry, grant.map(|grant| &grant.phase)) {
            (Entry::Intended { .. }, phase) => phase.is_none(),
            (Entry::Made { .. }, Some(_)) => grant.is_some_and(|grant| grant.service.is_none()),
            (Entry::Ending { .. }, Some(phase)) => !matches!(phase, Phase::Ending { .. }),
            (Entry::Deleted { .. }, Some(Phase::Ending { is_deleted, .. })) => !is_deleted,
            (Entry::Confirmed { node, .. }, Some(Phase::Ending { unconfirmed, .. })) => unconfirmed.contains(node),
            _ => false,
        }
    }

    /// The only function that changes the state, at run time and in recovery.
    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Mark { serial, last } => {
                self.serial = serial;
                self.pool.resume_after(last);
            }
            Entry::Intended { request } => {
                self.serial += 1;
                request.vnis().for_each(|vni| self.pool.claim(vni));
                let name = request.name.clone();
                self.grants
                    .insert(name, Grant { request, service: None, phase: Phase::Creating, is_being_made: false });
            }
            Entry::Made { name, service } => {
                if let Some(grant) = self.grants.get_mut(&name) {
                    grant.service = Some(service);
                    if let Phase::Creating = grant.phase {
                        grant.phase = Phase::Held(Keys::Missing);
                    }
                }
            }
            Entry::Ending { name } => {
                if let Some(grant) = self.grants.get_mut(&name) {
                    grant.end();
                }
            }
            Entry::Deleted { name } => {
                if let Some(Grant { phase: Phase::Ending { is_deleted, .. }, .. }) = self.grants.get_mut(&name) {
                    *is_deleted = true;
                }
                self.forget_if_over(&name);
            }
            Entry::Confirmed { name, node } => {
                if let Some(Grant { phase: Phase::Ending { unconfirmed, .. }, .. }) = self.grants.get_mut(&name) {
                    unconfirmed.remove(&node);
                }
                self.forget_if_over(&name);
            }
        }
    }

    fn forget_if_over(&mut self, name: &ServiceName) {
        let Some(grant) = self.grants.get(name) else { return };
        let Phase::Ending { is_deleted: true, unconfirmed } = &grant.phase else { return };
        // Numbers in the request come from this cluster's pool; numbers from a manager stay with the manager.
        let vnis = grant.request.vnis();
        if unconfirmed.is_empty() {
            self.grants.remove(name);
            vnis.for_each(|vni| self.pool.free(vni));
        } else {
            vnis.for_each(|vni| self.pool.retire(vni));
        }
    }
}

#[cfg(test)]
mod tests;
