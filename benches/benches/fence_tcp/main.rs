//! What does a fence between nodes cost over links of sessions and over gRPC, in comparison with a bare tree over TCP and with
//! Hydra?
//!
//! All nodes run in this process, on one thread: sessions with their links as in session processes, and agents with their
//! servers as in the daemon. The floor is a tree of the same shape that writes lengths and bytes to plain sockets, without
//! encryption and without the frames of gRPC. It also runs on one thread. Hydra runs one proxy and one rank per node. All of
//! them take turns. The time of a fence begins at the end of the fence before it. The first fence also opens links. As there is
//! one thread, its extra time is the processor time of both ends of all links that it opened.
//!
//! ```text
//! cargo bench -p lattice-benches --bench fence_tcp [-- --sweep]     # --sweep: a table of fan-outs instead, without Hydra
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, once with four nodes.

#[path = "../../../pmi-transport/tests/agents/mod.rs"]
mod agents;
mod floor;
mod hydra;
mod ours;

use lattice_benches::comparison::Comparison;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine};
use pmi_transport::fence::FanOut;

use crate::agents::Over;
use crate::floor::Floor;
use crate::hydra::Hydra;
use crate::ours::Ours;

/// Bytes that each rank contributes to a fence with data.
const RECORD: usize = 128;

/// Median times of one turn, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    barrier: f64,
    data: f64,
}

/// Amount of measurements.
#[derive(Clone, Copy)]
struct Amount {
    turns: usize,
    fences: usize,
}

fn main() {
    println!("{}", machine::line());
    if std::env::args().any(|word| word == "--sweep") {
        return sweep();
    }
    let (sizes, amount) = if is_measured() {
        (&[16, 64, 128][..], Amount { turns: 11, fences: 40 })
    } else {
        (&[4][..], Amount { turns: 1, fences: 2 })
    };
    println!("{:<16} {:>5} {:<9} {:>9}  {:<48} of hydra", "median, us", "nodes", "", "", "of floor");
    for &nodes in sizes {
        compare(nodes, amount);
    }
}

/// Figures of all turns.
#[derive(Default)]
struct Taken {
    floor: Vec<Figures>,
    hydra: Vec<Figures>,
    ours: [Vec<Figures>; 2],
}

/// Measures one number of nodes and prints its lines.
fn compare(nodes: u32, amount: Amount) {
    let fan_out = FanOut::default();
    let kinds = [("sessions", Over::Sessions), ("gRPC", Over::Tcp)];
    let (floor, ours) = (Floor::new(nodes, fan_out), kinds.map(|(_, over)| Ours::new(nodes, fan_out, over)));
    let mut hydra = Hydra::find();
    let mut taken = Taken::default();
    for _ in 0..amount.turns {
        taken.floor.push(floor.measure(amount.fences));
        for (ours, taken) in ours.iter().zip(&mut taken.ours) {
            taken.push(ours.measure(amount.fences));
        }
        match hydra.as_ref().map(|hydra| hydra.measure(nodes, amount.fences)) {
            Ok(Ok(figures)) => taken.hydra.push(figures),
            Ok(Err(why)) => hydra = Err(why),
            Err(_) => {}
        }
    }
    if let Err(why) = &hydra {
        println!("hydra: absent, {why}");
        taken.hydra.clear();
    }
    print_lines("barrier", nodes, &taken, kinds.map(|(name, _)| name), |figures| figures.barrier);
    print_lines(&format!("{RECORD} B per node"), nodes, &taken, kinds.map(|(name, _)| name), |figures| figures.data);
    for ((name, _), ours) in kinds.iter().zip(&ours) {
        println!("{:<16} {nodes:>5} {name:<9} {:>9.0}", "a link, CPU", ours.link_cost(nodes));
    }
}

fn print_lines(what: &str, nodes: u32, taken: &Taken, names: [&str; 2], figure: impl Fn(&Figures) -> f64) {
    let of = |turns: &[Figures]| turns.iter().map(&figure).collect::<Vec<_>>();
    let (floor, hydra) = (of(&taken.floor), of(&taken.hydra));
    for (name, peer) in [("floor", &floor), ("hydra", &hydra)] {
        if !peer.is_empty() {
            println!("{what:<16} {nodes:>5} {name:<9} {:>9.0}", median(peer));
        }
    }
    for (name, ours) in names.iter().zip(&taken.ours) {
        let ours = of(ours);
        let ratio = |under: &[f64]| {
            if under.is_empty() { "-".to_owned() } else { Comparison::of(&ours, under, nodes as usize).to_string() }
        };
        println!("{what:<16} {nodes:>5} {name:<9} {:>9.0}  {:<48} {}", median(&ours), ratio(&floor), ratio(&hydra));
    }
}

/// Which fan-outs cost least on this machine? All nodes are on one machine, so that the result shows the cost of messages and
/// bytes, without the latency between machines. For this latency see the bench `fence_mem`.
fn sweep() {
    println!("{:>6} {:>8} {:>12} {:>12}", "nodes", "fan-out", "barrier, us", "data, us");
    for nodes in [64, 128] {
        for fan_out in [1, 2, 4, 8, 16, 32, nodes - 1] {
            let ours = Ours::new(nodes, FanOut { barrier: fan_out.max(2), data: fan_out }, Over::Sessions);
            let turns: Vec<_> = (0..5).map(|_| ours.measure(40)).collect();
            let [barrier, data] = [|figures: &Figures| figures.barrier, |figures: &Figures| figures.data]
                .map(|figure| median(&turns.iter().map(figure).collect::<Vec<_>>()));
            println!("{nodes:>6} {fan_out:>8} {barrier:>12.0} {data:>12.0}");
        }
    }
}
