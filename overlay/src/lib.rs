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
//! * [`Participant`]: `of_launch`, `guest_of`, `serve`, `call`, `progress`
//! * [`Uid`], [`SetId`]
//! * [`Method`]: numbers from 256 on belong to programs
//! * [`CallError`]: the failure of a call; [`Fault`]: the failure of a handler
//!
//! # Examples
//!
//! `examples/across_launches.rs`, `call_back.rs`; `across_launches.c` for C. A program that serves a method as a rank of a launch, and calls
//! it from a shell:
//!
//! ```no_run
//! use std::{env, error::Error, time::Duration};
//!
//! use lattice_overlay::{Method, Participant, Uid};
//!
//! const GREET: Method = Method(300);
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     if let Some(address) = env::args().nth(1) {
//!         let to: Uid = address.parse()?;
//!         let answer = Participant::guest_of(to.set())?.call(to, GREET, b"", Duration::from_secs(30))?;
//!         println!("{}", String::from_utf8_lossy(&answer));
//!         return Ok(());
//!     }
//!     let participant = Participant::of_launch()?;
//!     participant.serve(GREET, |own, caller, _| Ok(format!("{} greets {caller}", own.me()).into()));
//!     println!("call {}", participant.me());
//!     loop {
//!         participant.progress(None)?;
//!     }
//! }
//! ```

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

pub use address::{SetId, Uid};
pub use error::{CallError, Fault};
pub use method::Method;
pub use participant::Participant;
