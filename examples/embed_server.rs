//! A custom host with tokio: serves PMI-1, PMI-2 and PMIx to two processes, and reports how they end.
//!
//! ```text
//! $ cargo run -p lattice-examples --example embed_server -- ./my_mpi_program
//! both ranks are through
//! ```
//!
//! The program may use MPICH, Intel MPI or Open MPI. A program that uses no protocol is an error: its ranks would be two jobs of one rank.

use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::{env, error::Error, fs, io::Read, sync::Arc};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::getuid;
use pmi_core::env::{Entrance, RankEnvironment, inherited};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::{Phase, fence::LocalFence, job::Job, services::NoServices};
use pmix_core::env::{Cpus, Families, defaults};
use pmix_core::{Namespace, Seat, services::Alone};
use tokio::{process::Command, task::JoinSet};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let program = env::args_os().nth(1).ok_or("embed_server PROGRAM [ARGUMENT...]")?;
    let (size, host) = (2, "localhost");
    let mut secret = [0; 16]; // a process with the name of a namespace may claim its ranks
    fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let name = format!("example.{:x}", u128::from_ne_bytes(secret));
    let job = Job::on_one_node(JobId::new(&name)?, size);

    // One server for each family of protocols, with the same job, fence and services.
    let server = pmi_core::server::Server::new(job.clone(), NodeIndex(0), Default::default());
    let (pmi, mut pmi_ended) = pmi_core::driver::Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
    let server = pmix_core::server::Server::new(Default::default());
    let (uid, sinks) = (getuid().as_raw(), Default::default());
    let (pmix, mut pmix_ended) = pmix_core::driver::Driver::new(server, uid, Arc::new(Alone), sinks)?;
    let index = pmix.add(Namespace::on_one_node(&name, job, host), Arc::new(LocalFence), Arc::new(NoServices));

    let mut running = JoinSet::new();
    for (rank, local) in (0..size).map(|rank| (Rank(rank), LocalRank(rank))) {
        let (ours, theirs) = UnixStream::pair()?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?; // inherited by this rank, and closed before the next one starts
        pmi.connect(local, ours)?;
        let of_pmi = RankEnvironment::on_one_node(rank, size, Entrance::Descriptor(theirs.as_raw_fd()));
        let of_pmix = pmix_core::env::RankEnvironment { namespace: &name, rank, server: pmix.address(), host };
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(2)).env_clear().envs(inherited());
        command.envs(defaults(Families::PmixAndPmi, Cpus::Shared)).envs(of_pmi.variables()).envs(of_pmix.variables());
        let mut process = command.kill_on_drop(true).spawn()?;
        running.spawn(async move { (local, process.wait().await) });
    }
    while !running.is_empty() {
        let (local, status) = tokio::select! {
            Ok(reason) = &mut pmi_ended => Err(format!("the job had to end: {reason:?}"))?,
            Ok((_, reason)) = &mut pmix_ended => Err(format!("the job had to end: {reason:?}"))?,
            Some(end) = running.join_next() => end?,
        };
        let seat = Seat { job: index, local };
        pmi.drain(local); // the rank's last message comes before its end
        pmix.drain(seat);
        let asked = pmix.take_clean_up(seat);
        asked.iter().flat_map(|clean_up| &clean_up.files).for_each(|file| _ = fs::remove_file(file));
        let status = status?;
        if !status.success() {
            Err(format!("rank {local} failed: {status}"))?;
        }
        let progress = [pmi.progress(local), pmix.progress(seat)];
        if progress.into_iter().flatten().all(|progress| progress.phase == Phase::Silent) {
            Err(format!("rank {local} called neither PMI nor PMIx: it ran as a job of one rank, or without MPI"))?;
        }
        pmi.rank_exited(local);
        pmix.rank_exited(seat);
    }
    pmi_ended.try_recv().map_or(Ok(()), |reason| Err(format!("the job had to end: {reason:?}")))?;
    pmix_ended.try_recv().map_or(Ok(()), |(_, reason)| Err(format!("the job had to end: {reason:?}")))?;
    println!("both ranks are through");
    Ok(())
}
