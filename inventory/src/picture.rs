//! Text picture of a kind of node: one line for each NUMA node, with its memory, caches, cores and devices.
//!
//! ```text
//! package 0 ┬ NUMA 0  64 GiB  L3 32 MiB x2  cores 0-15  ▪▪▪▪▪▪▪▪ ▪▪▪▪▪▪▪▪  nic hsn0
//!           └ NUMA 1  64 GiB  L3 32 MiB x2  cores 16-31 ▪▪▪▪▪▪▪▪ ▪▪▪▪▪▪▪▪
//! ```
//!
//! In a picture of a launch, each core shows its content, such as rank numbers. Cores that ranks may not use are marked. Lines below list
//! the CPUs that ranks may use, and the offline CPUs.

mod svg;

use std::fmt::{self, Write};

pub use self::svg::svg;
use crate::cpus::CpuSet;
use crate::template::{CacheType, Group, NumaNode, PciDevice, PciKind, Template};
use crate::tree::{Object, ObjectKind};

/// Summary of a node: `2 packages, 8 NUMA nodes, 128 cores, 256 threads, 512 GiB`.
pub fn summary(template: &Template) -> String {
    let count = |number: usize, word: &str| match number {
        0 => None,
        1 => Some(format!("1 {word}")),
        _ => Some(format!("{number} {word}s")),
    };
    let memory = template.memory_gib();
    let parts = [
        count(template.packages.len(), "package"),
        count(template.numa.len(), "NUMA node"),
        count(template.cores.len(), "core"),
        count(template.cpus.len(), "thread"),
        (memory > 0).then(|| format!("{memory} GiB")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Names of the devices of a kind: for a GPU its model, such as `NVIDIA H100`, for other devices the kernel's name, such as `hsn0`. A device
/// without either has its PCI address.
pub fn devices(template: &Template, kind: PciKind) -> Vec<String> {
    template.pci.iter().filter(|device| device.kind == kind).map(device_name).collect()
}

/// Contents of cores in a picture.
#[derive(Clone, Copy)]
pub enum Cores<'a> {
    /// No content: the picture shows only the node.
    Plain,
    /// Text for a core with these CPUs; `None` for an empty core.
    With(&'a dyn Fn(&CpuSet) -> Option<String>),
}

impl fmt::Debug for Cores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::With(_) => "With(..)",
        })
    }
}

/// Node to draw.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Kind of the node.
    pub template: &'a Template,
    /// CPUs that ranks may use. CPUs that the node does not have are ignored.
    pub usable: &'a CpuSet,
    /// Contents of the cores.
    pub cores: Cores<'a>,
}

impl<'a> View<'a> {
    /// View of a node with all CPUs usable by ranks.
    pub fn whole(template: &'a Template, cores: Cores<'a>) -> Self {
        Self { template, usable: &template.cpus, cores }
    }

    /// True if ranks may use none of these CPUs.
    fn is_shut(&self, cpus: &CpuSet) -> bool {
        cpus.is_disjoint(self.usable)
    }

    /// Notes on CPUs that ranks may not use, and on offline CPUs. `none` marks cores without usable CPUs, `part` marks cores with both.
    fn words(&self, none: &str, part: &str) -> Vec<String> {
        let Template { cpus, offline, cores, .. } = self.template;
        let has = |is: &dyn Fn(&CpuSet) -> bool| cores.iter().any(|core| is(&core.cpus));
        let has_shut = has(&|core| self.is_shut(core));
        let has_part = has(&|core| !self.is_shut(core) && !core.is_subset(self.usable)) && !part.is_empty();
        let limit = (!cpus.is_subset(self.usable)).then(|| {
            let marks = match (has_shut, has_part) {
                (true, true) => format!("; {none} marks cores without one, {part} cores with others as well"),
                (true, false) => format!("; {none} marks cores without one"),
                (false, true) => format!("; {part} marks cores with others as well"),
                (false, false) => String::new(),
            };
            match cpus.intersection(self.usable) {
                nothing if nothing.is_empty() => "ranks may use none of its CPUs".to_owned(),
                usable => format!("ranks may use CPUs {usable} only{marks}"),
            }
        });
        let offline = (!offline.is_empty()).then(|| format!("offline: CPUs {offline}"));
        limit.into_iter().chain(offline).collect()
    }
}

/// Lines of a node's picture.
pub fn lines(view: View<'_>) -> Vec<String> {
    let template = view.template;
    let whole = [NumaNode { id: 0, cpus: template.cpus.clone(), ..NumaNode::default() }];
    let numa = if template.numa.is_empty() { &whole[..] } else { &template.numa };
    let mut lines = Vec::new();
    let mut drawn = CpuSet::default();
    for package in &template.packages {
        let within: Vec<&NumaNode> = numa.iter().filter(|node| !node.cpus.is_disjoint(&package.cpus)).collect();
        let number = package.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let title = format!("package {number}");
        for (index, node) in within.iter().enumerate() {
            let branch = match (within.len(), index) {
                (1, _) => "─",
                (_, 0) => "┬",
                (last, index) if index + 1 == last => "└",
                _ => "├",
            };
            let title = if index == 0 { title.clone() } else { " ".repeat(title.len()) };
            lines.push(format!("{title} {branch} {}", numa_line(view, node, &package.cpus)));
        }
        drawn.add(&package.cpus);
    }
    // Memory without CPUs, and CPUs outside of all packages.
    for node in numa.iter().filter(|node| node.cpus.is_disjoint(&drawn)) {
        lines.push(numa_line(view, node, &node.cpus));
    }
    let part = if matches!(view.cores, Cores::Plain) { PART } else { "" };
    lines.extend(view.words(SHUT, part));
    lines
}

/// Marks of cores with no usable CPU, and with some unusable CPUs.
const SHUT: &str = "×";
const PART: &str = "▫";

fn numa_line(view: View<'_>, node: &NumaNode, package: &CpuSet) -> String {
    let template = view.template;
    let cpus = node.cpus.intersection(package);
    let mut line = match template.numa.is_empty() {
        true => format!("CPUs {cpus}"),
        false => format!("NUMA {}  {} GiB", node.id, node.memory_gib),
    };
    let is_last_level = |level: u8| template.caches.iter().all(|cache| cache.level <= level);
    for cache in
        template.caches.iter().filter(|cache| cache.kind != CacheType::Instruction && is_last_level(cache.level))
    {
        let count = cache.instances.iter().filter(|one| !one.cpus.is_disjoint(&cpus)).count();
        if count > 0 {
            let _ = write!(line, "  L{} {}", cache.level, size(cache.size));
            if count > 1 {
                let _ = write!(line, " x{count}");
            }
        }
    }
    let cores: Vec<&Group> = template.cores.iter().filter(|core| core.cpus.is_subset(&cpus)).collect();
    if !cores.is_empty() {
        let numbers: CpuSet = cores.iter().filter_map(|core| core.cpus.first()).collect();
        let _ = write!(line, "  cores {numbers}  {}", cells(view, &cores));
    }
    for device in template.pci.iter().filter(|device| is_next_to(device, node)) {
        let _ = write!(line, "  {}", device_line(device));
    }
    line
}

/// Kind and name of a device.
fn device_line(device: &PciDevice) -> String {
    let kind = match device.kind {
        PciKind::Nic => "nic",
        PciKind::Gpu => "gpu",
        PciKind::Nvme => "nvme",
    };
    format!("{kind} {}", device_name(device))
}

/// Name of an object, with its size or CPUs.
fn object_title(object: &Object<'_>) -> String {
    let number = object.id.map(|id| format!(" {id}")).unwrap_or_default();
    let name = match object.kind {
        ObjectKind::Machine => return "node".to_owned(),
        ObjectKind::Cache(cache) => {
            let letter = match cache.kind {
                CacheType::Unified => "",
                CacheType::Data => "d",
                CacheType::Instruction => "i",
            };
            return format!("L{}{letter} {}", cache.level, size(cache.size));
        }
        ObjectKind::NumaGroup => return format!("CPUs {}", object.cpus),
        ObjectKind::Cpu => return format!("CPU {}", object.cpus),
        ObjectKind::Drawer => "drawer",
        ObjectKind::Book => "book",
        ObjectKind::Package => "package",
        ObjectKind::Die => "die",
        ObjectKind::Cluster => "cluster",
        ObjectKind::Core => "core",
    };
    format!("{name}{number}")
}

/// A square, or the content, of each core. Cores that share a last-level cache stand together.
fn cells(view: View<'_>, cores: &[&Group]) -> String {
    let caches = view.template.caches.iter().max_by_key(|cache| cache.level).map_or(&[][..], |cache| &cache.instances);
    let cache_of = |core: &Group| caches.iter().position(|cache| core.cpus.is_subset(&cache.cpus));
    let groups = cores.chunk_by(|one, next| cache_of(one) == cache_of(next));
    let square = |core: &&Group| match &core.cpus {
        cpus if view.is_shut(cpus) => SHUT,
        cpus if cpus.is_subset(view.usable) => "▪",
        _ => PART,
    };
    let nothing = |core: &CpuSet| if view.is_shut(core) { SHUT } else { "·" }.to_owned();
    let group = |group: &[&Group]| match view.cores {
        Cores::Plain => group.iter().map(square).collect(),
        Cores::With(words) => {
            let cells = group.iter().map(|core| words(&core.cpus).unwrap_or_else(|| nothing(&core.cpus)));
            format!("[{}]", cells.collect::<Vec<_>>().join(" "))
        }
    };
    groups.map(group).collect::<Vec<_>>().join(" ")
}

fn is_next_to(device: &PciDevice, node: &NumaNode) -> bool {
    match device.numa {
        Some(numa) => numa == node.id,
        None => !node.cpus.is_empty() && node.cpus.is_subset(&device.cpus),
    }
}

fn device_name(device: &PciDevice) -> String {
    let names: Vec<&str> = device.names.iter().map(|os| os.name.as_str()).collect();
    match (device.kind, device.model.as_str()) {
        (PciKind::Gpu, model) if !model.is_empty() => model.to_owned(),
        _ if !names.is_empty() => names.join("/"),
        (_, "") => device.address.to_string(),
        (_, model) => model.to_owned(),
    }
}

/// Size of a cache.
fn size(bytes: u64) -> String {
    match bytes / 1024 {
        kibibytes if kibibytes % 1024 == 0 && kibibytes > 0 => format!("{} MiB", kibibytes / 1024),
        kibibytes => format!("{kibibytes} KiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::CacheKind;

    #[test]
    fn a_node_has_a_line_for_each_numa_node() {
        let groups = |lists: &[&str]| -> Vec<Group> {
            (0..).zip(lists).map(|(id, list)| Group { cpus: list.parse().unwrap(), id: Some(id) }).collect()
        };
        let numa =
            |id: u16, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), memory_gib: 64, ..NumaNode::default() };
        let cache = CacheKind {
            level: 3,
            kind: CacheType::Unified,
            size: 32 << 20,
            line: 64,
            ways: 16,
            instances: groups(&["0-1", "2-3", "4-7"]),
        };
        let template = Template {
            cpus: "0-7".parse().unwrap(),
            packages: groups(&["0-7"]),
            cores: groups(&["0", "1", "2", "3", "4", "5", "6", "7"]),
            caches: vec![cache],
            numa: vec![numa(0, "0-3"), numa(1, "4-7"), numa(2, "")],
            ..Template::default()
        };
        assert_eq!(
            lines(View::whole(&template, Cores::Plain)),
            [
                "package 0 ┬ NUMA 0  64 GiB  L3 32 MiB x2  cores 0-3  ▪▪ ▪▪",
                "          └ NUMA 1  64 GiB  L3 32 MiB  cores 4-7  ▪▪▪▪",
                "NUMA 2  64 GiB",
            ]
        );
        let ranks = |core: &CpuSet| core.first().filter(|cpu| cpu % 3 != 2).map(|cpu| format!("{}", 10 + cpu));
        assert_eq!(
            lines(View::whole(&template, Cores::With(&ranks)))[..2],
            [
                "package 0 ┬ NUMA 0  64 GiB  L3 32 MiB x2  cores 0-3  [10 11] [· 13]",
                "          └ NUMA 1  64 GiB  L3 32 MiB  cores 4-7  [14 · 16 17]",
            ]
        );
        assert_eq!(summary(&template), "1 package, 3 NUMA nodes, 8 cores, 8 threads, 192 GiB");
        let drawing = svg(View::whole(&template, Cores::Plain), "n0 <two & three>");
        let boxes = |text: &str| drawing.matches(text).count();
        assert_eq!(
            (boxes(">L3 32 MiB<"), boxes(">core "), boxes(">NUMA "), boxes(">package 0<")),
            (3, 8, 3, 1),
            "{drawing}"
        );
        assert!(drawing.contains("n0 &lt;two &amp; three&gt;"), "{drawing}");
        let drawing = svg(View::whole(&template, Cores::With(&ranks)), "");
        assert!(drawing.contains(">17<") && !drawing.contains(">12<"), "{drawing}");
        let limited = Template {
            offline: "8-9".parse().unwrap(),
            cores: groups(&["0,4", "1,5", "2", "3", "6-7"]),
            ..template.clone()
        };
        let numa = vec![numa(0, "0-2,4-5"), numa(1, "3,6-7")];
        let (limited, usable) = (Template { numa, ..limited }, "0-2,6".parse().unwrap());
        let drawn = |cores: Cores<'_>| lines(View { template: &limited, usable: &usable, cores });
        assert_eq!(
            drawn(Cores::Plain),
            [
                "package 0 ┬ NUMA 0  64 GiB  L3 32 MiB x3  cores 0-2  ▫▫ ▪",
                "          └ NUMA 1  64 GiB  L3 32 MiB x2  cores 3,6  × ▫",
                "ranks may use CPUs 0-2,6 only; × marks cores without one, ▫ cores with others as well",
                "offline: CPUs 8-9",
            ]
        );
        let first = |core: &CpuSet| core.first().filter(|cpu| *cpu == 0).map(|_| "7".to_owned());
        assert_eq!(
            drawn(Cores::With(&first))[..3],
            [
                "package 0 ┬ NUMA 0  64 GiB  L3 32 MiB x3  cores 0-2  [7 ·] [·]",
                "          └ NUMA 1  64 GiB  L3 32 MiB x2  cores 3,6  [×] [·]",
                "ranks may use CPUs 0-2,6 only; × marks cores without one",
            ]
        );
        let view = View { template: &limited, usable: &usable, cores: Cores::Plain };
        let drawing = svg(view, "");
        assert!(drawing.contains("ranks may use CPUs 0-2,6 only; grey marks cores without one"), "{drawing}");
        assert!(drawing.contains(">offline: CPUs 8-9<") && drawing.matches("#bbbbbb").count() == 4, "{drawing}");
        let without_numa = Template { numa: Vec::new(), packages: Vec::new(), cores: Vec::new(), ..template };
        assert_eq!(lines(View::whole(&without_numa, Cores::Plain)), ["CPUs 0-7  L3 32 MiB x3"]);
    }
}
