//! Failures of links between sessions.

use std::io;
use std::time::Duration;

use pmi_core::ids::NodeIndex;

use super::frame::VERSION;
use crate::noise::NoiseError;

/// Time limit for the first frame of a link after its hand-over.
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
    /// The launch is unknown to the agent at the address, or the agent does not admit this session.
    #[error("{address}: its agent closed the connection: the launch does not run there, or this node may not call it")]
    Refused {
        /// Address of the agent.
        address: String,
    },
    /// No answer arrived in time.
    #[error("{address} did not answer within {timeout:?}")]
    Late {
        /// Address of the agent.
        address: String,
        /// Length of the time-out.
        timeout: Duration,
    },
    /// The process at the address serves only calls: it is not an agent of Lattice.
    #[error("{address} serves calls and no links")]
    NoLinks {
        /// Address of the agent.
        address: String,
    },
    /// The other end is not a session of the launch.
    #[error("{address}: {source}")]
    Handshake {
        /// Address of the agent.
        address: String,
        /// The error.
        source: NoiseError,
    },
    /// The other session has another version of the frame layout.
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
    /// The runtime is shutting down.
    #[error("this process ends")]
    Ended,
    /// The system has no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Failure of a link after its hand-over. It affects only its sender.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end is not a session of the launch.
    #[error(transparent)]
    Handshake(#[from] NoiseError),
    /// The other session has another version of the frame layout.
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
    /// The first frame is malformed.
    #[error("its first frame: {reason}")]
    Frame {
        /// The error.
        reason: String,
    },
    /// The greeting names a node outside the launch.
    #[error("it speaks for node {from} of a launch with {nodes}")]
    NoSuchNode {
        /// Number of the named node.
        from: NodeIndex,
        /// Number of nodes.
        nodes: usize,
    },
}
