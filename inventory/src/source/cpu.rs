//! CPUs, cores, dies, packages and caches, from `/sys/devices/system/cpu`.

use std::collections::HashMap;

use super::Source;
use crate::cpus::CpuSet;
use crate::node::Inventory;
use crate::root::{ReadError, Root};
use crate::template::{CacheKind, CacheType, CoreKind, Group, Template};

/// Caches of a CPU that are looked for, by index.
const CACHES_MAX: usize = 10;

const SYSTEM: &str = "sys/devices/system/cpu";

/// See the [module](self).
pub(super) struct Cpus;

impl Source for Cpus {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn gives(&self) -> &'static str {
        "binding, and no topology for ranks"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        let template = &mut into.template;
        template.cpus = root.required_list(&format!("{SYSTEM}/online"))?;
        let known: CpuSet = root.numbered(SYSTEM, "cpu")?.into_iter().collect();
        template.offline = known.without(&template.cpus);
        (template.arch, template.model) = names(root);
        let online = template.cpus.clone();
        let mut caches = Caches::default();
        for cpu in online.iter() {
            groups(root, cpu, &online, template)?;
            caches.read(root, cpu, &online)?;
        }
        template.caches = caches.into_kinds();
        template.core_kinds = core_kinds(root, template)?;
        Ok(())
    }
}

/// Machine and processor, as the kernel tells them at the beginning of a long file.
fn names(root: &Root) -> (String, String) {
    let about = root.head("proc/cpuinfo");
    let field = |name: &str| about.lines().find_map(|line| line.strip_prefix(name)?.split_once(": "));
    let model = field("model name").or_else(|| field("cpu\t")).map_or("", |(_, model)| model.trim());
    let arch = root.word("proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    (arch, model.to_owned())
}

/// Adds the core, cluster, die and package of a CPU, each with its first CPU that is online.
fn groups(root: &Root, cpu: u16, online: &CpuSet, template: &mut Template) -> Result<(), ReadError> {
    let about = format!("{SYSTEM}/cpu{cpu}/topology");
    // The second name is the one before Linux 5.3.
    let list = |names: &[&str]| -> Result<Option<CpuSet>, ReadError> {
        for name in names {
            if let Some(list) = root.list(&format!("{about}/{name}"))? {
                let here = list.intersection(online);
                return Ok(here.contains(cpu).then_some(here));
            }
        }
        Ok(None)
    };
    let id = |name: &str| root.number(&format!("{about}/{name}"));
    if covers(&template.cores, cpu) {
        return Ok(());
    }
    let Some(core) = list(&["core_cpus_list", "thread_siblings_list"])? else { return Ok(()) };
    template.cores.push(Group { cpus: core, id: id("core_id") });
    if !covers(&template.packages, cpu) {
        let number = id("physical_package_id");
        match list(&["package_cpus_list", "core_siblings_list"])? {
            Some(cpus) => template.packages.push(Group { cpus, id: number }),
            None => add_to_package(template, number, cpu),
        }
    }
    let package = template.packages.iter().find(|package| package.cpus.contains(cpu)).map(|package| &package.cpus);
    if !covers(&template.dies, cpu)
        && let Some(die) = list(&["die_cpus_list"])?
        // One die a package, and one CPU a die where the architecture has none, are the kernel's defaults.
        && die.len() > 1
        && package != Some(&die)
    {
        template.dies.push(Group { cpus: die, id: id("die_id") });
    }
    if !covers(&template.clusters, cpu)
        && let Some(cluster) = list(&["cluster_cpus_list"])?
        && cluster.len() > 1
        && !template.packages.iter().chain(&template.dies).chain(&template.cores).any(|group| group.cpus == cluster)
    {
        template.clusters.push(Group { cpus: cluster, id: id("cluster_id") });
    }
    Ok(())
}

/// Adds a core to the package of its number, where the kernel lists no CPUs of packages.
fn add_to_package(template: &mut Template, number: Option<u32>, cpu: u16) {
    let core = template.cores.iter().find(|core| core.cpus.contains(cpu)).map(|core| core.cpus.clone());
    let Some((core, number)) = core.zip(number) else { return };
    match template.packages.iter_mut().find(|package| package.id == Some(number)) {
        Some(package) => package.cpus.add(&core),
        None => template.packages.push(Group { cpus: core, id: Some(number) }),
    }
}

fn covers(groups: &[Group], cpu: u16) -> bool {
    groups.iter().any(|group| group.cpus.contains(cpu))
}

/// Caches that were found.
#[derive(Default)]
struct Caches {
    /// By index of the directory: caches of one index are of one kind, but for cores of several kinds.
    found: [CpuSet; CACHES_MAX],
    /// What is known of a cache, by index and size: five files less for each of hundreds of caches.
    known: HashMap<(usize, u64), Option<CacheKind>>,
    kinds: Vec<CacheKind>,
}

impl Caches {
    /// Adds the caches of a CPU that serve no CPU before it.
    fn read(&mut self, root: &Root, cpu: u16, online: &CpuSet) -> Result<(), ReadError> {
        for index in 0..CACHES_MAX {
            if self.found[index].contains(cpu) {
                continue;
            }
            let about = format!("{SYSTEM}/cpu{cpu}/cache/index{index}");
            let Some(list) = root.list(&format!("{about}/shared_cpu_list"))? else { return Ok(()) };
            let cpus = list.intersection(online);
            if !cpus.contains(cpu) {
                continue;
            }
            self.found[index].add(&cpus);
            let size = root.number::<u64>(&format!("{about}/size")).unwrap_or(0) * 1024;
            let kind = self.known.entry((index, size)).or_insert_with(|| describe(root, &about, size));
            let Some(kind) = kind.clone() else { continue };
            let group = Group { cpus, id: root.number(&format!("{about}/id")) };
            let same = |other: &&mut CacheKind| CacheKind { instances: Vec::new(), ..(**other).clone() } == kind;
            match self.kinds.iter_mut().find(same) {
                Some(kind) => kind.instances.push(group),
                None => self.kinds.push(CacheKind { instances: vec![group], ..kind }),
            }
        }
        Ok(())
    }

    fn into_kinds(self) -> Vec<CacheKind> {
        self.kinds
    }
}

/// Level, type, line and ways of a cache; `None` where the kernel does not tell level and type.
fn describe(root: &Root, about: &str, size: u64) -> Option<CacheKind> {
    let number = |name: &str| root.number::<u32>(&format!("{about}/{name}"));
    let kind = match root.word(&format!("{about}/type"))?.as_str() {
        "Data" => CacheType::Data,
        "Instruction" => CacheType::Instruction,
        _ => CacheType::Unified,
    };
    let level = u8::try_from(number("level")?).ok()?;
    let line = number("coherency_line_size").unwrap_or(0);
    let sets = number("number_of_sets").unwrap_or(0);
    let lines_a_tag = number("physical_line_partition").unwrap_or(1);
    // `ways_of_associativity` means different things on different processors.
    let bytes_a_way = u64::from(line) * u64::from(lines_a_tag) * u64::from(sets);
    let ways = if sets > 1 { size.checked_div(bytes_a_way).unwrap_or(0) } else { 0 };
    Some(CacheKind { level, kind, size, line, ways: u32::try_from(ways).unwrap_or(0), instances: Vec::new() })
}

/// Kinds of cores of a processor that has several: by the lists of Intel's drivers, else by capacity.
fn core_kinds(root: &Root, template: &Template) -> Result<Vec<CoreKind>, ReadError> {
    let mut kinds = Vec::new();
    for (capacity, name) in [(0, "atom"), (1, "core")] {
        if let Some(list) = root.list(&format!("sys/devices/cpu_{name}/cpus"))? {
            let cpus = list.intersection(&template.cpus);
            if !cpus.is_empty() {
                kinds.push(CoreKind { capacity, name: name.to_owned(), cpus });
            }
        }
    }
    if kinds.is_empty() {
        for core in &template.cores {
            let cpu = core.cpus.first().unwrap_or_default();
            let Some(capacity) = root.number(&format!("{SYSTEM}/cpu{cpu}/cpu_capacity")) else { break };
            match kinds.iter_mut().find(|kind: &&mut CoreKind| kind.capacity == capacity) {
                Some(kind) => kind.cpus.add(&core.cpus),
                None => kinds.push(CoreKind { capacity, name: String::new(), cpus: core.cpus.clone() }),
            }
        }
    }
    if kinds.len() < 2 { Ok(Vec::new()) } else { Ok(kinds) }
}
