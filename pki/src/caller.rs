//! The names of the processes of a cluster.
//!
//! A [`Caller`] has one written form, a URI. Certificates contain it as their subject alternative name. On loopback connections without TLS, the
//! metadata of each call contains it.
//!
//! ```text
//! lattice:///api                the API server            lattice:///user/1000   a user, by uid
//! lattice:///agent/node3        the agent of node3        lattice:///admin       an administrator
//! ```

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use rustls::pki_types::DnsName;

/// Prefix of the URI of every caller.
pub const SCHEME: &str = "lattice:///";
/// Maximum number of characters of a malformed URI in messages.
const EXCERPT: usize = 64;

/// Kind of a caller, without its name. It alone decides which calls the caller may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node agent.
    Agent,
    /// The API server.
    Api,
    /// A user.
    User,
    /// A user with the right to act for all users.
    Admin,
}

/// Name of the process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The agent of the node with this name.
    Agent(String),
    /// The API server.
    Api,
    /// The user with this uid.
    User(u32),
    /// A user on a node of the user's own allocation; the node's agent has the uid from the kernel. The caller has access only to resources of
    /// that allocation. No certificate names such a caller.
    UserIn {
        /// The user.
        uid: u32,
        /// Id of the allocation.
        allocation: String,
    },
    /// An administrator; with a uid if the kernel supplied it, without one if a certificate did.
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

    /// The caller as written in a certificate.
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

/// Error of a URI that names no caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} is no identity; there are {SCHEME}agent/NODE, {SCHEME}api, {SCHEME}user/UID and {SCHEME}admin")]
pub struct CallerError {
    uri: String,
}

impl FromStr for Caller {
    type Err = CallerError;

    /// Parses the form that [`Caller::uri`] writes.
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

/// True if a node may have this name: a host name (RFC 1123, and underscores), or an IPv4 address. A certificate can contain such a name, and
/// the name has no special meaning in URIs, hostlists and paths.
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
            assert!(error.ends_with("is no identity; there are lattice:///agent/NODE, lattice:///api, lattice:///user/UID and lattice:///admin"), "{error}");
        }
    }
}
