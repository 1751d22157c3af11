//! A custom host: serves PMI to two processes with tokio, and reports how they end.
//!
//! ```text
//! $ cargo run -p lattice-examples --example embed_server -- ./my_mpi_program
//! both ranks are through
//! ```
//!
//! The ranks connect to `PMI_PORT`. A real host gives each rank a socket (`PMI_FD`, see `Driver::connect` and the crate `rank-spawner`): a
//! socket needs no port, and proves the rank's identity.

use std::{env, error::Error, net::TcpListener, process, sync::Arc, time::Duration};

use nix::unistd::getuid;
use pmi_core::driver::{Admission, Driver};
use pmi_core::env::{Entrance, RankEnvironment, inherited};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::report::Phase;
use pmi_core::services::NoServices;
use pmi_core::{fence::LocalFence, job::Job, server::Server, server::Settings};
use tokio::{process::Child, process::Command, task::JoinSet};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, 2);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let (driver, mut ended) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.to_string();
    driver.listen(listener, Admission { uid: getuid().as_raw(), claim_within: Duration::from_secs(30) })?;

    let mut running = JoinSet::new();
    for (local, mut rank) in (0..).map(LocalRank).zip([start(Rank(0), &port)?, start(Rank(1), &port)?]) {
        running.spawn(async move { (local, rank.wait().await) });
    }
    while !running.is_empty() {
        let (local, status) = tokio::select! {
            Ok(reason) = &mut ended => Err(format!("the job had to end: {reason:?}"))?,
            Some(end) = running.join_next() => end?,
        };
        driver.drain(local); // the rank's last message comes before its end
        let status = status?;
        if status.success() && driver.progress(local).is_none_or(|progress| progress.phase == Phase::Silent) {
            Err(format!("rank {local} never called PMI: a program of Open MPI speaks PMIx, see embed_pmix.rs"))?;
        }
        status.success().then(|| driver.rank_exited(local)).ok_or_else(|| format!("rank {local} failed: {status}"))?;
    }
    ended.try_recv().map_or(Ok(()), |reason| Err(format!("the job had to end: {reason:?}")))?;
    println!("both ranks are through");
    Ok(())
}

fn start(rank: Rank, port: &str) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(env::args_os().nth(1).ok_or("embed_server PROGRAM [ARGUMENT...]")?);
    let environment = RankEnvironment::on_one_node(rank, 2, Entrance::Port { address: port, id: rank.0 });
    command.args(env::args_os().skip(2)).env_clear().envs(inherited()).envs(environment.variables());
    Ok(command.kill_on_drop(true).spawn()?)
}
