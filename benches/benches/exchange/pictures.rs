//! Pictures for the documentation: wiring by the number of nodes, and links of members.

use std::path::Path;

use lattice_benches::picture::{self, Chart, Scale};
use pmi_core::fence::Exchange;

use crate::fence::run;
use crate::{VALUES, routed};

const NODES: [u32; 6] = [8, 16, 32, 64, 128, 256];
/// Shares of all nodes that are the peers of each node, in percent, with their names. Each node has at least two peers.
const PARTS: [(u32, &str); 5] = [(1, "1 % of all"), (5, "5 %"), (20, "20 %"), (50, "50 %"), (100, "100 %")];
/// Numbers of members in the picture of links.
const MEMBERS: [u32; 9] = [4, 16, 64, 256, 512, 1024, 2048, 4096, 8192];

/// Points of a curve.
type Points = Vec<(f64, f64)>;

pub(crate) fn draw(folder: &Path) {
    let wiring = [wiring(), by_members()];
    for (name, x, charts) in
        [("overlay-wiring.svg", "nodes", &wiring[0]), ("overlay-degree.svg", "members", &wiring[1])]
    {
        picture::draw(&folder.join(name), x, charts).expect("the file can be written");
    }
}

/// Time for each wired connection, T/(n k), by fences, gets and calls.
fn wiring() -> Vec<Chart> {
    let [mut full, mut lazy, mut routed] = [const { Vec::new() }; 3];
    for (percent, name) in PARTS {
        let [mut fences, mut gets, mut calls] = [const { Points::new() }; 3];
        for nodes in NODES {
            let peers = ((nodes - 1) * percent / 100).max(2);
            let each = |milliseconds: f64| (f64::from(nodes), milliseconds * 1e3 / f64::from(nodes * peers));
            let by_fence = each(run(nodes, VALUES[0], Exchange::Full, peers).milliseconds);
            fences.push(by_fence);
            let of_fence = |(nodes, us): (f64, f64)| (nodes, us / by_fence.1);
            gets.push(of_fence(each(run(nodes, VALUES[0], Exchange::Lazy, peers).milliseconds)));
            calls.push(of_fence(each(routed::run(nodes, VALUES[0], peers).milliseconds)));
            let [(_, us), (_, lazy), (_, routed)] = [&fences, &gets, &calls].map(|points| points[points.len() - 1]);
            println!(
                "{nodes:>4} nodes, {peers:>3} peers: fence {us:9.3} us each; gets {lazy:6.2}, calls {routed:6.2} of that"
            );
        }
        full.push((name, fences));
        lazy.push((name, gets));
        routed.push((name, calls));
    }
    let chart = |title, lines| Chart { title, scale: Scale::Logarithmic, lines };
    vec![
        chart("fence that brings all: T/(n k), us", full),
        chart("lazy gets, as part of that", lazy),
        chart("calls without a fence, as part of that", routed),
    ]
}

/// Links of members after each member has called log2(members) random members.
fn by_members() -> Vec<Chart> {
    let [mut least, mut mean, mut most] = [const { Points::new() }; 3];
    for members in MEMBERS {
        let mut seed = 1;
        let mut random = || {
            seed = (seed * 48_271_u64) % 0x7fff_ffff;
            (seed % u64::from(members)) as u32
        };
        let wanted = (0..members).map(|_| (0..members.ilog2()).map(|_| random()).collect()).collect();
        let degrees = routed::wire(128, wanted).degrees;
        let at = |links: f64| (f64::from(members), links);
        let [lowest, highest] =
            [degrees.iter().min(), degrees.iter().max()].map(|links| *links.expect("members") as f64);
        least.push(at(lowest));
        mean.push(at(degrees.iter().sum::<usize>() as f64 / f64::from(members)));
        most.push(at(highest));
        println!("{members:>5} members: {lowest} to {highest} links, mean {:.1}", mean[mean.len() - 1].1);
    }
    let lines = vec![("most", most), ("mean", mean), ("least", least)];
    vec![Chart { title: "links of a member", scale: Scale::Linear, lines }]
}
