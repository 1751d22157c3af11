//! The agent's settings: a TOML file, which flags and environment variables override. They are checked once, before the agent uses them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cxi_fabric::node::NodeFabricConfig;
use lattice_session::session_process::PamTerms;
use lattice_session::timeouts;
use nix::unistd::Uid;
use pmi_transport::address::{Address, AddressError, PortRange};
use pmi_transport::identity::{Caller, IdentityError, Security, TlsFiles, is_node_name};
use rank_spawner::{Account, AccountError, Limit, LimitParseError};
use serde::Deserialize;

use super::{DaemonError, node_info};
use crate::pam::{self, PamConfigError};
use lattice_daemon::MIN_UID;
use lattice_daemon::identity::{Identity, IdentitySettings, IdentitySettingsError, TlsSettings};
use lattice_daemon::settings_file::{self, SettingsFileError};

/// Default port of node agents.
const PORT: u16 = 50052;

/// Maximum time that sessions can live without an agent, in seconds.
const AGENT_LEASE_MAX: u64 = 24 * 3600;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Version of this program.
    pub version: &'static str,
    /// Name of this node.
    pub node_id: String,
    /// Address that the agent listens at.
    pub listen: Address,
    /// Ports to try in order if `listen` has port 0; `None` for any port.
    pub port_range: Option<PortRange>,
    /// Unix socket at which users of this node reach the API server; `None` for no socket.
    pub socket: Option<PathBuf>,
    /// Address at which other nodes reach the agent; `None` for the address that it listens at.
    pub advertise: Option<Address>,
    /// Address of the API server.
    pub api: Address,
    /// Certificate files of the agent; `None` without certificates, which requires loopback addresses.
    pub tls: Option<TlsFiles>,
    /// User that the daemon becomes before it listens; `None` if it keeps its user.
    pub user: Option<Account>,
    /// User of the processes that make sessions. Root serves all users; any other user serves only itself.
    pub starter: Uid,
    /// The node also runs launches of root.
    pub allow_root: bool,
    /// Minimum uid of users that may start processes. Root and the agent's own user are exempt.
    pub min_uid: u32,
    /// Setuid programs in ranks gain the privileges of their owners.
    pub setuid_programs: bool,
    /// Resource limits of all ranks.
    pub limits: Vec<Limit>,
    /// PAM service that admits users; `None` without PAM.
    pub pam: Option<PamTerms>,
    /// How ranks receive the topology of the node.
    pub share_topology: ShareTopology,
    /// Address at which the agent serves metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Settings of the fabric on this node.
    pub fabric: NodeFabricConfig,
    /// Directory in which sessions that outlive their agent wait for the next one; `None` if no session outlives its agent.
    pub runtime_dir: Option<PathBuf>,
    /// Time that sessions live without an agent.
    pub agent_lease: Duration,
    /// Treatment of launches when the agent stops.
    pub when_stopped: WhenStopped,
}

/// Treatment of launches when their agent stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenStopped {
    /// Launches continue, and the next agent adopts them.
    #[default]
    Keep,
    /// The agent ends them.
    End,
}

/// How ranks receive the topology of their node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShareTopology {
    /// Ranks receive it if their MPI library requests it from its launcher.
    #[default]
    Asked,
    /// All ranks receive it, also in hwloc's environment variables.
    Env,
}

/// Flags and environment variables that override single settings of the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// See [`Config::node_id`].
    pub node_id: Option<String>,
    /// See [`Config::listen`].
    pub listen: Option<String>,
    /// See [`Config::port_range`].
    pub port_range: Option<PortRange>,
    /// See [`Config::advertise`].
    pub advertise: Option<String>,
    /// See [`Config::api`].
    pub api: Option<String>,
    /// The address in the environment, for settings without one. The variable is also a user's: an agent that is started in a user's shell must
    /// not follow it.
    pub api_variable: Option<String>,
    /// The agent uses no certificates.
    pub insecure: bool,
    /// Name of [`Config::user`].
    pub user: Option<String>,
    /// See [`Config::allow_root`].
    pub allow_root: bool,
    /// See [`Config::metrics`].
    pub metrics: Option<SocketAddr>,
    /// Parent directory of [`Config::runtime_dir`].
    pub runtime_dir: Option<PathBuf>,
}

/// Error in the settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is not usable.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// Malformed address.
    #[error("{setting}: {source}")]
    Address {
        /// Name of the setting.
        setting: &'static str,
        /// Error of the address.
        source: AddressError,
    },
    /// The PAM settings are not usable.
    #[error(transparent)]
    Pam(#[from] PamConfigError),
    /// Malformed limit.
    #[error("limits: {0}")]
    Limit(#[from] LimitParseError),
    /// Invalid node name.
    #[error("node_id is {name:?}; a node's name has letters, digits, `-`, `_` and `.`; set node_id or --node-id")]
    NodeName {
        /// The name.
        name: String,
    },
    /// The lease is too short or too long.
    #[error("agent_lease is {seconds} seconds; it can be 1 to {AGENT_LEASE_MAX}, a day")]
    AgentLease {
        /// The setting.
        seconds: u64,
    },
    /// A required setting is missing.
    #[error("no {setting} is given; {remedy}")]
    Missing {
        /// Name of the setting.
        setting: &'static str,
        /// Advice as text.
        remedy: &'static str,
    },
    /// The API server's address is a Unix socket, which carries no certificate to identify the agent.
    #[error(
        "api is {address}; agents are known by their certificates, which a Unix socket does not carry: name HOST:PORT"
    )]
    ApiSocket {
        /// The setting.
        address: Address,
    },
    /// The certificate is not usable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate does not name a node agent.
    #[error("{} is the certificate of {named}; a node agent needs one for lattice:///agent/NODE", path.display())]
    NoAgent {
        /// The file.
        path: PathBuf,
        /// Caller that the certificate names.
        named: Caller,
    },
    /// The daemon's user is not usable.
    #[error("user: {0}")]
    User(#[from] AccountError),
    /// `user` is root, which would not give up root.
    #[error("user is {name:?}, which is root; name another one, or leave it out")]
    RootAsUser {
        /// The setting.
        name: String,
    },
    /// A fork server that trusts only signatures needs certificates.
    #[error("user is set, and insecure as well; a daemon that gives up root needs certificates")]
    UserWithoutCertificates,
    /// There is no settings file, and no flag selects an identity.
    #[error(
        "there is no /etc/lattice/agent.toml, and the command line has no --insecure\n\
         try: --config FILE; lattice pki init DIR and lattice pki issue DIR --agents NODES, which make certificates"
    )]
    NoFile,
    /// `[tls]` and `insecure` are inconsistent.
    #[error(transparent)]
    IdentitySettings(#[from] IdentitySettingsError),
}

/// Content of the settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    node_id: Option<String>,
    listen: Option<String>,
    port_range: Option<PortRange>,
    socket: Option<PathBuf>,
    advertise: Option<String>,
    api: Option<String>,
    tls: TlsSettings,
    insecure: bool,
    user: Option<String>,
    allow_root: bool,
    min_uid: Option<u32>,
    setuid_programs: bool,
    limits: Vec<String>,
    pam_service: Option<String>,
    pam_timeout: Option<u64>,
    share_topology: ShareTopology,
    metrics: Option<SocketAddr>,
    fabric: NodeFabricConfig,
    runtime_dir: Option<PathBuf>,
    agent_lease: Option<u64>,
    when_stopped: WhenStopped,
}

impl File {
    fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        Ok(path.map(settings_file::read).transpose()?.unwrap_or_default())
    }
}

/// Default address to listen at. Without certificates the agent serves only this machine.
fn default_listen(file: &File) -> String {
    let host = if file.insecure { "127.0.0.1" } else { "0.0.0.0" };
    format!("{host}:{PORT}")
}

/// Directory for files that must not survive a reboot: the system's for root, otherwise the one of the user's session, if it has one.
fn default_runtime_dir() -> PathBuf {
    let me = Uid::effective();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if me.is_root() => "/run/lattice-agent".into(),
        Some(directory) if Path::new(&directory).is_absolute() => Path::new(&directory).join("lattice-agent"),
        _ => format!("/tmp/lattice-agent-{me}").into(),
    }
}

impl Config {
    /// Reads `file`, if any, and applies `overrides`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a setting is wrong, unknown or missing.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        Self::check(File::read(file)?, overrides).map_err(|error| match error {
            ConfigError::IdentitySettings(IdentitySettingsError::Neither) if file.is_none() => ConfigError::NoFile,
            error => error,
        })
    }

    /// Reads only the settings of this node from `file`: the fabric, and the address of the agent, which `listen` overrides. Serves commands on
    /// a node where the agent does not run, or has no API server. Ignores other settings.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a setting is wrong or unknown.
    pub fn of_node(file: Option<&Path>, listen: Option<String>) -> Result<(NodeFabricConfig, Address), ConfigError> {
        let file = File::read(file)?;
        let listen = listen.or_else(|| file.listen.clone()).unwrap_or_else(|| default_listen(&file));
        Ok((file.fabric, address("listen", &listen)?))
    }

    /// [`Config::runtime_dir`] of this node's agent, for commands that must not run at the same time as it. Ignores other settings.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if the node's name is in a certificate that cannot be read.
    pub(crate) fn runtime_dir_of_node(file: Option<&Path>, over: Overrides) -> Result<PathBuf, ConfigError> {
        let file = File::read(file)?;
        let identity = IdentitySettings { tls: file.tls, insecure: over.insecure || file.insecure };
        // An agent does not start with invalid identity settings.
        let tls = match identity.check() {
            Ok(Identity::Tls(files)) => Some(files),
            Ok(Identity::Insecure) | Err(_) => None,
        };
        let has_user = over.user.or(file.user).is_some() && Uid::effective().is_root();
        let node_id = node_id(over.node_id.or(file.node_id), tls.as_ref(), has_user)?;
        Ok(runtime_dir(over.runtime_dir.or(file.runtime_dir), &node_id))
    }

    fn check(file: File, over: Overrides) -> Result<Self, ConfigError> {
        let file = File { insecure: over.insecure || file.insecure, ..file };
        let listen = over.listen.or_else(|| file.listen.clone()).unwrap_or_else(|| default_listen(&file));
        let identity = IdentitySettings { tls: file.tls, insecure: file.insecure };
        let tls = match identity.check()? {
            Identity::Tls(files) => Some(files),
            Identity::Insecure => None,
        };
        let starter = Uid::effective();
        let user = over.user.or(file.user).filter(|_| starter.is_root());
        let user = user.map(|name| daemon_user(name, tls.is_some())).transpose()?;
        let node_id = node_id(over.node_id.or(file.node_id), tls.as_ref(), user.is_some())?;
        if !is_node_name(&node_id) {
            return Err(ConfigError::NodeName { name: node_id });
        }
        let api = over.api.or(file.api).or(over.api_variable).ok_or(ConfigError::Missing {
            setting: "api",
            remedy: "name the API server as HOST:PORT in the file, with --api, or in LATTICE_API_URL",
        })?;
        let agent_lease = match file.agent_lease {
            None => timeouts::AGENT_LEASE,
            Some(seconds @ 1..=AGENT_LEASE_MAX) => Duration::from_secs(seconds),
            Some(seconds) => return Err(ConfigError::AgentLease { seconds }),
        };
        let runtime_dir = runtime_dir(over.runtime_dir.or(file.runtime_dir), &node_id);
        let advertise = over.advertise.or(file.advertise);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            node_id,
            listen: address("listen", &listen)?,
            port_range: over.port_range.or(file.port_range),
            socket: file.socket,
            advertise: advertise.map(|text| address("advertise", &text)).transpose()?,
            api: api_address(&api, tls.is_some())?,
            tls,
            user,
            starter,
            allow_root: over.allow_root || file.allow_root,
            min_uid: file.min_uid.unwrap_or(MIN_UID),
            setuid_programs: file.setuid_programs,
            limits: file.limits.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
            pam: pam::terms(file.pam_service, file.pam_timeout, starter.is_root())?,
            share_topology: file.share_topology,
            metrics: over.metrics.or(file.metrics),
            fabric: file.fabric,
            runtime_dir: Some(runtime_dir),
            agent_lease,
            when_stopped: file.when_stopped,
        })
    }

    /// Reads this agent's identity.
    ///
    /// # Errors
    /// Fails if a file of the identity is not usable, or belongs to another caller.
    pub(super) fn security(&self) -> Result<Security, DaemonError> {
        let me = Caller::Agent(self.node_id.clone());
        let Some(files) = &self.tls else {
            return Ok(Security::Insecure { name: me });
        };
        let security = Security::from_files(files)?;
        if *security.caller() != me {
            let (path, named) = (files.cert.clone(), security.caller().clone());
            return Err(DaemonError::AnothersCertificate { path, named, node_id: self.node_id.clone() });
        }
        Ok(security)
    }

    /// Why the user may not start processes here, as text; `None` if the user may.
    pub(crate) fn refuse_user(&self, uid: u32) -> Option<String> {
        let me = self.starter;
        let serves_itself_alone = match (&self.tls, me.is_root()) {
            // A client could claim to be any user.
            (None, true) => Some("has no certificates, so that no caller is identified"),
            (_, false) => Some("is not root"),
            (Some(_), true) => None,
        };
        if let Some(why) = serves_itself_alone.filter(|_| me.as_raw() != uid) {
            return Some(format!("this agent {why}: it starts processes of its own user {me} only, not of user {uid}"));
        }
        if uid == 0 {
            let remedy = "set allow_root in the agent's configuration to allow it";
            return (!self.allow_root).then(|| format!("this node starts no processes of root; {remedy}"));
        }
        (uid < self.min_uid && uid != me.as_raw()).then(|| {
            format!("this node starts processes of users from {} on (min_uid), not of user {uid}", self.min_uid)
        })
    }
}

/// User that a daemon of root becomes.
fn daemon_user(name: String, has_certificates: bool) -> Result<Account, ConfigError> {
    let account = Account::named(&name)?;
    match account.uid {
        0 => Err(ConfigError::RootAsUser { name }),
        _ if !has_certificates => Err(ConfigError::UserWithoutCertificates),
        _ => Ok(account),
    }
}

/// Name of this node: from the settings, else from the certificate, else the host name.
fn node_id(set: Option<String>, tls: Option<&TlsFiles>, has_user: bool) -> Result<String, ConfigError> {
    match (set, tls) {
        (Some(name), _) => Ok(name),
        // Root does not rely on a certificate that the daemon's user can replace.
        (None, Some(tls)) if !has_user => node_name(tls),
        (None, _) => Ok(node_info::host_name()),
    }
}

/// Directory of a node, below the directory in the settings or the default one.
fn runtime_dir(set: Option<PathBuf>, node_id: &str) -> PathBuf {
    set.unwrap_or_else(default_runtime_dir).join(node_id)
}

/// Node that a certificate names. Settings are read before the fork server starts, and its sessions must not inherit the key. So only the
/// certificate is read.
fn node_name(files: &TlsFiles) -> Result<String, ConfigError> {
    match Security::named_in(files)? {
        Caller::Agent(name) => Ok(name),
        named => Err(ConfigError::NoAgent { path: files.cert.clone(), named }),
    }
}

/// `HOST:PORT`, with or without `http://` or `https://` before it.
fn address(setting: &'static str, text: &str) -> Result<Address, ConfigError> {
    let bare = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    bare.trim_end_matches('/').parse().map_err(|source| ConfigError::Address { setting, source })
}

fn api_address(text: &str, has_certificate: bool) -> Result<Address, ConfigError> {
    match address("api", text)? {
        address @ Address::Unix(_) if has_certificate => Err(ConfigError::ApiSocket { address }),
        address => Ok(address),
    }
}

#[cfg(test)]
mod tests;
