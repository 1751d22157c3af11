//! Command line of `lattice-agent`. Flags and variables override the settings file; both are checked by [`crate::daemon::Config`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use pmi_transport::address::PortRange;

use crate::cxi_command::CxiCommand;
use crate::daemon::Overrides;
use crate::invitation::{InviteArgs, ListenArgs};
use crate::join::JoinArgs;

/// Settings file that is read when none is named; it need not exist.
const CONFIG: &str = "/etc/lattice/agent.toml";

/// Runs the processes of launches on this node, for an API server.
#[derive(Debug, Parser)]
#[command(name = "lattice-agent", version)]
pub struct Args {
    /// The settings, in TOML [default: /etc/lattice/agent.toml, if it is there]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// This node's name [default: the one in its certificate; insecure, and with a user: the host's]
    #[arg(long, value_name = "NAME", env = "LATTICE_NODE_ID")]
    pub(crate) node_id: Option<String>,
    /// Address to listen at [default: 0.0.0.0:50052; insecure: 127.0.0.1:50052]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "grpc-addr", env = "LATTICE_AGENT_LISTEN")]
    pub(crate) listen: Option<String>,
    /// Ports of which the first free one is taken if --listen has port 0, such as 60000-60100 [default: any]
    #[arg(long, value_name = "FIRST-LAST", env = "LATTICE_PORT_RANGE")]
    pub(crate) port_range: Option<PortRange>,
    /// Address at which others reach this agent [default: the one it listens at]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "advertise-addr", env = "LATTICE_ADVERTISE_ADDR")]
    pub(crate) advertise: Option<String>,
    /// The API server [default: `api` in the settings, else LATTICE_API_URL]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) api: Option<String>,
    /// Use no certificates: anybody on this machine is believed whatever they say they are. For trying out
    #[arg(long)]
    pub(crate) insecure: bool,
    /// The user that the daemon becomes before it listens, when it is started as root: sessions are then started by a process of root's
    /// that takes orders of the API server only [default: it stays root]
    #[arg(long, value_name = "NAME", env = "LATTICE_AGENT_USER")]
    pub(crate) user: Option<String>,
    /// Run launches of root too
    #[arg(long)]
    pub(crate) allow_root: bool,
    /// Serve Prometheus metrics over HTTP
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Directory in which sessions that outlive this agent wait for the next one [default: /run/lattice-agent; not root: below
    /// $XDG_RUNTIME_DIR, else in /tmp]
    #[arg(long, value_name = "DIRECTORY", env = "LATTICE_RUNTIME_DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Check the settings and do nothing
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Command to carry out in place of running launches.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Commands of the program beside the daemon.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Look after the CXI services of this node; neither the API server nor the agent need run.
    #[command(subcommand)]
    Cxi(CxiCommand),
    /// Join a cluster that a user makes for himself with `lattice start --via` or `lattice launch --via`, until it ends. Settings come
    /// over standard input; no others are read.
    Join(JoinArgs),
    /// Wait for invitations into such clusters, where nobody else can start an agent: in pods of Kubernetes. Each one starts an agent
    /// that joins.
    Listen(ListenArgs),
    /// Invite a host that waits for it; `lattice launch --via k8s` does this. Standard input goes to the agent there.
    Invite(InviteArgs),
    /// Bring the PMI socket of a rank into its container; OCI runtimes call this, as packaging/oci tells them to.
    OciHook,
}

impl Args {
    /// The settings file: the one that is named, else the default one if it exists.
    pub(crate) fn file(&self) -> Option<&Path> {
        let default = Path::new(CONFIG);
        self.config.as_deref().or(default.exists().then_some(default))
    }

    /// Settings that flags and variables override.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            node_id: self.node_id.clone(),
            listen: self.listen.clone(),
            port_range: self.port_range,
            advertise: self.advertise.clone(),
            api: self.api.clone(),
            api_variable: std::env::var("LATTICE_API_URL").ok().filter(|text| !text.is_empty()),
            insecure: self.insecure,
            user: self.user.clone(),
            allow_root: self.allow_root,
            metrics: self.metrics,
            runtime_dir: self.runtime_dir.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_become_overrides_and_the_settings_file_may_stand_behind_a_command() {
        let args =
            ["lattice-agent", "--node-id", "n1", "--grpc-addr", "h:1", "--advertise-addr", "h:2", "--api", "h:3"];
        let args = Args::try_parse_from(args.into_iter().chain(["--insecure", "--metrics", "127.0.0.1:9"])).unwrap();
        let Overrides { node_id, listen, advertise, api, insecure, allow_root, metrics, .. } = args.overrides();
        let texts = [node_id, listen, advertise, api].map(Option::unwrap);
        assert_eq!(texts, ["n1", "h:1", "h:2", "h:3"]);
        assert_eq!((insecure, allow_root, metrics), (true, false, Some("127.0.0.1:9".parse().unwrap())));
        let args = Args::try_parse_from(["lattice-agent", "cxi", "list", "--config", "/a.toml"]).unwrap();
        assert_eq!(args.file(), Some(Path::new("/a.toml")));
        assert!(matches!(args.command, Some(Command::Cxi(_))));
    }

    #[test]
    fn services_are_cleaned_by_vni_or_all_of_them_and_never_by_default() {
        let clean = |words: &[&str]| Args::try_parse_from([&["lattice-agent", "cxi", "clean"], words].concat());
        assert!(clean(&["--vni", "1024,1025"]).is_ok());
        assert!(clean(&["--all", "--dry-run"]).is_ok());
        assert!(clean(&[]).is_err());
        assert!(clean(&["--all", "--vni", "1024"]).is_err());
    }
}
