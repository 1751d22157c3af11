//! A PMIx server without libpmix, for Open MPI 4.1 and 5 and other clients of PMIx 3, 4 and 5.
//!
//! # Design
//!
//! [`server::Server`] is a state machine without I/O and without a clock, as in [`pmi_core`]. One server serves all jobs of a
//! launch on a node. The job model, the fences and the services are those of [`pmi_core`]. [`services::Peers`] is the way to the
//! PMIx servers of other nodes.
//!
//! ```text
//! rank ── loopback TCP ──> Driver ──> Server ──> Fence, Services   of pmi-core, one pair for each job
//!                                       └──────> Peers             questions to other nodes
//! ```
//!
//! # Most used
//!
//! * [`driver::Driver`] (feature `driver`, default), [`driver::Sinks`]
//! * [`Namespace`]: a job with its secret name; [`Seat`]: a rank of this node
//! * [`server::Settings`], [`services::Alone`]
//! * [`env::RankEnvironment`], [`env::defaults`]: variables of a rank
//! * [`CleanUp`]: files to remove after a rank has ended
//!
//! # Example
//!
//! `examples/embed_pmix.rs` is a complete host for Open MPI on one node. `lattice-session` serves PMI and PMIx together.
#![forbid(unsafe_code)]

mod clean_up;
#[cfg(feature = "driver")]
pub mod driver;
pub mod env;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod job_info;
mod namespace;
mod node_facts;
mod process_set;
pub mod server;
pub mod services;
pub mod wire;

pub use clean_up::CleanUp;
pub use namespace::{JobIndex, Namespace, Seat};
pub use node_facts::{BoundPlace, NodeFacts};
pub use process_set::ProcessSet;
