//! Links between the sessions of one launch: TCP connections that reach a session by way of the port of its node's agent, and
//! belong to the two sessions from then on.
//!
//! ```text
//! session A                          agent of B                       session B
//!    │ connect to B's agent              │                                │
//!    │ greeting, 80 bytes ─────────────> │ the launch runs here, the MAC  │
//!    │                                   │ and the source address fit:    │
//!    │                                   │ the socket is handed over ───> │
//!    │ e, version ─────────────────────────────────────────────────────> │  Noise NNpsk0 under the launch's key,
//!    │ <───────────────────────────────────────────────── e, ee, version │  bound to the greeting
//!    │ <═══════════════ frames, encrypted, in both directions ═════════> │
//! ```
//!
//! The address of a session is thus known when its launch is placed, and each node needs one open port. An agent reads the
//! [`Greeting`] and nothing that follows it. A link counts from its first frame on: a replayed greeting leads to a handshake that
//! its sender cannot finish, and changes nothing.
//!
//! The root of another launch comes in the same way, by a [`Pass`].
//!
//! Who proves what: the [`LinkKey`] is known to the sessions of a launch only, so no other user, launch or machine can open or
//! read a link. Which node a session speaks for is proved by the source address of its connection, as the agent sees it.

mod fence_names;
mod field;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gate;
mod greeting;
mod key;
mod link_errors;
mod pass;
mod socket;
mod stream;
mod transport;

pub use gate::{Arrivals, GateRefusal, HandOver, Visitable};
pub(crate) use greeting::MAGIC;
pub use greeting::{Greeting, GreetingError, LaunchHash};
pub use key::{GateKey, LinkKey};
pub use link_errors::{AcceptError, LinkError};
pub use pass::{AdmitError, EnterError, Entered, Entrance, Pass, Refusal, Ticket};
pub use transport::{Handed, SessionLinks};
