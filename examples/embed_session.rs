//! A whole node's part of a launch: starts ranks, serves them PMI-1, PMI-2 and PMIx, delivers their output, and leaves nothing to clean up.
//!
//! ```text
//! $ cargo run -p lattice-examples --example embed_session -- ./my_mpi_program        (or any other program)
//! [0] hello from rank 0 of 4
//! ...
//! all 4 ranks have ended well
//! ```
//!
//! The program may use MPICH, Intel MPI or Open MPI, or make no PMI calls.

use std::{env, error::Error};

use lattice_session::event::{Event, Output};
use lattice_session::session_io::SessionIo;
use lattice_session::spec::SessionSpec;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let program = words.next().unwrap_or_else(|| "hostname".into());
    let spec = SessionSpec::on_one_node(4, program, words.collect())?;
    let (events, mut happened) = mpsc::channel(64);
    // Signals, aborts and questions go into `orders`. The session ends its ranks when `orders` is dropped.
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
