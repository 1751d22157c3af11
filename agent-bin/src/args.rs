//! Command line of `lattice-agent`. Flags and variables override the settings file; both are checked by [`crate::daemon::Config`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use pmi_transport::address::PortRange;

use crate::cxi_command::CxiCommand;
use crate::daemon::Overrides;
use crate::invitation::{InviteArgs, ListenArgs};
use crate::join::JoinArgs;

/// Default settings file. It need not exist.
const CONFIG: &str = "/etc/lattice/agent.toml";

/// Run the processes of launches on this node, for an API server.
#[derive(Debug, Parser)]
#[command(name = "lattice-agent", version)]
pub struct Args {
    /// Settings file, in TOML [default: /etc/lattice/agent.toml, if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Name of this node [default: the name in its certificate; with --insecure or --user, the host name]
    #[arg(long, value_name = "NAME", env = "LATTICE_NODE_ID")]
    pub(crate) node_id: Option<String>,
    /// Address to listen on [default: 0.0.0.0:50052; insecure: 127.0.0.1:50052]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "grpc-addr", env = "LATTICE_AGENT_LISTEN")]
    pub(crate) listen: Option<String>,
    /// Use the first free port of this range if --listen has port 0, such as 60000-60100 [default: any port]
    #[arg(long, value_name = "FIRST-LAST", env = "LATTICE_PORT_RANGE")]
    pub(crate) port_range: Option<PortRange>,
    /// Address that the API server and other agents connect to [default: that of --listen, or the address towards the API server]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "advertise-addr", env = "LATTICE_ADVERTISE_ADDR")]
    pub(crate) advertise: Option<String>,
    /// Address of the API server [default: `api` in the settings, else LATTICE_API_URL]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) api: Option<String>,
    /// Use no certificates, and accept the identity that each process on this machine claims; for tests
    #[arg(long)]
    pub(crate) insecure: bool,
    /// User that the daemon switches to before it listens, if started as root. A process that stays root then starts the sessions, on
    /// orders of the API server only [default: stay root]
    #[arg(long, value_name = "NAME", env = "LATTICE_AGENT_USER")]
    pub(crate) user: Option<String>,
    /// Also run launches of root
    #[arg(long)]
    pub(crate) allow_root: bool,
    /// Serve Prometheus metrics over HTTP
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Directory of sessions that outlive this agent, until the next agent takes them over [default: /run/lattice-agent; not root: below
    /// $XDG_RUNTIME_DIR, else in /tmp]
    #[arg(long, value_name = "DIRECTORY", env = "LATTICE_RUNTIME_DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Check the settings, and start nothing
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Command to run instead of the daemon.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Commands of the program, in addition to the daemon.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Manage the CXI services of this node, without the API server and the agent.
    #[command(subcommand)]
    Cxi(CxiCommand),
    /// Join a cluster that a user creates with `lattice start --via` or `lattice launch --via`, until it ends. Settings are read from
    /// standard input only.
    Join(JoinArgs),
    /// Wait for invitations to such clusters, in Kubernetes pods, where no other process can start an agent. Each invitation starts an
    /// agent that joins.
    Listen(ListenArgs),
    /// Invite a host that waits for it, for `lattice launch --via k8s`. Standard input is forwarded to the agent there.
    Invite(InviteArgs),
    /// Mount the PMI socket of a rank in its container; OCI runtimes call this, as configured in packaging/oci.
    OciHook,
    /// Write the man pages of lattice-agent and its commands.
    Man {
        /// Directory of the pages, which must exist
        #[arg(long, value_name = "DIRECTORY")]
        all: PathBuf,
    },
}

impl Args {
    /// The settings file: the file of --config, else the default file if it exists.
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
