//! A PMI server without any runtime: a thread for each rank serves the rank until it leaves, and waits for its end.
//! Of the features of `pmi-core`, it needs only `threads`.
//! ```text
//! $ cargo run -p lattice-examples --example embed_with_threads -- ./my_mpi_program
//! ```

use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::process::{self, Child, Command};
use std::{env, error::Error, sync::Arc, sync::mpsc, thread};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmi_core::env::{Entrance, RankEnvironment, inherited};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::threads::{NotServed, ThreadedServer};
use pmi_core::{fence::LocalFence, job::Job, server::Server, server::Settings, services::NoServices};

fn main() -> Result<(), Box<dyn Error>> {
    let (program, size) = (env::args_os().nth(1).ok_or("embed_with_threads PROGRAM [ARGUMENT...]")?, 3);
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, size);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let server = ThreadedServer::new(server, Arc::new(LocalFence), Arc::new(NoServices));
    let (tell, ends) = mpsc::channel();
    let mut processes = Vec::new();
    for rank in 0..size {
        let (ours, theirs) = UnixStream::pair()?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?; // inherited
        let environment = RankEnvironment::on_one_node(Rank(rank), size, Entrance::Descriptor(theirs.as_raw_fd()));
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(2)).env_clear().envs(inherited()).envs(environment.variables());
        let child = command.spawn()?;
        processes.push(Pid::from_raw(child.id().cast_signed()));
        let (server, tell) = (server.clone(), tell.clone());
        thread::spawn(move || tell.send(follow(&server, LocalRank(rank), ours, child)));
    }
    let outcome = ends.iter().take(size as usize).collect::<Result<(), String>>();
    if outcome.is_err() {
        // A process that ended first does not exist any more.
        processes.into_iter().for_each(|process| _ = kill(process, Signal::SIGKILL));
    }
    outcome?;
    println!("all {size} ranks are through");
    Ok(())
}

/// Serves a rank and waits for its end, which takes effect after all its messages.
fn follow(server: &Arc<ThreadedServer>, rank: LocalRank, socket: UnixStream, mut child: Child) -> Result<(), String> {
    let must_end = |error: NotServed| format!("{error}: {error:?}");
    server.serve(rank, socket).map_err(must_end)?;
    match child.wait().map_err(|error| error.to_string())? {
        status if status.success() => server.rank_exited(rank).map_err(must_end),
        status => Err(format!("rank {rank}: {status}")),
    }
}
