//! NUMA nodes, their memory and distances, from `/sys/devices/system/node`.

use super::Source;
use crate::cpus::CpuSet;
use crate::node::Inventory;
use crate::root::{ReadError, Root};
use crate::template::NumaNode;

const SYSTEM: &str = "sys/devices/system/node";

/// See the [module](self).
pub(super) struct Memory;

impl Source for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn gives(&self) -> &'static str {
        "NUMA nodes, and no topology for ranks"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        let ids: Vec<u16> = root.numbered(SYSTEM, "node")?;
        let mut seen = CpuSet::default();
        for &id in &ids {
            let about = format!("{SYSTEM}/node{id}");
            let listed = root.list(&format!("{about}/cpulist"))?.unwrap_or_default();
            let cpus = listed.intersection(&into.template.cpus).without(&seen);
            seen.add(&cpus);
            let memory = total(root, &format!("{about}/meminfo"));
            let distances = distances(root, &about, ids.len());
            into.template.numa.push(NumaNode { id, cpus, memory_gib: gib(memory), distances });
            into.memory.push(memory);
        }
        if ids.is_empty() {
            into.memory = vec![total(root, "proc/meminfo")];
        }
        Ok(())
    }
}

/// Total in a file that says `MemTotal:  24684092 kB`, in bytes; 0 if it does not.
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

/// Distances of a node to all others; none unless there is one for each.
fn distances(root: &Root, about: &str, nodes: usize) -> Vec<u32> {
    let text = root.word(&format!("{about}/distance")).unwrap_or_default();
    let distances: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if distances.len() == nodes { distances } else { Vec::new() }
}
