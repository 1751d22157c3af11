//! A PMI-1 and PMI-2 server for the ranks of one job on one node, to embed in a launcher or a resource manager.
//!
//! # Design
//!
//! [`server::Server`] is a state machine without I/O and without a clock. A driver carries bytes to it and carries out its
//! actions. Two traits connect it: [`fence::Fence`] to other nodes, [`services::Services`] to the host. Both have an
//! implementation for one node.
//!
//! ```text
//! rank ── PMI_FD ──> Driver ── bytes ──> Server ── Action::Fence ──> Fence      other nodes
//!                      ^                   │   └── Action::Call ───> Services   names, new jobs
//!                      └── Action::Send ───┘
//! ```
//!
//! # Most used
//!
//! * [`Job`], [`Server`], [`server::Settings`]: input of a driver
//! * [`driver::Driver`] (feature `driver`, default): tokio; `threads::ThreadedServer` (feature `threads`): plain threads
//! * [`Fence`] and [`LocalFence`], [`Services`] and [`NoServices`]
//! * [`env::RankEnvironment`], [`env::inherited`]: variables of a rank
//! * [`EndReason`], [`Phase`]: results
//! * `conformance::check` (feature `conformance`): tests a `Fence`
//!
//! # Examples
//!
//! `examples/embed_server.rs`, `embed_with_threads.rs`, `kvs_server.rs`, `fence_over_files.rs`. A host of one rank, whose PMI socket is its
//! standard input:
//!
//! ```no_run
//! use std::os::{fd::OwnedFd, unix::net::UnixStream};
//! use std::{error::Error, process::Command, sync::Arc};
//!
//! use pmi_core::driver::Driver;
//! use pmi_core::env::{Entrance, RankEnvironment, inherited};
//! use pmi_core::server::{Server, Settings};
//! use pmi_core::{Job, JobId, LocalFence, LocalRank, NoServices, NodeIndex, Rank};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let job = Job::on_one_node(JobId::new("kvs_4711_0")?, 1);
//!     let server = Server::new(job, NodeIndex(0), Settings::default());
//!     let (driver, mut ended) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
//!     let (ours, theirs) = UnixStream::pair()?;
//!     driver.connect(LocalRank(0), ours)?;
//!     let variables = RankEnvironment::on_one_node(Rank(0), 1, Entrance::Descriptor(0)).variables();
//!     let mut command = Command::new("./my_mpi_program");
//!     command.env_clear().envs(inherited()).envs(variables).stdin(OwnedFd::from(theirs));
//!     let mut process = command.spawn()?;
//!     drop(command); // the copy of the rank's socket in this process
//!     let status = tokio::task::spawn_blocking(move || process.wait()).await??;
//!     driver.drain(LocalRank(0)); // processes the remaining messages of the rank
//!     if status.success() {
//!         driver.rank_exited(LocalRank(0));
//!     }
//!     ended.try_recv().map_or(Ok(()), |reason| Err(format!("the job had to end: {reason:?}").into()))
//! }
//! ```
#![forbid(unsafe_code)]

pub mod all_to_all;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod connections;
mod conversation;
pub mod deaths;
#[cfg(feature = "driver")]
pub mod driver;
pub mod env;
pub mod fence;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod gathering;
pub mod ids;
pub mod job;
pub mod kvs;
#[cfg(feature = "driver")]
pub mod quiet;
pub mod report;
pub mod resources;
pub mod roster;
#[cfg(feature = "driver")]
pub mod runner;
pub mod segment;
pub mod server;
pub mod services;
#[cfg(feature = "threads")]
pub mod threads;
pub mod wire;

pub use conversation::Offer;
pub use fence::{Fence, LocalFence};
pub use ids::{JobId, LocalRank, NodeIndex, Rank};
pub use job::Job;
pub use report::{DialoguePoint, EndReason, Phase};
pub use server::Server;
pub use services::{NoServices, Services};
