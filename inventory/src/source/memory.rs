//! NUMA nodes, their memory and distances, from `/sys/devices/system/node`.
//!
//! GPU memory that the kernel shows as a NUMA node is excluded, as in hwloc: only the GPU's driver may allocate it.

use super::Source;
use crate::cpus::{CpuSet, NodeSet};
use crate::node::Inventory;
use crate::root::{ReadError, Root};
use crate::template::NumaNode;

const SYSTEM: &str = "sys/devices/system/node";

/// See the [module](self).
pub(super) struct Memory;

/// NUMA node in the kernel's files.
struct Found {
    id: u16,
    /// CPUs, offline ones included.
    listed: CpuSet,
    /// Distances to all nodes; empty unless there is one for each.
    distances: Vec<u32>,
    /// CPUs nearest to its memory.
    nearest: CpuSet,
}

impl Source for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn gives(&self) -> &'static str {
        "NUMA nodes, and no topology for ranks"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        let online = into.template.cpus.clone();
        for node in nodes(root)? {
            let memory = total(root, &format!("{SYSTEM}/node{}/meminfo", node.id));
            let [cpus, nearest] = [node.listed, node.nearest].map(|cpus| cpus.intersection(&online));
            let near = if nearest == cpus { CpuSet::default() } else { nearest };
            into.template.numa.push(NumaNode {
                id: node.id,
                cpus,
                near,
                memory_gib: gib(memory),
                distances: node.distances,
            });
            into.memory.push(memory);
        }
        if into.template.numa.is_empty() {
            into.memory = vec![total(root, "proc/meminfo")];
        }
        Ok(())
    }
}

/// The relevant NUMA nodes, by number.
fn nodes(root: &Root) -> Result<Vec<Found>, ReadError> {
    let ids: Vec<u16> = root.numbered(SYSTEM, "node")?;
    let of_gpus = nodes_of_gpus(root);
    let (mut nodes, mut kept, mut seen) = (Vec::new(), Vec::new(), CpuSet::default());
    for &id in &ids {
        let about = format!("{SYSTEM}/node{id}");
        let listed = root.list(&format!("{about}/cpulist"))?.unwrap_or_default();
        // A CPU belongs to one node; firmware that lists it for two is wrong.
        let counts = listed.is_disjoint(&seen) && !of_gpus.contains(id);
        seen.add(&listed);
        kept.push(counts);
        if counts {
            let nearest = listed.clone();
            nodes.push(Found { id, listed, distances: distances(root, &about, ids.len()), nearest });
        }
    }
    for node in &mut nodes {
        let row = std::mem::take(&mut node.distances);
        node.distances = row.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|(distance, _)| distance).collect();
    }
    find_nearest(root, &mut nodes);
    Ok(nodes)
}

/// Finds the CPUs nearest to memory without CPUs, like hwloc: from the initiators that firmware lists, otherwise by distance.
fn find_nearest(root: &Root, nodes: &mut [Found]) {
    let (with_cpus, without): (Vec<usize>, Vec<usize>) = (0..nodes.len()).partition(|&at| !nodes[at].listed.is_empty());
    for at in with_cpus.into_iter().chain(without) {
        let has_cpus = !nodes[at].listed.is_empty();
        // A device can be nearer than any CPU: it is an initiator in access0 but not in access1.
        let about = format!("{SYSTEM}/node{}", nodes[at].id);
        let initiators = |access: &str| root.numbered::<u16>(&format!("{about}/{access}/initiators"), "node").ok();
        let initiators = initiators("access1").filter(|nodes| !nodes.is_empty()).or_else(|| initiators("access0"));
        let initiators: NodeSet = initiators.into_iter().flatten().collect();
        let mut nearest: CpuSet = nodes[at].nearest.clone();
        for other in nodes.iter().filter(|other| initiators.contains(other.id)) {
            nearest.add(&other.nearest);
        }
        if nearest.is_empty() && !has_cpus {
            nearest = nearest_by_distance(nodes, at);
        }
        nodes[at].nearest = nearest;
    }
}

/// CPUs of the nodes that are nearest to a node without CPUs. Empty if all are at the same distance, or none is farther than its own
/// memory.
fn nearest_by_distance(nodes: &[Found], at: usize) -> CpuSet {
    let distances = &nodes[at].distances;
    if distances.len() != nodes.len() {
        return CpuSet::default();
    }
    let others = || (0..nodes.len()).filter(|&other| other != at);
    let Some(least) = others().map(|other| distances[other]).min() else { return CpuSet::default() };
    let nearest = || others().filter(|&other| distances[other] == least);
    if least <= distances[at] || nearest().count() == others().count() {
        return CpuSet::default();
    }
    nearest().flat_map(|other| nodes[other].nearest.iter()).collect()
}

/// NUMA nodes that are memory of NVIDIA GPUs, from lines such as `Node: 255` of the driver.
fn nodes_of_gpus(root: &Root) -> NodeSet {
    const GPUS: &str = "proc/driver/nvidia/gpus";
    let gpus = root.names(GPUS).unwrap_or_default();
    let node = |gpu: String| {
        let status = root.word(&format!("{GPUS}/{gpu}/numa_status"))?;
        status.split_once("Node:")?.1.split_whitespace().next()?.parse().ok()
    };
    gpus.into_iter().filter_map(node).collect()
}

/// Total from a line such as `MemTotal:  24684092 kB`, in bytes; 0 without such a line.
fn total(root: &Root, file: &str) -> u64 {
    let text = root.word(file).unwrap_or_default();
    let kibibytes =
        text.lines().find_map(|line| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse().ok());
    kibibytes.unwrap_or(0_u64).saturating_mul(1024)
}

/// Rounds to GiB.
fn gib(bytes: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    bytes.saturating_add(GIB / 2) / GIB
}

/// Distances of a node to all nodes; empty unless there is one for each.
fn distances(root: &Root, about: &str, nodes: usize) -> Vec<u32> {
    let text = root.word(&format!("{about}/distance")).unwrap_or_default();
    let distances: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if distances.len() == nodes { distances } else { Vec::new() }
}
