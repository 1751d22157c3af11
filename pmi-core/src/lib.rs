//! A PMI-1 and PMI-2 server for the ranks of one job on one node, to embed in a launcher or a resource manager.
//!
//! # Design
//!
//! [`server::Server`] is a state machine without I/O and without a clock. A driver carries bytes to it and carries out its
//! actions. Two traits lead out of it: [`fence::Fence`] to other nodes, [`services::Services`] to the host. Both have an
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
//! * [`job::Job`], [`server::Settings`]: input of a server
//! * [`driver::Driver`] (feature `driver`, default): tokio; `threads::ThreadedServer` (feature `threads`): plain threads
//! * [`fence::LocalFence`], [`services::NoServices`]
//! * [`env::RankEnvironment`], [`env::inherited`]: variables of a rank
//! * [`report::EndReason`], [`Phase`]: results
//! * `conformance::check` (feature `conformance`): tests a `Fence`
//!
//! # Examples
//!
//! `examples/embed_server.rs`, `embed_with_threads.rs`, `kvs_server.rs`, `fence_over_files.rs`.
//!
//! ```no_run
//! # async fn demo() -> std::io::Result<()> {
//! use std::os::unix::net::UnixStream;
//! use std::sync::Arc;
//! use pmi_core::{driver::Driver, fence::LocalFence, server::{Server, Settings}};
//! use pmi_core::{ids::{JobId, LocalRank, NodeIndex}, job::Job, services::NoServices};
//!
//! let job = Job::on_one_node(JobId::new("kvs_4711_0").expect("letters and digits"), 2);
//! let server = Server::new(job, NodeIndex(0), Settings::default());
//! let (driver, ended) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
//! for rank in 0..2 {
//!     let (ours, theirs) = UnixStream::pair()?;
//!     driver.connect(LocalRank(rank), ours)?;
//!     // start the rank with `theirs` as its descriptor PMI_FD, and with PMI_RANK and PMI_SIZE
//! }
//! # Ok(()) }
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
pub use report::{DialoguePoint, Phase};
