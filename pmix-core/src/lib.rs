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
//! * [`Server`], [`server::Settings`]; [`Peers`] and [`Alone`]
//! * [`env::RankEnvironment`], [`env::defaults`]: variables of a rank
//! * [`CleanUp`]: files to remove after a rank has ended
//!
//! # Examples
//!
//! `examples/embed_pmix.rs` is a complete host for Open MPI on one node. `examples/embed_server.rs` and `lattice-session` serve PMI and
//! PMIx together. A host of one rank:
//!
//! ```no_run
//! use std::{error::Error, process::Command, sync::Arc};
//!
//! use pmi_core::env::inherited;
//! use pmi_core::{Job, JobId, LocalFence, LocalRank, NoServices, Rank};
//! use pmix_core::driver::{Driver, Sinks};
//! use pmix_core::env::{Cpus, Families, RankEnvironment, defaults};
//! use pmix_core::server::{Server, Settings};
//! use pmix_core::{Alone, Namespace, Seat};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     // End a real name in 128 random bits, and use the uid of the ranks.
//!     let (name, host, uid) = ("job.5eb0a1c9", "localhost", 1000);
//!     let namespace = Namespace::on_one_node(name, Job::on_one_node(JobId::new(name)?, 1), host);
//!     let (driver, mut ended) = Driver::new(Server::new(Settings::default()), uid, Arc::new(Alone), Sinks::default())?;
//!     let job = driver.add(namespace, Arc::new(LocalFence), Arc::new(NoServices));
//!     let environment = RankEnvironment { namespace: name, rank: Rank(0), server: driver.address(), host };
//!     let mut command = Command::new("./my_open_mpi_program");
//!     command.env_clear().envs(inherited()).envs(defaults(Families::Pmix, Cpus::Enough)).envs(environment.variables());
//!     let status = tokio::task::spawn_blocking(move || command.status()).await??;
//!     let seat = Seat { job, local: LocalRank(0) };
//!     driver.drain(seat); // processes the remaining messages of the rank
//!     if status.success() {
//!         driver.rank_exited(seat);
//!     }
//!     ended.try_recv().map_or(Ok(()), |(_, reason)| Err(format!("the job had to end: {reason:?}").into()))
//! }
//! ```
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
pub use server::Server;
pub use services::{Alone, Peers};
