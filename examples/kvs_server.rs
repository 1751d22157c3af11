//! A key-value server separate from the starter: it serves PMI to ranks that are started by hand, by a script or by a batch system.
//!
//! ```text
//! $ cargo run -p lattice-examples --example kvs_server -- 3 &
//! PMI_PORT=127.0.0.1:40123
//! $ for id in 0 1 2; do PMI_PORT=127.0.0.1:40123 PMI_ID=$id ./my_mpi_program & done
//! all 3 ranks are through after 5 barriers
//! ```
//!
//! A rank needs only two variables: `PMI_PORT`, and `PMI_ID` with its number, which must be presented once. Processes of other users are
//! refused. A program that starts ranks detects how they end and reports it to the server (`Driver::rank_exited`, `rank_failed`). There is none
//! here: if a rank is killed, the remaining ranks wait in their next barrier until this server is interrupted.

use std::os::unix::fs::MetadataExt;
use std::{env, error::Error, net::TcpListener, process, sync::Arc, time::Duration};

use pmi_core::driver::{Admission, Driver};
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::{Phase, fence::LocalFence, job::Job, server::Server, server::Settings, services::NoServices};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ranks: u32 = env::args().nth(1).ok_or("kvs_server RANKS [ADDRESS]")?.parse()?;
    let job = Job::on_one_node(JobId::new(&format!("by_hand_{}", process::id()))?, ranks);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let (driver, mut ended) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
    let listener = TcpListener::bind(env::args().nth(2).unwrap_or_else(|| "127.0.0.1:0".to_owned()))?;
    println!("PMI_PORT={}", listener.local_addr()?);
    let uid = std::fs::metadata("/proc/self")?.uid();
    driver.listen(listener, Admission { uid, claim_within: Duration::from_secs(30) })?;

    let states = || (0..ranks).filter_map(|local| driver.progress(LocalRank(local)));
    while !states().all(|state| state.phase == Phase::Finalized) {
        if let Ok(reason) = tokio::time::timeout(Duration::from_millis(20), &mut ended).await {
            return Err(format!("the job has to end: {:?}", reason?).into());
        }
    }
    let barriers = states().map(|state| state.fences).max().unwrap_or_default();
    println!("all {ranks} ranks are through after {barriers} barriers");
    Ok(())
}
