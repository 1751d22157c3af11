//! Compares two shell commands that take turns, for the scripts in `benches/doors/`. It prints medians, their ratio and its interval, by the
//! rule of [`comparison`](lattice_benches::comparison). Arguments: label, ranks that each command starts on all nodes, command, other command.
//! The environment variable `TURNS` is the number of turns.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::machine;
use lattice_benches::sample::median;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [label, ranks, command, other] = &words[..] else {
        return Err("usage: in_turns LABEL RANKS COMMAND OTHER".into());
    };
    let ranks = ranks.parse()?;
    let turns = std::env::var("TURNS").map_or(Ok(7), |turns| turns.parse::<usize>())?;
    println!("{}", machine::line());
    // The first run of each command loads its files.
    milliseconds(command)?;
    milliseconds(other)?;
    let (mut times, mut others) = (Vec::new(), Vec::new());
    for _ in 0..turns.max(1) {
        times.push(milliseconds(command)?);
        others.push(milliseconds(other)?);
    }
    let ratio = Comparison::of(&times, &others, ranks);
    println!("{label}: {:.0} ms against {:.0} ms, {ratio}", median(&times), median(&others));
    Ok(())
}

/// Returns the time from the start of a command to its end.
fn milliseconds(command: &str) -> Result<f64, Box<dyn Error>> {
    let begun = Instant::now();
    let status = Command::new("bash").args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let took = begun.elapsed();
    if status.success() { Ok(took.as_secs_f64() * 1e3) } else { Err(format!("{command:?} ended with {status}").into()) }
}
