//! `lattice api`: the server that holds the nodes of a cluster, the allocations of its users, and the launches that run there.
//!
//! ```text
//! allocation_service ─┐             ┌─ nodes         registered nodes      (pure)
//! launch_service     ─┼─> server ───┼─ allocations   nodes of each user    (pure)     ──> store
//! node_service       ─┘             ├─ order, placement  ranks of each node   (pure)
//!                                   ├─ launch        a task for each launch
//!                                   └─ names         names that ranks publish
//! ```
//! Everything runs on one thread, except the store, which waits for the disk on its own threads.

#![forbid(unsafe_code)]

pub mod args;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

mod allocation_service;
mod allocations;
mod answer_line;
mod audit;
mod clock;
mod config;
mod fabric;
mod fabric_service;
mod inventories;
mod inventory_service;
mod launch;
mod launch_id;
mod launch_quota;
mod launch_service;
mod listed_nodes;
mod metrics;
mod names;
mod node_service;
mod nodes;
mod order;
mod placement;
mod proxying;

mod refusal_pace;
mod renewal;
mod serials;
mod server;
mod session_calls;
mod sets;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod start_policy;
mod store;
#[cfg(test)]
mod tests;
mod unclean_nodes;
mod versions;
mod watched;
mod wire;

/// The words for the states of an allocation, used in messages of the server and in tables of the commands.
pub mod allocation_state {
    pub use crate::wire::allocation::state_word as word;
}

use pmi_transport::task;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use lattice_daemon::metrics_page;
use lattice_pki::PkiError;
use pmi_transport::address::Address;
use pmi_transport::identity::{Caller, IdentityError, Security};
use pmi_transport::limits::{LISTING_MAX, MESSAGE_MAX};
use pmi_transport::listen::{self, ListenError, Listener};
use pmi_transport::proto::v1::allocation_service_server::AllocationServiceServer;
use pmi_transport::proto::v1::fabric_service_server::FabricServiceServer;
use pmi_transport::proto::v1::inventory_service_server::InventoryServiceServer;
use pmi_transport::proto::v1::launch_service_server::LaunchServiceServer;
use pmi_transport::proto::v1::node_service_server::NodeServiceServer;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::Routes;

use self::allocation_service::Allocating;
use self::args::ApiArgs;
use self::config::{Config, ConfigError, Identity};
use self::fabric::{Fabric, FabricError};
use self::fabric_service::Accounting;
use self::inventory_service::Describing;
use self::launch_service::Launching;
use self::listed_nodes::{ListedNodes, ListedNodesError};
use self::node_service::Reporting;
use self::renewal::Renewal;
use self::server::{Parts, Server};
use self::store::{RedbStore, StoreError};

/// Reason why the server cannot be started.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ApiError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("the certificate is that of {caller}; the API server needs one for lattice:///api")]
    NotApi { caller: Caller },
    #[error("state in {path} cannot be used")]
    Store {
        path: String,
        #[source]
        source: StoreError,
    },
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("certificates cannot be renewed")]
    Renewal(#[from] PkiError),
    #[error(transparent)]
    ListedNodes(#[from] ListedNodesError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot serve metrics at {address}")]
    Metrics {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

/// Outcome of a run of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server served until a signal ended it.
    Served,
    /// The settings were checked and are valid; the server was not started.
    Checked,
}

/// Serves until SIGTERM or SIGINT, or only checks the settings if the arguments request it. Launches continue without the server; the next
/// server takes them over.
///
/// # Errors
/// Fails if the configuration is invalid, or if an address or the state is not available.
pub fn run(args: &ApiArgs) -> Result<Outcome, ApiError> {
    let config = Config::load(args).map_err(Failure::from)?;
    let runtime = lattice_daemon::runtime().map_err(Failure::Runtime)?;
    if args.check_config {
        runtime.block_on(check(&config))?;
        return Ok(Outcome::Checked);
    }
    let _log = lattice_daemon::log::write_apart();
    runtime.block_on(serve(config))?;
    Ok(Outcome::Served)
}

/// Fails if the settings would make [`serve`] fail, as far as a check without listening and without opening the state can detect.
async fn check(config: &Config) -> Result<(), Failure> {
    let security = security(config)?;
    for address in &config.listen {
        Listener::check(address, &security).await?;
    }
    config.renewal.clone().map(Renewal::open).transpose()?;
    listed_nodes(config)?;
    if let Some(settings) = &config.fabric {
        settings.manager.manager().map_err(FabricError::from)?;
    }
    Ok(())
}

/// The nodes that the administrator has described, if any.
fn listed_nodes(config: &Config) -> Result<ListedNodes, ListedNodesError> {
    config.inventory.as_deref().map(ListedNodes::read).transpose().map(Option::unwrap_or_default)
}

fn security(config: &Config) -> Result<Security, Failure> {
    match &config.identity {
        Identity::Insecure => Ok(Security::Insecure { name: Caller::Api }),
        Identity::Tls(files) => match Security::from_files(files)? {
            security if *security.caller() == Caller::Api => Ok(security),
            other => Err(Failure::NotApi { caller: other.caller().clone() }),
        },
    }
}

async fn serve(config: Config) -> Result<(), Failure> {
    let security = security(&config)?;
    let listed = listed_nodes(&config)?;
    let failed = |source| Failure::Store { path: config.state.display().to_string(), source };
    let store = store::quietly(|| RedbStore::open(&config.state)).map_err(failed)?;
    if let Err(error) = cxi_fabric::secret::keep_out_of_core_dumps() {
        tracing::warn!(%error, "core dumps of this server would hold keys");
    }
    let fabric = open_fabric(&config, &store)?;
    let renewal = config.renewal.clone().map(Renewal::open).transpose()?.map(Arc::new);
    let (proxy, proxied) = Listener::proxied();
    let parts = Parts { store: Arc::new(store), fabric: fabric.clone(), renewal, proxy, listed };
    let server = Server::new(config.clone(), security.clone(), parts).map_err(failed)?;

    let mut listeners = Vec::new();
    let sockets = config.socket.iter().cloned().map(Address::Unix);
    for address in config.listen.iter().cloned().chain(sockets) {
        let listener = Listener::bind_within(&address, config.port_range, &security).await?;
        tracing::info!(at = %listener.local_address(), "listening");
        listeners.push(listener);
    }
    listeners.push(proxied);
    if let Some(address) = config.metrics {
        let listener = TcpListener::bind(address).await.map_err(|source| Failure::Metrics { address, source })?;
        let server = Arc::clone(&server);
        task::spawn(metrics_page::serve(listener, move || server.metrics.text(server.census())));
    }
    task::spawn(security.keep_current());
    let stop = stop_signal().map_err(Failure::Runtime)?;
    task::spawn(Arc::clone(&server).take_up());
    task::spawn(Arc::clone(&server).watch_nodes());
    task::spawn(Arc::clone(&server).tend_queue());
    if let Some(fabric) = fabric {
        task::spawn(fabric::tend(Arc::clone(&server), fabric));
    }
    // A process that starts the server with port 0 reads the port from this notification.
    let first = listeners.first().map_or_else(String::new, |listener| listener.local_address().to_string());
    notify(&[NotifyState::Custom(&format!("X_LATTICE_LISTEN={first}")), NotifyState::Ready]);
    listen::serve(listeners, routes(&server), stop).await?;
    Ok(())
}

/// Opens the configured fabric in the state that the previous server left.
fn open_fabric(config: &Config, store: &RedbStore) -> Result<Option<Arc<Fabric>>, Failure> {
    let journal = store.fabric_journal();
    let Some(settings) = config.fabric.clone() else {
        let left = journal.entries().map_err(FabricError::from)?.len();
        if left > 0 {
            tracing::warn!(
                left,
                "the state tells of fabric services, and no fabric is configured; they are left alone"
            );
        }
        return Ok(None);
    };
    Ok(Some(Fabric::open(settings, journal)?))
}

/// All services, with room for the longest message and the longest list.
fn routes(server: &Arc<Server>) -> Routes {
    let allocating = AllocationServiceServer::new(Allocating(Arc::clone(server)));
    let launching = LaunchServiceServer::new(Launching(Arc::clone(server)));
    let reporting = NodeServiceServer::new(Reporting(Arc::clone(server)));
    let describing = InventoryServiceServer::new(Describing::new(server));
    Routes::new(allocating.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(LISTING_MAX))
        .add_service(launching.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(LISTING_MAX))
        .add_service(FabricServiceServer::new(Accounting(Arc::clone(server))))
        .add_service(describing.max_encoding_message_size(LISTING_MAX))
        .add_service(reporting.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(LISTING_MAX))
}

/// Resolves on SIGTERM or SIGINT.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("the server ends; launches go on");
        notify(&[NotifyState::Stopping]);
    })
}

/// Notifies the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager does not listen");
    }
}
