//! Measures the time to read a node, to write it for hwloc, and to find its stored inventory.
//!
//! `cargo bench -p lattice-inventory`: this machine, and a generated one of 64 cores with 128 CPUs in a temporary directory. The files of the
//! generated machine cost less than files of `/sys`, which take about 8 us each. Medians of 51.

#[allow(dead_code, reason = "benches and tests use a part of it each")]
#[path = "../tests/made_up/mod.rs"]
mod made_up;

use std::time::{Duration, Instant};

use lattice_inventory::{Allowed, Inventory, Keeping, Root, ThisNode, xml};
use made_up::Machine;

const TURNS: usize = 51;

fn main() {
    let machine = large();
    println!(
        "{:<24} {:>10} {:>12} {:>12} {:>12} {:>12} {:>10}",
        "us", "read", "write XML", "changed", "unchanged", "with text", "XML bytes"
    );
    row("this machine", &Root::default());
    row("128 CPUs, made up", &machine.root());
}

fn row(name: &str, root: &Root) {
    let inventory = Inventory::read(root);
    let write = || xml::write(&inventory, &Allowed::all(&inventory.template)).expect("a node that can be read");
    // In memory, like `/run`.
    let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let kept = directory.path().join("kept");
    let look = || ThisNode::below(root.clone(), vec![Keeping::at(&kept)]).topology().expect("it was kept");
    look();
    // `changed` is the look-up of a launch after a device event of the kernel; `look` alone is that of any other launch.
    let changed = || {
        for entry in kept.read_dir().expect("it was made").flatten() {
            if entry.file_name().to_string_lossy().starts_with("unchanged-") {
                std::fs::remove_file(entry.path()).expect("it is ours");
            }
        }
        let begin = Instant::now();
        look();
        begin.elapsed()
    };
    let changed = middle((0..TURNS).map(|_| changed()).collect());
    let with_text = median(|| look().text().expect("no process writes it").len());
    let times = [median(|| Inventory::read(root)), median(write), changed, median(look), with_text];
    let [read, written, changed, unchanged, with_text] = times.map(|time| time.as_nanos() as f64 / 1e3);
    let bytes = write().len();
    println!("{name:<24} {read:>10.0} {written:>12.0} {changed:>12.1} {unchanged:>12.1} {with_text:>12.1} {bytes:>10}");
}

fn median<T>(mut work: impl FnMut() -> T) -> Duration {
    let turn = |_| {
        let begin = Instant::now();
        let _ = std::hint::black_box(work());
        begin.elapsed()
    };
    middle((0..TURNS).map(turn).collect())
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[TURNS / 2]
}

/// Two packages of 32 cores, with four NUMA nodes and four network interfaces each.
fn large() -> Machine {
    let machine = Machine::new("0-127", "0-127");
    machine.write("proc/self/status", "Cpus_allowed_list:\t0-127\nMems_allowed_list:\t0-7");
    machine.write("sys/kernel/uevent_seqnum", "4711");
    let cores: Vec<String> = (0..64).map(|core| format!("{core},{}", core + 64)).collect();
    machine.groups("core", &cores.iter().map(String::as_str).collect::<Vec<_>>());
    machine.groups("package", &["0-31,64-95", "32-63,96-127"]).groups("die", &["0-31,64-95", "32-63,96-127"]);
    for cpus in &cores {
        machine.caches(&[(0, 1, "Data", 32, cpus), (1, 1, "Instruction", 32, cpus), (2, 2, "Unified", 512, cpus)]);
    }
    let eighth = |node: u32| format!("{}-{},{}-{}", node * 8, node * 8 + 7, node * 8 + 64, node * 8 + 71);
    let nodes: Vec<String> = (0..8).map(eighth).collect();
    for cpus in &nodes {
        machine.caches(&[(3, 3, "Unified", 32768, cpus)]);
    }
    machine.numa(&nodes.iter().map(|cpus| (cpus.as_str(), "10 12 12 12 32 32 32 32")).collect::<Vec<_>>());
    for (node, cpus) in nodes.iter().enumerate() {
        machine.pci(&format!("0000:{:02x}:00.0", 0x10 + node), 0x0002_0000, [0x17db, 0x0501], node as i32, cpus);
    }
    machine
}
