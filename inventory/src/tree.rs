//! Tree of objects of a template, each within the object that contains its CPUs, as in hwloc and in pictures.
//!
//! ```text
//! Machine > Package > Die > Cluster > L3 > L2 > L1 > Core > CPU        NUMA nodes are attached to the object of their nearest CPUs
//! ```

use std::cmp::Reverse;

use crate::cpus::{CpuSet, NodeSet};
use crate::distances;
use crate::template::{CacheKind, CacheType, Group, NumaNode, PciDevice, Template};

/// Limit on the depth of the tree. No machine comes near it, and it bounds the stack for generated input.
const DEPTH_MAX: usize = 64;

/// Object with CPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// Kind.
    pub kind: ObjectKind<'a>,
    /// Number from the kernel.
    pub id: Option<u32>,
    /// CPUs.
    pub cpus: CpuSet,
    /// NUMA nodes with exactly these CPUs, as indexes into [`Tree::numa`].
    pub numa: Vec<usize>,
    /// NUMA nodes of the object, of its descendants and of its ancestors.
    pub nodes: NodeSet,
    /// PCI devices next to these CPUs.
    pub pci: Vec<&'a PciDevice>,
    /// Child objects, by lowest CPU.
    pub children: Vec<Self>,
}

/// Kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind<'a> {
    /// The node as a whole.
    Machine,
    /// Drawer of books.
    Drawer,
    /// Book of packages.
    Book,
    /// Processor package.
    Package,
    /// Die of a package.
    Die,
    /// Cluster of cores.
    Cluster,
    /// CPUs of a NUMA node, or of several near ones, that no other object has. Without CPUs for memory that is near to none.
    NumaGroup,
    /// Cache.
    Cache(&'a CacheKind),
    /// Core.
    Core,
    /// CPU, that is, hardware thread.
    Cpu,
}

impl ObjectKind<'_> {
    /// True for sets of CPUs without a type of their own in libraries.
    fn is_group(self) -> bool {
        matches!(self, Self::Drawer | Self::Book | Self::Cluster | Self::NumaGroup)
    }
}

/// NUMA node of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeNode {
    /// Number.
    pub id: u16,
    /// CPUs nearest to its memory.
    pub cpus: CpuSet,
    /// Size of its memory in GiB; 0 if the kernel has no NUMA.
    pub memory_gib: u64,
}

/// Tree of a template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree<'a> {
    /// The machine.
    pub root: Object<'a>,
    /// NUMA nodes; node 0 with all CPUs if the kernel has no NUMA.
    pub numa: Vec<TreeNode>,
}

impl<'a> Tree<'a> {
    /// Tree of a template. Like hwloc, it omits objects that partly overlap another object.
    pub fn of(template: &'a Template) -> Self {
        let node =
            |node: &NumaNode| TreeNode { id: node.id, cpus: node.nearest().clone(), memory_gib: node.memory_gib };
        let mut numa: Vec<TreeNode> = template.numa.iter().map(node).collect();
        if numa.is_empty() {
            numa.push(TreeNode { id: 0, cpus: template.cpus.clone(), memory_gib: 0 });
        }
        let mut root = Object::new(ObjectKind::Machine, Some(0), template.cpus.clone());
        for object in objects(template) {
            root.insert(object, DEPTH_MAX);
        }
        // Larger groups first, so that a later group does not move earlier ones deeper.
        let mut groups: Vec<&CpuSet> = numa.iter().map(|node| &node.cpus).filter(|cpus| !cpus.is_empty()).collect();
        groups.sort_by_key(|cpus| Reverse(cpus.len()));
        for cpus in groups {
            root.insert_group(cpus, DEPTH_MAX);
        }
        let distances: Vec<&[u32]> = template.numa.iter().map(|node| &node.distances[..]).collect();
        distances::group(numa.iter().map(|node| node.cpus.clone()).collect(), &distances, |cpus| {
            root.insert_group(cpus, DEPTH_MAX)
        });
        for (index, node) in numa.iter().enumerate() {
            if node.cpus.is_empty() {
                let group = Object::new(ObjectKind::NumaGroup, None, CpuSet::default());
                root.children.push(Object { numa: vec![index], ..group });
            } else {
                root.attach(index, &node.cpus);
            }
        }
        root.spread_nodes(&numa, &NodeSet::default());
        for device in &template.pci {
            root.attach_device(device, &device.cpus.intersection(&template.cpus));
        }
        Self { root, numa }
    }

    /// All objects with CPUs, each before its descendants.
    pub fn objects(&self) -> Vec<&Object<'a>> {
        let mut all = Vec::new();
        self.root.walk(&mut all);
        all
    }
}

/// All objects except the machine, larger sets of CPUs first. For the same CPUs the outer kind comes first.
fn objects(template: &Template) -> Vec<Object<'_>> {
    let groups = |kind, groups: &[Group]| -> Vec<Object<'_>> {
        groups.iter().map(|group| Object::new(kind, group.id, group.cpus.clone())).collect()
    };
    let mut caches: Vec<&CacheKind> = template.caches.iter().collect();
    // Instruction caches are within the other caches of their level.
    caches.sort_by_key(|cache| (Reverse(cache.level), cache.kind == CacheType::Instruction));
    let mut all = groups(ObjectKind::Drawer, &template.drawers);
    all.extend(groups(ObjectKind::Book, &template.books));
    all.extend(groups(ObjectKind::Package, &template.packages));
    all.extend(groups(ObjectKind::Die, &template.dies));
    all.extend(groups(ObjectKind::Cluster, &template.clusters));
    for cache in caches {
        all.extend(cache.instances.iter().map(|one| Object::new(ObjectKind::Cache(cache), one.id, one.cpus.clone())));
    }
    all.extend(groups(ObjectKind::Core, &template.cores));
    let cpu = |cpu: u16| Object::new(ObjectKind::Cpu, Some(cpu.into()), [cpu].into_iter().collect());
    all.extend(template.cpus.iter().map(cpu));
    all.sort_by_key(|object| Reverse(object.cpus.len()));
    all
}

impl<'a> Object<'a> {
    fn new(kind: ObjectKind<'a>, id: Option<u32>, cpus: CpuSet) -> Self {
        Self { kind, id, cpus, numa: Vec::new(), nodes: NodeSet::default(), pci: Vec::new(), children: Vec::new() }
    }

    /// Inserts an object that is not larger than any existing one, unless it would be more than `depth` levels below this one.
    fn insert(&mut self, object: Self, depth: usize) {
        if !object.cpus.is_subset(&self.cpus) || object.cpus.is_empty() || depth == 0 {
            return;
        }
        if let Some(child) = self.children.iter_mut().find(|child| !object.cpus.is_disjoint(&child.cpus)) {
            // A group adds nothing to another object with the same CPUs.
            match child.cpus == object.cpus {
                true if object.kind.is_group() => {}
                true if child.kind.is_group() => (child.kind, child.id) = (object.kind, object.id),
                _ => child.insert(object, depth - 1),
            }
            return;
        }
        let at = self.children.partition_point(|child| child.cpus.first() < object.cpus.first());
        self.children.insert(at, object);
    }

    /// Makes a group of these CPUs, unless an object has the same CPUs. Returns false if they are parts of several objects, or if the group
    /// would be more than `depth` levels below this one.
    fn insert_group(&mut self, cpus: &CpuSet, depth: usize) -> bool {
        if self.cpus == *cpus {
            return true;
        }
        if depth == 0 {
            return false;
        }
        if let Some(child) = self.children.iter_mut().find(|child| child.may_have_numa(cpus)) {
            return child.insert_group(cpus, depth - 1);
        }
        // A NUMA node with only a part of an object does not fit a tree: it is attached to the object that contains its CPUs.
        if self.children.iter().any(|child| !child.cpus.is_disjoint(cpus) && !child.cpus.is_subset(cpus)) {
            return false;
        }
        let (within, outside) = std::mem::take(&mut self.children).into_iter().partition(|c| c.cpus.is_subset(cpus));
        self.children = outside;
        let group = Object { children: within, ..Object::new(ObjectKind::NumaGroup, None, cpus.clone()) };
        let at = self.children.partition_point(|child| child.cpus.first() < cpus.first());
        self.children.insert(at, group);
        true
    }

    /// True if a NUMA node with these CPUs is attached here or below; never at a CPU.
    fn may_have_numa(&self, cpus: &CpuSet) -> bool {
        self.kind != ObjectKind::Cpu && cpus.is_subset(&self.cpus)
    }

    /// Attaches a NUMA node to the outermost object below this one with exactly its CPUs, otherwise to the smallest one that contains them.
    fn attach(&mut self, index: usize, cpus: &CpuSet) {
        match self.children.iter_mut().find(|child| child.may_have_numa(cpus)) {
            Some(child) if child.cpus == *cpus => child.numa.push(index),
            Some(child) => child.attach(index, cpus),
            None => self.numa.push(index),
        }
    }

    /// Attaches a device to the smallest object that contains the CPUs next to it, and of several with the same CPUs to the outermost. A
    /// device without CPUs is attached to the machine.
    fn attach_device(&mut self, device: &'a PciDevice, cpus: &CpuSet) {
        let has_them = |child: &&mut Self| cpus.is_subset(&child.cpus);
        match self.children.iter_mut().find(has_them).filter(|_| self.cpus != *cpus && !cpus.is_empty()) {
            Some(child) => child.attach_device(device, cpus),
            None => self.pci.push(device),
        }
    }

    /// Sets the NUMA nodes of each object; `above` are the nodes of its ancestors. Returns the nodes of the object and its descendants.
    fn spread_nodes(&mut self, numa: &[TreeNode], above: &NodeSet) -> NodeSet {
        let mut within: NodeSet = self.numa.iter().map(|&index| numa[index].id).collect();
        let mut passed = above.clone();
        passed.add(&within);
        for child in &mut self.children {
            within.add(&child.spread_nodes(numa, &passed));
        }
        self.nodes = within.clone();
        self.nodes.add(above);
        within
    }

    fn walk<'t>(&'t self, all: &mut Vec<&'t Self>) {
        all.push(self);
        for child in &self.children {
            child.walk(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::NumaNode;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn group(cpus: &str) -> Group {
        Group { cpus: set(cpus), id: None }
    }

    fn numa(id: u16, cpus: &str) -> NumaNode {
        NumaNode { id, cpus: set(cpus), memory_gib: 1, ..NumaNode::default() }
    }

    /// Objects as text, such as `Package 0-3`.
    fn words(template: &Template) -> Vec<String> {
        let tree = Tree::of(template);
        let word = |object: &&Object<'_>| {
            let kind = match object.kind {
                ObjectKind::Cache(cache) => format!("L{}", cache.level),
                other => format!("{other:?}"),
            };
            let nodes = object.numa.iter().map(|&index| format!(" +node {}", tree.numa[index].id)).collect::<String>();
            format!("{kind} {}{nodes}", object.cpus)
        };
        tree.objects().iter().filter(|object| object.kind != ObjectKind::Cpu).map(word).collect()
    }

    #[test]
    fn nodes_within_nodes_that_somebody_made_up_take_no_more_of_the_stack() {
        let nested = |id: u16| numa(id, &format!("0-{}", id + 1));
        let template = Template { cpus: set("0-2000"), numa: (0..1990).map(nested).collect(), ..Template::default() };
        let tree = Tree::of(&template);
        let (mut depth, mut object) = (0, &tree.root);
        while let Some(child) = object.children.first() {
            (depth, object) = (depth + 1, child);
        }
        assert!(depth <= DEPTH_MAX + 1, "{depth}");
    }

    #[test]
    fn a_numa_node_between_package_and_caches_gets_a_group() {
        let cache = |cpus: &[&str]| CacheKind {
            level: 3,
            kind: CacheType::Unified,
            size: 1,
            line: 64,
            ways: 1,
            instances: cpus.iter().copied().map(group).collect(),
        };
        let template = Template {
            cpus: set("0-7"),
            packages: vec![group("0-7")],
            caches: vec![cache(&["0-1", "2-3", "4-5", "6-7"])],
            numa: vec![numa(0, "0-3"), numa(1, "4-7"), numa(2, "")],
            ..Template::default()
        };
        let expected = [
            "Machine 0-7",
            "Package 0-7",
            "NumaGroup 0-3 +node 0",
            "L3 0-1",
            "L3 2-3",
            "NumaGroup 4-7 +node 1",
            "L3 4-5",
            "L3 6-7",
            "NumaGroup  +node 2",
        ];
        assert_eq!(words(&template), expected);
        let tree = Tree::of(&template);
        let nodes: Vec<_> = tree.objects().iter().map(|object| object.nodes.to_string()).take(4).collect();
        assert_eq!(nodes, ["0-2", "0-1", "0", "0"]);
    }

    #[test]
    fn objects_without_end_are_left_out() {
        let within = |last: u16| group(&format!("0-{last}"));
        let template = Template { cpus: set("0-1999"), dies: (1..1999).map(within).collect(), ..Template::default() };
        let mut depth = 0;
        let tree = Tree::of(&template);
        let mut object = &tree.root;
        while let Some(child) = object.children.first() {
            (object, depth) = (child, depth + 1);
        }
        assert_eq!(depth, DEPTH_MAX);
    }

    #[test]
    fn what_crosses_others_is_left_out() {
        let template = Template {
            cpus: set("0-3"),
            packages: vec![group("0-1"), group("2-3")],
            dies: vec![group("1-2")],
            numa: vec![numa(0, "0,2"), numa(1, "1,3")],
            ..Template::default()
        };
        assert_eq!(words(&template), ["Machine 0-3 +node 0 +node 1", "Package 0-1", "Package 2-3"]);
    }
}
