//! Process of a command of Lattice: standard streams, exit codes, signals, terminal, environment, and files that users name.
//!
//! Only this crate prints, except for the output of ranks. Only [`exit`] selects exit codes.

pub mod bounded_file;
pub mod environment;
pub mod exit;
pub mod foreground;
pub mod formatting;
pub mod job_control;
pub mod limits;
pub mod machine;
mod message;
pub mod runtime;
pub mod signal_value;
pub mod signals;
pub mod table;
pub mod terminal;
pub mod values;

pub use self::message::{
    OutputError, Verbosity, confirm, is_captured, json, message, obeys_escapes, print, print_json, print_lines, report,
    shown, styled, write_stderr,
};
