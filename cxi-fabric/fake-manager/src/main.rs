//! A fake fabric manager for tests and demonstrations: `fake-fabric-manager --script faults.json`.
//!
//! Prints its URL as the first line of stdout, then each call as a JSON line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cxi_fabric::fake::{Access, FakeFabric, Options, Rule};

/// A fake fabric manager.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Listen address; port 0 selects any free port
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// A JSON list of faults, such as [{"on": "create", "times": 2, "fault": {"status": {"status": 503}}}]
    #[arg(long)]
    script: Option<PathBuf>,

    /// Minimum time of each answer, in milliseconds
    #[arg(long, default_value_t = 0)]
    delay: u64,

    /// Accept only clients with a token, which POST /token issues for the client secret in this file
    #[arg(long)]
    client_secret_file: Option<PathBuf>,

    /// Do not offer the list of services
    #[arg(long)]
    no_list: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fake-fabric-manager: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), String> {
    let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let script = match &cli.script {
        Some(path) => serde_json::from_str::<Vec<Rule>>(&read(path)?).map_err(|error| format!("script: {error}"))?,
        None => Vec::new(),
    };
    let access = match &cli.client_secret_file {
        Some(path) => Access::Token { client_secret: read(path)?.trim_end().to_owned() },
        None => Access::Anybody,
    };
    let options = Options {
        address: cli.listen,
        script,
        access,
        delay: Duration::from_millis(cli.delay),
        offers_list: !cli.no_list,
        log: Some(Box::new(std::io::stdout())),
        ..Options::default()
    };
    let fake = FakeFabric::start(options).map_err(|error| format!("{}: {error}", cli.listen))?;
    println!("{}", fake.url());
    fake.run();
    Ok(())
}
