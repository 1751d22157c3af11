//! A PMI server without any runtime: one thread per rank reads its socket, whoever has an event takes the server's lock, hands it in and
//! does what the server wants done. `pmi-core` needs none of its default features for this.
//!
//! ```text
//! $ cargo run -p lattice-examples --example embed_with_threads
//! rank 0 of 3 read card-0=red card-1=green card-2=blue
//! rank 1 of 3 read card-0=red card-1=green card-2=blue
//! rank 2 of 3 read card-0=red card-1=green card-2=blue
//! ```

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::{error::Error, process, sync::Mutex, thread};

use pmi_client::{Client, ClientError, Protocol};
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::server::{Action, ConnectionId, Server, Settings};
use pmi_core::{job::Job, services::Answer, services::NameError};

const COLOURS: [&str; 3] = ["red", "green", "blue"];

/// A server and the writing ends of its ranks' sockets, by connection.
struct Host {
    server: Server,
    sockets: Vec<UnixStream>,
}

impl Host {
    /// Does everything that the server wants done. `write_all` may block here: these ranks read their answers.
    fn carry_out(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Send { connection, bytes } => self.sockets[connection.0 as usize].write_all(&bytes)?,
                // A job on several nodes would do this in a thread of its own: others go on meanwhile.
                Action::Fence { id, contribution } => {
                    let result = pollster::block_on(LocalFence.exchange(&id, contribution));
                    self.server.handle_fence(&id, result);
                }
                Action::Call { ticket, .. } => {
                    let reason = "this host has no services".to_owned();
                    self.server.handle_answer(ticket, &Answer::Named(Err(NameError::Unavailable { reason })));
                }
                Action::End(reason) => return Err(format!("the job must end: {reason:?}").into()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn serve(host: &Mutex<Host>, connection: ConnectionId, mut socket: UnixStream) {
    let mut buffer = [0; 2048];
    while let Ok(length @ 1..) = socket.read(&mut buffer) {
        let mut host = host.lock().expect("no thread panics with the lock");
        host.server.handle_bytes(connection, &buffer[..length]);
        host.carry_out().unwrap_or_else(|error| eprintln!("{error}"));
    }
}

/// What a rank does: in a real host it is a process, with this socket as its `PMI_FD`.
fn be_a_rank(rank: u32, socket: UnixStream) -> Result<String, ClientError> {
    let size = COLOURS.len() as u32;
    let mut client = Client::over(socket, Protocol::Pmi2, rank, size)?;
    client.put(&format!("card-{rank}"), COLOURS[rank as usize])?;
    client.fence()?;
    let mut learnt = format!("rank {rank} of {size} read");
    for other in 0..size {
        let card = client.get(&format!("card-{other}"))?.unwrap_or_default();
        learnt += &format!(" card-{other}={}", String::from_utf8_lossy(&card));
    }
    client.finalize()?;
    Ok(learnt)
}

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::on_one_node(JobId::new(&format!("example_{}", process::id()))?, COLOURS.len() as u32);
    let host = &Mutex::new(Host { server: Server::new(job, NodeIndex(0), Settings::default()), sockets: Vec::new() });
    thread::scope(|scope| {
        let mut ranks = Vec::new();
        for rank in 0..COLOURS.len() as u32 {
            let (ours, theirs) = UnixStream::pair()?;
            let mut connected = host.lock().expect("no thread panics with the lock");
            let connection = connected.server.connect(LocalRank(rank));
            connected.sockets.push(ours.try_clone()?);
            scope.spawn(move || serve(host, connection, ours));
            ranks.push(scope.spawn(move || be_a_rank(rank, theirs)));
        }
        for rank in ranks {
            println!("{}", rank.join().expect("a rank does not panic")?);
        }
        Ok(())
    })
}
