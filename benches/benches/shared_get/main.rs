//! What does a get cost that needs no message?
//!
//! The first two tables measure the memory by itself, without a launcher. In the third table, `pmi-client` gets the same keys under three
//! launchers in turns:
//!
//! - Hydra 5.0.2 (of the Python wheel that `cargo xtask setup` installs)
//! - Lattice through its socket (`--no-job-memory`)
//! - Lattice with the job's memory
//!
//! A launcher that is not installed is reported as absent. If a run of Lattice fails, the bench fails. With several nodes each run of Lattice
//! has a development cluster on loopback addresses, and Hydra has a proxy for each node.
//!
//! ```text
//! cargo bench -p lattice-benches --bench shared_get
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round.

use std::ffi::OsString;
use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use job_memory::{JobFacts, JobReader, JobWriter, Lookup, NodeFacts, RankFacts};
use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::{Launcher, in_path};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine, turns};

/// Number of turns of each launcher in a scenario.
const ROUNDS: usize = 11;

/// Names of the compared launchers.
const HYDRA: &str = "hydra";
const SOCKET: &str = "socket";
const MEMORY: &str = "memory";

/// Gets of one run: numbers of ranks and nodes, keys of each rank, and gets of each rank.
#[derive(Clone, Copy)]
struct Scenario {
    nodes: u32,
    ranks: u32,
    keys: u32,
    gets: u32,
}

fn main() -> ExitCode {
    println!("{}", machine::line());
    println!("{:>8}  {:>12}", "ranks", "made in us");
    [4, 1024, 65_536].into_iter().for_each(facts);
    println!("\n{:>8}  {:>12} {:>12} {:>12}", "pairs", "publish, ns", "get, ns", "absent, ns");
    let sizes: &[u32] = if is_measured() { &[256, 10_000, 200_000] } else { &[256] };
    sizes.iter().for_each(|&pairs| pieces(pairs));
    println!(
        "\n{:<22} {:>5} {:>5} {:>7}  {:>9} {:>9} {:>9}  memory to hydra",
        "get, us", "nodes", "ranks", "pairs", HYDRA, SOCKET, MEMORY
    );
    let scenario = |nodes, ranks, keys, gets| Scenario { nodes, ranks, keys, gets };
    let (scenarios, rounds) = if is_measured() {
        let on_one =
            [scenario(1, 1, 256, 5000), scenario(1, 4, 64, 5000), scenario(1, 64, 4, 500), scenario(1, 4, 2500, 5000)];
        (on_one.into_iter().chain([scenario(32, 64, 1, 64)]).collect(), ROUNDS)
    } else {
        (vec![scenario(1, 2, 3, 10), scenario(2, 4, 1, 4)], 1)
    };
    let worked: Vec<bool> = scenarios.iter().map(|scenario: &Scenario| compare(*scenario, rounds)).collect();
    if worked.iter().all(|worked| *worked) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the time to create and to end the memory of a job of `ranks` ranks, with four ranks on each node.
fn facts(ranks: u32) {
    let rank =
        |rank: u32| RankFacts { node: rank / 4, local_rank: rank % 4, node_rank: rank % 4, appnum: 0, cpus: None };
    let node = |node: u32| NodeFacts { name: format!("node{node}"), address: Some(format!("10.0.0.{node}:50052")) };
    let facts = JobFacts {
        job_id: "j".into(),
        ranks: (0..ranks).map(rank).collect(),
        nodes: (0..ranks / 4).map(node).collect(),
        ..JobFacts::default()
    };
    let times = (0..21).map(|_| {
        let start = Instant::now();
        drop(JobWriter::create(&facts).expect("this system has no memory files"));
        start.elapsed().as_secs_f64() * 1e6
    });
    println!("{ranks:>8}  {:>12.1}", median(&times.collect::<Vec<_>>()));
}

/// Prints the times of the memory by itself, with `pairs` pairs of a 20-byte key and a 128-byte value.
fn pieces(pairs: u32) {
    let facts = JobFacts { job_id: "j".into(), ..JobFacts::default() };
    let (mut writer, descriptor) = JobWriter::create(&facts).expect("this system has no memory files");
    let mut reader = JobReader::of(File::from(descriptor), "j").expect("it was just made");
    let key = |number: u32| format!("businesscard-{number:07}");
    let keys: Vec<String> = (0..2 * pairs).map(key).collect();
    let (there, absent) = keys.split_at(pairs as usize);
    let publish = mean(there, |key| writer.publish(key.as_bytes(), &[b'v'; 128]).expect("there is room"));
    writer.complete(1);
    let get = mean(there, |key| assert!(matches!(black_box(reader.get(key.as_bytes())), Lookup::Found(_))));
    let miss = mean(absent, |key| assert_eq!(black_box(reader.get(key.as_bytes())), Lookup::Absent));
    println!("{pairs:>8}  {publish:>12.0} {get:>12.0} {miss:>12.0}");
}

/// Returns the mean time of one call in nanoseconds. The order of the keys is pseudo-random.
fn mean(keys: &[String], mut call: impl FnMut(&str)) -> f64 {
    let start = Instant::now();
    for number in 0..keys.len() {
        call(&keys[number * 7919 % keys.len()]);
    }
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

/// Returns the installed launchers, with their arguments to distribute the ranks over the nodes.
fn launchers(Scenario { nodes, ranks, .. }: Scenario) -> Vec<Launcher> {
    let names: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
    let (names, count, share) = (names.join(","), nodes.to_string(), (ranks / nodes).to_string());
    let lattice = |name, options: &[&str]| {
        let file = lattice_binary()?;
        let itself = file.to_str().ok_or("the path of lattice is no text")?.to_owned();
        let launch = match nodes {
            1 => vec!["launch"],
            _ => {
                vec![
                    "dev-cluster",
                    "--loopback",
                    "--nodes",
                    &count,
                    "--",
                    &itself,
                    "launch",
                    "--tasks-per-node",
                    &share,
                ]
            }
        };
        Ok::<_, String>(Launcher::program(name, file, &[&launch, options].concat()))
    };
    let proxies = ["-launcher", "fork", "-hosts", &names, "-ppn", &share];
    let proxies = if nodes == 1 { &[] } else { &proxies[..] };
    let hydra = hydra().map(|file| Launcher::program(HYDRA, file, proxies)).ok_or("no mpiexec.hydra".to_owned());
    let found = [hydra, lattice(SOCKET, &["--no-job-memory"]), lattice(MEMORY, &[])];
    found.into_iter().filter_map(|launcher| launcher.inspect_err(|why| println!("absent: {why}")).ok()).collect()
}

/// Returns the Hydra of the wheel, in the directory `mpi` next to the profile directory, or else the Hydra in `PATH`.
fn hydra() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let wheel = here.ancestors().map(|directory| directory.join("mpi/mpich-5.0.2/bin/mpiexec.hydra"));
    wheel.into_iter().find(|file| file.exists()).or_else(|| in_path("mpiexec.hydra"))
}

/// Runs the launchers in turns and prints a line for each figure. Returns false if Lattice failed.
fn compare(scenario: Scenario, rounds: usize) -> bool {
    let launchers = launchers(scenario);
    let launchers: Vec<&Launcher> = launchers.iter().collect();
    let taken = turns::take(&launchers, rounds, |launcher| scenario.measure(launcher));
    for (launcher, why) in
        launchers.iter().zip(&taken).filter_map(|(launcher, taken)| Some((launcher, taken.as_ref().err()?)))
    {
        println!("{}: {why}", launcher.name);
    }
    let samples = |name: &str| {
        let mut both = launchers.iter().zip(&taken);
        both.find_map(|(launcher, taken)| (launcher.name == name).then_some(taken.as_ref().ok()?))
    };
    for (what, figure) in [("one rank asks", 0), ("all ranks ask at once", 1)] {
        let values =
            [HYDRA, SOCKET, MEMORY].map(|name| samples(name).map(|runs| runs.iter().map(|run| run[figure]).collect()));
        print_line(what, scenario, &values);
    }
    launchers.iter().zip(&taken).all(|(launcher, taken)| launcher.name == HYDRA || taken.is_ok())
}

fn print_line(what: &str, scenario: Scenario, values: &[Option<Vec<f64>>; 3]) {
    let shown =
        |values: &Option<Vec<f64>>| values.as_ref().map_or("-".into(), |values| format!("{:.2}", median(values)));
    let [hydra, socket, memory] = values;
    let Scenario { nodes, ranks, keys, .. } = scenario;
    let compared = |(memory, hydra): (&Vec<f64>, &Vec<f64>)| Comparison::of(memory, hydra, ranks as usize).to_string();
    let ratio = memory.as_ref().zip(hydra.as_ref()).map(compared);
    let (pairs, ratio) = (ranks * keys, ratio.unwrap_or_default());
    println!(
        "{what:<22} {nodes:>5} {ranks:>5} {pairs:>7}  {:>9} {:>9} {:>9}  {ratio}",
        shown(hydra),
        shown(socket),
        shown(memory)
    );
}

impl Scenario {
    /// Performs one run. Returns the time of a get in us, of rank 0 alone and of the median rank of all.
    fn measure(self, launcher: &Launcher) -> Result<[f64; 2], String> {
        let mut command = vec![OsString::from(env!("CARGO_BIN_EXE_pmi_get"))];
        command.extend([self.keys, self.gets].map(|count| count.to_string().into()));
        let printed = launcher.run(self.ranks as usize, &command)?;
        let column = |name: &str| -> Vec<f64> { printed.lines().filter_map(|line| figure(line, name)).collect() };
        let (alone, together, shared) = (column("alone"), column("together"), column("shared"));
        if together.len() != self.ranks as usize {
            return Err(format!("{} of {} ranks reported", together.len(), self.ranks));
        }
        if shared.iter().any(|&shared| (shared > 0.0) != (launcher.name == MEMORY)) {
            return Err("a rank has memory where there should be none, or none where there should be".to_owned());
        }
        Ok([alone.iter().sum::<f64>() / 1e3, median(&together) / 1e3])
    }
}

fn figure(line: &str, name: &str) -> Option<f64> {
    let (_, value) = line.split(' ').filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name)?;
    value.parse().ok()
}
