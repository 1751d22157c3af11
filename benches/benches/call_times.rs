//! How long do calls between the ranks of a launch take? Rank 0 pings every other rank in a cluster of 32 nodes on this machine, with one rank
//! on each. The bench prints the round trip times by rank and over all ranks.
//!
//! ```text
//! cargo bench -p lattice-benches --bench call_times -- --picture FILE
//! ```
//! With `--picture` it draws the times. It measures the launcher in `LATTICE_BIN`, or else the launcher next to this program. If allowed (as
//! root), nodes have separate networks. For comparison it prints the time of two round trips of a byte through `cat`. They wake as many
//! processes as a call to a neighbour, so that no call can be faster. Without `--bench` (`cargo test --benches`) the bench does nothing, because
//! a launcher need not exist.

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use lattice_benches::picture::{self, Chart, Scale};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine};

const NODES: u32 = 32;

/// Round trips to one rank, in microseconds.
struct Times {
    rank: f64,
    mean: f64,
    median: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    if !is_measured() {
        return Ok(());
    }
    println!("{}", machine::line());
    println!("two round trips of a byte through a process: {:.1} us", 2.0 * through_cat()?);
    let times = measure()?;
    for Times { rank, mean, median } in &times {
        println!("rank {rank:>3}: mean {mean:7.1} us, median {median:7.1} us");
    }
    let mean = times.iter().map(|times| times.mean).sum::<f64>() / times.len() as f64;
    let medians: Vec<f64> = times.iter().map(|times| times.median).collect();
    println!("all: mean {mean:.1} us, median of the medians {:.1} us", median(&medians));
    let mut arguments = std::env::args();
    if arguments.any(|argument| argument == "--picture") {
        let file = arguments.next().ok_or("a file after --picture")?;
        let by_rank = |of: fn(&Times) -> f64| times.iter().map(|times| (times.rank, of(times))).collect();
        let lines = vec![("mean", by_rank(|times| times.mean)), ("median", by_rank(|times| times.median))];
        let chart = Chart { title: "round trip from rank 0, us", scale: Scale::Linear, lines };
        picture::draw(Path::new(&file), "rank", &[chart])?;
    }
    Ok(())
}

/// Median time of a round trip of a byte to another process, in microseconds.
fn through_cat() -> Result<f64, Box<dyn Error>> {
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let pipes = (cat.stdin.take(), cat.stdout.take());
    let (Some(mut to), Some(mut from)) = pipes else { return Err("cat has no pipes".into()) };
    let mut microseconds = Vec::new();
    for _ in 0..2000 {
        let begun = Instant::now();
        to.write_all(b".")?;
        from.read_exact(&mut [0])?;
        microseconds.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    drop(to);
    cat.wait()?;
    Ok(median(&microseconds))
}

fn measure() -> Result<Vec<Times>, Box<dyn Error>> {
    let (lattice, nodes) = (lattice_binary()?, NODES.to_string());
    let mut launch = Command::new(&lattice);
    launch.args(["dev-cluster", "--quiet", "--nodes", &nodes, "--"]).arg(&lattice);
    launch.args(["launch", "-N", &nodes, "-n", &nodes, env!("CARGO_BIN_EXE_call_times")]);
    let output = launch.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the launch ended with {}", output.status).into());
    }
    let read = |line: &str| {
        let mut numbers = line.split(' ').map(str::parse);
        let mut next = || numbers.next().ok_or("a number is missing")?.map_err(|error| format!("{error}"));
        Ok::<_, Box<dyn Error>>(Times { rank: next()?, mean: next()?, median: next()? })
    };
    std::str::from_utf8(&output.stdout)?.lines().map(read).collect()
}
