//! A custom host that serves PMIx to the processes it starts, so that Open MPI processes find each other. Only these processes need libpmix.
//! ```text
//! $ cargo run -p lattice-examples --example embed_pmix -- ./my_open_mpi_program
//! ```

use std::{env, error::Error, fs, io::Read, sync::Arc};

use nix::unistd::getuid;
use pmi_core::env::inherited;
use pmi_core::ids::{JobId, LocalRank, Rank};
use pmi_core::{fence::LocalFence, job::Job, services::NoServices};
use pmix_core::driver::{Driver, Sinks};
use pmix_core::env::{Cpus, Families, RankEnvironment, defaults};
use pmix_core::server::{Server, Settings};
use pmix_core::{Namespace, Seat, services::Alone};
use tokio::{process::Child, process::Command, task::JoinSet};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (size, host) = (3, "localhost");
    let mut secret = [0; 16]; // a process with the name of a namespace may claim its ranks
    fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let name = format!("example.{:x}", u128::from_ne_bytes(secret));
    let namespace = Namespace::on_one_node(&name, Job::on_one_node(JobId::new(&name)?, size), host);

    // Open MPI writes help texts through its server.
    let say = Box::new(|said: pmix_core::driver::RankText| eprint!("[{}] {}", said.rank, said.text.escape_ascii()));
    let sinks = Sinks { say, ..Sinks::default() };
    let (driver, mut ended) = Driver::new(Server::new(Settings::default()), getuid().as_raw(), Arc::new(Alone), sinks)?;
    let job = driver.add(namespace, Arc::new(LocalFence), Arc::new(NoServices));

    let start = |rank| -> Result<Child, Box<dyn Error>> {
        let environment = RankEnvironment { namespace: &name, rank, server: driver.address(), host };
        let mut command = Command::new(env::args_os().nth(1).ok_or("embed_pmix PROGRAM [ARGUMENT...]")?);
        command.args(env::args_os().skip(2)).env_clear().envs(inherited());
        command.envs(defaults(Families::Pmix, Cpus::Shared)).envs(environment.variables());
        Ok(command.kill_on_drop(true).spawn()?)
    };
    let mut running = JoinSet::new();
    for rank in 0..size {
        let mut process = start(Rank(rank))?;
        running.spawn(async move { (LocalRank(rank), process.wait().await) });
    }
    while !running.is_empty() {
        let (local, status) = tokio::select! {
            Ok((_, reason)) = &mut ended => Err(format!("the job had to end: {reason:?}"))?,
            Some(end) = running.join_next() => end?,
        };
        let seat = Seat { job, local };
        driver.drain(seat); // the rank's last message comes before its end
        let asked = driver.take_clean_up(seat); // a host that is root removes as the rank's user
        asked.iter().flat_map(|clean_up| &clean_up.files).for_each(|file| _ = fs::remove_file(file));
        let status = status?;
        status.success().then(|| driver.rank_exited(seat)).ok_or_else(|| format!("rank {local} failed: {status}"))?;
    }
    ended.try_recv().map_or(Ok(()), |(_, reason)| Err(format!("the job had to end: {reason:?}")))?;
    println!("all {size} ranks are through");
    Ok(())
}
