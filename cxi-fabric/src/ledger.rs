//! Ledger of VNIs and services, and of the work that undoes them: a state machine without clock, network or disk.
//!
//! ```text
//!              intend             made            release                       both are true
//!   (nothing) ────────> Creating ──────> Held ──────────────> Ending ─────────────────────────> (forgotten; the VNI is free)
//!                          │                                  │  deleted at the manager
//!                          └─ failed, or found after a crash ─┘  confirmed by every node
//! ```
//!
//! The host asks ([`Ledger::want`], [`Ledger::due`]), does what it is told, and reports. Before it does anything it makes the
//! entries of [`Ledger::unwritten`] durable; an earlier life's entries, in order, make the same ledger again.
//!
//! Credentials stay in memory. After a restart they are fetched again, so no journal holds a key.

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
    /// The allocation; all launches in it share one service.
    pub allocation: String,
    /// The allocation's nodes.
    pub nodes: Vec<String>,
    /// User of the ranks.
    pub uid: u32,
}

/// Next step of a launch towards its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Here they are.
    Ready(Credentials),
    /// Another launch of the allocation is getting them; ask again when something has been reported.
    Wait,
    /// Make the service; report by [`Ledger::made`] or [`Ledger::failed`].
    Create(ServiceRequest),
    /// Fetch the credentials of a service that exists; report by [`Ledger::equipped`], [`Ledger::unequipped`] or
    /// [`Ledger::vanished`].
    Fetch(ServiceName, Service),
}

/// Work that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Delete the service; report by [`Ledger::deleted`].
    Delete(ServiceName, ServiceId),
    /// Find what a request made whose answer was not heard; report by [`Ledger::found`].
    Find(ServiceRequest),
    /// Ask these nodes whether they have anything left of the VNI, which every service that they made for it names; report by
    /// [`Ledger::confirmed`].
    Confirm(ServiceName, Vni, Vec<String>),
}

/// Effect of a call to the manager that failed.
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
    /// The allocation's name does not fit.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// State of one service, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Name of the service.
    pub name: ServiceName,
    /// Allocation that it belongs to.
    pub allocation: String,
    /// VNI, if it is known.
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
    /// True if a service may be deleted before the nodes have confirmed.
    numbering: Numbering,
    pool: VniPool,
    grants: BTreeMap<ServiceName, Grant>,
    /// The number in the next name.
    serial: u64,
    unwritten: Vec<Entry>,
    /// Services that are over, with the VNIs that are free again, until they are taken.
    over: Vec<(ServiceName, Option<Vni>)>,
}

impl Ledger {
    /// The ledger of a cluster, as the entries of its earlier life left it; none for a new one. Services that were being made end:
    /// nobody waits for them any more. Those that are held stay; release those whose allocation is gone
    /// ([`Ledger::allocations`]).
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

    /// Takes the entries that must be durable before anything else is done.
    #[must_use]
    pub fn unwritten(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.unwritten)
    }

    /// Takes the services that are over since the last call, with their VNIs, which may be used again.
    #[must_use]
    pub fn over(&mut self) -> Vec<(ServiceName, Option<Vni>)> {
        std::mem::take(&mut self.over)
    }

    /// The fewest entries that make this ledger again; they may replace a journal that has grown.
    pub fn compacted(&self) -> Vec<Entry> {
        let mark = Entry::Mark { serial: self.serial, last: self.pool.last() };
        // Last, as each service that is intended counts on.
        self.grants.values().flat_map(Grant::entries).chain([mark]).collect()
    }

    /// Decides the next step of a launch towards its credentials, at `now`.
    ///
    /// # Errors
    /// If no VNI is left, or the allocation's name cannot be part of a service's.
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

    /// The numbers of the next service, where we choose them: all that it needs, or none.
    fn choose(&mut self) -> Result<(Option<Vni>, Option<Vni>), VniError> {
        let Numbering::Ours { job_vni } = self.numbering else { return Ok((None, None)) };
        let own = self.pool.reserve()?;
        let job = job_vni.then(|| self.pool.reserve()).transpose().inspect_err(|_| self.pool.free(own))?;
        Ok((Some(own), job))
    }

    /// Credentials that are at hand.
    pub fn ready(&self, allocation: &str, now: Instant) -> Option<&Credentials> {
        let grant = self.grants.values().find(|grant| grant.request.allocation == allocation && grant.is_current())?;
        match &grant.phase {
            Phase::Held(Keys::Here { credentials, until }) if until.is_none_or(|until| now < until) => {
                Some(credentials)
            }
            _ => None,
        }
    }

    /// The manager made the service. Whether somebody still wants it: if so, fetch its credentials.
    pub fn made(&mut self, name: &ServiceName, service: Service) -> bool {
        self.set_being_made(name, false);
        self.record(Entry::Made { name: name.clone(), service });
        let Some(Grant { phase: Phase::Held(keys), .. }) = self.grants.get_mut(name) else { return false };
        *keys = Keys::Fetching;
        true
    }

    /// Reports that the call to make the service failed. Unless it certainly made nothing, the service is due to be searched for.
    pub fn failed(&mut self, name: &ServiceName, effect: Effect) {
        self.set_being_made(name, false);
        self.record(Entry::Ending { name: name.clone() });
        match effect {
            Effect::None => self.deleted(name),
            Effect::Unknown => {}
        }
    }

    /// The service's credentials, received at `now`.
    pub fn equipped(&mut self, name: &ServiceName, credentials: Credentials, now: Instant) {
        if let Some(Grant { phase: Phase::Held(keys), .. }) = self.grants.get_mut(name) {
            let until = credentials.lifetime.map(|lifetime| now + lifetime);
            *keys = Keys::Here { credentials, until };
        }
    }

    /// The credentials could not be fetched; the next launch tries again.
    pub fn unequipped(&mut self, name: &ServiceName) {
        if let Some(Grant { phase: Phase::Held(keys @ Keys::Fetching), .. }) = self.grants.get_mut(name) {
            *keys = Keys::Missing;
        }
    }

    /// The manager knows no such service (any more); the next launch makes another.
    pub fn vanished(&mut self, name: &ServiceName) {
        self.record(Entry::Ending { name: name.clone() });
        self.deleted(name);
    }

    /// True if launches may be given the service's credentials.
    pub fn is_held(&self, name: &ServiceName) -> bool {
        self.grants.get(name).is_some_and(|grant| matches!(grant.phase, Phase::Held(_)))
    }

    /// The allocation has ended, or all its launches have.
    pub fn release(&mut self, allocation: &str) {
        if let Some(name) = self.current_mut(allocation).map(|(name, _)| name.clone()) {
            self.record(Entry::Ending { name });
        }
    }

    /// Work that is due now. Each task is repeated until it is reported as done. Of a service that is being made nothing is: a search could
    /// miss what the call is yet to make.
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

    /// Reports the search for a request whose answer was not heard.
    pub fn found(&mut self, name: &ServiceName, service: Option<Service>) {
        match service {
            Some(service) => self.record(Entry::Made { name: name.clone(), service }),
            None => self.deleted(name),
        }
    }

    /// The manager has deleted the service, or never knew it.
    pub fn deleted(&mut self, name: &ServiceName) {
        self.record(Entry::Deleted { name: name.clone() });
    }

    /// The node has nothing left of the service.
    pub fn confirmed(&mut self, name: &ServiceName, node: &str) {
        self.record(Entry::Confirmed { name: name.clone(), node: node.to_owned() });
    }

    /// The node has nothing left of anything: it was booted anew, or taken out of the cluster for good.
    pub fn node_is_empty(&mut self, node: &str) {
        let names: Vec<_> = self.grants.keys().cloned().collect();
        names.iter().for_each(|name| self.confirmed(name, node));
    }

    /// Services in a manager's list that are of this cluster and not in the ledger: left by a life whose journal is lost. They may
    /// be deleted.
    pub fn strangers(&self, listed: Vec<Listed>) -> Vec<Listed> {
        let is_stranger = |name: &ServiceName| name.is_of(&self.cluster) && !self.grants.contains_key(name);
        listed.into_iter().filter(|listed| listed.name.as_ref().is_some_and(is_stranger)).collect()
    }

    /// The allocations that have a service, or are getting one.
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

    /// Applies an entry that is new, and keeps it for the journal if it changes anything.
    fn record(&mut self, entry: Entry) {
        if self.matters(&entry) {
            let of = entry.name().and_then(|name| Some((name.clone(), self.grants.get(name)?.vni())));
            self.unwritten.push(entry.clone());
            self.apply(entry);
            self.over.extend(of.filter(|(name, _)| !self.grants.contains_key(name)));
        }
    }

    /// Reports may come twice, late, or about what is forgotten.
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

    /// The one place where the state changes, in life and in recovery.
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
        // The numbers in the request are ours; what a manager chose is the manager's.
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
