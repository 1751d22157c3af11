//! What does a fence between agents cost, beside a bare tree over TCP, and beside Hydra?
//!
//! All agents run in this process, on one thread, each with its own server and links as in the daemon. The floor is a tree of
//! the same shape that writes lengths and bytes to plain sockets, without gRPC, also on one thread. Hydra runs one proxy and
//! one rank per agent. All take turns, and each fence is timed from the moment at which the one before it is through.
//!
//! ```text
//! cargo bench -p lattice-benches --bench fence_tcp [-- --sweep]     # --sweep: a table of fan-outs instead, without Hydra
//! ```
//! Without `--bench`, as under `cargo test --benches`, it only proves that it works: four agents, once.

#[path = "../../../pmi-transport/tests/agents/mod.rs"]
mod agents;
mod floor;
mod hydra;
mod ours;

use lattice_benches::sample::{Ratio, median};
use lattice_benches::{is_measured, machine};
use pmi_transport::fence::FanOut;

use crate::floor::Floor;
use crate::hydra::Hydra;
use crate::ours::Ours;

/// What each rank brings to a fence with data.
const RECORD: usize = 128;

/// Median times of one turn, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    barrier: f64,
    data: f64,
}

/// How much is measured.
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
    println!(
        "{:<18} {:>6} {:>9} {:>9} {:>9}  {:<24} of hydra",
        "median, us", "agents", "floor", "hydra", "lattice", "of floor"
    );
    for &nodes in sizes {
        compare(nodes, amount);
    }
}

/// Measures one number of agents and prints two lines.
fn compare(nodes: u32, amount: Amount) {
    let fan_out = FanOut::default();
    let (floor, ours) = (Floor::new(nodes, fan_out), Ours::new(nodes, fan_out));
    let mut hydra = Hydra::find();
    let mut taken: [Vec<Figures>; 3] = Default::default();
    for _ in 0..amount.turns {
        taken[0].push(floor.measure(amount.fences));
        taken[1].push(ours.measure(amount.fences));
        match hydra.as_ref().map(|hydra| hydra.measure(nodes, amount.fences)) {
            Ok(Ok(figures)) => taken[2].push(figures),
            Ok(Err(why)) => hydra = Err(why),
            Err(_) => {}
        }
    }
    if let Err(why) = &hydra {
        println!("hydra: absent, {why}");
        taken[2].clear();
    }
    print_line("barrier", nodes, &taken, |figures| figures.barrier);
    print_line(&format!("{RECORD} B per agent"), nodes, &taken, |figures| figures.data);
}

fn print_line(what: &str, nodes: u32, taken: &[Vec<Figures>; 3], figure: impl Fn(&Figures) -> f64) {
    let [floor, ours, hydra] = taken.each_ref().map(|turns| turns.iter().map(&figure).collect::<Vec<_>>());
    let shown = |values: &[f64]| if values.is_empty() { "-".to_owned() } else { format!("{:.0}", median(values)) };
    let ratio = |under: &[f64]| if under.is_empty() { "-".to_owned() } else { Ratio::of(&ours, under).to_string() };
    println!(
        "{what:<18} {nodes:>6} {:>9} {:>9} {:>9}  {:<24} {}",
        shown(&floor),
        shown(&hydra),
        shown(&ours),
        ratio(&floor),
        ratio(&hydra)
    );
}

/// Which fan-outs cost least here? With all agents on one machine this shows what messages and bytes cost, not the way between
/// machines; for that see the bench `fence_mem`.
fn sweep() {
    println!("{:>6} {:>8} {:>12} {:>12}", "agents", "fan-out", "barrier, us", "data, us");
    for nodes in [64, 128] {
        for fan_out in [1, 2, 4, 8, 16, 32, nodes - 1] {
            let ours = Ours::new(nodes, FanOut { barrier: fan_out.max(2), data: fan_out });
            let turns: Vec<_> = (0..5).map(|_| ours.measure(40)).collect();
            let [barrier, data] = [|figures: &Figures| figures.barrier, |figures: &Figures| figures.data]
                .map(|figure| median(&turns.iter().map(figure).collect::<Vec<_>>()));
            println!("{nodes:>6} {fan_out:>8} {barrier:>12.0} {data:>12.0}");
        }
    }
}
