//! Settings of the API server: a TOML file, and flags that override it. Both are checked together once.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use cxi_fabric::FabricConfig;
pub(crate) use lattice_daemon::identity::Identity;
use lattice_daemon::identity::{IdentitySettings, IdentitySettingsError, TlsSettings};
use lattice_daemon::settings_file::{self, SettingsFileError};
use lattice_session::timeouts;
use pmi_transport::address::{Address, AddressError, PortRange};
use serde::Deserialize;

use super::allocations::plan::{AllocationSettings, Creators};
use super::args::ApiArgs;
use super::fabric::FabricSettings;
use super::launch::settings::LaunchSettings;
use super::launch::spool::SpoolLimits;
use super::launch_quota::LaunchShares;
use super::renewal::RenewalSettings;
use super::start_policy::{Spawning, StartPolicy};

/// The file that is read if none is named; it need not exist.
pub(crate) const DEFAULT_FILE: &str = "/etc/lattice/api.toml";
const DEFAULT_SOCKET: &str = "/run/lattice/api.sock";
const DEFAULT_STATE: &str = "/var/lib/lattice/api.redb";
const DEFAULT_PORT: u16 = 50051;
/// Default time that launches wait for fabric credentials, in seconds.
const FABRIC_TIMEOUT: u32 = 12;
/// The longest time that can be set. A launch is signed before it waits, for at most twice this time. Agents accept signatures that are
/// less than a minute old. A client waits longer (`timeouts::START_ANSWER`).
const FABRIC_TIMEOUT_MAX: u32 = 25;
/// The longest lease of an agent, in seconds.
const LEASE_MAX: u64 = 365 * 24 * 3600;

/// A consistent configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Addresses at which agents and users on other machines connect.
    pub listen: Vec<Address>,
    /// Range in which the first free port is used for an address with port 0; `None` for any port.
    pub port_range: Option<PortRange>,
    /// The Unix socket of users on this machine.
    pub socket: Option<PathBuf>,
    /// The file that holds the state.
    pub state: PathBuf,
    /// The file that describes nodes; `None` for none.
    pub inventory: Option<PathBuf>,
    /// The address at which metrics are served; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// Means by which clients and agents authenticate themselves.
    pub identity: Identity,
    /// Rules about the users that may create allocations, and limits on the number of allocations.
    pub allocations: AllocationSettings,
    /// Time for which an agent lets launches run without contact to this server.
    pub lease: Duration,
    /// Routes of launches to their nodes, and limits of each launch.
    pub launches: LaunchSettings,
    /// Share of each user in launches that are not over.
    pub launch_shares: LaunchShares,
    /// Limits on the output that launches without an owner store next to the state.
    pub spool: SpoolLimits,
    /// Rules about the programs that may be started.
    pub policy: StartPolicy,
    /// The authority that renews agents' certificates; `None` if they are not renewed.
    pub renewal: Option<RenewalSettings>,
    /// The source of fabric credentials; `None` without a fabric that requires them.
    pub fabric: Option<FabricSettings>,
}

/// Reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    File(#[from] SettingsFileError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(
        "no client could reach the server: neither a listen address nor a socket is set\ntry: listen = [\"0.0.0.0:50051\"], or socket = \"/run/lattice/api.sock\""
    )]
    Unreachable,
    #[error("unix:{} is a socket; name it as `socket`, and leave `listen` to host:port", path.display())]
    SocketAsListen { path: PathBuf },
    #[error(transparent)]
    Identity(#[from] IdentitySettingsError),
    #[error(
        "there is no {DEFAULT_FILE}, and the command line has neither certificates (--ca, --cert and --key) nor --insecure\n\
         try: --config FILE; lattice pki init DIR, which makes certificates"
    )]
    NoFile,
    #[error("{name} is {value}; it can be {possible}")]
    Range { name: &'static str, value: u32, possible: &'static str },
    #[error(
        "fabric is set, and cluster is not; name this cluster as no other one at the same fabric manager is called"
    )]
    NamelessCluster,
    #[error("cluster is {name:?}; a cluster's name has 1 to 32 letters, digits, '-' and '_'")]
    ClusterName { name: String },
    #[error("entry_points has {}; only whole paths without .. can be named", path.display())]
    EntryPoint { path: PathBuf },
    #[error("fence_timeout is 0 seconds; leave it out for no limit")]
    NoTime,
    #[error("lease is {seconds} seconds; it can be 5 to {LEASE_MAX}, a year")]
    Lease { seconds: u64 },
    #[error("spool_launch is {launch} MiB, and spool_total {total}; one launch cannot have more than all")]
    Spool { launch: u64, total: u64 },
}

/// Contents of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<Vec<String>>,
    port_range: Option<PortRange>,
    socket: Option<PathBuf>,
    state: Option<PathBuf>,
    inventory: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    tls: TlsSettings,
    #[serde(default)]
    create_allocations: Creators,
    allocations_per_user: Option<u32>,
    min_uid: Option<u32>,
    launches_per_user: Option<u32>,
    /// In MiB.
    specs_per_user: Option<u32>,
    specs_total: Option<u32>,
    relay_above: Option<u32>,
    relay_fan_out: Option<u32>,
    barrier_fan_out: Option<u32>,
    data_fan_out: Option<u32>,
    /// In seconds.
    lease: Option<u64>,
    /// In seconds.
    fence_timeout: Option<u64>,
    /// In MiB.
    spool_launch: Option<u32>,
    spool_total: Option<u32>,
    spawning: Option<bool>,
    entry_points: Option<Vec<PathBuf>>,
    renewal: Option<RenewalSettings>,
    cluster: Option<String>,
    /// In seconds.
    fabric_patience: Option<u32>,
    fabric: Option<FabricConfig>,
}

impl Config {
    /// Reads the file that the flags name, or else the default file if it exists. Applies the flags, and checks the result.
    pub(crate) fn load(args: &ApiArgs) -> Result<Self, ConfigError> {
        let file = match &args.config {
            Some(path) => settings_file::read(path)?,
            None if Path::new(DEFAULT_FILE).exists() => settings_file::read(Path::new(DEFAULT_FILE))?,
            None => File::default(),
        };
        let is_missing = args.config.is_none() && !Path::new(DEFAULT_FILE).exists();
        Self::check(over(file, args)).map_err(|error| match error {
            ConfigError::Identity(IdentitySettingsError::Neither) if is_missing => ConfigError::NoFile,
            error => error,
        })
    }

    fn check(file: File) -> Result<Self, ConfigError> {
        let identity = identity(&file)?;
        let listen = match &file.listen {
            Some(addresses) => addresses.iter().map(|text| text.parse()).collect::<Result<Vec<Address>, _>>()?,
            None => vec![default_address(&identity)],
        };
        for address in &listen {
            if let Address::Unix(path) = address {
                return Err(ConfigError::SocketAsListen { path: path.clone() });
            }
        }
        let socket = file.socket.clone().unwrap_or_else(|| DEFAULT_SOCKET.into());
        let socket = (!socket.as_os_str().is_empty()).then_some(socket);
        if listen.is_empty() && socket.is_none() {
            return Err(ConfigError::Unreachable);
        }
        Ok(Self {
            allocations: allocation_settings(&file)?,
            launches: launch_settings(&file)?,
            launch_shares: launch_shares(&file)?,
            spool: spool_limits(&file)?,
            policy: start_policy(&file)?,
            renewal: renewal(&file)?,
            fabric: fabric(&file)?,
            listen,
            port_range: file.port_range,
            socket,
            state: file.state.unwrap_or_else(|| DEFAULT_STATE.into()),
            inventory: file.inventory,
            metrics: file.metrics,
            identity,
            lease: lease(file.lease)?,
        })
    }
}

fn over(file: File, args: &ApiArgs) -> File {
    let ApiArgs { listen, port_range, socket, state, metrics, insecure, ca, cert, key, config: _, check_config: _ } =
        args;
    File {
        port_range: port_range.or(file.port_range),
        listen: if listen.is_empty() { file.listen } else { Some(listen.clone()) },
        socket: socket.clone().or(file.socket),
        state: state.clone().or(file.state),
        metrics: metrics.or(file.metrics),
        insecure: *insecure || file.insecure,
        tls: TlsSettings { ca: ca.clone(), cert: cert.clone(), key: key.clone() }.or(file.tls),
        ..file
    }
}

fn identity(file: &File) -> Result<Identity, ConfigError> {
    Ok(IdentitySettings { tls: file.tls.clone(), insecure: file.insecure }.check()?)
}

fn default_address(identity: &Identity) -> Address {
    let host = match identity {
        Identity::Insecure => "127.0.0.1",
        Identity::Tls(_) => "0.0.0.0",
    };
    Address::Tcp { host: host.to_owned(), port: DEFAULT_PORT }
}

fn fabric(file: &File) -> Result<Option<FabricSettings>, ConfigError> {
    let Some(manager) = file.fabric.clone() else { return Ok(None) };
    let name = file.cluster.clone().ok_or(ConfigError::NamelessCluster)?;
    let cluster = name.parse().map_err(|_| ConfigError::ClusterName { name })?;
    let timeout = match file.fabric_patience.unwrap_or(FABRIC_TIMEOUT) {
        seconds @ 1..=FABRIC_TIMEOUT_MAX => Duration::from_secs(seconds.into()),
        value => return Err(ConfigError::Range { name: "fabric_patience", value, possible: "1 to 25" }),
    };
    Ok(Some(FabricSettings { cluster, manager, timeout }))
}

fn lease(seconds: Option<u64>) -> Result<Duration, ConfigError> {
    match seconds.map(Duration::from_secs) {
        None => Ok(timeouts::LEASE),
        Some(lease) if (timeouts::LEASE_MIN..=Duration::from_secs(LEASE_MAX)).contains(&lease) => Ok(lease),
        Some(lease) => Err(ConfigError::Lease { seconds: lease.as_secs() }),
    }
}

fn spool_limits(file: &File) -> Result<SpoolLimits, ConfigError> {
    let bytes = |mebibytes: Option<u32>, default| mebibytes.map_or(default, |value| u64::from(value) << 20);
    let default = SpoolLimits::default();
    let SpoolLimits { launch, total } =
        SpoolLimits { launch: bytes(file.spool_launch, default.launch), total: bytes(file.spool_total, default.total) };
    match launch > total {
        true => Err(ConfigError::Spool { launch: launch >> 20, total: total >> 20 }),
        false => Ok(SpoolLimits { launch, total }),
    }
}

fn allocation_settings(file: &File) -> Result<AllocationSettings, ConfigError> {
    let default = AllocationSettings::default();
    let min_uid = file.min_uid.unwrap_or(default.min_uid);
    let default = AllocationSettings { creators: file.create_allocations, min_uid, ..default };
    match file.allocations_per_user {
        Some(0) => {
            let possible = "1 or more; create_allocations = \"admins\" keeps users from making any";
            Err(ConfigError::Range { name: "allocations_per_user", value: 0, possible })
        }
        Some(most) => Ok(AllocationSettings { per_user: most as usize, ..default }),
        None => Ok(default),
    }
}

fn launch_shares(file: &File) -> Result<LaunchShares, ConfigError> {
    let default = LaunchShares::default();
    let positive = |name, value: Option<u32>| match value {
        Some(0) => Err(ConfigError::Range { name, value: 0, possible: "1 or more" }),
        value => Ok(value.map(|value| value as usize)),
    };
    let bytes = |name, value, default| {
        let mebibytes: Option<usize> = positive(name, value)?;
        Ok::<usize, ConfigError>(mebibytes.map_or(default, |mebibytes| mebibytes << 20))
    };
    Ok(LaunchShares {
        launches: positive("launches_per_user", file.launches_per_user)?.unwrap_or(default.launches),
        spec_bytes: bytes("specs_per_user", file.specs_per_user, default.spec_bytes)?,
        all_spec_bytes: bytes("specs_total", file.specs_total, default.all_spec_bytes)?,
    })
}

fn start_policy(file: &File) -> Result<StartPolicy, ConfigError> {
    let is_plain = |path: &&PathBuf| path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    if let Some(path) = file.entry_points.iter().flatten().find(|path| !is_plain(path)) {
        return Err(ConfigError::EntryPoint { path: path.clone() });
    }
    let spawning = if file.spawning == Some(false) { Spawning::Forbidden } else { Spawning::Allowed };
    Ok(StartPolicy { spawning, entry_points: file.entry_points.clone() })
}

fn renewal(file: &File) -> Result<Option<RenewalSettings>, ConfigError> {
    match &file.renewal {
        Some(RenewalSettings { hours: value, .. }) if !(1..=8760).contains(value) => {
            Err(ConfigError::Range { name: "renewal.hours", value: *value, possible: "1 to 8760, a year" })
        }
        settings => Ok(settings.clone()),
    }
}

fn launch_settings(file: &File) -> Result<LaunchSettings, ConfigError> {
    let default = LaunchSettings::default();
    let in_range = |name, value: Option<u32>, default, possible: std::ops::RangeInclusive<u32>, words| match value {
        Some(value) if !possible.contains(&value) => Err(ConfigError::Range { name, value, possible: words }),
        value => Ok(value.unwrap_or(default)),
    };
    Ok(LaunchSettings {
        relay_above: in_range("relay_above", file.relay_above, default.relay_above, 1..=u32::MAX, "1 or more")?,
        relay_fan_out: in_range("relay_fan_out", file.relay_fan_out, default.relay_fan_out, 1..=1024, "1 to 1024")?,
        barrier_fan_out: in_range("barrier_fan_out", file.barrier_fan_out, 0, 0..=1024, "0 to 1024")?,
        data_fan_out: in_range("data_fan_out", file.data_fan_out, 0, 0..=1024, "0 to 1024")?,
        fence_timeout: match file.fence_timeout {
            Some(0) => return Err(ConfigError::NoTime),
            seconds => seconds.map(Duration::from_secs),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn checked(text: &str) -> Result<Config, String> {
        let file = toml::from_str(text).map_err(|error| error.to_string())?;
        Config::check(file).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_suit_their_identity() {
        let insecure = checked("insecure = true").unwrap();
        assert_eq!(insecure.listen[0].to_string(), "127.0.0.1:50051");
        assert_eq!(insecure.socket, Some(DEFAULT_SOCKET.into()));
        let secure = checked("fence_timeout = 60\n[tls]\nca = \"/a\"\ncert = \"/b\"\nkey = \"/c\"").unwrap();
        assert_eq!(secure.listen[0].to_string(), "0.0.0.0:50051");
        assert_eq!(secure.launches.fence_timeout, Some(Duration::from_secs(60)));
    }

    /// The error for an unknown setting lists all settings.
    #[test]
    fn the_manual_lists_each_setting_and_no_other() {
        let names = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<String>>();
        let error = toml::from_str::<File>("not_a_setting = 1").unwrap_err();
        let mut known = names(error.message().split_once("expected one of").unwrap().1);
        // Its settings are in a table of their own.
        known.remove("fabric");
        let manual = include_str!("../../docs/operate/settings.md");
        let section = manual.split("\n## ").find(|section| section.starts_with("/etc/lattice/api.toml")).unwrap();
        let table = section.split("\n`[fabric]`").next().unwrap();
        // The first name of a row, or its section, such as `[tls]`.
        let first = |row: &str| row.split('`').next().map(|name| name.trim_matches(['[', ']']).to_owned());
        let listed: BTreeSet<String> =
            table.lines().filter_map(|line| line.strip_prefix("| `").and_then(first)).collect();
        assert_eq!(listed, known);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let check = |text, expected: &str| {
            let error = checked(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("", "neither certificates");
        check("insecure = true\ntls.ca = \"/a\"", "exclude each other");
        check("[tls]\nca = \"/a\"\nkey = \"/b\"", "tls.ca is set, tls.cert is not");
        check("[tls]\ncertificate = \"/a\"", "unknown field");
        check("insecure = true\nlisten = []\nsocket = \"\"", "no client could reach");
        check("insecure = true\nlisten = [\"unix:/a\"]", "is a socket");
        check("insecure = true\nlisten = [\"http://a\"]", "no address");
        check("insecure = true\nrelay_fan_out = 0", "relay_fan_out is 0");
        check("insecure = true\nfence_timeout = 0", "leave it out");
        check("insecure = true\nlease = 4", "lease is 4 seconds; it can be 5 to 31536000");
        check("insecure = true\nspool_total = 8", "spool_launch is 64 MiB, and spool_total 8");
        check("insecure = true\nallocations_per_user = 0", "allocations_per_user is 0; it can be 1 or more");
        check("insecure = true\nlaunches_per_user = 0", "launches_per_user is 0; it can be 1 or more");
        check("insecure = true\nentry_points = [\"/opt\", \"/opt/../home\"]", "entry_points has /opt/../home;");
        check("insecure = true\nentry_points = [\"bin\"]", "entry_points has bin;");
        check("insecure = true\n[renewal]\nauthority = \"/a\"\nhours = 0", "renewal.hours is 0; it can be 1 to 8760");
        check("insecure = true\nspecs_per_user = 0", "specs_per_user is 0; it can be 1 or more");
        check("insecure = true\nspecs_total = 0", "specs_total is 0; it can be 1 or more");
        check("insecure = true\ncolour = 1", "unknown field");
        check("insecure = true\ncreate_allocations = \"nobody\"", "unknown variant");
    }
}
