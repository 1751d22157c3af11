//! Slingshot credentials for MPI launches: from a fabric manager to the environment of a rank.
//!
//! # Design
//!
//! A VNI is valid on the whole fabric; a CXI service belongs to one NIC of one node. A launch needs both. [`Grants`] runs on the
//! server: it asks a [`FabricManager`], records each VNI in a [`Ledger`], and writes a journal before each step. The module
//! [`node`] runs on each node and creates and deletes services. Calls block at most until a deadline. There is no
//! tokio and no gRPC.
//!
//! ```text
//! server   FabricConfig ──> FabricManager (rest, vnid, pool)
//!                  Grants ── Ledger, Journal ──> Credentials
//!                                                   │
//! node     node::claim ── NIC services ─────────────┴──> RankFabric::variables ──> rank
//! ```
//!
//! # Most used
//!
//! * [`FabricConfig`], [`Grants`], [`Need`], [`Credentials`]
//! * [`grants::Journal`]: implement it to survive a crash; [`grants::NoJournal`] for trials
//! * [`node::Claim`], [`node::claim`], [`node::release`], [`node::CxiBackend`]
//! * [`RankFabric`], [`Secret`], [`FabricError`]
//!
//! # Examples
//!
//! `examples/fabric_credentials.rs`, with the fake manager of the feature `fake`. The same with the manager and the NICs of a cluster:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use cxi_fabric::environment::Provider;
//! use cxi_fabric::node::{self, Claim, LibCxi, Sysfs};
//! use cxi_fabric::{FabricConfig, Grants, Need, RankFabric, clock::SystemClock, grants::NoJournal};
//!
//! let deadline = Instant::now() + Duration::from_secs(10);
//! // On the server:
//! let config: FabricConfig = toml::from_str("backend = 'rest'\nurl = 'https://fabric.example.org'")?;
//! let (clock, journal) = (Arc::new(SystemClock), Box::new(NoJournal));
//! let grants = Grants::recover(&"daint".parse()?, config.manager()?, config.vnis, clock, [], journal)?;
//! let need = Need { allocation: "4711".into(), nodes: vec!["node0".into()], uid: 1000 };
//! let credentials = grants.acquire(&need, deadline)?;
//! // On the node:
//! let nics = LibCxi::load("libcxi.so.1", Sysfs::default())?;
//! let traffic_classes = config.traffic_classes;
//! let claim = Claim { uid: need.uid, ranks: 2, vnis: vec![credentials.vni], traffic_classes };
//! let services = node::claim(&nics, &SystemClock, &claim, deadline)?.services;
//! let credentials = Some(&credentials);
//! let rank = RankFabric { provider: Provider::Cxi, credentials, services: &services, traffic_classes };
//! let variables = rank.variables(|name| std::env::var_os(name).is_some());
//! // After the end of the ranks. The VNI is free after the manager has deleted the service and each node has confirmed.
//! node::release(&nics, &SystemClock, &services, deadline);
//! grants.release(&need.allocation)?;
//! grants.settle(deadline);
//! for awaited in grants.awaited() {
//!     grants.confirmed(&awaited.name, ["node0"])?;
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod authorise;
mod client;
pub mod clock;
pub mod config;
pub mod environment;
pub mod error;
pub mod fabric;
#[cfg(feature = "fake")]
pub mod fake;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod grants;
pub mod ledger;
mod local;
pub mod node;
mod rest;
mod retry;
mod retry_after;
mod scrubber;
pub mod secret;
pub mod vni;
mod vnid;
mod wire;

pub use config::FabricConfig;
pub use environment::RankFabric;
pub use error::FabricError;
pub use fabric::{ClusterName, Credentials, FabricManager};
pub use grants::Grants;
pub use ledger::{Ledger, Need};
pub use secret::Secret;
pub use vni::{Vni, VniPool, VniRange};
