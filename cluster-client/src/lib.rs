//! The API server as a command uses it: choice of the server, channel to it, requests, and messages about a running launch.
//!
//! # Design
//! [`ApiServer`] selects the server and the identity of the user. A [`Cluster`] is a channel to it, with typed requests. An [`Attachment`] is the
//! stream between a client and one launch: its messages are the types of [`messages`], and [`wire`] converts them.

mod allocation;
pub mod args;
mod attachment;
mod cluster;
mod config;
mod error;
mod host_names;
mod launches;
pub mod messages;
mod presence;
mod source;
mod templates;
mod url;
pub mod wire;

pub use self::allocation::{AllocatedNodes, NodeFacts, state_word};
pub use self::attachment::Attachment;
pub use self::cluster::{API_URL, ApiServer, Cluster, allocation, config_file};
pub use self::config::{ConfigError, SYSTEM as SYSTEM_CONFIG};
pub use self::error::{ClusterError, answered};
pub use self::launches::{LaunchAction, Started};
pub use self::presence::{KnownAgent, Presence};
pub use self::source::Source;
pub use self::templates::{KnownNode, Limits, Templates};
pub use self::url::ApiUrlError;
