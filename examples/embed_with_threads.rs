//! A PMI server without any runtime: a thread for each rank reads its socket, and the main thread does what the server wants done. `pmi-core` needs
//! none of its default features for this.
//! ```text
//! $ cargo run -p lattice-examples --example embed_with_threads -- ./my_mpi_program
//! ```

use std::io::{Read, Write};
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::{env, error::Error, process, sync::mpsc, thread};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use pmi_core::env::{Entrance, RankEnvironment};
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::server::{Action, Server, Settings};
use pmi_core::{job::Job, services::NoServices};

fn main() -> Result<(), Box<dyn Error>> {
    let (program, size) = (env::args_os().nth(1).ok_or("embed_with_threads PROGRAM")?, 3);
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, size);
    let (mut server, mut sockets) = (Server::new(job, NodeIndex(0), Settings::default()), Vec::new());
    let (said, heard) = mpsc::channel();
    for (rank, local_rank) in (0..size).map(|rank| (Rank(rank), LocalRank(rank))) {
        let (mut ours, theirs) = UnixStream::pair()?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?; // inherited
        let (local_size, host, entrance) = (size, "127.0.0.1", Entrance::Descriptor(theirs.as_raw_fd()));
        let rank = RankEnvironment { rank, size, local_rank, local_size, host, spawned: false, entrance };
        process::Command::new(&program).envs(rank.variables()).spawn()?;
        sockets.push(ours.try_clone()?);
        let (connection, said, mut buffer) = (server.connect(local_rank), said.clone(), [0; 2048]);
        thread::spawn(move || {
            while let Ok(length @ 1..) = ours.read(&mut buffer) {
                said.send((connection, buffer[..length].to_vec())).ok()?;
            }
            Some(())
        });
    }
    drop(said);
    // Until all ranks have closed their sockets.
    for (connection, bytes) in heard {
        server.handle_bytes(connection, &bytes);
        while let Some(action) = server.poll_action() {
            match action {
                Action::Send { connection, bytes } => sockets[connection.0 as usize].write_all(&bytes)?,
                // That of several nodes, which takes its time, would be for a thread of its own.
                Action::Fence { id, contribution } => {
                    server.handle_fence(&id, pollster::block_on(LocalFence.exchange(&id, contribution)));
                }
                Action::Call { ticket, rank, call } => {
                    server.handle_answer(ticket, &pollster::block_on(call.ask(&NoServices, rank)));
                }
                Action::End(reason) => return Err(format!("the job must end: {reason:?}").into()),
                _ => {}
            }
        }
    }
    println!("all {size} ranks are through");
    Ok(())
}
