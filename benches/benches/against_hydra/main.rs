//! How does Lattice compare with the Hydra of MPICH on the same machine?
//!
//! Both launchers run the same programs in turns, so that other load on the machine affects both. The bench prints
//! medians, the ratio of Lattice to Hydra and its 95 % interval. A launcher that is not installed is reported as absent.
//! If a run of Lattice fails, the bench fails. The row of `true` also has the time of the same programs without any
//! launcher, which is the lower limit.
//!
//! ```text
//! cargo bench -p lattice-benches --bench against_hydra [-- --only hydra|lattice]
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round of two ranks.

mod scenario;

use std::process::ExitCode;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::{Launcher, in_path};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine, turns};

use crate::scenario::{Figure, Program, Scenario};

/// Number of turns of each launcher in a scenario.
const ROUNDS: usize = 15;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let only = words.iter().position(|word| word == "--only").and_then(|at| words.get(at + 1));
    let is_wanted = |name: &str| only.is_none_or(|only| only == name);

    println!("{}", machine::line());
    let mut launchers = vec![Launcher::bare()];
    for (name, found) in [("hydra", hydra()), ("lattice", Launcher::lattice())] {
        match found.and_then(|launcher| is_wanted(name).then_some(launcher).ok_or_else(|| "not wanted".into())) {
            Ok(launcher) => launchers.push(launcher),
            Err(why) => println!("{name}: absent, {why}"),
        }
    }
    let (scenarios, rounds) = if is_measured() { (questions(), ROUNDS) } else { (smoke(), 1) };
    println!(
        "{:<28} {:>5} {:>4}  {:>9} {:>9} {:>9}  {:>6}  95 % interval",
        "median", "ranks", "unit", "bare", "hydra", "lattice", "ratio"
    );
    let mut has_failed = false;
    for scenario in scenarios {
        has_failed |= !compare(&scenario, &launchers, rounds);
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns Debian's Hydra, or the reason why it cannot be measured.
fn hydra() -> Result<Launcher, String> {
    let file = in_path("mpiexec.hydra").ok_or("no mpiexec.hydra in PATH; Debian's package mpich has it")?;
    Ok(Launcher::program("hydra", file, &[]))
}

fn questions() -> Vec<Scenario> {
    let raw = |ranks, barriers, puts, gets| Scenario { ranks, program: Program::Raw { barriers, puts, gets } };
    let start = |ranks| Scenario { ranks, program: Program::True };
    vec![start(64), start(256), raw(1, 0, 0, 0), raw(64, 20, 32, 500), raw(128, 20, 32, 500)]
}

fn smoke() -> Vec<Scenario> {
    let raw = Program::Raw { barriers: 1, puts: 1, gets: 1 };
    vec![Scenario { ranks: 2, program: Program::True }, Scenario { ranks: 2, program: raw }]
}

/// Runs the launchers in turns and prints a line for each figure. Returns false if Lattice failed.
fn compare(scenario: &Scenario, launchers: &[Launcher], rounds: usize) -> bool {
    let launchers: Vec<&Launcher> = launchers.iter().filter(|launcher| scenario.suits(launcher)).collect();
    let taken = turns::take(&launchers, rounds, |launcher| scenario.measure(launcher));
    for why in taken.iter().filter_map(|taken| taken.as_ref().err()) {
        println!("{:<28} {:>5}  absent, {why}", "", scenario.ranks);
    }
    let samples = |name: &str| {
        let mut both = launchers.iter().zip(&taken);
        both.find_map(|(launcher, taken)| (launcher.name == name).then_some(taken.as_ref().ok()?))
    };
    print_figures(scenario.ranks, ["bare", "hydra", "lattice"].map(samples));
    launchers.iter().zip(&taken).all(|(launcher, taken)| launcher.name != "lattice" || taken.is_ok())
}

fn print_figures(ranks: usize, runs: [Option<&Vec<Vec<Figure>>>; 3]) {
    let Some(first) = runs.iter().flatten().find_map(|runs| runs.first()) else { return };
    for (index, Figure { what, unit, .. }) in first.iter().enumerate() {
        let values = |runs: &Vec<Vec<Figure>>| runs.iter().map(|figures| figures[index].value).collect::<Vec<_>>();
        let [bare, hydra, lattice] = runs.map(|runs| runs.map(values));
        let shown =
            |values: &Option<Vec<f64>>| values.as_ref().map_or("-".into(), |values| format!("{:.1}", median(values)));
        let ratio = lattice.as_ref().zip(hydra.as_ref()).map(|(lattice, hydra)| Comparison::of(lattice, hydra, ranks));
        println!(
            "{what:<28} {ranks:>5} {unit:>4}  {:>9} {:>9} {:>9}  {}",
            shown(&bare),
            shown(&hydra),
            shown(&lattice),
            ratio.map(|ratio| ratio.to_string()).unwrap_or_default()
        );
    }
}
