//! The part of a launch on one node: starts the ranks, serves them PMI-1, PMI-2 and PMIx, carries their output, ends them, and
//! reports the first cause of a failure. When [`run`] returns, no process of the launch is left.
//!
//! # Design
//!
//! The input is plain data ([`spec::SessionSpec`]) and connections to the host ([`session_io::SessionIo`]). Events come out while
//! it runs, a report at the end. A pure state machine takes all decisions; a runner on tokio carries them out.
//!
//! ```text
//! SessionSpec ──────────┐         ┌──> Event: Started, Output, Exited, Notice, ...
//! SessionIo, Control ───┴─> run ──┴──> Report
//!                            ├──> RankSpawner   processes
//!                            ├──> Services      names, new jobs
//!                            └──> Nodes         fences and questions between nodes
//! ```
//!
//! # Most used
//!
//! * [`run`], [`SessionSpec::on_one_node`], [`SessionIo::on_one_node`]
//! * [`Event`], [`event::Output`], [`Report`], [`Cause`]
//! * [`settings::LaunchSettings`], [`Control`]
//! * traits of a host: [`session_io::Nodes`], [`spawner::RankSpawner`], `pmi_core::services::Services`
//! * [`session_process`]: a session in a process of its user
//!
//! # Examples
//!
//! `examples/embed_session.rs`, `examples/own_spawner.rs`. A host of four ranks of any MPI:
//!
//! ```no_run
//! use lattice_session::event::{Event, Output};
//! use lattice_session::{SessionIo, SessionSpec};
//! use tokio::sync::mpsc;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let spec = SessionSpec::on_one_node(4, "./my_mpi_program".into(), Vec::new())?;
//!     let (events, mut happened) = mpsc::channel(64);
//!     let (orders, control) = mpsc::channel(1); // a session ends its ranks when its host drops `orders`
//!     let io = SessionIo::on_one_node(&spec, events, control)?;
//!     let session = tokio::spawn(lattice_session::run(spec, io));
//!     while let Some(event) = happened.recv().await {
//!         if let Event::Output(Output { rank, bytes, .. }) = event {
//!             print!("[{rank}] {}", String::from_utf8_lossy(&bytes));
//!         }
//!     }
//!     let report = session.await?;
//!     drop(orders);
//!     report.cause.map_or(Ok(()), |cause| Err(cause.to_string().into()))
//! }
//! ```
#![forbid(unsafe_code)]

mod blocking;
pub mod call_stacks;
pub mod cause;
pub mod count;
pub mod cxi;
pub mod deadline;
pub mod ended_ranks;
pub mod event;
pub mod fabric;
pub mod fence_wait;
pub mod first_exit;
pub mod flow_control;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod gathered;
pub mod gpus;
pub mod input_piece;
pub mod library;
pub mod limits;
mod machine;
pub mod map_hash;
pub mod names;
pub mod nics;
pub mod numbered;
pub mod placed;
pub mod plan;
pub mod process_set;
pub mod random;
pub mod rank_ranges;
pub mod rank_values;
pub mod rendezvous;
pub mod request;
mod runner;
#[cfg(test)]
mod sample;
pub mod session_io;
pub mod session_process;
pub mod set;
pub mod settings;
pub mod shell_limits;
pub mod spawn;
pub mod spawner;
pub mod spec;
pub mod template;
pub mod timeouts;
pub mod transcript;
pub mod unix_time;
pub mod wire;

pub use self::cause::Cause;
pub use self::event::{Event, Report};
pub use self::runner::run;
pub use self::session_io::{Control, SessionIo};
pub use self::spec::SessionSpec;

/// Versions of PMI that a session serves its ranks.
pub const PMI_VERSIONS: &str = "PMI-1.1, PMI-2.0, PMIx 3, 4 and 5";

/// The code of the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
