//! The set of a launch, or of a tool, on one machine without daemons. It is created at its first use. Other launches find it in the
//! directory of the user's sets.
//!
//! ```text
//!                 ┌─ names: a table of the launch, and files of the directory for other launches of the user
//! OwnSet ─creates>│─ meetings: one launch of a meeting coordinates all of them            <──┐ connections of other sets,
//!  Services       └─ member: calls, by links to the roots of other sets                   <──┘ greeted (`connection`)
//! ```
//! On a cluster, the API server has the names, the meetings and the directory. Each session has one member of the launch's set
//! (`on_cluster`).
//!
//! An unused set has no costs. The first name, meeting or call creates its file, its socket and its task. Another process of the user that
//! looks for sets also creates them ([`OwnSet::found_on_demand`]).

mod communicators;
mod connection;
mod meeting;
mod member;
mod names;
mod on_cluster;

use pmi_transport::task;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::directory::{self, Directory, DirectoryError, Nonce, SetFacts, SetRecord, activation};
use lattice_overlay::error::CallError;
use lattice_overlay::greeting::{Caller, GUEST, Purpose};
use lattice_overlay::machine::{Membership, Neighbour};
use lattice_overlay::method::Method;
use parking_lot::Mutex;
use pmi_core::services::Services;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use self::communicators::CommunicatorSource;
use self::member::line::Line;
pub use self::member::line::{Confirmation, Sessions};
use self::member::{Member, Ways};
pub use self::on_cluster::{ClusterSet, CommandSet, MemberTerms, Passes};
use crate::blocking::begin;
use crate::names::LaunchNames;
use crate::rendezvous::Rendezvous;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Timeout for the removal of a set's file, for example on a file system that hangs.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit of connections that are greeted or served at a time.
const CONNECTIONS_MAX: usize = 1024;

/// Failure to create a set, or to find other sets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The directory is not usable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The socket cannot be created.
    #[error("cannot take connections of other sets: {0}")]
    Socket(#[source] io::Error),
    /// The runtime is ending.
    #[error("this process is ending")]
    Ending,
}

/// The set of this process.
#[derive(Clone)]
pub struct OwnSet(Arc<Shared>);

struct Shared {
    /// Path of the directory; `None` if it is unknown.
    place: Option<PathBuf>,
    facts: SetFacts,
    /// Locked while the set is created, which blocks.
    founded: Mutex<Option<Arc<Founded>>>,
    /// Names of the launch. Locked while the directory is changed, which blocks. Must be locked before `founded`.
    names: Mutex<LaunchNames>,
    /// Wakes lookups after a rank of the launch has published a name.
    published: Notify,
    rendezvous: Rendezvous,
    communicators: CommunicatorSource,
    /// Number of guests so far.
    guests: AtomicU32,
}

/// Parts of a set that was created.
struct Founded {
    directory: Directory,
    record: SetRecord,
    member: Member,
    accepting: AbortHandle,
}

impl OwnSet {
    /// Returns a set that is not created yet. `place` is the directory of the user's sets.
    pub fn new(place: Option<PathBuf>, facts: SetFacts) -> Self {
        let (founded, names, rendezvous) = (Mutex::default(), Mutex::default(), Rendezvous::default());
        let (communicators, guests) = (CommunicatorSource::default(), AtomicU32::new(0));
        let published = Notify::new();
        Self(Arc::new(Shared { place, facts, founded, names, published, rendezvous, communicators, guests }))
    }

    /// Source of the set's data about communicators. The session of the ranks must follow it.
    pub fn communicators(&self) -> CommunicatorSource {
        self.0.communicators.clone()
    }

    /// Creates the set if it does not exist. Returns its record.
    ///
    /// # Errors
    /// Fails if the directory or a socket is not usable.
    pub async fn found(&self) -> Result<SetRecord, SetError> {
        Ok(self.founded().await?.record.clone())
    }

    /// Creates the set of a launch when a process on this machine looks for it. Also creates it after `shared_after` if other machines may
    /// share the directory, because their processes cannot ask. If the creation fails, other launches do not find this one. There is no
    /// other effect.
    pub async fn found_on_demand(self, shared_after: Duration) {
        let asked = tokio::select! {
            socket = self.asked() => Some(socket),
            () = self.shared(shared_after) => None,
        };
        if let Err(error) = self.found().await {
            tracing::info!("other launches do not see this one: {error}");
        }
        // The end of this connection reports that the set exists.
        drop(asked);
    }

    /// Waits for `after`; waits indefinitely if no other machine shares the directory.
    async fn shared(&self, after: Duration) {
        tokio::time::sleep(after).await;
        let place = self.0.place.clone();
        let is_shared = blocking(move || place.is_some_and(|place| directory::is_shared(&place)));
        if !matches!(is_shared.await, Ok(true)) {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a process needs the set. Returns the connection that requests it.
    async fn asked(&self) -> UnixStream {
        let launch = self.0.facts.launch.as_deref().unwrap_or_default();
        let name = connection::abstract_path(&activation::socket_name(launch));
        let Ok(listener) = UnixListener::bind(name) else { return std::future::pending().await };
        loop {
            match listener.accept().await {
                Ok((socket, _)) if connection::check_user(&socket).is_ok() => return socket,
                Ok(_) => {}
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    async fn founded(&self) -> Result<Arc<Founded>, SetError> {
        let set = self.clone();
        blocking(move || set.found_here()).await?
    }

    /// Blocks.
    fn found_here(&self) -> Result<Arc<Founded>, SetError> {
        let mut founded = self.0.founded.lock();
        if let Some(founded) = &*founded {
            return Ok(Arc::clone(founded));
        }
        let directory = Directory::open(self.0.place.as_deref().ok_or(DirectoryError::NoHome)?)?;
        let nonce = Nonce::random()?;
        let listener = UnixListener::bind(connection::path(&nonce)).map_err(SetError::Socket)?;
        let record = directory.register(&nonce, self.0.facts.clone())?;
        let ways = ByDirectory { set: self.clone(), own: record.id() };
        let member = Member::start(self.membership(record.id()), Arc::new(ways));
        self.0.communicators.found(record.id());
        let (set, own) = (self.clone(), Arc::new(record.clone()));
        let serve = move |socket| {
            let (set, own) = (set.clone(), Arc::clone(&own));
            task::boxed(async move { set.serve(socket, &own).await })
        };
        let accepting = task::spawn(accept(listener, serve)).abort_handle();
        let new = Arc::new(Founded { directory, record, member, accepting });
        *founded = Some(Arc::clone(&new));
        Ok(new)
    }

    fn membership(&self, set: SetId) -> Membership {
        let SetFacts { launch, ranks, .. } = &self.0.facts;
        Membership { set, node: 0, members: 1, homes: vec![0; *ranks as usize], launch: launch.clone() }
    }

    /// Calls a method of a process in any set of the user.
    ///
    /// # Errors
    /// Fails like the call, and with [`CallError::Refused`] if this set cannot be created.
    pub async fn call(&self, to: Uid, method: Method, body: Bytes, timeout: Duration) -> Result<Bytes, CallError> {
        let founded = self.founded().await.map_err(|error| CallError::Refused { why: error.to_string() })?;
        founded.member.call(to, method, body, timeout).await
    }

    /// Makes the other launches of this user on this machine create their sets, within a limit of 3 s.
    ///
    /// # Errors
    /// Fails if the runtime is ending.
    pub async fn activate_others(&self) -> Result<(), SetError> {
        blocking(activation::activate_all).await
    }

    /// Returns the user's living sets on this machine, and the sets of other machines that share the directory. They are in order of
    /// creation. This set is among them if it was created.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub async fn sets(&self) -> Result<Vec<SetRecord>, SetError> {
        let place = self.0.place.clone().ok_or(DirectoryError::NoHome)?;
        blocking(move || {
            Ok(Directory::open_existing(&place)?.map(|directory| directory.list()).transpose()?.unwrap_or_default())
        })
        .await?
    }

    /// Removes the set and its published names from the directory. Does nothing for a set that was not created.
    pub async fn leave(self) {
        if self.0.founded.try_lock().is_some_and(|founded| founded.is_none()) {
            return;
        }
        let removed = blocking(move || {
            let founded = self.0.founded.lock().take();
            founded.map_or(Ok(()), |founded| {
                founded.accepting.abort();
                founded.member.stop();
                founded.directory.remove(&founded.record)
            })
        });
        // Other processes detect that remaining files belong to a process that is gone.
        if let Ok(Ok(Err(error))) = timeout(LEAVE_TIMEOUT, removed).await {
            tracing::warn!("the set of this process stays in its directory: {error}");
        }
    }
}

/// Runs blocking work on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SetError> {
    begin(work).await.map_err(|_| SetError::Ending)
}

/// Accepts connections, and serves each one in a task of its own.
async fn accept(listener: UnixListener, serve: impl Fn(UnixStream) -> Served) {
    let mut served = tokio::task::JoinSet::new();
    loop {
        while served.try_join_next().is_some() {}
        if served.len() >= CONNECTIONS_MAX {
            served.join_next().await;
        }
        match listener.accept().await {
            Ok((socket, _)) => drop(served.spawn(serve(socket))),
            // For example, no descriptor is left.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A task that serves a connection.
type Served = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connections of a member to the sets in a directory.
struct ByDirectory {
    set: OwnSet,
    own: SetId,
}

#[async_trait]
impl Ways for ByDirectory {
    async fn open(&self, neighbour: Neighbour) -> Result<Line, Option<String>> {
        // This set has no other members, and ranks connect by themselves.
        let Neighbour::Set(set) = neighbour else { return Err(None) };
        let place = self.set.0.place.clone();
        let find = move || Directory::open_existing(&place?).ok()??.find(set).ok()?;
        let Ok(Some(record)) = blocking(find).await else { return Err(None) };
        let caller = Caller { set: self.own, rank: 0, purpose: Purpose::Frames };
        connection::connect(&record, caller).await.map(Line::Local).map_err(|_| None)
    }

    fn names(&self) -> Option<Arc<dyn Services>> {
        Some(Arc::new(self.set.clone()))
    }

    fn communicators(&self) -> Option<CommunicatorSource> {
        self.set.0.facts.launch.is_some().then(|| self.set.communicators())
    }
}

/// Accepts a process as a rank or as a guest of a node, and sends it its number.
async fn take_process(member: &Member, node: u32, rank: u32, guests: &AtomicU32, mut socket: UnixStream) {
    let number = match rank {
        GUEST => Process::guest(node, guests.fetch_add(1, Ordering::Relaxed)),
        rank => Some(rank),
    };
    let Some(rank) = number else { return };
    if socket.write_u32(rank).await.is_ok() {
        member.take(Neighbour::Rank(rank), Line::Local(socket)).await;
    }
}

impl OwnSet {
    fn member(&self) -> Option<Member> {
        self.0.founded.lock().as_ref().map(|founded| founded.member.clone())
    }

    async fn serve(&self, socket: UnixStream, record: &SetRecord) {
        match connection::receive(socket, record.key()).await {
            Ok((socket, Caller { set, purpose: Purpose::Frames, .. })) => {
                if let Some(member) = self.member() {
                    member.take(Neighbour::Set(set), Line::Local(socket)).await;
                }
            }
            Ok((socket, Caller { set, rank, purpose: Purpose::Rank })) if set == record.id() => {
                let is_ours = rank == GUEST || rank < self.0.facts.ranks;
                if let Some(member) = self.member().filter(|_| is_ours) {
                    take_process(&member, 0, rank, &self.0.guests, socket).await;
                }
            }
            Ok((_, Caller { purpose: Purpose::Rank, .. })) => tracing::debug!("a rank of another set is refused"),
            Ok((socket, Caller { purpose: Purpose::Meeting, .. })) => self.host(socket).await,
            Ok((socket, Caller { purpose: Purpose::Presence, .. })) => connection::closed(&socket).await,
            Err(error) => tracing::debug!("a connection of another set is refused: {error}"),
        }
    }
}

#[cfg(test)]
mod tests;
