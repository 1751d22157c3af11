//! The node agent: receives launches from the API server, runs each in a session process of its user, and forwards messages between the two.
//!
//! ```text
//! API server ──LaunchProcesses──> Service ──> Launches ──> Launch ──socket──> session process ──> ranks
//!            <──ReportLaunch───── Report <─────────────────┘  │
//!            <──Heartbeat──────── registration                └──FenceNode <──Link──> other agents
//! ```
//! One thread runs the agent. It never inspects the output of ranks, and never waits for a peer. A session that does not read, an API server
//! that does not answer and a lost node each block only their own operations.

mod admission;
mod adoption;
mod api_channels;
mod calls;
mod config;
mod ending;
mod fabric;
mod forks;
mod from_session;
mod in_time;
mod inventory;
mod launch;
mod launches;
mod lease;
mod links;
mod metrics;
mod node_info;
mod own_address;
mod refusal;
mod registration;
mod relay;
mod renewal;
mod report;
mod report_relay;
mod serials;
mod service;
mod to_session;
mod users;
mod vouching;
mod warnings;
mod wire;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cxi_fabric::node::NodeConfigError;
use lattice_daemon::metrics_page;
use lattice_inventory::ThisNode;
use lattice_session::timeouts;
use parking_lot::Mutex;
use pmi_transport::connect::{self, AgentChannels, Channel, ConnectError};
use pmi_transport::fence::{FenceNode, Grpc};
use pmi_transport::identity::{Caller, IdentityError, Security};
use pmi_transport::limits::{MESSAGE_MAX, RELAYED_MAX};
use pmi_transport::listen::{self, ListenError, Listener, LocalSocket};
use pmi_transport::proto::v1::node_agent_service_server::NodeAgentServiceServer;
use pmi_transport::session_link::Arrivals;
use rank_spawner::{ForkServer, RendezvousError, raise_descriptor_limit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tonic::service::Routes;

use self::api_channels::ApiChannels;
pub use self::config::{Config, ConfigError, Overrides, ShareTopology, WhenStopped};
use self::fabric::Fabric;
use self::forks::Forks;
use self::launches::Launches;
use self::lease::Lease;
use self::metrics::Metrics;
use self::own_address::OwnAddress;
use crate::runtime_lock::{self, LockError};
use lattice_session::random;

/// Error that prevents an agent from starting, or ends it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The agent cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The address of the API server cannot be used.
    #[error("the API server: {0}")]
    Connect(#[from] ConnectError),
    /// The agent's identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate belongs to another caller.
    #[error("{} is the certificate of {named}; this node is {node_id}", path.display())]
    AnothersCertificate {
        /// The file.
        path: PathBuf,
        /// Caller that the certificate names.
        named: Caller,
        /// Name of this node.
        node_id: String,
    },
    /// The fork server, which makes session processes, has ended.
    #[error("the fork server ended; start the agent again")]
    ForkServer,
    /// The search for sessions of earlier agents failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The runtime directory cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The fabric settings are not usable.
    #[error(transparent)]
    Fabric(#[from] NodeConfigError),
    /// A system call failed.
    #[error("cannot run the agent: {0}")]
    System(#[from] io::Error),
}

/// State that all parts of a running agent share.
struct Node {
    config: Config,
    address: OwnAddress,
    security: Security,
    api: ApiChannels,
    /// Separate channel to the API server for heartbeats.
    pulse: Channel,
    /// Channels to the agents that receive forwarded launches.
    agents: AgentChannels,
    /// Fences of launches that include an agent without support for links between sessions.
    fences: Arc<FenceNode>,
    /// Links that arrive for sessions of this node.
    arrivals: Arc<Arrivals>,
    fabric: Arc<Fabric>,
    forks: Forks,
    launches: Launches,
    /// Inventory of this node; replaced when it changes.
    this_node: Mutex<Arc<ThisNode>>,
    metrics: Metrics,
    /// Random; new at each start of the agent.
    incarnation: u64,
}

/// State that an agent gathers before it gives up privileges, reads its key and listens.
pub struct Prior {
    /// Settings of the agent.
    pub config: Config,
    forks: ForkServer,
    found: adoption::Found,
    this_node: ThisNode,
    /// Lock of the runtime directory; held as long as the agent runs.
    lock: Option<File>,
}

impl Prior {
    /// Locks this node's runtime directory, and adopts the sessions of earlier agents. The agent reads the missing parts of `this_node` after it
    /// has registered.
    ///
    /// # Errors
    /// Fails if the search for sessions of earlier agents fails, or while a command runs that excludes an agent.
    pub fn gather(config: Config, forks: ForkServer, this_node: ThisNode) -> Result<Self, DaemonError> {
        let lock = config.runtime_dir.as_deref().map(runtime_lock::of_agent).transpose()?;
        let found = config.runtime_dir.as_ref().map(|directory| adoption::find(directory, &forks)).transpose()?;
        Ok(Self { config, forks, found: found.unwrap_or_default(), this_node, lock })
    }
}

/// Runs an agent until SIGTERM or SIGINT. Depending on the settings, its sessions then end or wait for the next agent.
///
/// # Errors
/// Fails if the agent cannot listen at its address, or if the fork server ends.
pub fn run(prior: Prior) -> Result<(), DaemonError> {
    start(prior, std::future::pending(), WhenCutOff::GoOn)
}

/// Like [`run`], for a temporary agent. It also ends when `left` receives a reason, and when the API server has ended or has not answered for
/// the time of a lease.
///
/// # Errors
/// As [`run`].
pub fn run_until(prior: Prior, left: oneshot::Receiver<&'static str>) -> Result<(), DaemonError> {
    let left = async {
        match left.await {
            Ok(reason) => reason,
            // The sender is gone, so no reason can arrive.
            Err(_) => std::future::pending().await,
        }
    };
    start(prior, left, WhenCutOff::Leave)
}

/// Behaviour of an agent after its API server has ended, or has not answered for the time of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenCutOff {
    /// The agent waits for the API server.
    GoOn,
    /// The agent ends.
    Leave,
}

fn start(prior: Prior, left: impl Future<Output = &'static str>, when_cut_off: WhenCutOff) -> Result<(), DaemonError> {
    let _log = lattice_daemon::log::write_apart();
    // After the fork: each session raises its own limit, and restores the original limit in its ranks.
    if let Err(errno) = raise_descriptor_limit() {
        tracing::warn!("cannot raise the limit of open files: {}", errno.desc());
    }
    let runtime = lattice_daemon::runtime()?;
    let result = runtime.block_on(serve(prior, left, when_cut_off));
    // Abandons a user look-up that never returns.
    runtime.shutdown_background();
    result
}

/// Checks the settings without listening. Finds the errors of [`run`] that can be found this way.
///
/// # Errors
/// As [`run`].
pub fn check(config: &Config) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let Prepared { security, .. } = Prepared::from(config)?;
        Ok(Listener::check(&config.listen, &security).await?)
    })
}

/// Objects that are built from the settings before the agent listens.
struct Prepared {
    security: Security,
    api: ApiChannels,
    pulse: Channel,
}

impl Prepared {
    fn from(config: &Config) -> Result<Self, DaemonError> {
        let security = config.security()?;
        let api = ApiChannels::new(&config.api, &security)?;
        let pulse = connect::channel(&config.api, &Caller::Api, &security)?;
        // Detects an unusable backend before a launch needs it.
        config.fabric.backend()?;
        Ok(Self { security, api, pulse })
    }
}

async fn serve(
    Prior { config, forks, found, this_node, lock: _lock }: Prior,
    left: impl Future<Output = &'static str>,
    when_cut_off: WhenCutOff,
) -> Result<(), DaemonError> {
    let prepared = Prepared::from(&config)?;
    let listener = Listener::bind_within(&config.listen, config.port_range, &prepared.security).await?;
    let users = config.socket.as_deref().map(LocalSocket::bind).transpose()?;
    let local = listener.local_address();
    let address = OwnAddress::new(&config, &local);
    warn_of_settings(&config, &forks);
    let (forks, server_gone) = Forks::new(forks);
    let by_root = config.user.is_some().then(|| forks.clone());
    let fabric = Fabric::new(&config.fabric, by_root)?;
    let node = Arc::new(Node::new(config, address, prepared, (forks, this_node, fabric))?);
    let listener = listener.for_daemons().with_links(Arc::clone(&node.arrivals));
    if let Some(address) = node.config.metrics {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let counting = Arc::clone(&node);
        tokio::spawn(metrics_page::serve(listener, move || metrics::text(&counting)));
    }
    let taken_up = adoption::take_up(&node, found).await;
    let (registering, gone) = register(&node, first_lease(&node.config, taken_up, when_cut_off));
    let users = users.map(|socket| tokio::spawn(users::serve(Arc::clone(&node), socket)).abort_handle());
    let service = NodeAgentServiceServer::new(service::Service { node: Arc::clone(&node) })
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(RELAYED_MAX);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = listen::serve(vec![listener], Routes::new(service), async {
        // The sender is never dropped unused.
        let _ = stopped.await;
    });
    tracing::info!(node = node.config.node_id, at = %local, "the agent is ready");
    // Without systemd this has no effect.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let work = async {
        let deserted = async {
            tokio::select! {
                reason = left => reason,
                () = gone.notified(), if when_cut_off == WhenCutOff::Leave => "the API server is gone",
            }
        };
        let result = work_until(&node, deserted, server_gone).await;
        registering.abort();
        users.inspect(AbortHandle::abort);
        let _ = stop.send(());
        result
    };
    let (served, worked) = tokio::join!(serving, work);
    worked.and(served.map_err(DaemonError::from))
}

fn warn_of_settings(config: &Config, forks: &ForkServer) {
    if config.tls.is_none() && config.refuse_user(0).is_none() {
        tracing::warn!(
            "without certificates, and with allow_root: every user of this machine can run anything here as root"
        );
    }
    if let Some(reason) = forks.ungrouped() {
        tracing::warn!("sessions have no control groups of their own: {reason}");
    }
}

/// The lease that applies until the API server can be reached and reports its own. `taken_up` is the number of adopted launches.
fn first_lease(config: &Config, taken_up: usize, when_cut_off: WhenCutOff) -> Option<Lease> {
    match (taken_up, when_cut_off) {
        (0, WhenCutOff::GoOn) => None,
        (0, WhenCutOff::Leave) => Some(Lease::from(Instant::now(), timeouts::LEASE)),
        (_, _) => Some(Lease::from(Instant::now(), config.agent_lease)),
    }
}

/// Waits for a reason to end, then ends the launches that the agent must not keep.
async fn work_until(
    node: &Node,
    deserted: impl Future<Output = &'static str>,
    server_gone: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    let (reason, result) = tokio::select! {
        () = stop_signal() => ("its agent was stopped", Ok(())),
        reason = deserted => {
            node.launches.forget_all();
            (reason, Ok(()))
        }
        () = server_gone => ("its fork server ended", Err(DaemonError::ForkServer)),
    };
    tracing::info!(reason, "the agent ends");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let what = if result.is_ok() { node.config.when_stopped } else { WhenStopped::End };
    node.launches.stop(what, reason, timeouts::STOP).await;
    if what == WhenStopped::End {
        // Ends the sessions that remain.
        node.forks.end();
    }
    result
}

impl Node {
    fn new(
        config: Config,
        address: OwnAddress,
        prepared: Prepared,
        (forks, this_node, fabric): (Forks, ThisNode, Arc<Fabric>),
    ) -> io::Result<Self> {
        let Prepared { security, api, pulse } = prepared;
        let links = Arc::new(Grpc { security: security.clone() });
        Ok(Self {
            fences: FenceNode::new(config.node_id.clone(), links),
            arrivals: Arc::default(),
            agents: AgentChannels::new(security.clone(), relay::AGENTS_MAX),
            launches: Launches::default(),
            this_node: Mutex::new(Arc::new(this_node)),
            metrics: Metrics::default(),
            incarnation: u64::from_ne_bytes(random::bytes()?),
            config,
            address,
            security,
            api,
            pulse,
            fabric,
            forks,
        })
    }
}

/// Starts the tasks that keep this node registered: certificates, registration and the lease. The `first` lease covers adopted launches. Returns
/// the registration task, and a notification that a lease has expired or the API server has ended.
fn register(node: &Arc<Node>, first: Option<Lease>) -> (JoinHandle<()>, Arc<Notify>) {
    tokio::spawn(node.security.clone().keep_current());
    let (certificates, granted) = tokio::sync::watch::channel(None);
    tokio::spawn(renewal::keep_valid(Arc::clone(node), granted));
    let (renewals, lease) = lease::begin(first);
    let (cut_off, gone) = (Arc::clone(node), Arc::new(Notify::new()));
    let over = Arc::clone(&gone);
    let lose_all = move |reason: &str| {
        cut_off.launches.lose_all(reason);
        over.notify_one();
    };
    tokio::spawn(lease::watch(lease, lose_all));
    let registering = registration::keep_registered(Arc::clone(node), renewals, certificates, Arc::clone(&gone));
    (tokio::spawn(registering), gone)
}

/// Waits for SIGTERM or SIGINT; waits indefinitely if the handlers cannot be installed.
async fn stop_signal() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}
