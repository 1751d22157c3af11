//! When is it cheaper to send the data of a PMIx fence to all nodes, when to answer gets on demand, and what does the rule cost?
//!
//! All nodes are in this process: real PMIx servers and real fences. Their frames and questions go through a network in model time. One hop
//! takes 30 us, a message costs its sender and its receiver 5 us of work each, and a node sends 1.2 GB/s. Each node has one rank, which commits
//! 4 KiB or 64 KiB and enters a fence. Then the rank gets the values of the next ranks, one after the other. The result is the time at which
//! the last rank has all its values.
//!
//! ```text
//! cargo bench -p lattice-benches --bench exchange
//! ```
//! The bench also measures the same wiring by calls of a set's members, without any fence (`routed`). `-- --picture FOLDER` draws both, and the
//! number of links of a set's members.
//!
//! At every connectivity `auto` must take at most a barrier and twice the time of the better way; otherwise the bench fails. Model time does
//! not depend on the cores of the machine. Without `--bench` (`cargo test --benches`) it uses 32 nodes.

mod fence;
mod pictures;
mod routed;

use std::path::Path;
use std::process::ExitCode;

use lattice_benches::{is_measured, machine};
use pmi_core::fence::Exchange;

use self::fence::{Cost, run};

/// Sizes of the value that each rank commits, in bytes.
const VALUES: [usize; 2] = [4 * 1024, 64 * 1024];

fn main() -> ExitCode {
    println!("{}", machine::line());
    let mut arguments = std::env::args();
    if arguments.any(|argument| argument == "--picture") {
        let folder = arguments.next().expect("a folder after --picture");
        pictures::draw(Path::new(&folder));
        return ExitCode::SUCCESS;
    }
    let nodes: u32 = if is_measured() { 256 } else { 32 };
    let worst = VALUES.map(|bytes| compare(nodes, bytes)).into_iter().fold(0_f64, f64::max);
    println!("auto beyond a barrier: at most {worst:.2} of the better way");
    if worst <= 2.0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the highest ratio of `auto`, without a barrier, to the better way.
fn compare(nodes: u32, bytes: usize) -> f64 {
    let barrier = run(nodes, bytes, Exchange::Lazy, 0);
    println!("{nodes} nodes, {} KiB of each; barrier: {:.2} ms", bytes / 1024, barrier.milliseconds);
    println!(
        "{:>12}  {:>18} {:>18} {:>18}  of the better way {:>9}",
        "asked of", "full, ms and MB", "lazy", "auto", "routed"
    );
    let mut worst = 0_f64;
    for percent in [0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100] {
        let peers = (nodes - 1) * percent / 100;
        let [full, lazy, auto] =
            [Exchange::Full, Exchange::Lazy, Exchange::Auto].map(|way| run(nodes, bytes, way, peers));
        let ratio = (auto.milliseconds - barrier.milliseconds) / full.milliseconds.min(lazy.milliseconds);
        worst = worst.max(ratio);
        let shown = |cost: Cost| format!("{:9.2} {:8.1}", cost.milliseconds, cost.megabytes);
        let routed = routed::run(nodes, bytes, peers).milliseconds;
        println!(
            "{peers:>6} {percent:>4}%  {} {} {}  {ratio:17.2} {routed:9.2}",
            shown(full),
            shown(lazy),
            shown(auto)
        );
    }
    worst
}
