//! `lattice-agent`: the node agent. Reads its settings, forks the fork server while it has one thread, and runs. Beside that it
//! looks after the CXI services of its node, for an operator there.

mod cxi_command;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lattice_agent::daemon::{self, Config, Overrides};
use lattice_session::session_process;
use rank_spawner::ForkServer;
use tracing_subscriber::EnvFilter;

use self::cxi_command::CxiCommand;

/// Where the settings are, unless a flag says otherwise; the file need not be there.
const CONFIG: &str = "/etc/lattice/agent.toml";

/// The exit code of every failure of ours, as in `lattice`.
const FAILURE: u8 = 125;

/// Runs the processes of launches on this node, for an API server.
#[derive(Parser)]
#[command(name = "lattice-agent", version)]
struct Args {
    /// The settings, in TOML [default: /etc/lattice/agent.toml, if it is there]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// This node's name [default: the one in its certificate; insecure: the host's]
    #[arg(long, value_name = "NAME", env = "LATTICE_NODE_ID")]
    node_id: Option<String>,
    /// Where to listen [default: 0.0.0.0:50052; insecure: 127.0.0.1:50052]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "grpc-addr", env = "LATTICE_AGENT_LISTEN")]
    listen: Option<String>,
    /// Where others reach this agent [default: where it listens]
    #[arg(long, value_name = "HOST:PORT", visible_alias = "advertise-addr", env = "LATTICE_ADVERTISE_ADDR")]
    advertise: Option<String>,
    /// The API server
    #[arg(long, value_name = "HOST:PORT", env = "LATTICE_API_URL")]
    api: Option<String>,
    /// Use no certificates: anybody on this machine is believed whatever they say they are. For trying out
    #[arg(long)]
    insecure: bool,
    /// Run launches of root too
    #[arg(long)]
    allow_root: bool,
    /// Serve Prometheus metrics over HTTP
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Check the settings and do nothing
    #[arg(long)]
    check_config: bool,
    /// What to do in place of running launches.
    #[command(subcommand)]
    command: Option<Command>,
}

/// What an agent's program does beside being an agent.
#[derive(Subcommand)]
enum Command {
    /// Look after the CXI services of this node; neither the API server nor the agent need run.
    #[command(subcommand)]
    Cxi(CxiCommand),
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(answer) => {
            // Nobody is there to be told that nobody is there.
            let _ = answer.print();
            return if answer.use_stderr() { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS };
        }
    };
    match run(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("lattice-agent: {error}");
            ExitCode::from(FAILURE)
        }
    }
}

fn run(args: Args) -> Result<u8, Box<dyn std::error::Error>> {
    let default = Path::new(CONFIG);
    let file = args.config.as_deref().or(default.exists().then_some(default));
    if let Some(Command::Cxi(command)) = &args.command {
        return Ok(cxi_command::run(command, file, args.listen)?);
    }
    let overrides = Overrides {
        node_id: args.node_id,
        listen: args.listen,
        advertise: args.advertise,
        api: args.api,
        insecure: args.insecure,
        allow_root: args.allow_root,
        metrics: args.metrics,
    };
    let config = Config::load(file, overrides)?;
    if args.check_config {
        daemon::check(&config)?;
        println!("lattice-agent: the settings of {} make sense", config.node_id);
        return Ok(0);
    }
    // Session processes would each find out anew what the processor can do; where that is emulated, as in virtual machines,
    // it takes as long as a fork.
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(std::arch::is_x86_feature_detected!("avx2"));
    // Before any thread, any key and any connection: session processes are copies of what this process is now.
    let forks = ForkServer::fork(session_process::main)?;
    let filter = EnvFilter::try_from_env("LATTICE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if let Err(error) = cxi_fabric::secret::keep_out_of_core_dumps() {
        tracing::warn!(%error, "core dumps of this agent would hold keys");
    }
    daemon::run(config, forks)?;
    Ok(0)
}
