//! Slingshot credentials for MPI launches: from the fabric manager to the environment of a rank.
//!
//! ```text
//! API server                                                        node agent
//!   FabricManager  rest, vnid, pool: the fabric-wide half             node   CXI services: the half of one node, per NIC
//!   Ledger         who has which VNI, what has to be undone           environment   what a rank is born with
//!   Grants         both, behind calls that block
//! ```
//!
//! A VNI is one number for the whole fabric. A CXI service belongs to one NIC of one node. So a launch needs both: credentials
//! from a manager (or a number of our own pool), and on each node a service that lets the user's processes use that number.
//!
//! Nothing here knows of launches, gRPC or tokio. Secrets live in [`Secret`]s; every wait is bounded by a deadline.

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
