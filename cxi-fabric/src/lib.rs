//! Slingshot credentials for MPI launches: from a fabric manager to the environment of a rank.
//!
//! # Design
//!
//! A VNI is valid on the whole fabric; a CXI service belongs to one NIC of one node. A launch needs both. [`Grants`] runs on the
//! server: it asks a [`FabricManager`], records each VNI in a [`Ledger`], and writes a journal before each step. The module
//! [`node`] runs on each node and creates and deletes services. Calls block until a deadline at most. There is no
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
//! * [`FabricConfig`], [`Grants`], [`ledger::Need`], [`Credentials`]
//! * [`grants::Journal`]: implement it to survive a crash; [`grants::NoJournal`] for trials
//! * [`node::Claim`], [`node::claim`], [`node::release`], [`node::CxiBackend`]
//! * [`environment::RankFabric`], [`Secret`], [`FabricError`]
//!
//! # Example
//!
//! `examples/fabric_credentials.rs`, with the fake manager of the feature `fake`.

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
pub use error::FabricError;
pub use fabric::{ClusterName, Credentials, FabricManager};
pub use grants::Grants;
pub use ledger::Ledger;
pub use secret::Secret;
pub use vni::{Vni, VniPool, VniRange};
