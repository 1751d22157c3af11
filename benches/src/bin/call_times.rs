//! Rank of a launch that, as rank 0, pings each rank so many times (200 unless told) and prints for each, in microseconds: rank, mean,
//! median. The others stay until rank 0 is through.
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
        // Links on the way are open then, and a direct one where it pays.
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
        // It may not serve yet, or be through although its answer was lost.
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
    // Calls to others come by way of this node's session.
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}
