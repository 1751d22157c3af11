//! Credentials of all allocations: a [`Ledger`], a [`FabricManager`] and a journal, with calls that the threads of a server can make.
//!
//! Calls that use the manager block until their deadline at most. [`Grants::ready`], [`Grants::release`] and the reports of nodes do not
//! block. The ledger is locked only for single steps, never during a call to the manager.

mod turns;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::clock::Clock;
use crate::error::FabricError;
use crate::fabric::{ClusterName, Credentials, FabricManager, Listed, Service, ServiceId, ServiceName, ServiceRequest};
use crate::ledger::{Answer, Effect, Entry, Ledger, LedgerError, Need, Task, View};
use crate::vni::{Vni, VniRange};

use self::turns::Turns;

/// Journal of a ledger's entries. It has one writer at a time.
pub trait Journal: Send {
    /// Makes the entries durable, in order, before it returns.
    ///
    /// # Errors
    /// Fails if the entries are not durable; then nothing that they announce is done.
    fn write(&mut self, entries: &[Entry]) -> io::Result<()>;

    /// Durably replaces all entries by fewer equivalent ones. After a failure the old ones remain.
    ///
    /// # Errors
    /// Fails if the entries are not replaced.
    fn replace(&mut self, entries: &[Entry]) -> io::Result<()>;
}

/// Journal that stores nothing: after a crash of the host, the pending clean-up is lost. For experiments and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn write(&mut self, _entries: &[Entry]) -> io::Result<()> {
        Ok(())
    }

    fn replace(&mut self, _entries: &[Entry]) -> io::Result<()> {
        Ok(())
    }
}

/// Number of entries in addition to twice the needed number, above which a journal is compacted.
const SURPLUS: usize = 1024;

/// Error of a launch that gets no credentials, or of clean-up work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The call to the manager failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The ledger cannot make a request for the manager.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The journal could not be written, so nothing was done.
    #[error(
        "cannot journal fabric credentials, so none are asked for: {0}; see whether the state directory is full or read-only"
    )]
    Journal(#[source] io::Error),
    /// Another launch of the allocation was first, and still waits for the manager.
    #[error("another launch of allocation {0} has waited for the fabric manager until the deadline")]
    StillWaiting(String),
    /// The allocation ended meanwhile.
    #[error("the allocation of fabric service {0} ended while its credentials were asked for")]
    Released(ServiceName),
    /// The manager made a service, and no longer finds it.
    #[error("the fabric manager made service {0} and does not have it any more; ask its administrator")]
    Vanished(ServiceName),
}

/// Nodes that have not yet confirmed that they hold nothing of a VNI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The service.
    pub name: ServiceName,
    /// VNI, with which a node finds leftovers.
    pub vni: Vni,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// Result of [`Grants::reap`].
#[derive(Debug, Default)]
pub struct Reaped {
    /// Names of the deleted services.
    pub names: Vec<String>,
    /// Failed deletions, which the next call repeats.
    pub errors: Vec<FabricError>,
}

/// Credentials of all allocations.
pub struct Grants {
    fabric: Box<dyn FabricManager>,
    clock: Arc<dyn Clock>,
    books: Mutex<Books>,
    /// Signals a report to the ledger.
    changed: Condvar,
    settling: Turns<ServiceName>,
    reaping: Turns<ServiceId>,
}

struct Books {
    ledger: Ledger,
    journal: Box<dyn Journal>,
    /// Entries that could not be written yet; they precede all later ones.
    pending: Vec<Entry>,
    /// Number of entries in the journal, and the number above which it is compacted.
    length: usize,
    longest: usize,
}

impl Books {
    fn write(&mut self) -> Result<(), GrantError> {
        self.pending.extend(self.ledger.unwritten());
        if !self.pending.is_empty() {
            self.journal.write(&self.pending).map_err(GrantError::Journal)?;
            self.length += self.pending.len();
            self.pending.clear();
        }
        // Reached after the last report, which can come from the manager or from a node.
        for (service, vni) in self.ledger.over() {
            let vni = vni.map(tracing::field::display);
            tracing::info!(vni, %service, "the VNI may be used again");
        }
        if self.length > self.longest {
            self.shorten();
        }
        Ok(())
    }

    fn shorten(&mut self) {
        let entries = self.ledger.compacted();
        self.longest = 2 * entries.len() + SURPLUS;
        match self.journal.replace(&entries) {
            Ok(()) => self.length = entries.len(),
            Err(error) => {
                tracing::warn!(%error, "the journal of fabric credentials cannot be made shorter");
                self.longest = self.longest.max(2 * self.length);
            }
        }
    }
}

impl Grants {
    /// Continues from the journal's `entries`. The caller must release services of ended allocations, and settle the work that is due.
    ///
    /// # Errors
    /// Fails if the journal cannot be written.
    pub fn recover(
        cluster: &ClusterName,
        fabric: Box<dyn FabricManager>,
        range: VniRange,
        clock: Arc<dyn Clock>,
        entries: impl IntoIterator<Item = Entry>,
        journal: Box<dyn Journal>,
    ) -> Result<Self, GrantError> {
        let mut length = 0;
        let entries = entries.into_iter().inspect(|_| length += 1);
        let ledger = Ledger::recover(cluster.clone(), fabric.numbering(), range, entries);
        let mut books = Books { ledger, journal, pending: Vec::new(), length, longest: SURPLUS };
        books.write()?;
        let (settling, reaping) = (Turns::default(), Turns::default());
        Ok(Self { fabric, clock, books: Mutex::new(books), changed: Condvar::new(), settling, reaping })
    }

    /// Credentials of the allocation, if they are in memory. Neither blocks nor calls the manager.
    pub fn ready(&self, allocation: &str) -> Option<Credentials> {
        self.books.lock().ledger.ready(allocation, self.clock.now()).cloned()
    }

    /// Credentials of the allocation. The first launch calls the manager; concurrent launches wait for its answer.
    ///
    /// # Errors
    /// Fails by the deadline at the latest. A service that may have been made is then due for clean-up.
    pub fn acquire(&self, need: &Need, deadline: Instant) -> Result<Credentials, GrantError> {
        let mut books = self.books.lock();
        books.write()?;
        let answer = loop {
            match books.ledger.want(need, self.clock.now())? {
                Answer::Wait => {
                    if self.changed.wait_until(&mut books, deadline).timed_out() {
                        return Err(GrantError::StillWaiting(need.allocation.clone()));
                    }
                }
                answer => break answer,
            }
        };
        let written = books.write();
        match (&written, &answer) {
            (Err(_), Answer::Create(request)) => books.ledger.failed(&request.name, Effect::None),
            (Err(_), Answer::Fetch(name, _)) => books.ledger.unequipped(name),
            _ => {}
        }
        drop(books);
        let credentials = written.and_then(|()| match answer {
            Answer::Create(request) => self.create(&request, deadline),
            Answer::Fetch(name, service) => self.fetch(&name, &service, deadline),
            Answer::Ready(credentials) => Ok(credentials),
            Answer::Wait => Err(GrantError::StillWaiting(need.allocation.clone())),
        });
        self.changed.notify_all();
        credentials
    }

    fn create(&self, request: &ServiceRequest, deadline: Instant) -> Result<Credentials, GrantError> {
        let unreported = Unreported { grants: self, name: &request.name };
        let made = self.fabric.create(request, deadline);
        std::mem::forget(unreported);
        let mut books = self.books.lock();
        let is_wanted = match &made {
            Ok(service) => books.ledger.made(&request.name, service.clone()),
            Err(error) => {
                let effect = if error.nothing_was_done() { Effect::None } else { Effect::Unknown };
                books.ledger.failed(&request.name, effect);
                false
            }
        };
        let written = books.write();
        if written.is_err() {
            // The next launch fetches the existing service.
            books.ledger.unequipped(&request.name);
        }
        drop(books);
        written?;
        let service = made?;
        if !is_wanted {
            return Err(GrantError::Released(request.name.clone()));
        }
        self.fetch(&request.name, &service, deadline)
    }

    fn fetch(&self, name: &ServiceName, service: &Service, deadline: Instant) -> Result<Credentials, GrantError> {
        let fetched = self.fabric.credentials(service, deadline);
        let now = self.clock.now();
        let mut books = self.books.lock();
        let result = match fetched {
            Ok(Some(credentials)) => {
                books.ledger.equipped(name, credentials.clone(), now);
                let is_held = books.ledger.is_held(name);
                if is_held { Ok(credentials) } else { Err(GrantError::Released(name.clone())) }
            }
            Ok(None) => {
                books.ledger.vanished(name);
                Err(GrantError::Vanished(name.clone()))
            }
            Err(error) => {
                books.ledger.unequipped(name);
                Err(error.into())
            }
        };
        books.write()?;
        result
    }

    /// Ends the allocation. Its service is then due for deletion, and its nodes for confirmation. The caller must no longer give its
    /// credentials to nodes.
    ///
    /// # Errors
    /// Fails if the journal cannot be written.
    pub fn release(&self, allocation: &str) -> Result<(), GrantError> {
        self.change(|ledger| ledger.release(allocation))
    }

    /// Does the clean-up work that is due at the manager. Failed work stays due; call this again later. If one call takes all the time until
    /// the deadline, it delays the tasks after it once: the next round starts with them.
    pub fn settle(&self, deadline: Instant) -> Vec<GrantError> {
        let due = self.books.lock().ledger.due();
        let is_asked = |task: &Task| !matches!(task, Task::Confirm(..));
        let due: Vec<Task> = self.settling.in_turn(due.into_iter().filter(is_asked), service_of);
        let settled = due.into_iter().map(|task| {
            if self.clock.now() < deadline {
                self.settling.has_come(service_of(&task));
            }
            self.settle_one(task, deadline)
        });
        settled.filter_map(Result::err).collect()
    }

    fn settle_one(&self, task: Task, deadline: Instant) -> Result<(), GrantError> {
        let (name, id) = match task {
            Task::Delete(name, id) => (name, id),
            Task::Find(request) => {
                let found = self.fabric.find(&request, deadline)?;
                let id = found.as_ref().map(|service| service.id.clone());
                self.change(|ledger| ledger.found(&request.name, found))?;
                let Some(id) = id else { return Ok(()) };
                (request.name, id)
            }
            Task::Confirm(..) => return Ok(()),
        };
        self.fabric.delete(&id, deadline)?;
        self.change(|ledger| ledger.deleted(&name))
    }

    /// Services of this cluster that the manager lists and the ledger does not have. They are from an earlier run with a lost journal.
    ///
    /// # Errors
    /// Fails if the manager does not answer; [`FabricError::NotOffered`] if it has no list.
    pub fn strangers(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        // A service that the ledger has now may end before the list arrives. A service that is made meanwhile is in the ledger afterwards.
        let known = self.books.lock().ledger.views();
        let listed = self.fabric.list(deadline)?;
        let mut strangers = self.books.lock().ledger.strangers(listed);
        strangers.retain(|stranger| known.iter().all(|view| stranger.name.as_ref() != Some(&view.name)));
        Ok(strangers)
    }

    /// Deletes the [strangers](Grants::strangers), as many as possible until the deadline. Deletes none if the manager has no list.
    ///
    /// # Errors
    /// Fails if the manager does not list its services.
    pub fn reap(&self, deadline: Instant) -> Result<Reaped, GrantError> {
        let strangers = match self.strangers(deadline) {
            Err(FabricError::NotOffered { .. }) => return Ok(Reaped::default()),
            strangers => strangers?,
        };
        let mut reaped = Reaped::default();
        for stranger in self.reaping.in_turn(strangers, |stranger| &stranger.id) {
            if self.clock.now() < deadline {
                self.reaping.has_come(&stranger.id);
            }
            match self.fabric.delete(&stranger.id, deadline) {
                Ok(()) => reaped.names.push(stranger.to_string()),
                Err(error) => reaped.errors.push(error),
            }
        }
        Ok(reaped)
    }

    /// Nodes that have to confirm.
    pub fn awaited(&self) -> Vec<Awaited> {
        let due = self.books.lock().ledger.due();
        due.into_iter()
            .filter_map(|task| match task {
                Task::Confirm(name, vni, nodes) => Some(Awaited { name, vni, nodes }),
                Task::Delete(..) | Task::Find(_) => None,
            })
            .collect()
    }

    /// Reports that these nodes hold nothing of the service.
    ///
    /// # Errors
    /// Fails if the journal cannot be written.
    pub fn confirmed<'a>(
        &self,
        name: &ServiceName,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), GrantError> {
        self.change(|ledger| nodes.into_iter().for_each(|node| ledger.confirmed(name, node)))
    }

    /// Reports that the node holds nothing of any service.
    ///
    /// # Errors
    /// Fails if the journal cannot be written.
    pub fn node_is_empty(&self, node: &str) -> Result<(), GrantError> {
        self.change(|ledger| ledger.node_is_empty(node))
    }

    /// State of the ledger: its allocations after a restart, its services for an operator.
    pub fn views(&self) -> Vec<View> {
        self.books.lock().ledger.views()
    }

    fn change(&self, report: impl FnOnce(&mut Ledger)) -> Result<(), GrantError> {
        let mut books = self.books.lock();
        report(&mut books.ledger);
        let written = books.write();
        drop(books);
        self.changed.notify_all();
        written
    }
}

/// Service during its creation. A drop, such as by a panic of the manager's client, reports that the service may have been made.
struct Unreported<'a> {
    grants: &'a Grants,
    name: &'a ServiceName,
}

impl Drop for Unreported<'_> {
    fn drop(&mut self) {
        // The next report writes entries that are not in the journal yet.
        let _ = self.grants.change(|ledger| ledger.failed(self.name, Effect::Unknown));
    }
}

fn service_of(task: &Task) -> &ServiceName {
    match task {
        Task::Delete(name, _) | Task::Confirm(name, ..) => name,
        Task::Find(request) => &request.name,
    }
}

#[cfg(test)]
mod tests;
