//! Registrations of agents: their contents, and the reasons to refuse one.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64};

use pmi_transport::address::{Address, AddressError};
use pmi_transport::identity::is_node_name;

use super::NODES_MAX;
use crate::versions::{self, Fit};

/// Limits of a node's network addresses and capabilities: the number of entries, and the bytes of one entry.
pub(super) const WORDS_MAX: usize = 64;
pub(super) const WORD_MAX: usize = 256;

/// A registration of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The name of its node.
    pub node: String,
    /// The number that the agent chose when it was started.
    pub incarnation: u64,
    /// Ids of the launches that still run on the node.
    pub launches: Vec<String>,
    pub facts: NodeFacts,
}

/// Facts that an agent reports about its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// The address at which the API server and other agents reach the agent: `host:port`.
    pub grpc_address: String,
    /// Addresses by which ranks of other nodes reach ranks of this one.
    pub network_addresses: Vec<String>,
    /// The number of its cores; `None` if it is unknown.
    pub cores: Option<NonZeroU32>,
    /// The size of its memory, in bytes; `None` if it is unknown.
    pub memory_bytes: Option<NonZeroU64>,
    /// Names of protocols and other features, for example `pmi1`, `pmi2`, `pmix`.
    pub capabilities: Vec<String>,
    /// The version of the agent; `None` if the agent reports none.
    pub version: Option<String>,
}

/// Reason to refuse a registration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error("{id:?} cannot be a node's name: letters, digits, '-', '_' and '.' can")]
    Name { id: String },
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{address} cannot be reached by other nodes; register host:port")]
    NoTcp { address: Address },
    #[error(
        "{address} is an address of the machine that connects to it, and the agent registers from {from}; have it listen at an address of its node, or set advertise"
    )]
    Loopback { address: Address, from: IpAddr },
    #[error("a node has at most {WORDS_MAX} addresses and capabilities of {WORD_MAX} bytes each")]
    TooMuch,
    #[error("there are {NODES_MAX} nodes already")]
    Full,
    #[error(
        "two agents register as {node}: {theirs}, and {first}, which is up and keeps the name; give one of them another node_id and certificate, or stop it"
    )]
    Rival { node: String, first: String, theirs: String },
    #[error(
        "an agent of version {theirs} and an API server of version {} do not work together; use an agent of {}",
        versions::OURS,
        versions::series()
    )]
    Version { theirs: String },
}

impl NodeFacts {
    /// Returns the compatibility of the node's agent with this server.
    pub(crate) fn fit(&self) -> Fit {
        self.version.as_deref().map_or(Fit::Other, versions::fit)
    }
}

/// Checks the contents of a registration.
///
/// # Errors
/// See the variants of [`RegisterError`].
pub(super) fn check(registration: &Registration) -> Result<(), RegisterError> {
    let Registration { node, facts, .. } = registration;
    if !is_node_name(node) {
        return Err(RegisterError::Name { id: node.chars().take(WORD_MAX).collect() });
    }
    let address: Address = facts.grpc_address.parse()?;
    if matches!(address, Address::Unix(_)) {
        return Err(RegisterError::NoTcp { address });
    }
    let too_much = |words: &[String]| words.len() > WORDS_MAX || words.iter().any(|word| word.len() > WORD_MAX);
    let version = facts.version.as_deref().unwrap_or_default();
    if too_much(&facts.network_addresses) || too_much(&facts.capabilities) || version.len() > WORD_MAX {
        return Err(RegisterError::TooMuch);
    }
    match facts.fit() {
        Fit::Never => Err(RegisterError::Version { theirs: version.to_owned() }),
        Fit::Same | Fit::Other => Ok(()),
    }
}
