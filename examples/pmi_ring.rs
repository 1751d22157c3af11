//! Processes without prior data about each other find their neighbours through PMI, and pass a token round the ring.
//!
//! Each rank puts its listening address and its pid, fences, and gets the values of all other ranks. The token then travels over TCP, without
//! PMI, as in the wire-up of an MPI library.
//!
//! ```text
//! $ cargo build --example pmi_ring
//! $ lattice launch -n 4 target/debug/examples/pmi_ring      (or: mpiexec.hydra -n 4 ..., or alone)
//! rank 1: left 0, right 2 (pid 4712), found 4 of 4 ranks, their sum is 6
//! rank 3: left 2, right 0 (pid 4711), found 4 of 4 ranks, their sum is 6
//! rank 2: left 1, right 3 (pid 4714), found 4 of 4 ranks, their sum is 6
//! rank 0: left 3, right 1 (pid 4713), found 4 of 4 ranks, their sum is 6
//! the token went: rank 0 (pid 4711) > rank 1 (pid 4713) > rank 2 (pid 4712) > rank 3 (pid 4714) > rank 0
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::{env, process};

use pmi_client::{Client, Protocol};

fn main() -> Result<(), Box<dyn Error>> {
    let mut client = Client::from_env(Protocol::Auto)?;
    let (rank, size) = (client.rank(), client.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);

    // A launcher that spans nodes sets the name at which other nodes reach this one.
    let host = env::var("PMI_HOSTNAME").unwrap_or("127.0.0.1".to_owned());
    let listener = TcpListener::bind((host.as_str(), 0))?;
    let card = format!("{host}:{}/{}", listener.local_addr()?.port(), process::id());
    client.put(&format!("P{rank}-address"), card)?;
    client.fence()?;

    let mut found = Vec::new();
    for other in 0..size {
        if let Some(card) = client.get(&format!("P{other}-address"))? {
            found.push((other, String::from_utf8(card)?));
        }
    }
    let (_, card) = found.iter().find(|(other, _)| *other == right).ok_or("my neighbour put no address")?;
    let (address, pid) = card.split_once('/').ok_or("my neighbour's address has no pid")?;

    let token = pass_token(rank, &listener, address)?;
    let sum: u32 = found.iter().map(|(other, _)| other).sum();
    println!(
        "rank {rank}: left {left}, right {right} (pid {pid}), found {} of {size} ranks, their sum is {sum}",
        found.len()
    );
    if rank == 0 {
        println!("the token went: {token}rank 0");
    }
    client.finalize()?;
    Ok(())
}

/// Passes the token on once; returns it as this rank saw it last. Rank 0 starts it, and receives it at the end.
fn pass_token(rank: u32, listener: &TcpListener, right: &str) -> Result<String, Box<dyn Error>> {
    let mut to_right = TcpStream::connect(right)?;
    let (mut from_left, _) = listener.accept()?;
    let line = format!("rank {rank} (pid {}) > ", process::id());
    let mut token = String::new();
    if rank != 0 {
        from_left.read_to_string(&mut token)?;
    }
    token += &line;
    to_right.write_all(token.as_bytes())?;
    to_right.shutdown(Shutdown::Write)?;
    if rank == 0 {
        token.clear();
        from_left.read_to_string(&mut token)?;
    }
    Ok(token)
}
