//! Commands that query the API server, or launches on this machine, and print the answer: as a table, or as JSON with the same facts.
//!
//! # Design
//! Each command has its flags in [`args`], and one function that prints the answer and returns the exit code. Commands do not import the
//! launcher. [`batch`], [`debug`] and [`doctor`] get the parts of the launcher that they use as functions.

mod alloc;
pub mod args;
mod batch;
mod control;
mod cxi;
mod debug;
mod doctor;
mod error;
mod explain;
mod in_allocation;
mod launch_topology;
mod launches;
mod nodes;
mod overlay;
mod own_sets;
pub mod pki;
mod questions;
mod queue;
#[cfg(test)]
mod schemas;
mod scontrol;
mod set_graph;
mod sets;
mod stacks;
mod status;
mod top;
mod topology;

pub use self::alloc::alloc;
pub use self::batch::{ScriptError, ToRequest, batch, run_script};
pub use self::control::signal;
pub use self::cxi::cxi;
pub use self::debug::{NodeCommand, debug};
pub use self::doctor::{ContainerRuntimes, doctor};
pub use self::error::CommandError;
pub use self::explain::explain;
pub use self::launches::launches;
pub use self::nodes::nodes;
pub use self::questions::not_here;
pub use self::queue::{cancel, queue};
pub use self::scontrol::scontrol;
pub use self::sets::set;
pub use self::stacks::stacks;
pub use self::status::{proctable, status};
pub use self::top::top;
