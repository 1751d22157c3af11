//! Sets on a cluster: the set of a launch, with each session as a member, and the set of a command.
//!
//! ```text
//!  processes of this node ──socket──────┐                  ┌──> sessions of other nodes, by the launch's links
//!  sessions of other nodes ──frames──> member of the set ──┤
//!  roots of other sets ──Entrance──────┘                  └──> roots of other sets, with passes of the API server
//! ```
//! The member starts at the first connection or frame.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::directory::{Contact, Nonce, SetKey};
use lattice_overlay::error::CallError;
use lattice_overlay::frame::{Frame, Kind};
use lattice_overlay::greeting::{Caller, GUEST, Purpose};
use lattice_overlay::machine::{Membership, Neighbour};
use lattice_overlay::method::Method;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::services::Services;
use pmi_transport::error_chain::chain;
use pmi_transport::session_link::{Entrance, Handed, LinkKey};
use pmi_transport::task;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::communicators::CommunicatorSource;
use super::member::line::{Line, Sessions};
use super::member::{Member, Ways};
use super::{SetError, accept, connection, take_process};
use crate::spec::SessionSpec;
use crate::wire::pass::SetPass;
use crate::{random, unix_time};

/// Limit of roots of other sets that are admitted at a time.
const ENTERING_MAX: usize = 64;
/// Time limit for the opening of a link.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Source of passes to other sets.
#[async_trait]
pub trait Passes: Send + Sync {
    /// Requests a pass to a set. Returns the reason if that fails.
    async fn pass(&self, to: SetId) -> Result<SetPass, String>;
}

/// Settings of a launch's set, equal in all of its sessions.
#[derive(Clone, Debug)]
pub struct MemberTerms {
    /// Id of the set.
    pub set: SetId,
    /// Key of the launch's links.
    pub key: LinkKey,
}

/// The set of a launch on a cluster, in one of its sessions.
#[derive(Clone)]
pub struct ClusterSet(Arc<Shared>);

struct Shared {
    set: SetId,
    spec: SessionSpec,
    entrance: Entrance,
    ways: Arc<ByPasses>,
    member: Mutex<Option<Member>>,
    /// Number of guests so far.
    guests: AtomicU32,
}

/// Connections of a member on a cluster.
struct ByPasses {
    me: Uid,
    passes: Arc<dyn Passes>,
    /// `None` in a launch on one node, and for a command.
    sessions: Option<Arc<dyn Sessions>>,
    names: Option<Arc<dyn Services>>,
    communicators: Option<CommunicatorSource>,
}

impl ClusterSet {
    /// Returns the part of the session of `spec`, with these connections to other processes. `communicators` are those of its ranks.
    pub fn new(
        spec: &SessionSpec,
        terms: MemberTerms,
        passes: Arc<dyn Passes>,
        sessions: Option<Arc<dyn Sessions>>,
        names: Arc<dyn Services>,
        communicators: CommunicatorSource,
    ) -> Self {
        let MemberTerms { set, key } = terms;
        let me = Uid::new(set, Process::Node(spec.node.0));
        communicators.found(set);
        let ways = Arc::new(ByPasses { me, passes, sessions, names: Some(names), communicators: Some(communicators) });
        let entrance = Entrance::new(key, set.bits(), geteuid().as_raw());
        let (member, guests) = (Mutex::default(), AtomicU32::new(0));
        Self(Arc::new(Shared { set, spec: spec.clone(), entrance, ways, member, guests }))
    }

    /// Handles a frame from the session of another node.
    pub async fn hear(&self, from: NodeIndex, frame: Bytes) {
        let Some(sessions) = &self.0.ways.sessions else { return };
        match Frame::take(&mut BytesMut::from(frame)) {
            Ok(Some(frame)) => {
                let line = Line::Session(from, Arc::clone(sessions));
                self.member().hear(Neighbour::Member(from.0), line, frame).await;
            }
            Ok(None) => tracing::debug!("the session of node {from} has sent a piece of a frame"),
            Err(error) => tracing::debug!("the session of node {from} has sent what is no frame: {error}"),
        }
    }

    /// Admits the roots of other sets until no more can arrive.
    pub async fn admit_all(self, mut arriving: mpsc::Receiver<Handed>) {
        let mut entering = JoinSet::new();
        while let Some(handed) = arriving.recv().await {
            while entering.try_join_next().is_some() {}
            // Only the root of a set admits other sets.
            if self.0.spec.node.0 != 0 || entering.len() >= ENTERING_MAX {
                continue;
            }
            let set = self.clone();
            entering.spawn(task::boxed(async move {
                match set.0.entrance.admit(handed, unix_time::seconds()).await {
                    Ok((from, entered)) => {
                        let neighbour = Neighbour::Set(SetId::from_bits(from));
                        set.member().take(neighbour, Line::Sealed(entered)).await;
                    }
                    Err(error) => tracing::info!("another set is refused: {}", chain(&error)),
                }
            }));
        }
    }

    /// Accepts connections from processes of this node. Ranks find the returned contact in an environment variable.
    ///
    /// # Errors
    /// Fails if no socket can be created.
    pub fn listen(&self) -> Result<Contact, SetError> {
        let (nonce, key) = (Nonce::random()?, SetKey::from_bytes(random::bytes().map_err(SetError::Socket)?));
        let of_ranks = Contact { set: self.0.set, nonce, key };
        self.listen_at(&of_ranks, Self::is_here)?;
        let guests = Contact::of_guests(self.0.set);
        if let Err(error) = self.listen_at(&guests, |_, rank| rank == GUEST) {
            task::spawn(tell_of_guests(guests, error));
        }
        Ok(of_ranks)
    }

    /// Accepts connections at a socket from processes with a rank that `takes` accepts.
    fn listen_at(&self, contact: &Contact, takes: fn(&Self, u32) -> bool) -> Result<(), SetError> {
        let listener = UnixListener::bind(connection::path(&contact.nonce)).map_err(SetError::Socket)?;
        let (set, key) = (self.clone(), contact.key.clone());
        task::spawn(accept(listener, move |socket| {
            let (set, key) = (set.clone(), key.clone());
            task::boxed(async move { set.serve(socket, &key, takes).await })
        }));
        Ok(())
    }

    async fn serve(&self, socket: UnixStream, key: &SetKey, takes: fn(&Self, u32) -> bool) {
        match connection::receive(socket, key).await {
            Ok((socket, Caller { set, rank, purpose: Purpose::Rank })) if set == self.0.set && takes(self, rank) => {
                take_process(&self.member(), self.0.spec.node.0, rank, &self.0.guests, socket).await;
            }
            Ok(_) => tracing::debug!("a process is refused: it is no rank of this node"),
            Err(error) => tracing::debug!("a process is refused: {error}"),
        }
    }

    /// Returns true for the ranks of this node.
    fn is_here(&self, rank: u32) -> bool {
        let SessionSpec { job, node, .. } = &self.0.spec;
        job.placement.node_of(Rank(rank)) == Some(*node)
    }

    fn member(&self) -> Member {
        let new = || Member::start(self.membership(), Arc::clone(&self.0.ways) as Arc<dyn Ways>);
        self.0.member.lock().get_or_insert_with(new).clone()
    }

    fn membership(&self) -> Membership {
        let SessionSpec { job, node, hosts, launch_id, .. } = &self.0.spec;
        let home = |rank| job.placement.node_of(Rank(rank)).map_or(0, |node| node.0);
        Membership {
            set: self.0.set,
            node: node.0,
            members: hosts.len() as u32,
            homes: (0..job.size()).map(home).collect(),
            launch: Some(launch_id.clone()),
        }
    }
}

/// Logs the reason why this session accepts no guests. If sessions of the set share a network, the first of them accepts the guests. But
/// the name of the socket follows from the id of the set, so any user may have bound it.
async fn tell_of_guests(guests: Contact, error: SetError) {
    let holder = timeout(OPEN_TIMEOUT, UnixStream::connect(connection::path(&guests.nonce))).await;
    let holder = holder.ok().and_then(Result::ok).and_then(|socket| socket.peer_cred().ok());
    let set = guests.set;
    match holder.map(|holder| holder.uid()) {
        Some(holder) if holder == geteuid().as_raw() => {
            tracing::debug!("another session of set {set} takes its guests");
        }
        Some(holder) => {
            tracing::warn!("set {set} takes no guests on this node: user {holder} has taken the name of its socket");
        }
        None => tracing::warn!("set {set} takes no guests on this node: {}", chain(&error)),
    }
}

#[async_trait]
impl Ways for ByPasses {
    async fn open(&self, neighbour: Neighbour) -> Result<Line, Option<String>> {
        let opening = async {
            match (neighbour, &self.sessions) {
                (Neighbour::Set(set), _) => self.enter(set).await.map_err(Some),
                (Neighbour::Member(node), Some(sessions)) => self.reach(sessions, node).await.map_err(|_| None),
                // Processes connect by themselves.
                _ => Err(None),
            }
        };
        timeout(OPEN_TIMEOUT, opening).await.unwrap_or(Err(None))
    }

    fn names(&self) -> Option<Arc<dyn Services>> {
        self.names.clone()
    }

    fn communicators(&self) -> Option<CommunicatorSource> {
        self.communicators.clone()
    }
}

impl ByPasses {
    async fn enter(&self, set: SetId) -> Result<Line, String> {
        let SetPass { address, pass, .. } = self.passes.pass(set).await?;
        let pass = pass.ok_or("the API server has answered with no pass")?;
        let entered = pass.enter(&address).await;
        entered
            .map(Line::Sealed)
            .map_err(|error| format!("the root of set {set} accepts no process: {}", chain(&error)))
    }

    /// Returns a line to another session after that session has confirmed a frame.
    async fn reach(&self, sessions: &Arc<dyn Sessions>, node: u32) -> Result<Line, String> {
        let destination = Uid::new(self.me.set(), Process::Node(node));
        let (ttl, detours, method, id, remaining_ms, body) = (0, 0, 0, 0, 0, Bytes::new());
        let source = self.me;
        let echo = Frame { kind: Kind::Echo, ttl, detours, method, source, destination, id, remaining_ms, body };
        let mut bytes = BytesMut::new();
        echo.append(&mut bytes);
        sessions.send(NodeIndex(node), bytes.freeze()).await?;
        Ok(Line::Session(NodeIndex(node), Arc::clone(sessions)))
    }
}

/// The set of a command that calls launches on a cluster.
#[derive(Clone, Debug)]
pub struct CommandSet(Member);

impl CommandSet {
    /// Returns the set with this id. Must be called within a runtime.
    pub fn new(set: SetId, passes: Arc<dyn Passes>) -> Self {
        let ways = ByPasses { me: set.root(), passes, sessions: None, names: None, communicators: None };
        let membership = Membership { set, node: 0, members: 1, homes: Vec::new(), launch: None };
        Self(Member::start(membership, Arc::new(ways)))
    }

    /// Calls a method of a process in any launch of the user.
    ///
    /// # Errors
    /// Fails like the call.
    pub async fn call(&self, to: Uid, method: Method, body: Bytes, timeout: Duration) -> Result<Bytes, CallError> {
        self.0.call(to, method, body, timeout).await
    }
}
