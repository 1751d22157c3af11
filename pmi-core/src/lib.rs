//! PMI-1, PMI-2 and the key-value space of an MPI job: one node's PMI server, to embed in a launcher or resource manager.
//!
//! * [`server::Server`] is a pure state machine: bytes of ranks go in, [`server::Action`]s come out. It speaks PMI-1.1 (1.2 as an
//!   option) and PMI-2 on the same connection, by what each message looks like.
//! * [`fence::Fence`] is the one seam to other nodes; [`fence::LocalFence`] serves a job on one node.
//! * [`driver::Driver`] (feature `driver`, on by default) runs a server over the sockets of its ranks with tokio. Without it the
//!   crate has no tokio in it.
//! * [`threads::ThreadedServer`] (feature `threads`) does the same for hosts without a runtime.
//! * [`mod@env`] tells which variables a rank is born with, and which ones of an outer launcher must go.
//!
//! Serving a job of two ranks takes this much:
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
