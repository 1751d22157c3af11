//! The harness of the end-to-end tests: real programs through the real `lattice`, and what is left of them afterwards.
//!
//! [`browser`] shows drawings; [`command`] runs a command with a deadline and checks its [`outcome`]; [`processes`] finds what a launch left behind;
//! [`mod@cluster`] has clusters of several nodes; [`late_output`] has ranks whose output
//! passes through other processes; [`malformed`] sends what nobody should; [`mpi`] has the MPI libraries and compiles our C
//! programs with them; [`peer_faults`] knows the faults of other launchers and libraries; [`schema`] checks JSON; [`terminal`] has terminals for
//! commands that ask for one; [`traced_paths`] are those that
//! a process looked up; [`turn`] keeps heavy tests from swamping a small machine. What the tests need is installed by `cargo xtask setup`.

/// The text that a newcomer pastes from, whose Rust must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

pub mod browser;
pub mod built;
pub mod cluster;
pub mod command;
pub mod late_output;
pub mod malformed;
pub mod memory;
pub mod mpi;
pub mod outcome;
pub mod peer_faults;
pub mod processes;
pub mod running;
pub mod schema;
pub mod terminal;
pub mod traced_paths;
pub mod turn;

pub use self::cluster::{cluster, launch_on, script_in, script_on};
pub use self::command::{Command, lattice, launch};
pub use self::outcome::Outcome;
pub use self::running::Running;
