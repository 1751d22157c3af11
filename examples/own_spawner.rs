//! A session with ranks that the host starts itself, here by `std` and under `nice`: the session serves them, reads their output and ends them.
//!
//! ```text
//! $ cargo run -p lattice-examples --example own_spawner -- ./my_mpi_program        (or any other program)
//! [0] hello from rank 0 of 4
//! ...
//! all 4 ranks have ended well
//! ```
//!
//! Ranks reach PMI through a port, as this spawner passes no descriptors. A host that only changes commands passes them to a `Spawner`, which does.

use std::process::{Command, Stdio};
use std::{env, error::Error};

use lattice_session::event::{Event, Output};
use lattice_session::session_io::SessionIo;
use lattice_session::settings::{Entrance, JobMemory};
use lattice_session::spawner::{Deliver, RankSpawner};
use lattice_session::spec::SessionSpec;
use rank_spawner::{RankCommand, RankProcess};
use tokio::sync::mpsc;

struct Nice;

impl RankSpawner for Nice {
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver) {
        for RankCommand { rank, program, arguments, environment, directory, .. } in commands {
            let mut command = Command::new("nice");
            command.args(["-n", "5"]).arg(program.path()).args(arguments.iter().skip(1));
            command.env_clear().envs(environment.iter()).current_dir(directory.unwrap_or_else(|| ".".into()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            deliver(RankProcess::start(rank, &mut command));
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let mut spec = SessionSpec::on_one_node(4, words.next().unwrap_or_else(|| "nice".into()), words.collect())?;
    (spec.settings.pmi.entrance, spec.settings.pmi.job_memory) = (Entrance::Port, JobMemory::Off);
    let (events, mut happened) = mpsc::channel(64);
    let (orders, control) = mpsc::channel(1);
    let io = SessionIo { spawner: Some(Box::new(Nice)), ..SessionIo::on_one_node(&spec, events, control)? };
    let session = tokio::spawn(lattice_session::run(spec, io));
    while let Some(event) = happened.recv().await {
        if let Event::Output(Output { rank, bytes, .. }) = event {
            print!("[{rank}] {}", String::from_utf8_lossy(&bytes));
        }
    }
    let report = session.await?;
    drop(orders);
    report.cause.map_or(Ok(()), |cause| Err(cause.to_string()))?;
    println!("all {} ranks have ended well", report.exits.len());
    Ok(())
}
