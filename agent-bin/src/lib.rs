//! What one node does for one launch.
//!
//! A [`spec::SessionSpec`] goes in, [`event::Event`]s come out while it runs, a [`event::Report`] comes back. The same code runs
//! inside `lattice launch` (one machine, no daemon), inside a test, and under the node agent.

pub mod cause;
pub mod cxi;
pub mod daemon;
pub mod event;
pub mod fabric;
pub mod library;
pub mod plan;
mod pump;
pub mod random;
pub mod rank_ranges;
pub mod services;
pub mod session;
pub mod session_process;
pub mod settings_file;
pub mod spec;
pub mod template;
pub mod transcript;
pub mod wire;
