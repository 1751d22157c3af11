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
    /// Say whether the settings are fine, and start nothing.
    #[arg(long)]
    pub check_config: bool,
    /// Listen at HOST:PORT; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Vec<String>,
    /// Take the first free port of these where --listen has port 0, such as 60000-60100 (any).
    #[arg(long, value_name = "FIRST-LAST", env = "LATTICE_PORT_RANGE", hide_env = true)]
    pub port_range: Option<PortRange>,
    /// Listen at a Unix socket, where users of this machine are known by their uid; an empty PATH for none.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub socket: Option<PathBuf>,
    /// Keep state in FILE.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Serve metrics in the format of Prometheus at ADDRESS.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Believe everybody who they say they are; for trying out, on loopback addresses only.
    #[arg(long)]
    pub insecure: bool,
    /// The certificate of the authority that issued everybody's.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Our certificate.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}
