//! When is it cheaper to bring the data of a PMIx fence to all nodes, when to let those ask who need it, and what does the rule cost?
//!
//! All nodes are in this process: real PMIx servers and real fences, whose frames and questions go through a network of model time.
//! One hop takes 30 us, a message takes its sender and its receiver 5 us of work each, and a node sends 1.2 GB/s. One rank a node
//! commits 4 KiB or 64 KiB, comes to a fence, and then gets the values of so many ranks behind it, one after the other. Shown is the time at
//! which the last rank has all that it wanted.
//!
//! ```text
//! cargo bench -p lattice-benches --bench exchange
//! ```
//! Beside them the same wiring by calls of a set's members, without any fence (`routed`). `-- --picture FOLDER` draws both, and how many links
//! the members of a set have.
//!
//! At every connectivity `auto` takes at most a barrier and twice the better way; the bench fails if it does not. Model time does not depend on
//! the cores of the machine. Without `--bench`, as under `cargo test --benches`, it looks at 32 nodes.

mod fence;
mod pictures;
mod routed;

use std::path::Path;
use std::process::ExitCode;

use lattice_benches::{is_measured, machine};
use pmi_core::fence::Exchange;

use self::fence::{Cost, run};

/// What each rank commits, in bytes.
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

/// Returns the greatest part of the better way's time that `auto` took beyond a barrier.
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
