//! The flags of `lattice pki`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hostlist::HostlistError;
use lattice_console::values::whole;
use pmi_transport::identity::is_node_name;

/// Create the certificates of the API server, node agents and remote users.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PkiCommand {
    /// Print the result as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Action,
}

const AFTER_HELP: &str = "A cluster in two commands:\n  \
    lattice pki init pki\n  \
    lattice pki issue pki --api head --agents 'node[0-63]'\n\
    Then pki/api belongs on the API server, and pki/agent-NODE on each node.";

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Create a certificate authority in DIR: ca.pem, and ca.key.pem, which must stay in DIR.
    Init {
        /// Directory, created if it does not exist.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Issue certificates, each with its key and a copy of ca.pem, in a directory of its own below DIR.
    Issue(IssueArgs),
    /// Revoke certificates, and all renewals of the same original certificate, and write DIR/crl.pem. Copy it to the directory of ca.pem on the
    /// API server, from which agents receive it. Daemons then refuse these certificates, and close existing connections.
    Revoke {
        /// The directory of the authority.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Certificates to revoke: directories below DIR, such as agent-node3 or user-1000, or files with certificates.
        #[arg(value_name = "NAME|FILE", required = true)]
        certificates: Vec<PathBuf>,
    },
}

/// Subjects of certificates.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("subjects").required(true).multiple(true)))]
pub(crate) struct IssueArgs {
    /// The directory of the authority.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Issue to the agents of these nodes, such as node[0-63].
    #[arg(long, value_name = "HOSTLIST", value_parser = nodes, group = "subjects")]
    pub(crate) agents: Option<Names>,
    /// Issue to the API server, with these host names and IP addresses.
    #[arg(long, value_name = "HOSTLIST", value_parser = hosts, group = "subjects")]
    pub(crate) api: Option<Names>,
    /// Issue to the user with this uid, for machines without the socket of the API server; may be repeated.
    #[arg(long = "user", value_name = "UID", group = "subjects")]
    pub(crate) users: Vec<u32>,
    /// Issue to an administrator, with the rights of all users.
    #[arg(long, group = "subjects")]
    pub(crate) admin: bool,
    /// Validity of the certificates, in days.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = whole(1..=u32::MAX))]
    pub(crate) days: u32,
}

/// Names of a hostlist; at least one.
#[derive(Clone, Debug)]
pub(crate) struct Names(pub(crate) Vec<String>);

/// Error for an invalid list of names.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamesError {
    #[error(transparent)]
    List(#[from] HostlistError),
    #[error("it names no identity")]
    Empty,
    #[error("{name:?} is no name of a node; nodes are named as hosts are")]
    NotANode { name: String },
}

fn hosts(text: &str) -> Result<Names, NamesError> {
    let names = hostlist::expand(text)?;
    if names.is_empty() { Err(NamesError::Empty) } else { Ok(Names(names)) }
}

fn nodes(text: &str) -> Result<Names, NamesError> {
    let names = hosts(text)?;
    match names.0.iter().find(|name| !is_node_name(name)) {
        Some(name) => Err(NamesError::NotANode { name: name.clone() }),
        None => Ok(names),
    }
}
