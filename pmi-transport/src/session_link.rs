//! Links between the sessions of one launch. A link is a TCP connection to the port of the other node's agent, which hands it
//! over to the session.
//!
//! ```text
//! session A                          agent of B                       session B
//!    │ connect to B's agent              │                                │
//!    │ greeting, 80 bytes ─────────────> │ the launch runs here, the MAC  │
//!    │                                   │ and the source address match:  │
//!    │                                   │ hands over the socket ───────> │
//!    │ e, version ─────────────────────────────────────────────────────> │  Noise NNpsk0 under the launch's key,
//!    │ <───────────────────────────────────────────────── e, ee, version │  bound to the greeting
//!    │ <═══════════════ frames, encrypted, in both directions ═════════> │
//! ```
//!
//! So the address of a session is known when its launch is placed, and each node needs one open port. An agent reads only the
//! [`Greeting`]. A link is accepted at its first frame: a replayed greeting leads to a handshake that its sender cannot complete,
//! without any effect.
//!
//! The root of another launch connects in the same way, with a [`Pass`].
//!
//! Only the sessions of a launch have its [`LinkKey`], so no other user, launch or machine can open or read a link. The source
//! address of a connection, as the agent sees it, proves the node of a session.

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
