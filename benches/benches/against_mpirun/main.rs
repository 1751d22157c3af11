//! How does Lattice compare with the `mpirun` of Open MPI on the same machine?
//!
//! Both launchers run the same `hello`, compiled with the same Open MPI, in turns. The bench measures the time from the start of the
//! launcher to its end: once with the default settings, and once with shared memory alone. With shared memory the library spends less
//! time on its search for networks. The bench prints medians, the ratio of Lattice to mpirun and its 95 % interval. An Open MPI that
//! is not installed is reported as absent. If a run of Lattice fails, the bench fails.
//!
//! ```text
//! cargo bench -p lattice-benches --bench against_mpirun
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round of two ranks.

mod open_mpi;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::Launcher;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine, turns};

use crate::open_mpi::OpenMpi;

/// Number of turns of each launcher for each number of ranks.
const ROUNDS: usize = 15;

fn main() -> ExitCode {
    println!("{}", machine::line());
    let lattice = match Launcher::lattice() {
        Ok(lattice) => lattice,
        Err(why) => {
            println!("lattice: absent, {why}");
            return ExitCode::SUCCESS;
        }
    };
    println!("{:<34} {:>5} {:>9} {:>9}  {:>6}  95 % interval", "hello, ms", "ranks", "mpirun", "lattice", "ratio");
    let (sizes, rounds): (&[usize], usize) = if is_measured() { (&[1, 4, 16], ROUNDS) } else { (&[2], 1) };
    let mut has_failed = false;
    for found in OpenMpi::all() {
        match found.and_then(|open_mpi| open_mpi.compile_hello().map(|hello| (open_mpi, hello))) {
            Ok((open_mpi, hello)) => {
                for (transports, command) in open_mpi.commands(&hello) {
                    let what = format!("{}, {transports}", open_mpi.name);
                    let row = |&ranks: &usize| Row { what: &what, ranks, command: &command };
                    has_failed |= sizes.iter().map(row).any(|row| !row.compare(&open_mpi.mpirun, &lattice, rounds));
                }
            }
            Err(why) => println!("{why}"),
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One line of the table.
struct Row<'a> {
    what: &'a str,
    ranks: usize,
    command: &'a [OsString],
}

impl Row<'_> {
    /// Runs both launchers in turns and prints the line. Returns false if Lattice failed.
    fn compare(&self, mpirun: &Launcher, lattice: &Launcher, rounds: usize) -> bool {
        let Self { what, ranks, .. } = self;
        let taken = turns::take(&[mpirun, lattice], rounds, |launcher| self.milliseconds(launcher));
        for why in taken.iter().filter_map(|taken| taken.as_ref().err()) {
            println!("{what:<34} {ranks:>5} absent, {why}");
        }
        let samples = |place: usize| taken.get(place).and_then(|taken| taken.as_ref().ok());
        let (mpirun, lattice) = (samples(0), samples(1));
        let shown = |runs: Option<&Vec<f64>>| runs.map_or("-".into(), |runs| format!("{:.1}", median(runs)));
        let ratio = lattice.zip(mpirun).map(|(lattice, mpirun)| Comparison::of(lattice, mpirun, *ranks).to_string());
        let ratio = ratio.unwrap_or_default();
        println!("{what:<34} {ranks:>5} {:>9} {:>9}  {ratio}", shown(mpirun), shown(lattice));
        lattice.is_some()
    }

    /// Returns the time of one run, in milliseconds. Fails unless every rank has found all other ranks.
    fn milliseconds(&self, launcher: &Launcher) -> Result<f64, String> {
        let start = Instant::now();
        let printed = launcher.run(self.ranks, self.command)?;
        let took = start.elapsed();
        let mut expected = (0..self.ranks).map(|rank| format!("rank {rank} of {}", self.ranks));
        match expected.find(|line| !printed.lines().any(|printed| printed == line)) {
            Some(line) => Err(format!("{} printed no line {line:?}", launcher.name)),
            None => Ok(took.as_secs_f64() * 1e3),
        }
    }
}
