//! The harness of the end-to-end tests: real programs under the real `lattice`, and the check that no process remains.
//!
//! [`browser`] renders drawings. [`command`] runs a command with a deadline and checks its [`outcome`]. [`processes`] finds remaining processes
//! of a launch. [`mod@cluster`] has clusters of several nodes. [`late_output`] has ranks with output that passes through other processes.
//! [`malformed`] sends invalid input. [`mpi`] has the MPI libraries and compiles the C programs of the tests with them. [`peer_faults`] detects
//! the faults of other launchers and libraries. [`schema`] checks JSON. [`script`] has executable files. [`terminal`] has terminals for
//! commands that require one. [`traced_paths`] has the paths that a process looked up. [`turn`] prevents heavy tests from overloading a small
//! machine. `cargo xtask setup` installs the requirements of the tests.

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
pub mod script;
pub mod terminal;
pub mod traced_paths;
pub mod turn;

pub use self::cluster::{cluster, launch_on, script_in, script_on};
pub use self::command::{Command, lattice, launch};
pub use self::outcome::Outcome;
pub use self::running::Running;
pub use self::script::executable;
