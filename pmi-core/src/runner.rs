//! Runs a pure protocol server over sockets with tokio. Every server of this project runs on it, with any protocol.
//!
//! ```text
//!  socket ──read──> task of the connection ─────────┐                      ┌─> write, at once if the socket takes it;
//!  listener ──accept──> owner's uid? ──> Connection │                      │   else queued, flushed by a task
//!  task (fence, call), deadline ────────────────────┼─> lock: a `handle_*`,│
//!  host ──Runner::with──> method call ──────────────┘   then every Effect ─┴─> start a task, set or cancel a timer
//! ```
//!
//! The lock is a plain mutex. It is held while one input is handled and its answers are written to nonblocking sockets. Nothing blocks or
//! awaits while it is held. The [`Protocol`] holds all protocol state, and interprets the messages.

mod announcement;
mod connection;
mod deadlines;
mod fences;
mod host;
mod listening;
mod owner;
mod protocol;
mod senders;
mod state;
mod tasks;
mod timing;
mod turns;

pub use self::announcement::Announcement;
pub use self::fences::begin_fence;
pub use self::host::Runner;
pub use self::listening::Admission;
pub use self::protocol::{Beginning, Effect, Finish, Protocol, Started, Task};

#[cfg(test)]
mod tests;
