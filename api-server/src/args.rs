//! The flags of `lattice api`. Each overrides the key of the same name in the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use pmi_transport::address::PortRange;

/// The flags of `lattice api`.
#[derive(Clone, Debug, Default, Args)]
pub struct ApiArgs {
    /// Read settings from FILE instead of /etc/lattice/api.toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the settings, and start nothing.
    #[arg(long)]
    pub check_config: bool,
    /// Listen on HOST:PORT; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Vec<String>,
    /// Use the first free port of this range where --listen has port 0, such as 60000-60100 [default: any port].
    #[arg(long, value_name = "FIRST-LAST", env = "LATTICE_PORT_RANGE", hide_env = true)]
    pub port_range: Option<PortRange>,
    /// Listen on a Unix socket, which identifies users of this machine by their uid; an empty PATH for none.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub socket: Option<PathBuf>,
    /// Store the state in FILE.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP at ADDRESS.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Use no certificates, and accept the identity that each client claims; for tests, on loopback addresses only.
    #[arg(long)]
    pub insecure: bool,
    /// Certificate of the authority that issued all certificates of the cluster.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of the API server.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of the API server.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}
