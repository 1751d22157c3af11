//! A PMI server without any runtime: a thread for each rank hands what it says to the server, and does what that wants done.
//! `pmi-core` needs none of its default features for this.
//! ```text
//! $ cargo run -p lattice-examples --example embed_with_threads -- ./my_mpi_program
//! ```

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::process::{self, Child, Command};
use std::sync::{Arc, mpsc};
use std::{env, thread};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use pmi_core::env::{Entrance, RankEnvironment, inherited};
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::server::{Action, ConnectionId, Server, Settings};
use pmi_core::{job::Job, services::NoServices};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The server, and its ends of the ranks' sockets in the order of their connections.
struct Host(Server, Vec<UnixStream>);

fn main() -> Result<()> {
    let (program, size) = (env::args_os().nth(1).ok_or("embed_with_threads PROGRAM")?, 3);
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, size);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let (host, mut processes) = (Arc::new(Mutex::new(Host(server, Vec::new()))), Vec::new());
    let (tell, ends) = mpsc::channel();
    for (rank, local_rank) in (0..size).map(|rank| (Rank(rank), LocalRank(rank))) {
        let (ours, theirs) = UnixStream::pair()?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?; // inherited
        let (local_size, address, entrance) = (size, "127.0.0.1", Entrance::Descriptor(theirs.as_raw_fd()));
        let rank = RankEnvironment { rank, size, local_rank, local_size, host: address, spawned: false, entrance };
        let mut command = Command::new(&program);
        let child =
            command.args(env::args_os().skip(2)).env_clear().envs(inherited()).envs(rank.variables()).spawn()?;
        processes.push(Pid::from_raw(child.id().cast_signed()));
        let (host, tell) = (host.clone(), tell.clone());
        thread::spawn(move || tell.send(follow(&host, ours, child, local_rank)));
    }
    let outcome = ends.iter().take(size as usize).collect();
    match outcome {
        Ok(()) => println!("all {size} ranks are through"),
        // One that ended first is no process any more.
        Err(_) => processes.into_iter().for_each(|process| _ = kill(process, Signal::SIGKILL)),
    }
    outcome
}

/// Serves a rank until it has ended; its end counts after all that it said.
fn follow(host: &Mutex<Host>, mut socket: UnixStream, mut child: Child, rank: LocalRank) -> Result<()> {
    let connection = host.lock().connect(rank, socket.try_clone()?)?;
    let mut buffer = [0; 2048];
    while let Ok(length @ 1..) = socket.read(&mut buffer) {
        host.lock().change(|server| server.handle_bytes(connection, &buffer[..length]))?;
    }
    host.lock().change(|server| server.handle_disconnect(connection))?;
    match child.wait()? {
        status if status.success() => host.lock().change(|server| server.handle_exit(rank)),
        status => Err(format!("rank {rank}: {status}").into()),
    }
}

impl Host {
    fn connect(&mut self, rank: LocalRank, socket: UnixStream) -> Result<ConnectionId> {
        self.1.push(socket);
        Ok(self.0.connect(rank)?)
    }

    /// Tells the server something, and does what it wants done.
    fn change(&mut self, tell: impl FnOnce(&mut Server)) -> Result<()> {
        let Self(server, sockets) = self;
        tell(server);
        while let Some(action) = server.poll_action() {
            match action {
                // A rank that is gone reads nothing more; its thread tells of its end.
                Action::Send { connection, bytes } => drop((&sockets[connection.0 as usize]).write_all(&bytes)),
                Action::Close { connection } => drop(sockets[connection.0 as usize].shutdown(Shutdown::Both)),
                // That of several nodes, which takes its time, would be for a thread of its own.
                Action::Fence { id, contribution } => {
                    server.handle_fence(&id, pollster::block_on(LocalFence.exchange(&id, contribution)));
                }
                Action::Call { ticket, rank, call } => {
                    server.handle_answer(ticket, &pollster::block_on(call.ask(&NoServices, rank)));
                }
                Action::End(reason) => return Err(format!("the job must end: {reason:?}").into()),
                // Timers belong to resources, which ranks register only where the settings say so.
                _ => {}
            }
        }
        Ok(())
    }
}
