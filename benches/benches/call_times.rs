//! How long do calls between the ranks of a launch take? Rank 0 pings every other one on a cluster of 32 nodes of this machine, one rank on
//! each: the round trip by rank, and over all of them.
//!
//! ```text
//! cargo bench -p lattice-benches --bench call_times -- --picture FILE
//! ```
//! With `--picture` it draws them. The launcher is that in `LATTICE_BIN`, else the one built beside this program; nodes have networks of their
//! own where that is allowed (as root). Without `--bench`, as under `cargo test --benches`, it does nothing, for there need not be a launcher.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use lattice_benches::picture::{self, Chart, Scale};
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
    let times = measure()?;
    for Times { rank, mean, median } in &times {
        println!("rank {rank:>3}: mean {mean:7.1} us, median {median:7.1} us");
    }
    let mean = times.iter().map(|times| times.mean).sum::<f64>() / times.len() as f64;
    let mut medians: Vec<f64> = times.iter().map(|times| times.median).collect();
    medians.sort_by(f64::total_cmp);
    println!("all: mean {mean:.1} us, median of the medians {:.1} us", medians[medians.len() / 2]);
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

fn measure() -> Result<Vec<Times>, Box<dyn Error>> {
    let program = std::env::args().next().unwrap_or_default();
    let (lattice, nodes) = (lattice_binary(&program)?, NODES.to_string());
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
