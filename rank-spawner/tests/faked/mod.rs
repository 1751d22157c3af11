//! Generated machines: files in the kernel's format, and the expected content, computed without these files.

use std::fs;

use lattice_inventory::{CacheKind, CacheType, CpuSet, Group, Inventory, NumaNode, Root, Template, UsableCores};
use proptest::collection::vec;
use proptest::prelude::*;
use rank_spawner::Object;

/// Machine of equal packages, with its offline and forbidden CPUs.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) packages: u16,
    /// NUMA nodes per package.
    pub(crate) numa: u16,
    /// Level-3 caches per NUMA node.
    pub(crate) caches: u16,
    /// Cores per level-3 cache.
    pub(crate) cores: u16,
    /// Hardware threads per core.
    pub(crate) threads: u16,
    /// True if threads of a core have consecutive numbers, as on POWER; false if all second threads follow all first ones, as on Intel.
    pub(crate) neighbours: bool,
    pub(crate) offline: Vec<u16>,
    pub(crate) forbidden: Vec<u16>,
}

/// Usable CPU and its objects, counted over the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) number: u16,
    pub(crate) core: u16,
    pub(crate) cache: u16,
    pub(crate) numa: u16,
    pub(crate) package: u16,
}

impl Cpu {
    /// Number of the object of a kind that has this CPU.
    pub(crate) fn of(&self, object: Object) -> u16 {
        match object {
            Object::Thread => self.number,
            Object::Core => self.core,
            Object::L3Cache => self.cache,
            Object::Numa => self.numa,
            _ => self.package,
        }
    }
}

impl Machine {
    fn all_cores(&self) -> u16 {
        self.packages * self.numa * self.caches * self.cores
    }

    fn all_cpus(&self) -> impl Iterator<Item = Cpu> {
        let numbers = (0..self.all_cores()).flat_map(|core| (0..self.threads).map(move |thread| (core, thread)));
        numbers.map(|(core, thread)| {
            let cache = core / self.cores;
            let number = if self.neighbours { core * self.threads + thread } else { core + thread * self.all_cores() };
            Cpu { number, core, cache, numa: cache / self.caches, package: cache / self.caches / self.numa }
        })
    }

    /// Usable CPUs, with the CPUs of an object side by side. Caches of a NUMA node are in the order of their lowest online number, and cores
    /// of a cache in that of their lowest usable number.
    pub(crate) fn usable(&self) -> Vec<Cpu> {
        let is_usable = |cpu: &Cpu| !self.offline.contains(&cpu.number) && !self.forbidden.contains(&cpu.number);
        let mut cpus: Vec<Cpu> = self.all_cpus().filter(is_usable).collect();
        let all = cpus.clone();
        let core = |core: u16| all.iter().filter(|cpu| cpu.core == core).map(|cpu| cpu.number).min();
        let is_online = |cpu: &Cpu| !self.offline.contains(&cpu.number);
        let cache =
            |cache: u16| self.all_cpus().filter(is_online).filter(|cpu| cpu.cache == cache).map(|cpu| cpu.number).min();
        cpus.sort_by_key(|cpu| (cpu.numa, cache(cpu.cache), core(cpu.core), cpu.number));
        cpus
    }

    /// Usable cores, computed without files.
    pub(crate) fn usable_cores(&self) -> UsableCores {
        let online = || self.all_cpus().filter(|cpu| !self.offline.contains(&cpu.number));
        let groups = |object: Object| {
            let of = |number: u16| online().filter(|cpu| cpu.of(object) == number).map(|cpu| cpu.number).collect();
            let groups = (0..self.all_cores()).map(|number| Group { cpus: of(number), id: Some(number.into()) });
            groups.filter(|group| !group.cpus.is_empty()).collect::<Vec<_>>()
        };
        let mut instances = groups(Object::L3Cache);
        instances.sort_by_key(|cache| cache.cpus.first());
        let numa = groups(Object::Numa).into_iter().map(|Group { cpus, id }| NumaNode {
            id: id.unwrap_or_default() as u16,
            cpus,
            ..NumaNode::default()
        });
        let template = Template {
            cpus: online().map(|cpu| cpu.number).collect(),
            packages: groups(Object::Socket),
            cores: groups(Object::Core),
            caches: vec![CacheKind {
                level: 3,
                kind: CacheType::Unified,
                size: 1 << 20,
                line: 64,
                ways: 16,
                instances,
            }],
            numa: numa.collect(),
            ..Template::default()
        };
        UsableCores::of(&template, &self.allowed())
    }

    fn allowed(&self) -> CpuSet {
        self.all_cpus().map(|cpu| cpu.number).filter(|cpu| !self.forbidden.contains(cpu)).collect()
    }

    /// Usable cores, read from files in the kernel's format.
    pub(crate) fn read(&self) -> UsableCores {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = root.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        let list = |is_in: &dyn Fn(&Cpu) -> bool| -> String {
            self.all_cpus().filter(is_in).map(|cpu| cpu.number).collect::<CpuSet>().to_string()
        };
        write("cpu/online".into(), list(&|cpu| !self.offline.contains(&cpu.number)));
        for cpu in self.all_cpus() {
            let about = format!("cpu/cpu{}", cpu.number);
            write(format!("{about}/topology/core_cpus_list"), list(&|other| other.core == cpu.core));
            write(format!("{about}/topology/physical_package_id"), cpu.package.to_string());
            let files = [("level", "3".to_owned()), ("type", "Unified".to_owned()), ("size", "1024K".to_owned())];
            let shared = ("shared_cpu_list", list(&|other| other.cache == cpu.cache));
            for (file, text) in files.into_iter().chain([shared]) {
                write(format!("{about}/cache/index3/{file}"), text);
            }
        }
        for numa in 0..self.packages * self.numa {
            write(format!("node/node{numa}/cpulist"), list(&|cpu| cpu.numa == numa));
        }
        UsableCores::of(&Inventory::read(&Root::at(root.path())).template, &self.allowed())
    }
}

/// Machines of up to 48 CPUs.
pub(crate) fn machines() -> impl Strategy<Value = Machine> {
    let some = || vec(0..48_u16, 0..8);
    let shape = (1..3_u16, 1..3_u16, 1..3_u16, 1..4_u16, 1..3_u16, any::<bool>());
    (shape, some(), some()).prop_map(|((packages, numa, caches, cores, threads, neighbours), offline, forbidden)| {
        Machine { packages, numa, caches, cores, threads, neighbours, offline, forbidden }
    })
}
