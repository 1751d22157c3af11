//! Rank of a launch. As rank 0 it pings each rank (by default 200 times). It prints for each rank, in microseconds: rank, mean,
//! median. The other ranks run until rank 0 has finished.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lattice_overlay::address::{Process, Uid};
use lattice_overlay::method::Method;
use lattice_overlay::participant::Participant;

const END: Method = Method(256);
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let times = std::env::args().nth(1).map_or(Ok(200), |times| times.parse())?;
    let ranks: u32 = std::env::var("LATTICE_NPROCS")?.parse()?;
    let participant = Participant::of_launch()?;
    if participant.me().process() == Process::Rank(0) { ask(&participant, ranks, times) } else { stay(&participant) }
}

fn ask(participant: &Participant, ranks: u32, times: u32) -> Result<(), Box<dyn Error>> {
    let uid = |rank| Uid::new(participant.me().set(), Process::Rank(rank));
    for rank in 1..ranks {
        // After these calls the links on the way are open, and a direct link if it pays.
        for _ in 0..3 {
            participant.call(uid(rank), Method::PING, b"", TIMEOUT)?;
        }
        let mut microseconds = Vec::new();
        for _ in 0..times {
            let begun = Instant::now();
            participant.call(uid(rank), Method::PING, b"", TIMEOUT)?;
            microseconds.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        microseconds.sort_by(f64::total_cmp);
        let mean = microseconds.iter().sum::<f64>() / f64::from(times);
        println!("{rank} {mean:.1} {:.1}", microseconds[microseconds.len() / 2]);
    }
    for rank in 1..ranks {
        // The rank may not serve calls yet. If an answer was lost, the rank may already have ended.
        for _ in 0..10 {
            let ended = participant.call(uid(rank), END, b"", TIMEOUT);
            let Err(error) = ended else { break };
            eprintln!("rank {rank}: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

fn stay(participant: &Participant) -> Result<(), Box<dyn Error>> {
    let is_over = Rc::new(Cell::new(false));
    participant.serve(END, {
        let is_over = Rc::clone(&is_over);
        move |_, _, _| {
            is_over.set(true);
            Ok(b"".as_slice().into())
        }
    });
    while !is_over.get() {
        participant.progress(None)?;
    }
    // Calls to other nodes go through this node's session.
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}
