//! Fences between nodes: every node brings what its ranks put, every node leaves with all of it.
//!
//! ```text
//! session ──exchange──> LaunchFences ──> FenceNode ── Launch ── Gather     pure: who sends what to whom
//!                                            │
//!                                          links    one lasting stream per pair of agents, opened by who needs it first
//!                                            │
//!                                          Reach    how an agent is called: gRPC, or memory in tests
//! ```
//! A fence goes up a tree of its nodes and down again ([`Tree`]); with a fan-out of all nodes that is a star. The root is the
//! first of the nodes. A node whose link breaks, or which leaves its launch, fails the fences that it takes part in on all
//! nodes. How long a fence may take is its caller's affair: who drops the call gives the fence up for everybody.

mod budget;
mod counted;
mod error;
mod gather;
mod launch;
mod links;
mod members;
mod node;
mod pieces;
mod reach;
mod recent;
mod series;
mod settings;
mod state;
mod strays;
mod tree;
mod unary;

pub use counted::Counted;
pub use error::{AskError, FenceError};
pub use gather::{Fault, Gather, Outbox as GatherOutbox, Progress};
pub use launch::{Launch, Outbox};
pub use links::Outgoing;
pub use node::{FenceNode, LaunchFences, Member, Membership, Questions};
pub use reach::{Grpc, Incoming, Reach};
pub use settings::{FanOut, Limits};
pub use tree::{Tree, shares};
