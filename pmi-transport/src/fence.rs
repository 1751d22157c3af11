//! Fences between nodes: every node brings what its ranks put, every node leaves with all of it.
//!
//! A fence on its way, from the session's call to the link and back; each line is one file:
//!
//! ```text
//! session ──begin─────> job_fence       one job: segments to bytes and back
//!                       launch_fences   begins a fence, or awaits its result and gives it up with the call
//!                       node            one lock, and the tasks: link readers, ticks, answers
//!                       state           finds the launch; keeps frames of launches that are not known yet (unclaimed)
//!                       launches        one launch and its waiting calls: input in, effects passed on
//!                         launch        all fences and questions of a launch          \
//!                           series      fences of one scope, by epoch                  | pure: input -> effects
//!                             gather    one fence: who sends what to whom in its tree /
//!                       outbound        frames to links, or to foreign agents' calls (pmi_fence)
//!                       links           one lasting stream per pair of agents, opened by who needs it first
//!                       link_queue      frames of one link, written by the thread that queues them
//!                       transport       gRPC, or memory in tests
//! ```
//! A frame of another node takes the same way from `node` on, and the answers of ranks follow from it on the same thread. A fence goes up a tree of its nodes and down again ([`Tree`]); with a
//! fan-out of all nodes that is a star. The root is the first of the nodes. A node whose link breaks, or which leaves its launch,
//! fails the fences that it takes part in on all nodes. The time that a fence may take is its caller's affair: who drops the call
//! gives the fence up for everybody.

mod budget;
mod counters;
mod effects;
mod error;
mod fast_map;
mod fence_call;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gather;
mod job_fence;
mod launch;
mod launch_fences;
mod launches;
mod link_queue;
mod links;
mod members;
mod membership;
mod node;
mod outbound;
mod pieces;
mod pmi_fence;
mod pmi_fence_calls;
mod questions;
mod recent;
mod series;
mod settings;
mod state;
mod transport;
mod tree;
mod unclaimed;

pub use counters::Counters;
pub use effects::{AnswerId, AskResult, Asked, Brought, Effects, FenceResult, Gathered, Question, QuestionId};
pub use error::{AskError, FenceError};
pub use gather::{Fault, Gather, GatherEffects, Progress};
pub use job_fence::JobFence;
pub use launch::{Launch, Loss};
pub use launch_fences::LaunchFences;
pub use link_queue::{FrameSink, Outgoing, SinkState};
pub use membership::{Member, Membership, Questions};
pub use node::FenceNode;
pub(crate) use recent::Recent;
pub use settings::{FanOut, Limits};
pub use transport::{Grpc, Incoming, Transport};
pub use tree::{Tree, shares};
