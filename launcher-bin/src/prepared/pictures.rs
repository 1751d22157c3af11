//! Pictures of the nodes of a launch below its map: ranks in the cores to which they are bound.

use lattice_cluster_client::KnownNode;
use lattice_inventory::CpuSet;
use lattice_inventory::picture::{self, Cores};
use lattice_render::PreparedLaunch;
use lattice_session::cause::RankNumbers;
use pmi_core::ids::Rank;

/// Maximum number of nodes in the pictures.
const NODES_MAX: usize = 4;

/// Draws the first known nodes with bound ranks.
pub(super) fn draw(launch: &mut PreparedLaunch, of: impl Fn(&str) -> Option<KnownNode>) {
    let mut bound: Vec<Vec<(Rank, CpuSet)>> = vec![Vec::new(); launch.placed.hosts.len()];
    for row in &launch.ranks {
        let cpus = row.cpus.clone();
        bound[row.place.node.index()].extend(cpus.map(|cpus| (row.place.rank, cpus)));
    }
    let with_ranks = || launch.placed.hosts.iter().zip(&bound).filter(|(_, ranks)| !ranks.is_empty());
    let mut lines = Vec::new();
    for (node, ranks) in with_ranks().take(NODES_MAX) {
        let Some(known) = of(node) else { continue };
        let words = |core: &CpuSet| {
            let here = ranks.iter().filter(|(_, cpus)| !cpus.is_disjoint(core));
            let here: Vec<Rank> = here.map(|(rank, _)| *rank).collect();
            (!here.is_empty()).then(|| RankNumbers(&here).to_string())
        };
        lines.push(format!("{node}  {}", picture::summary(&known.template)));
        lines.extend(picture::lines(known.view(Cores::With(&words))).into_iter().map(|line| format!(" {line}")));
    }
    match with_ranks().count().saturating_sub(NODES_MAX) {
        0 => {}
        more => {
            lines.push(format!("... and {more} more; lattice nodes --topology ID draws all of a launch that runs"));
        }
    }
    launch.pictures = lines;
}
