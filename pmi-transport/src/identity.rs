//! Who calls, and how a process proves who it is.
//!
//! A [`Caller`] has one written form, a URI. It stands in certificates as their subject alternative name, and, on loopback
//! connections without TLS, in the metadata of each call. Callers on a Unix socket are named by the kernel instead.
//!
//! ```text
//! lattice:///api                the API server            lattice:///user/1000   a user, by uid
//! lattice:///agent/node3        the agent of node3        lattice:///admin       an administrator
//! ```

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use rustls::pki_types::DnsName;
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Request, Status};

pub use crate::tls::{CertificateNameError, IdentityError, TlsFiles, TlsIdentity};

/// What every URI of a caller begins with.
pub(crate) const SCHEME: &str = "lattice:///";
/// How much of a strange URI is repeated in messages, in characters.
const EXCERPT: usize = 64;

/// What a caller is, without its name: all that decides which calls it may make.
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

/// Who is at the other end of a connection. In a handler, [`caller_of`] a request tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The agent of the node of this name.
    Agent(String),
    /// The API server.
    Api,
    /// The user with this uid.
    User(u32),
    /// An administrator; with a uid if the kernel named it, without if a certificate did.
    Admin(Option<u32>),
}

impl Caller {
    /// What it is.
    pub fn role(&self) -> Role {
        match self {
            Self::Agent(_) => Role::Agent,
            Self::Api => Role::Api,
            Self::User(_) => Role::User,
            Self::Admin(_) => Role::Admin,
        }
    }

    /// The caller as it is written in a certificate.
    pub fn uri(&self) -> String {
        match self {
            Self::Agent(node) => format!("{SCHEME}agent/{node}"),
            Self::Api => format!("{SCHEME}api"),
            Self::User(uid) => format!("{SCHEME}user/{uid}"),
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

/// Whether a node may have this name. A node's name is that of a host (RFC 1123, and underscores), so that its certificate can
/// bear it, and that it means nothing in URIs, hostlists and paths.
pub fn is_node_name(name: &str) -> bool {
    DnsName::try_from(name).is_ok()
}

/// How a process proves to others who it is, and has others prove it.
#[derive(Clone, Debug)]
pub enum Security {
    /// Nobody proves anything: plain TCP between loopback addresses, where everybody is believed. For trying out.
    Insecure {
        /// Who we say we are.
        name: Caller,
    },
    /// Everybody proves who they are by a certificate of one CA.
    Tls(TlsIdentity),
}

impl Security {
    /// Everybody proves who they are, we by these files.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, and for a key that everybody can read.
    pub fn from_files(files: &TlsFiles) -> Result<Self, IdentityError> {
        TlsIdentity::from_files(files.clone()).map(Self::Tls)
    }

    /// Reads the files of our identity again at once; without that, they are when they have changed and the next connection is made.
    ///
    /// # Errors
    /// Fails if they cannot be used, or are somebody else's; those before stay in use.
    pub fn renew(&self) -> Result<(), IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(()),
            Self::Tls(identity) => identity.renew(),
        }
    }

    /// Renews at each SIGHUP, and says in the log what came of it. Never ends.
    pub async fn renew_on_hangup(self) {
        // Without the signal, changes are seen all the same.
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return std::future::pending().await };
        while hangup.recv().await.is_some() {
            if let Err(error) = self.renew() {
                let reason = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, reason, "the certificate is not renewed; the one before stays in use");
            }
        }
    }

    /// Who we are to others, except on a Unix socket: there the kernel tells.
    pub fn caller(&self) -> &Caller {
        match self {
            Self::Insecure { name } => name,
            Self::Tls(identity) => identity.caller(),
        }
    }
}

/// Who sent this request.
///
/// # Errors
/// Fails for a request that did not pass the layer that [`crate::listen::serve`] puts before all services.
pub fn caller_of<T>(request: &Request<T>) -> Result<&Caller, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the request's caller was not looked up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_read_and_written() {
        let node = Caller::Agent("node-3.site_1".to_owned());
        for caller in [node, Caller::Api, Caller::User(0), Caller::User(u32::MAX), Caller::Admin(None)] {
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
