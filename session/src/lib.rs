//! One node's part of one launch.
//!
//! A [`spec::SessionSpec`] goes in, [`event::Event`]s come out while it runs, a [`event::Report`] comes back. The same code runs
//! inside `lattice launch` (one machine, no daemon), inside a test, and under the node agent.
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

pub use self::runner::run;
