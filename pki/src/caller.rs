//! The names of the processes of a cluster.
//!
//! A [`Caller`] has one written form, a URI. It stands in certificates as their subject alternative name, and, on loopback
//! connections without TLS, in the metadata of each call.
//!
//! ```text
//! lattice:///api                the API server            lattice:///user/1000   a user, by uid
//! lattice:///agent/node3        the agent of node3        lattice:///admin       an administrator
//! ```

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use rustls::pki_types::DnsName;

/// Beginning of the URI of every caller.
pub const SCHEME: &str = "lattice:///";
/// Limit of the characters of a strange URI that messages repeat.
const EXCERPT: usize = 64;

/// Kind of a caller, without its name: all that decides which calls it may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node agent.
    Agent,
    /// The API server.
    Api,
    /// A user.
    User,
    /// A user who may act for all others.
    Admin,
}

/// Name of the process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The agent of the node of this name.
    Agent(String),
    /// The API server.
    Api,
    /// The user with this uid.
    User(u32),
    /// A user on a node of an allocation of his, as the node's agent has it from the kernel: he reaches what is of that allocation, and nothing
    /// else of his. No certificate names one.
    UserIn {
        /// The user.
        uid: u32,
        /// Id of the allocation.
        allocation: String,
    },
    /// An administrator; with a uid if the kernel named it, without if a certificate did.
    Admin(Option<u32>),
}

impl Caller {
    /// Kind of the caller.
    pub fn role(&self) -> Role {
        match self {
            Self::Agent(_) => Role::Agent,
            Self::Api => Role::Api,
            Self::User(_) | Self::UserIn { .. } => Role::User,
            Self::Admin(_) => Role::Admin,
        }
    }

    /// The caller as it is written in a certificate.
    pub fn uri(&self) -> String {
        match self {
            Self::Agent(node) => format!("{SCHEME}agent/{node}"),
            Self::Api => format!("{SCHEME}api"),
            Self::User(uid) | Self::UserIn { uid, .. } => format!("{SCHEME}user/{uid}"),
            Self::Admin(_) => format!("{SCHEME}admin"),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(node) => write!(f, "the agent of {node}"),
            Self::Api => f.write_str("the API server"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::UserIn { uid, allocation } => write!(f, "user {uid} in allocation {allocation}"),
            Self::Admin(Some(uid)) => write!(f, "administrator {uid}"),
            Self::Admin(None) => f.write_str("an administrator"),
        }
    }
}

/// A URI that names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} names nobody; there are {SCHEME}agent/NODE, {SCHEME}api, {SCHEME}user/UID and {SCHEME}admin")]
pub struct CallerError {
    uri: String,
}

impl FromStr for Caller {
    type Err = CallerError;

    /// Reads what [`Caller::uri`] writes.
    fn from_str(uri: &str) -> Result<Self, CallerError> {
        let error = || CallerError { uri: uri.chars().take(EXCERPT).collect() };
        let path = uri.strip_prefix(SCHEME).ok_or_else(error)?;
        match path.split_once('/') {
            None if path == "api" => Ok(Self::Api),
            None if path == "admin" => Ok(Self::Admin(None)),
            Some(("agent", node)) if is_node_name(node) => Ok(Self::Agent(node.to_owned())),
            Some(("user", uid)) => uid.parse().map(Self::User).map_err(|_| error()),
            _ => Err(error()),
        }
    }
}

/// True if a node may have this name. A node's name is that of a host (RFC 1123, and underscores), or an IPv4 address, so that its
/// certificate can bear it, and that it means nothing in URIs, hostlists and paths.
pub fn is_node_name(name: &str) -> bool {
    DnsName::try_from(name).is_ok() || name.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_read_and_written() {
        let agent = |node: &str| Caller::Agent(node.to_owned());
        for caller in [
            agent("node-3.site_1"),
            agent("10.0.0.17"),
            Caller::Api,
            Caller::User(0),
            Caller::User(u32::MAX),
            Caller::Admin(None),
        ] {
            assert_eq!(caller.uri().parse(), Ok(caller));
        }
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let long = format!("lattice:///agent/{}", "n".repeat(256));
        let strange = ["", "api", "lattice:///", "lattice:///agent", "lattice:///agent/", "lattice:///agent/a/b"];
        let stranger = [
            "lattice:///agent/a,b",
            "lattice:///agent/..",
            "lattice:///agent/17",
            "lattice:///agent/10.0.17",
            "lattice:///agent/10.0.0.256",
            "lattice:///user/-1",
            "lattice:///user/x",
            &long,
        ];
        for uri in strange.into_iter().chain(stranger).chain(["lattice:///admin/0", "lattice://api", "LATTICE:///api"])
        {
            let error = uri.parse::<Caller>().unwrap_err().to_string();
            assert!(error.ends_with("names nobody; there are lattice:///agent/NODE, lattice:///api, lattice:///user/UID and lattice:///admin"), "{error}");
        }
    }
}
