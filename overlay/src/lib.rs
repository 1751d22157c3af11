//! One address for each process of all launches of a user, and calls between them.
//!
//! # Design
//!
//! A launch is a set. Its members are its sessions, one on each node; ranks are reached through their session. The session of
//! node 0 is the root, which connects to other sets. [`machine::Machine`] is one member as a pure state machine.
//! [`participant::Participant`] is a rank or a guest, with one socket to its session.
//!
//! ```text
//! rank ── Participant ──> member ── links at distances 2^k ──> root ════ other root ──> member ──> rank
//!                         Machine                            Directory: sets of this machine, as files
//! ```
//!
//! A call runs at most once, and always ends: with an answer, with a [`error::CallError`], or after its time.
//!
//! # Most used
//!
//! * [`participant::Participant`]: `of_launch`, `guest_of`, `serve`, `call`, `progress`
//! * [`address::Uid`], [`address::SetId`]
//! * [`method::Method`]: numbers from 256 on belong to programs
//! * [`error::Fault`]: the failure of a handler
//!
//! # Examples
//!
//! `examples/across_launches.rs`, `call_back.rs`; `across_launches.c` for C.

pub mod address;
pub mod directory;
pub mod error;
pub mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod greeting;
pub mod machine;
pub mod method;
pub mod participant;
pub mod strides;
