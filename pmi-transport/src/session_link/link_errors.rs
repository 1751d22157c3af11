//! Failures of links between sessions.

use std::io;
use std::time::Duration;

use pmi_core::ids::NodeIndex;

use super::frame::VERSION;
use crate::noise::NoiseError;

/// Time for the first frame of a link that was handed over.
pub(super) const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// Failure to link two sessions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The address of the other node's agent cannot be reached.
    #[error("{address}: {source}")]
    Unreachable {
        /// Address of the agent.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The agent at the address does not know the launch, or does not let this session in.
    #[error("{address}: its agent closed the connection: the launch does not run there, or this node may not call it")]
    Refused {
        /// Address of the agent.
        address: String,
    },
    /// No answer came in time.
    #[error("{address} did not answer within {timeout:?}")]
    Late {
        /// Address of the agent.
        address: String,
        /// Time that was waited.
        timeout: Duration,
    },
    /// The agent at the address serves calls only: it is not one of Lattice.
    #[error("{address} serves calls and no links")]
    NoLinks {
        /// Address of the agent.
        address: String,
    },
    /// The other end is no session of the launch.
    #[error("{address}: {source}")]
    Handshake {
        /// Address of the agent.
        address: String,
        /// The fault.
        source: NoiseError,
    },
    /// The other session is of another version, whose frames are different ones.
    #[error("{address}: its session has frames of version {theirs}, this one has {VERSION}")]
    Version {
        /// Address of the agent.
        address: String,
        /// Version of the other session's frames.
        theirs: u8,
    },
    /// The other node is lost to the launch.
    #[error("the node is lost to the launch")]
    CutOff,
    /// The runtime ends.
    #[error("this process ends")]
    Ended,
    /// The system has no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Failure of a link that was handed over. It concerns nobody but its sender.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end is no session of the launch.
    #[error(transparent)]
    Handshake(#[from] NoiseError),
    /// The other session is of another version, whose frames are different ones.
    #[error("it has frames of version {theirs}, and this session has {VERSION}")]
    Version {
        /// Version of the other session's frames.
        theirs: u8,
    },
    /// The node that the greeting names is lost to the launch.
    #[error("node {from} is lost to the launch")]
    CutOff {
        /// The node.
        from: NodeIndex,
    },
    /// The other end sent no frame in time.
    #[error("no frame came within {FIRST_FRAME_TIMEOUT:?}")]
    Late,
    /// The first frame is none.
    #[error("its first frame: {reason}")]
    Frame {
        /// The fault.
        reason: String,
    },
    /// The greeting names a node that the launch does not have.
    #[error("it speaks for node {from} of a launch with {nodes}")]
    NoSuchNode {
        /// Node that was named.
        from: NodeIndex,
        /// Number of nodes.
        nodes: usize,
    },
}
