//! Is the rule by which a PMIx fence sends data to all nodes, or only on demand, good in measured time? The bench `exchange` uses model time.
//!
//! ```text
//! cargo bench -p lattice-benches --bench exchange_times
//! ```
//! A cluster of 16 nodes runs on this machine, with one rank on each. In a round each rank puts a value, commits, fences, gets the values of its
//! peers, and fences without data. `--exchange=full`, `lazy` and `auto` take turns. At every number of peers `auto` may take a barrier and twice
//! the time of the better way. Rows above this limit are marked, and the bench fails. A row is not marked if the interval of the ratio reaches
//! the limit, or if the machine has fewer than 16 cores. The bench measures the launcher in `LATTICE_BIN`, or else the launcher next to this
//! program. Without `--bench` (`cargo test --benches`) it does nothing, because a launcher need not exist.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};

use lattice_benches::comparison::{Comparison, Verdict};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine};

const NODES: u32 = 16;
/// Limit of `auto` without a barrier, as a multiple of the better way's time.
const LIMIT: f64 = 2.0;
/// Sizes of the value that each rank puts, in bytes.
const VALUES: [usize; 3] = [128, 4 * 1024, 64 * 1024];
/// Shares of the other ranks that are the peers of each rank, in per cent.
const SHARES: [u32; 7] = [0, 7, 14, 27, 47, 74, 100];
/// Ways of the exchange, in the order of the turns.
const WAYS: [&str; 3] = ["full", "lazy", "auto"];
/// Number of turns of each way.
const TURNS: usize = 9;
/// Number of rounds in each turn.
const ROUNDS: &str = "20";

/// Medians of the turns in microseconds, by way and number of peers.
type Times = BTreeMap<(String, u32), Vec<f64>>;

fn main() -> ExitCode {
    if !is_measured() {
        return ExitCode::SUCCESS;
    }
    println!("{}", machine::line());
    match VALUES.into_iter().map(|bytes| Ok(compare(bytes, &measure(bytes)?))).collect::<Result<Vec<_>, String>>() {
        Ok(kept) if kept.iter().all(|&kept| kept) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the times for values of `bytes` bytes. Returns true if `auto` kept its limit at every number of peers.
fn compare(bytes: usize, times: &Times) -> bool {
    let of = |way: &str, peers| &times[&(way.to_owned(), peers)];
    // Without gets the lazy way moves no data, so that a round is two fences.
    let barrier = median(of("lazy", 0));
    println!("{NODES} nodes, {bytes} bytes of each; a round without gets, lazy: {barrier:.0} us");
    println!("peers     full us     lazy us     auto us   beyond it, of the better way  95 % interval");
    let mut is_kept = true;
    for peers in peers() {
        let [full, lazy, auto] = WAYS.map(|way| median(of(way, peers)));
        let better = if full < lazy { "full" } else { "lazy" };
        let beyond: Vec<f64> = of("auto", peers).iter().map(|time| (time - barrier).max(0.0)).collect();
        let ratio = Comparison::of(&beyond, of(better, peers), NODES as usize);
        let is_missed = ratio.verdict(LIMIT) == Verdict::Missed;
        let mark = if is_missed { "  too long" } else { "" };
        is_kept &= !is_missed;
        println!("{peers:>5} {full:>11.0} {lazy:>11.0} {auto:>11.0}   {ratio}{mark}");
    }
    is_kept
}

fn peers() -> Vec<u32> {
    SHARES.iter().map(|share| (NODES - 1) * share / 100).collect()
}

/// Runs all turns on one cluster.
fn measure(bytes: usize) -> Result<Times, String> {
    let lattice = lattice_binary()?;
    let words: Vec<String> = peers().iter().map(u32::to_string).collect();
    let script = format!(
        "for turn in $(seq {TURNS}); do for way in {}; do echo way $way\n\"$0\" launch --exchange=$way -N {NODES} -n {NODES} \"$1\" {ROUNDS} \
         {bytes} {} || exit; done; done",
        WAYS.join(" "),
        words.join(" ")
    );
    let mut cluster = Command::new(&lattice);
    cluster.args(["dev-cluster", "--quiet", "--nodes", &NODES.to_string(), "--", "sh", "-c", &script]);
    cluster.arg(&lattice).arg(env!("CARGO_BIN_EXE_pmix_wiring"));
    let output = cluster.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("a launch ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| format!("the ranks printed {text:?}"))
}

fn read(text: &str) -> Option<Times> {
    let (mut times, mut way) = (Times::new(), String::new());
    for line in text.lines() {
        match line.split_once(' ')? {
            ("way", name) => name.clone_into(&mut way),
            (peers, us) => times.entry((way.clone(), peers.parse().ok()?)).or_default().push(us.parse().ok()?),
        }
    }
    (times.len() == WAYS.len() * SHARES.len()).then_some(times)
}
