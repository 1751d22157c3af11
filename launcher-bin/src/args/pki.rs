//! The flags of `lattice pki`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hostlist::HostlistError;
use pmi_transport::identity::is_node_name;

use super::value::whole;

/// Make the certificates by which the API server, node agents and remote users prove who they are.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PkiCommand {
    /// Print what was made as JSON.
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
    /// Make a certificate authority in DIR: ca.pem, and ca.key.pem, which must not leave it.
    Init {
        /// The directory; made if need be.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Issue certificates; each with its key and a copy of ca.pem, in a directory of its own below DIR.
    Issue(IssueArgs),
    /// Revoke certificates, each with all that go back to the same one by renewal: writes DIR/crl.pem, which belongs beside the ca.pem of the API server; agents get it from there.
    /// Daemons refuse them from then on, and close connections that are there.
    Revoke {
        /// The directory of the authority.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// What to revoke: directories below DIR, such as agent-node3 or user-1000, or files with certificates.
        #[arg(value_name = "NAME|FILE", required = true)]
        certificates: Vec<PathBuf>,
    },
}

/// To whom certificates are issued.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("subjects").required(true).multiple(true)))]
pub(crate) struct IssueArgs {
    /// The directory of the authority.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// To the agents of these nodes, such as node[0-63].
    #[arg(long, value_name = "HOSTLIST", value_parser = nodes, group = "subjects")]
    pub(crate) agents: Option<Names>,
    /// To the API server, which is reached by these names and IP addresses.
    #[arg(long, value_name = "HOSTLIST", value_parser = hosts, group = "subjects")]
    pub(crate) api: Option<Names>,
    /// To the user with this uid, for a machine without the API server's socket; may be repeated.
    #[arg(long = "user", value_name = "UID", group = "subjects")]
    pub(crate) users: Vec<u32>,
    /// To an administrator, who may act for all users.
    #[arg(long, group = "subjects")]
    pub(crate) admin: bool,
    /// Validity of the certificates.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = whole(1..=u32::MAX))]
    pub(crate) days: u32,
}

/// Names of a hostlist; at least one.
#[derive(Clone, Debug)]
pub(crate) struct Names(pub(crate) Vec<String>);

/// A list of names that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamesError {
    #[error(transparent)]
    List(#[from] HostlistError),
    #[error("it names nobody")]
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
