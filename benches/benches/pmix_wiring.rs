//! Does a job exchange its data faster over PMIx under `prterun` or under Lattice, for 1 to 100 % of its ranks as peers of each?
//!
//! ```text
//! cargo bench -p lattice-benches --bench pmix_wiring
//! ```
//! The bench uses this machine alone, and Lattice's client of PMIx under both launchers, in turns. `prterun` is from the Open MPI 5.0.11 of
//! Python's wheel, which `cargo xtask setup` installs. Lattice is the launcher in `LATTICE_BIN`, or else the launcher next to this program.
//! Without `--bench` (`cargo test --benches`) the bench does nothing, because a launcher need not exist.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::Launcher;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine, turns};

const RANKS: [u32; 3] = [8, 16, 32];
/// Shares of all ranks that are the peers of each rank, in per cent.
const SHARES: [u32; 6] = [1, 5, 10, 20, 50, 100];
/// Number of turns of each launcher.
const ROUNDS: usize = 7;
/// Number of rounds in each turn.
const WIRED: &str = "20";
/// Number of bytes that each rank puts.
const BYTES: &str = "128";
/// Number of tries for a turn. `prterun` sometimes hangs at its start, and is then ended.
const TRIES: u32 = 3;

/// Times of one turn in microseconds, by peers.
type Times = BTreeMap<u32, f64>;

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
    let launchers = [prterun()?, Launcher::lattice()?];
    println!("ranks peers  prterun us  lattice us   prterun T/(nk)  lattice T/(nk)  ratio  95 % interval");
    for ranks in RANKS {
        let mut taken = turns::take(&launchers.each_ref(), ROUNDS, |launcher| turn(launcher, ranks)).into_iter();
        let mut next = || taken.next().unwrap_or_else(|| Err("it took no turn".to_owned()));
        let (theirs, ours) = (next()?, next()?);
        for peers in peers_of(ranks) {
            let [theirs, ours] =
                [&theirs, &ours].map(|turns| turns.iter().map(|times| times[&peers]).collect::<Vec<f64>>());
            let (each, wired) = ([median(&theirs), median(&ours)], f64::from(ranks * peers));
            println!(
                "{ranks:>5} {peers:>5}  {:>10.0}  {:>10.0}   {:>14.2}  {:>14.2}  {}",
                each[0],
                each[1],
                each[0] / wired,
                each[1] / wired,
                Comparison::of(&ours, &theirs, ranks as usize)
            );
        }
    }
    Ok(())
}

fn prterun() -> Result<Launcher, String> {
    // The installation directory of the set-up, next to the profile directory of this program.
    let target = Path::new(env!("CARGO_BIN_EXE_pmix_wiring")).ancestors().nth(2).unwrap_or(Path::new("."));
    let prterun = target.join("mpi/openmpi-5.0.11/bin/prterun");
    if !prterun.exists() {
        return Err("prterun of Open MPI 5.0.11: absent; cargo xtask setup installs it".to_owned());
    }
    let prterun = prterun.to_string_lossy();
    let arguments = ["60", &*prterun, "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"];
    Ok(Launcher::program("prterun", "timeout".into(), &arguments))
}

/// Returns the numbers of peers: at least two peers, and each number once.
fn peers_of(ranks: u32) -> Vec<u32> {
    let mut peers = SHARES.map(|share| (ranks * share / 100).clamp(2, ranks - 1)).to_vec();
    peers.dedup();
    peers
}

fn turn(launcher: &Launcher, ranks: u32) -> Result<Times, String> {
    let mut command: Vec<OsString> = vec![env!("CARGO_BIN_EXE_pmix_wiring").into(), WIRED.into(), BYTES.into()];
    command.extend(peers_of(ranks).into_iter().map(|peers| peers.to_string().into()));
    let mut why = String::new();
    for _ in 0..TRIES {
        match launcher.run(ranks as usize, &command) {
            Ok(text) => return read(&text).ok_or_else(|| format!("{} printed {text:?}", launcher.name)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn read(text: &str) -> Option<Times> {
    text.lines()
        .map(|line| line.split_once(' ').and_then(|(peers, us)| Some((peers.parse().ok()?, us.parse().ok()?))))
        .collect()
}
