//! How does a cluster of Lattice compare with Hydra, if both have many nodes on this machine?
//!
//! Hydra starts a proxy for each name of an artificial host list. Lattice runs in a development cluster with as many agents on
//! loopback addresses, which run before the first round. Each node has one rank. Both launchers run the same programs in turns.
//!
//! Hydra dies of SIGPIPE when programs end before it has started all of them. Therefore the bench also runs a program that lasts long
//! enough, and shows the time beyond the sleep of this program. A launcher that cannot start `true` does not try `true` again.
//!
//! ```text
//! cargo bench -p lattice-benches --bench nodes
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round of two nodes.

mod killed;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::{Launcher, in_path};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine, turns};

/// Number of turns of each launcher with each program.
const ROUNDS: usize = 15;
/// Duration of a program that still runs when Hydra has started the last one.
const LASTING: Duration = Duration::from_millis(500);
/// Time after which the proxies that Hydra 5.0.2 leaves after such a death are gone. Its next launch waits for them.
const LEFT_BEHIND: Duration = Duration::from_secs(6);
/// Argument for this program inside a cluster; the number of nodes follows.
const INSIDE: &str = "--inside";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let inside = words.iter().position(|word| word == INSIDE).and_then(|at| words.get(at + 1)?.parse().ok());
    if let Some(nodes) = inside {
        return if compare(nodes) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    println!("{}", machine::line());
    println!(
        "{:<32} {:>5} {:>4} {:>9} {:>9}  {:>6}  95 % interval",
        "median", "nodes", "unit", "hydra", "lattice", "ratio"
    );
    let sizes: &[usize] = if is_measured() { &[8, 16, 32] } else { &[2] };
    // All sizes run, even if the first one fails.
    let failed = sizes.iter().filter(|&&nodes| !in_cluster(nodes)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs this program again, inside a cluster.
fn in_cluster(nodes: usize) -> bool {
    let (lattice, this) = match (lattice_binary(), std::env::current_exe()) {
        (Ok(lattice), Ok(this)) => (lattice, this),
        (Err(why), _) => {
            println!("lattice: absent, {why}");
            return true;
        }
        (_, Err(error)) => {
            println!("cannot find the path of this program: {error}");
            return false;
        }
    };
    let mut cluster = Command::new(lattice);
    cluster.args(["dev-cluster", "--loopback", "--nodes", &nodes.to_string(), "--"]).arg(this);
    cluster.args(std::env::args_os().skip(1)).args([INSIDE, &nodes.to_string()]);
    match cluster.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("the cluster did not start: {error}");
            false
        }
    }
}

/// Runs both launchers in turns and prints a line for each figure. Returns false if Lattice failed.
fn compare(nodes: usize) -> bool {
    let hosts: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
    let hosts = hosts.join(",");
    let mut launchers = Vec::new();
    match in_path("mpiexec.hydra") {
        Some(file) => {
            let arguments = ["-launcher", "fork", "-hosts", &hosts, "-ppn", "1"];
            launchers.push(Launcher::program("hydra", file, &arguments));
        }
        None => println!("hydra: absent, no mpiexec.hydra in PATH; Debian's package mpich has it"),
    }
    match lattice_binary() {
        Ok(file) => launchers.push(Launcher::program("lattice", file, &["launch"])),
        Err(why) => println!("lattice: absent, {why}"),
    }
    let launchers: Vec<&Launcher> = launchers.iter().collect();
    let rounds = if is_measured() { ROUNDS } else { 1 };
    let mut cannot = BTreeSet::new();
    let taken = turns::take(&launchers, rounds, |launcher| measure(launcher, nodes, &mut cannot));
    for (launcher, why) in
        launchers.iter().zip(&taken).filter_map(|(launcher, taken)| Some((launcher, taken.as_ref().err()?)))
    {
        println!("{:<32} {nodes:>5}  absent, {}: {why}", "", launcher.name);
    }
    let samples = |name: &str| {
        let found = launchers.iter().zip(&taken).find(|(launcher, _)| launcher.name == name);
        found.and_then(|(_, taken)| taken.as_ref().ok())
    };
    FIGURES.iter().for_each(|figure| figure.print(nodes, samples("hydra"), samples("lattice")));
    launchers.iter().zip(&taken).all(|(launcher, taken)| launcher.name != "lattice" || taken.is_ok())
}

/// A line of the table.
struct Figure {
    what: &'static str,
    unit: &'static str,
    /// Returns the figure of a run; `None` if the launcher failed.
    of: fn(&Run) -> Option<f64>,
}

const FIGURES: &[Figure] = &[
    Figure { what: "true, from start to end", unit: "ms", of: |run| run.at_once },
    Figure { what: "sleep 0.5, beyond that", unit: "ms", of: |run| Some(run.beyond) },
    Figure { what: "fence, 128 B of each rank", unit: "us", of: |run| Some(run.fence) },
    Figure { what: "barrier without data", unit: "us", of: |run| Some(run.barrier) },
    Figure { what: "a rank is killed, last one's end", unit: "ms", of: |run| run.killed },
];

impl Figure {
    fn print(&self, nodes: usize, hydra: Option<&Vec<Run>>, lattice: Option<&Vec<Run>>) {
        let Self { what, unit, of } = self;
        let values = |runs: Option<&Vec<Run>>| runs?.iter().map(of).collect::<Option<Vec<f64>>>();
        let (hydra, lattice) = (values(hydra), values(lattice));
        let shown =
            |values: &Option<Vec<f64>>| values.as_ref().map_or("-".into(), |values| format!("{:.1}", median(values)));
        // Each node has one rank.
        let compared = |(lattice, hydra): (&Vec<f64>, &Vec<f64>)| Comparison::of(lattice, hydra, nodes).to_string();
        let ratio = lattice.as_ref().zip(hydra.as_ref()).map(compared);
        let ratio = ratio.unwrap_or_default();
        println!("{what:<32} {nodes:>5} {unit:>4} {:>9} {:>9}  {ratio}", shown(&hydra), shown(&lattice));
    }
}

/// The figures of one turn.
struct Run {
    /// Time of `true`, in milliseconds; `None` if all tries failed.
    at_once: Option<f64>,
    /// Time of a sleeping program beyond its sleep, in milliseconds.
    beyond: f64,
    /// A fence with data, in microseconds: the median rank's median.
    fence: f64,
    /// A barrier, in microseconds: the median rank's median.
    barrier: f64,
    /// From the end of one killed rank to the end of the last rank, in milliseconds; `None` if ranks were left.
    killed: Option<f64>,
}

/// Tries up to five times, because Hydra sometimes dies of SIGPIPE when its programs end at once.
fn again_if_needed<T>(mut run: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let mut outcome = run();
    for _ in 0..4 {
        if outcome.is_ok() {
            break;
        }
        outcome = run();
    }
    outcome
}

/// Performs one turn. `cannot` contains the launchers that have failed to start `true`.
fn measure(launcher: &Launcher, nodes: usize, cannot: &mut BTreeSet<&'static str>) -> Result<Run, String> {
    let timed = |command: &[OsString]| {
        let start = Instant::now();
        launcher.run(nodes, command)?;
        Ok::<_, String>(start.elapsed())
    };
    let whole = again_if_needed(|| timed(&["sleep".into(), LASTING.as_secs_f64().to_string().into()]))?;
    let mut command = vec![OsString::from(env!("CARGO_BIN_EXE_pmi_raw"))];
    command.extend(["20", "0", "0", "20"].map(OsString::from));
    let printed = again_if_needed(|| launcher.run(nodes, &command))?;
    let column = |name: &str| -> Result<f64, String> {
        let words = |line: &str| {
            line.split(' ').filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name)?.1.parse().ok()
        };
        let figures: Vec<f64> = printed.lines().filter_map(words).collect();
        if figures.len() == nodes {
            Ok(median(&figures) / 1e3)
        } else {
            Err(format!("{} of {nodes} ranks reported {name:?}", figures.len()))
        }
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let killed = killed::measure(launcher, nodes).inspect_err(|why| println!("{}: {why}", launcher.name)).ok();
    let try_true = !cannot.contains(launcher.name);
    let at_once = try_true.then(|| again_if_needed(|| timed(&["true".into()])).ok()).flatten();
    if try_true && at_once.is_none() {
        cannot.insert(launcher.name);
        std::thread::sleep(LEFT_BEHIND);
    }
    Ok(Run {
        at_once: at_once.map(ms),
        beyond: ms(whole.saturating_sub(LASTING)),
        fence: column("fence")?,
        barrier: column("barrier")?,
        killed: killed.map(ms),
    })
}
