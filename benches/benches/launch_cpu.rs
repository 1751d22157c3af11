//! Processor time of launches, beside that of another build, which may be one without what is to be judged.
//!
//! ```text
//! LATTICE_OTHER_BIN=FILE cargo bench -p lattice-benches --bench launch_cpu
//! ```
//! User and system time of the launcher and of all that it has started and reaped (`getrusage`), builds in turns. Lattice is that in
//! `LATTICE_BIN`, else the one built beside this program. Without `--bench`, as under `cargo test --benches`, it does nothing, for there need
//! not be a launcher.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::Launcher;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine, turns};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Ranks, programs, and turns of each build. From a quarter of a second on a launch can be seen by other commands, from two seconds on it is a
/// set in any case.
const SCENARIOS: [(usize, &[&str], usize); 5] = [
    (1, &["true"], 60),
    (1, &["sleep", "0.4"], 60),
    (1, &["sleep", "2.2"], 20),
    (64, &["true"], 20),
    (64, &["sleep", "0.4"], 20),
];

fn main() -> ExitCode {
    if !is_measured() {
        return ExitCode::SUCCESS;
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    println!("{}", machine::line());
    let other = std::env::var_os("LATTICE_OTHER_BIN").ok_or("LATTICE_OTHER_BIN names no other build")?;
    let ours = Launcher::lattice()?;
    let launchers = [ours, Launcher::program("other", PathBuf::from(other), &["launch"])];
    println!("launch of          CPU, ms   other, ms   ratio  95 % interval     wall-clock time");
    for (ranks, program, rounds) in SCENARIOS {
        let command: Vec<_> = program.iter().map(Into::into).collect();
        let taken = turns::take(&launchers.each_ref(), rounds, |launcher| {
            let (cpu, begun) = (cpu_of_children()?, Instant::now());
            launcher.run(ranks, &command)?;
            let wall = begun.elapsed().as_secs_f64() * 1e3;
            Ok((cpu_of_children()? - cpu, wall))
        });
        let taken: Vec<Vec<(f64, f64)>> = taken.into_iter().collect::<Result<_, _>>()?;
        let [cpu, other] = [0, 1].map(|build: usize| taken[build].iter().map(|run| run.0).collect::<Vec<_>>());
        let [wall, other_wall] = [0, 1].map(|build: usize| taken[build].iter().map(|run| run.1).collect::<Vec<_>>());
        println!(
            "{ranks:>2} x {:<12} {:>8.2}  {:>9.2}  {}   {}",
            program.join(" "),
            median(&cpu),
            median(&other),
            Comparison::of(&cpu, &other, ranks),
            Comparison::of(&wall, &other_wall, ranks)
        );
    }
    Ok(())
}

/// User and system time of all processes that this one has started and reaped, and of theirs, in milliseconds.
fn cpu_of_children() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|errno| errno.to_string())?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e3)
}
