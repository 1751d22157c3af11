//! Cores that a process may use. Ranks are bound to them.

use std::num::NonZeroU32;

use crate::cpus::CpuSet;
use crate::near_devices;
use crate::template::{CacheKind, CacheType, Template};

/// Usable cores of a node. Cores of one package, NUMA node and level-3 cache are next to each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsableCores {
    cores: Vec<UsableCore>,
}

/// Usable part of a core.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UsableCore {
    /// Processor package, usually a socket; 0 if the kernel does not report it.
    pub package: u32,
    /// NUMA node; 0 without NUMA.
    pub numa_node: u16,
    /// Level-3 cache, counted from 1 on the whole node; 0 without one.
    pub l3_cache: u32,
    /// Online and allowed hardware threads; never empty.
    pub cpus: CpuSet,
    /// GPU of the core, counted from 1 in the order of [`Template::gpus`]; 0 if the core is next to none. Several GPUs next to the same cores
    /// divide them evenly.
    pub gpu: u32,
    /// Network interface of the core, counted in the same way in [`Template::nics`].
    pub nic: u32,
}

impl UsableCores {
    /// Cores of a node, limited to the CPUs in `allowed`. A CPU for which the kernel reports no location is a core of its own.
    pub fn of(template: &Template, allowed: &CpuSet) -> Self {
        let usable = template.cpus.intersection(allowed);
        let mut alone = usable.clone();
        let mut cores = Vec::new();
        for core in &template.cores {
            let cpus = core.cpus.intersection(&usable);
            alone = alone.without(&cpus);
            cores.push(cpus);
        }
        cores.extend(alone.iter().map(|cpu| [cpu].into_iter().collect()));
        let third_level = |kind: &&CacheKind| kind.level == 3 && kind.kind != CacheType::Instruction;
        let l3_caches = || template.caches.iter().filter(third_level).flat_map(|kind| &kind.instances);
        let place = |cpus: CpuSet| {
            let cpu = cpus.first()?;
            let package = template.packages.iter().find(|package| package.cpus.contains(cpu));
            let node = template.numa.iter().find(|node| node.cpus.contains(cpu));
            let package = package.and_then(|package| package.id).unwrap_or(0);
            let l3_cache = (1..).zip(l3_caches()).find(|(_, cache)| cache.cpus.contains(cpu));
            let l3_cache = l3_cache.map_or(0, |(number, _)| number);
            let numa_node = node.map_or(0, |node| node.id);
            Some(UsableCore { package, numa_node, l3_cache, cpus, gpu: 0, nic: 0 })
        };
        let mut cores: Vec<UsableCore> = cores.into_iter().filter_map(place).collect();
        cores.sort_unstable();
        let cpus: Vec<&CpuSet> = cores.iter().map(|core| &core.cpus).collect();
        let [gpus, nics] = [template.gpus(), template.nics()].map(|devices| near_devices::shares(&cpus, &devices));
        for (core, (gpu, nic)) in cores.iter_mut().zip(gpus.into_iter().zip(nics)) {
            (core.gpu, core.nic) = (gpu, nic);
        }
        Self { cores }
    }

    /// Cores by package, NUMA node, level-3 cache and lowest CPU number.
    pub fn cores(&self) -> &[UsableCore] {
        &self.cores
    }

    /// First hardware threads of each core, and first cores of each package; `None` for all of them.
    #[must_use]
    pub fn first(&self, threads_of_core: Option<NonZeroU32>, cores_of_package: Option<NonZeroU32>) -> Self {
        let most = |number: Option<NonZeroU32>| number.map_or(usize::MAX, |number| number.get() as usize);
        let of_packages = self.cores.chunk_by(|one, other| one.package == other.package);
        let cores = of_packages.flat_map(|cores| cores.iter().take(most(cores_of_package)));
        let part = |core: &UsableCore| UsableCore {
            cpus: core.cpus.iter().take(most(threads_of_core)).collect(),
            ..core.clone()
        };
        Self { cores: cores.map(part).collect() }
    }

    /// The cores without these CPUs.
    #[must_use]
    pub fn without(&self, cpus: &CpuSet) -> Self {
        let rest = |core: &UsableCore| UsableCore { cpus: core.cpus.without(cpus), ..core.clone() };
        Self { cores: self.cores.iter().map(rest).filter(|core| !core.cpus.is_empty()).collect() }
    }

    /// Union of the CPUs of all cores.
    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().flat_map(|core| core.cpus.iter()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::node::Inventory;
    use crate::root::Root;

    /// Generated machine: `cores` are (package, list of hardware threads), `nodes` are lists of CPUs.
    fn machine(online: &str, cores: &[(u32, &str)], nodes: &[&str]) -> Template {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = root.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        write("cpu/online".into(), online.into());
        for (package, list) in cores {
            for cpu in list.parse::<CpuSet>().unwrap().iter() {
                write(format!("cpu/cpu{cpu}/topology/core_cpus_list"), (*list).into());
                write(format!("cpu/cpu{cpu}/topology/physical_package_id"), package.to_string());
            }
        }
        for (node, list) in nodes.iter().enumerate() {
            write(format!("node/node{node}/cpulist"), (*list).into());
        }
        Inventory::read(&Root::at(root.path())).template
    }

    fn check(machine: &Template, allowed: &str, expected: &[(u32, u16, &str)]) {
        let usable = UsableCores::of(machine, &allowed.parse().unwrap());
        let seen: Vec<_> =
            usable.cores().iter().map(|core| (core.package, core.numa_node, core.cpus.to_string())).collect();
        let expected: Vec<_> = expected.iter().map(|&(package, node, cpus)| (package, node, cpus.to_owned())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn hardware_threads_make_one_core() {
        // Numbered as by Intel: the second threads follow all the first ones.
        let machine = machine("0-7", &[(0, "0,4"), (0, "1,5"), (1, "2,6"), (1, "3,7")], &["0-1,4-5", "2-3,6-7"]);
        check(&machine, "0-7", &[(0, 0, "0,4"), (0, 0, "1,5"), (1, 1, "2,6"), (1, 1, "3,7")]);
    }

    #[test]
    fn cores_of_one_node_are_neighbours_even_when_numbers_alternate() {
        let machine = machine("0-3", &[(0, "0"), (1, "1"), (0, "2"), (1, "3")], &["0,2", "1,3"]);
        check(&machine, "0-3", &[(0, 0, "0"), (0, 0, "2"), (1, 1, "1"), (1, 1, "3")]);
    }

    #[test]
    fn offline_and_forbidden_cpus_do_not_exist() {
        let machine = machine("0-4,6-7", &[(0, "0,4"), (0, "1,5"), (0, "2,6"), (0, "3,7")], &["0-7"]);
        check(&machine, "0-7", &[(0, 0, "0,4"), (0, 0, "1"), (0, 0, "2,6"), (0, 0, "3,7")]);
        // A cpuset may have only the second thread of a core.
        check(&machine, "5-7", &[(0, 0, "6"), (0, 0, "7")]);
        check(&machine, "100", &[]);
    }

    #[test]
    fn a_part_has_the_first_threads_of_cores_and_the_first_cores_of_packages() {
        let machine = machine("0-7", &[(0, "0,4"), (0, "1,5"), (1, "2,6"), (1, "3,7")], &[]);
        let usable = UsableCores::of(&machine, &"0-5,7".parse().unwrap());
        let check = |threads, cores, expected: &str| {
            let part = usable.first(NonZeroU32::new(threads), NonZeroU32::new(cores));
            assert_eq!(part.cpus().to_string(), expected, "{threads} threads, {cores} cores");
        };
        check(0, 0, "0-5,7");
        check(1, 0, "0-3");
        check(2, 0, "0-5,7");
        check(0, 1, "0,2,4");
        check(1, 1, "0,2");
        check(9, 9, "0-5,7");
    }

    #[test]
    fn a_kernel_that_tells_nothing_has_cores_of_one_cpu() {
        check(&machine("0-1", &[], &[]), "0-1", &[(0, 0, "0"), (0, 0, "1")]);
    }
}
