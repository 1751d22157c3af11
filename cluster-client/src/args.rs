//! The flag that names the API server.

use clap::Args;

/// Address of the API server.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerArgs {
    /// The API server: unix:PATH, https://HOST:PORT, or http://127.0.0.1:PORT (else LATTICE_API_URL, or api in the config file).
    #[arg(long, value_name = "URL")]
    pub api: Option<String>,
}
