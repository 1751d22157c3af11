//! Fences between nodes: every node contributes the data that its ranks put, and every node receives all data.
//!
//! The path of a fence, from the session's call to the link and back; each line is one file:
//!
//! ```text
//! session ──begin─────> job_fence       one job: segments to bytes and back
//!                       launch_fences   begins a fence, or awaits its result; dropping the call ends the fence
//!                       node            one lock, and the tasks: link readers, ticks, answers
//!                       state           finds the launch; stores frames of unknown launches (unclaimed)
//!                       launches        one launch and its waiting calls: input in, effects out
//!                         launch        all fences and questions of a launch          \
//!                           series      fences of one scope, by epoch                  | pure: input -> effects
//!                             gather    one fence: the frames of one node in its tree /
//!                       outbound        frames to links, or to foreign agents' calls (pmi_fence)
//!                       links           one permanent stream per pair of agents, opened by the first that sends
//!                       link_queue      frames of one link, written by the thread that queues them
//!                       transport       gRPC, or memory in tests
//! ```
//! A frame of another node takes the same path from `node` on. The same thread also sends the responses to ranks. A fence goes up
//! a tree of its nodes and down again ([`Tree`]). With a fan-out of all nodes, the tree is a star. The root is the first of the
//! nodes. If the link of a node breaks, or a node leaves its launch, its fences fail on all nodes. The caller limits the time of
//! a fence: if it drops the call, the fence ends for all nodes.

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
pub use effects::{AnswerId, AskResult, Brought, Effects, FenceResult, Gathered, NodeQuestion, Question, QuestionId};
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
