//! The credentials of all allocations: a [`Ledger`], a [`FabricManager`] and a journal behind calls that a server's threads can
//! make.
//!
//! Calls that speak to the manager block until their deadline at most; [`Grants::ready`], [`Grants::release`] and the reports of
//! nodes do not. The ledger is locked for steps of it only, never while the manager is asked.

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

/// Journal that keeps a ledger's entries. One writer at a time.
pub trait Journal: Send {
    /// Makes the entries durable, in order, before it returns.
    ///
    /// # Errors
    /// If it cannot; then nothing of what they announce is done.
    fn write(&mut self, entries: &[Entry]) -> io::Result<()>;

    /// Durably replaces all entries by fewer ones that mean the same. If it cannot, it keeps the old ones.
    ///
    /// # Errors
    /// If it cannot.
    fn replace(&mut self, entries: &[Entry]) -> io::Result<()>;
}

/// A journal that keeps nothing: after a crash of the host nobody knows what is to be undone. For trials and tests.
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

/// Number of entries that a journal may have, beyond twice as many as it needs, before it is compacted.
const SURPLUS: usize = 1024;

/// Error of a launch that gets no credentials, or of work that is due.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The manager did not do it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// There is nothing to ask it for.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The journal could not be written, so nothing was done.
    #[error(
        "cannot journal fabric credentials, so none are asked for: {0}; see whether the state directory is full or read-only"
    )]
    Journal(#[source] io::Error),
    /// Another launch of the allocation was faster, and still waits for the manager.
    #[error("another launch of allocation {0} has waited for the fabric manager until the deadline")]
    StillWaiting(String),
    /// The allocation ended meanwhile.
    #[error("the allocation of fabric service {0} ended while its credentials were asked for")]
    Released(ServiceName),
    /// The manager made a service, and does not know it a moment later.
    #[error("the fabric manager made service {0} and does not know it any more; ask whoever runs it")]
    Vanished(ServiceName),
}

/// Nodes that have not confirmed yet that nothing of a VNI is left on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The service.
    pub name: ServiceName,
    /// VNI, by which a node recognises leftovers.
    pub vni: Vni,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// Result of [`Grants::reap`].
#[derive(Debug, Default)]
pub struct Reaped {
    /// Names of the services that were deleted.
    pub names: Vec<String>,
    /// Failures to delete others, which are tried again by the next call.
    pub errors: Vec<FabricError>,
}

/// The credentials of all allocations.
pub struct Grants {
    fabric: Box<dyn FabricManager>,
    clock: Arc<dyn Clock>,
    books: Mutex<Books>,
    /// Something was reported to the ledger.
    changed: Condvar,
    settling: Turns<ServiceName>,
    reaping: Turns<ServiceId>,
}

struct Books {
    ledger: Ledger,
    journal: Box<dyn Journal>,
    /// Entries that could not be written yet; they precede all later ones.
    pending: Vec<Entry>,
    /// Number of entries in the journal, and the number from which on it is compacted.
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
        // Whoever was the last to report, the manager or a node.
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
    /// Goes on where the journal's `entries` end. Services whose allocation is gone are to be released, and what is due settled.
    ///
    /// # Errors
    /// If the journal cannot be written.
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

    /// The allocation's credentials, if they are at hand. Neither blocks nor asks anybody.
    pub fn ready(&self, allocation: &str) -> Option<Credentials> {
        self.books.lock().ledger.ready(allocation, self.clock.now()).cloned()
    }

    /// The allocation's credentials. The first launch asks the manager, others that come meanwhile wait for its answer.
    ///
    /// # Errors
    /// By the deadline at the latest. What may have been made is then due to be undone.
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
            // The next launch fetches what exists.
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

    /// The allocation has ended. Its service is due to be deleted, and its nodes to confirm; nodes are to be given its credentials
    /// no more.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn release(&self, allocation: &str) -> Result<(), GrantError> {
        self.change(|ledger| ledger.release(allocation))
    }

    /// Undoes at the manager what is due there. What fails stays due; call it again, later. A call that takes all the time until the deadline
    /// holds up those behind it this once: the next round begins with them.
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

    /// Services of this cluster that the manager lists and the ledger does not know: left by a life whose journal is lost.
    ///
    /// # Errors
    /// If the manager does not answer; [`FabricError::NotOffered`] where it has no list.
    pub fn strangers(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        // What is known now may be over when the list has come, and what is made meanwhile is known then.
        let known = self.books.lock().ledger.views();
        let listed = self.fabric.list(deadline)?;
        let mut strangers = self.books.lock().ledger.strangers(listed);
        strangers.retain(|stranger| known.iter().all(|view| stranger.name.as_ref() != Some(&view.name)));
        Ok(strangers)
    }

    /// Deletes the [strangers](Grants::strangers), as many as it can until the deadline. None where the manager has no list.
    ///
    /// # Errors
    /// If the manager does not list its services.
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

    /// The nodes that have to be asked.
    pub fn awaited(&self) -> Vec<Awaited> {
        let due = self.books.lock().ledger.due();
        due.into_iter()
            .filter_map(|task| match task {
                Task::Confirm(name, vni, nodes) => Some(Awaited { name, vni, nodes }),
                Task::Delete(..) | Task::Find(_) => None,
            })
            .collect()
    }

    /// The nodes have nothing left of the service.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn confirmed<'a>(
        &self,
        name: &ServiceName,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), GrantError> {
        self.change(|ledger| nodes.into_iter().for_each(|node| ledger.confirmed(name, node)))
    }

    /// The node has nothing left of anything.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn node_is_empty(&self, node: &str) -> Result<(), GrantError> {
        self.change(|ledger| ledger.node_is_empty(node))
    }

    /// Looks at the ledger: its allocations after a restart, its services for an operator.
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

/// A service that is being made. Dropped, as by a panic of the manager's client, it is one that may have been made.
struct Unreported<'a> {
    grants: &'a Grants,
    name: &'a ServiceName,
}

impl Drop for Unreported<'_> {
    fn drop(&mut self) {
        // What is not journalled yet is written with the next report.
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
