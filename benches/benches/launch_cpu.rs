//! Processor time of launches, in comparison with another build, for example a build without a change to be judged.
//!
//! ```text
//! LATTICE_OTHER_BIN=FILE cargo bench -p lattice-benches --bench launch_cpu
//! ```
//! The bench measures the user and system time of the launcher and of all processes that it has started and reaped (`getrusage`). The builds
//! take turns. Lattice is the launcher in `LATTICE_BIN`, or else the launcher next to this program. Without `--bench` (`cargo test --benches`)
//! the bench does nothing, because a launcher need not exist.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::Launcher;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine, turns};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Number of ranks, program, and number of turns of each build. After a quarter of a second other commands can see a launch. After two seconds
/// its ranks form a set in any case.
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

/// Returns the user and system time of all descendants of this process that have been reaped, in milliseconds.
fn cpu_of_children() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|errno| errno.to_string())?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e3)
}
