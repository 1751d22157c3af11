//! A PMI server without any runtime: a thread for each rank reads its socket and waits for its end, and the main thread does what the server
//! wants done. `pmi-core` needs none of its default features for this.
//! ```text
//! $ cargo run -p lattice-examples --example embed_with_threads -- ./my_mpi_program
//! ```

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::process::{self, Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{env, error::Error, io, thread};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmi_core::env::{Entrance, RankEnvironment, is_scrubbed};
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::server::{Action, ConnectionId, Server, Settings};
use pmi_core::{job::Job, services::NoServices};

/// What happens to a rank.
enum News {
    Said(ConnectionId, Vec<u8>),
    Closed(ConnectionId),
    Ended(LocalRank, io::Result<ExitStatus>),
}

fn main() -> Result<(), Box<dyn Error>> {
    let (program, size) = (env::args_os().nth(1).ok_or("embed_with_threads PROGRAM")?, 3);
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, size);
    let (mut server, mut sockets) = (Server::new(job, NodeIndex(0), Settings::default()), Vec::new());
    let mut processes = Vec::new();
    let (tell, news) = mpsc::channel();
    for (rank, local_rank) in (0..size).map(|rank| (Rank(rank), LocalRank(rank))) {
        let (ours, theirs) = UnixStream::pair()?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?; // inherited
        let (local_size, host, entrance) = (size, "127.0.0.1", Entrance::Descriptor(theirs.as_raw_fd()));
        let rank = RankEnvironment { rank, size, local_rank, local_size, host, spawned: false, entrance };
        let mut command = Command::new(&program);
        // A launcher around this one has told of its own server.
        let outer = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_scrubbed));
        for (name, _) in outer {
            command.env_remove(name);
        }
        let child = command.args(env::args_os().skip(2)).envs(rank.variables()).spawn()?;
        processes.push(Pid::from_raw(child.id().cast_signed()));
        sockets.push(ours.try_clone()?);
        let (connection, tell) = (server.connect(local_rank)?, tell.clone());
        thread::spawn(move || follow(ours, child, connection, local_rank, &tell));
    }
    drop(tell);
    let outcome = serve(&mut server, &sockets, news);
    if outcome.is_err() {
        for process in processes {
            // One that ended first is no process any more.
            let _ = kill(process, Signal::SIGKILL);
        }
    }
    outcome
}

/// Serves until all ranks have ended.
fn serve(server: &mut Server, sockets: &[UnixStream], news: Receiver<News>) -> Result<(), Box<dyn Error>> {
    for news in news {
        match news {
            News::Said(connection, bytes) => server.handle_bytes(connection, &bytes),
            News::Closed(connection) => server.handle_disconnect(connection),
            News::Ended(rank, status) => match status? {
                status if status.success() => server.handle_exit(rank),
                status => return Err(format!("rank {rank}: {status}").into()),
            },
        }
        carry_out(server, sockets)?;
    }
    println!("all {} ranks are through", sockets.len());
    Ok(())
}

/// Reads what a rank says, and then waits for its end: what it said last counts before that.
fn follow(mut socket: UnixStream, mut child: Child, connection: ConnectionId, rank: LocalRank, tell: &Sender<News>) {
    let mut buffer = [0; 2048];
    // The main thread may have ended before.
    while let Ok(length @ 1..) = socket.read(&mut buffer) {
        let _ = tell.send(News::Said(connection, buffer[..length].to_vec()));
    }
    let _ = tell.send(News::Closed(connection));
    let _ = tell.send(News::Ended(rank, child.wait()));
}

fn carry_out(server: &mut Server, sockets: &[UnixStream]) -> Result<(), Box<dyn Error>> {
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
