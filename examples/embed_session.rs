//! A node's part of a launch, whole: starts ranks, serves them PMI-1, PMI-2 and PMIx, brings their output, and leaves nothing behind.
//!
//! ```text
//! $ cargo run -p lattice-examples --example embed_session -- ./my_mpi_program        (or any other program)
//! [0] hello from rank 0 of 4
//! ...
//! all 4 ranks have ended well
//! ```
//!
//! The program may be of MPICH, Intel MPI or Open MPI, or call no PMI at all.

use std::error::Error;
use std::{env, process};

use lattice_session::event::{Event, Output};
use lattice_session::session_io::SessionIo;
use lattice_session::settings::LaunchSettings;
use lattice_session::spec::{AppSpec, LaunchSecret, SessionSpec};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Job;
use tokio::sync::mpsc;

const RANKS: u32 = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let program = words.next().unwrap_or_else(|| "hostname".into());
    let (args, directory) = (words.collect(), env::current_dir()?);
    let app = AppSpec { program, args, directory, set: Vec::new(), remove: Vec::new(), process_set: None };
    let launch_id = format!("embedded{}", process::id());
    let spec = SessionSpec {
        job: Job::on_one_node(JobId::new(&format!("kvs_{launch_id}_0"))?, RANKS),
        launch_id,
        allocation_id: None,
        node: NodeIndex(0),
        hosts: vec!["localhost".to_owned()],
        addresses: Vec::new(),
        secret: LaunchSecret::random()?,
        apps: vec![app],
        settings: LaunchSettings { environment: env::vars_os().collect(), ..LaunchSettings::default() },
    };
    let (events, mut happened) = mpsc::channel(64);
    // Signals, aborts and questions go in by `orders`; a session whose host drops it ends its ranks.
    let (orders, control) = mpsc::channel(1);
    let io = SessionIo::on_one_node(&spec, events, control)?;
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
