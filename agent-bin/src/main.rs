//! `lattice-agent`: runs one session that is given to it as JSON.
//!
//! `lattice-agent session < spec.json` carries out a [`lattice_agent::spec::SessionSpec`], passes the ranks' output through, and writes
//! how each rank ended as JSON lines to standard error.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use lattice_agent::event::{Event, Stream};
use lattice_agent::services::LocalServices;
use lattice_agent::session::{self, Alone, StdinSource, Surroundings};
use lattice_agent::spec::SessionSpec;
use pmi_core::ids::JobId;
use rank_spawner::LaunchTag;
use tokio::sync::mpsc;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["session"] => match run_session() {
            Ok(code) => code,
            Err(error) => {
                eprintln!("lattice-agent: {error}");
                ExitCode::from(125)
            }
        },
        ["--version"] => {
            println!("lattice-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: lattice-agent session < spec.json");
            ExitCode::from(125)
        }
    }
}

/// Reads a spec from standard input and runs it to its end.
fn run_session() -> io::Result<ExitCode> {
    let spec: SessionSpec = serde_json::from_reader(io::stdin().lock())?;
    let tag = LaunchTag::new(JobId::new(&spec.launch_id).map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (events, mut happened) = mpsc::channel(64);
        // The session ends its ranks when nobody holds this end any more.
        let (_control, control) = mpsc::channel(1);
        let surroundings = Surroundings {
            nodes: Arc::new(Alone),
            services: Arc::new(LocalServices::default()),
            events,
            alarm: None,
            control,
            stdin: StdinSource::Empty,
            trace: None,
            tag,
            keeper: None,
        };
        let show = async {
            while let Some(event) = happened.recv().await {
                if let Event::Output(output) = event {
                    // Who does not read the output any more still wants the report.
                    let _ = match output.stream {
                        Stream::Stdout => io::stdout().write_all(&output.bytes),
                        Stream::Stderr => io::stderr().write_all(&output.bytes),
                    };
                }
            }
        };
        let (report, ()) = tokio::join!(session::run(spec, surroundings), show);
        for (rank, exit) in &report.exits {
            eprintln!("{}", serde_json::json!({ "rank": rank, "exit": exit }));
        }
        if let Some(cause) = &report.cause {
            eprintln!("{}", serde_json::json!({ "cause": cause.to_string() }));
        }
        Ok(ExitCode::from(u8::from(report.cause.is_some())))
    })
}
