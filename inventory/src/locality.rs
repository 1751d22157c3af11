//! Locality strings of bound ranks, which libraries use to compare the places of two ranks.
//!
//! ```text
//! SK0:L30:L20:L10:CR0:HT0:NM0        package, caches, core, hardware thread, NUMA node: logical numbers, or lists of them
//! ```
//!
//! The format of PRRTE and `pmix_hwloc_generate_locality_string` (`pmix.locstr`). Open MPI 4.1 and 5 compare it part by
//! part.

use std::fmt::Write;

use crate::cpus::CpuSet;
use crate::template::{CacheType, Template};
use crate::tree::{ObjectKind, Tree};

/// Locality strings of one node.
#[derive(Clone, Debug)]
pub struct Localities {
    /// For each part of the text: its letters, and the CPUs of its objects by logical number.
    levels: Vec<(&'static str, Vec<CpuSet>)>,
    /// CPUs of each NUMA node, by logical number.
    of_numa: Vec<CpuSet>,
}

impl Localities {
    /// Numbers the objects of a node like hwloc.
    pub fn of(template: &Template) -> Self {
        let tree = Tree::of(template);
        let mut levels: Vec<(&'static str, Vec<CpuSet>)> =
            ["SK", "L3", "L2", "L1", "CR", "HT"].map(|letters| (letters, Vec::new())).to_vec();
        for object in tree.objects() {
            let level = match object.kind {
                ObjectKind::Package => 0,
                ObjectKind::Cache(cache) if cache.kind != CacheType::Instruction => match cache.level {
                    3 => 1,
                    2 => 2,
                    1 => 3,
                    _ => continue,
                },
                ObjectKind::Core => 4,
                ObjectKind::Cpu => 5,
                _ => continue,
            };
            levels[level].1.push(object.cpus.clone());
        }
        let in_tree: Vec<usize> = tree.objects().into_iter().flat_map(|object| object.numa.clone()).collect();
        levels.push(("NM", in_tree.iter().map(|&index| tree.numa[index].cpus.clone()).collect()));
        levels.retain(|(_, objects)| !objects.is_empty());
        let own = |index: usize| {
            template.numa.get(index).map_or_else(|| tree.numa[index].cpus.clone(), |node| node.cpus.clone())
        };
        Self { levels, of_numa: in_tree.into_iter().map(own).collect() }
    }

    /// Logical number of the only NUMA node that has all these CPUs; `None` if there is none, or several.
    pub fn numa(&self, cpus: &CpuSet) -> Option<u32> {
        only(&self.of_numa, cpus)
    }

    /// Logical number of the only L3 cache that all these CPUs share; `None` if there is none, or several.
    pub fn l3(&self, cpus: &CpuSet) -> Option<u32> {
        only(&self.levels.iter().find(|(letters, _)| *letters == "L3")?.1, cpus)
    }

    /// Locality of a rank that is bound to these CPUs.
    pub fn locality(&self, cpus: &CpuSet) -> String {
        let mut text = String::new();
        for (letters, objects) in &self.levels {
            let touched = (0..).zip(objects).filter(|(_, object)| !object.is_disjoint(cpus));
            let touched: CpuSet = touched.map(|(number, _)| number).collect();
            if !touched.is_empty() {
                let separator = if text.is_empty() { "" } else { ":" };
                let _ = write!(text, "{separator}{letters}{touched}");
            }
        }
        text
    }
}

/// Number of the only object that has all these CPUs.
fn only(objects: &[CpuSet], cpus: &CpuSet) -> Option<u32> {
    let mut having = (0..).zip(objects).filter(|(_, object)| !cpus.is_empty() && cpus.is_subset(object));
    // Nodes with different memory may have the same CPUs.
    let (number, _) = having.next()?;
    having.next().is_none().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Group, NumaNode};

    #[test]
    fn ranks_are_where_their_cpus_are() {
        let groups = |lists: &[&str]| -> Vec<Group> {
            lists.iter().map(|list| Group { cpus: list.parse().unwrap(), id: None }).collect()
        };
        let numa =
            |id: u16, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), memory_gib: 1, ..NumaNode::default() };
        let template = Template {
            cpus: "0-7".parse().unwrap(),
            packages: groups(&["0-1,4-5", "2-3,6-7"]),
            cores: groups(&["0,4", "1,5", "2,6", "3,7"]),
            numa: vec![numa(0, "0-1,4-5"), numa(1, "2-3,6-7")],
            ..Template::default()
        };
        let localities = Localities::of(&template);
        let check = |cpus: &str, expected: &str| assert_eq!(localities.locality(&cpus.parse().unwrap()), expected);
        check("0", "SK0:CR0:HT0:NM0");
        check("2,6", "SK1:CR2:HT4-5:NM1");
        check("1-2", "SK0-1:CR1-2:HT2,4:NM0-1");
        check("", "");
        let numa = |cpus: &str| localities.numa(&cpus.parse().unwrap());
        assert_eq!(["0", "1,5", "2,6", "1-2", "", "8"].map(numa), [Some(0), Some(0), Some(1), None, None, None]);
        assert_eq!(localities.l3(&"0".parse().unwrap()), None, "no cache is known");
    }
}
