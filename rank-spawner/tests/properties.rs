//! Properties of usable cores and bindings on generated machines.

use std::collections::BTreeSet;
use std::fs;

use lattice_inventory::{Inventory, Root, UsableCores};
use proptest::collection::vec;
use proptest::prelude::*;
use rank_spawner::{BindError, CpuBind, CpuSet, Limit, LimitedResource, Object, plan};

/// A machine: packages, cores per package, hardware threads per core, and the CPUs that are offline or not allowed.
#[derive(Clone, Debug)]
struct Machine {
    packages: u16,
    cores: u16,
    threads: u16,
    offline: Vec<u16>,
    forbidden: Vec<u16>,
}

impl Machine {
    fn cpus(&self) -> u16 {
        self.packages * self.cores * self.threads
    }

    /// Hardware threads of a core, numbered as by Intel: the second threads after all first ones.
    fn siblings(&self, core: u16) -> CpuSet {
        (0..self.threads).map(|thread| core + thread * self.packages * self.cores).collect()
    }

    fn usable(&self) -> BTreeSet<u16> {
        (0..self.cpus()).filter(|cpu| !self.offline.contains(cpu) && !self.forbidden.contains(cpu)).collect()
    }

    fn allowed(&self) -> CpuSet {
        (0..self.cpus()).filter(|cpu| !self.forbidden.contains(cpu)).collect()
    }

    fn usable_cores(&self) -> UsableCores {
        self.with_gpus(&[])
    }

    /// Writes the machine in the kernel's format, with GPUs next to these CPUs, and reads it.
    fn with_gpus(&self, gpus: &[CpuSet]) -> UsableCores {
        let root = tempfile::tempdir().unwrap();
        let write_in = |directory: &str, path: String, text: String| {
            let path = root.path().join(directory).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        let write = |path: String, text: String| write_in("sys/devices/system", path, text);
        for (bus, cpus) in (1..).zip(gpus) {
            let files = [("class", "0x030200"), ("vendor", "0x10de"), ("local_cpulist", &cpus.to_string())];
            for (file, text) in files {
                write_in("sys/bus/pci/devices", format!("0000:{bus:02x}:00.0/{file}"), text.to_owned());
            }
        }
        let online: CpuSet = (0..self.cpus()).filter(|cpu| !self.offline.contains(cpu)).collect();
        write("cpu/online".into(), online.to_string());
        for core in 0..self.packages * self.cores {
            for cpu in self.siblings(core).iter() {
                write(format!("cpu/cpu{cpu}/topology/core_cpus_list"), self.siblings(core).to_string());
                write(format!("cpu/cpu{cpu}/topology/physical_package_id"), (core / self.cores).to_string());
            }
        }
        let template = Inventory::read(&Root::at(root.path())).template;
        UsableCores::of(&template, &self.allowed())
    }
}

fn machines() -> impl Strategy<Value = Machine> {
    let some = || vec(0..16_u16, 0..6);
    (1..3_u16, 1..4_u16, 1..3_u16, some(), some()).prop_map(|(packages, cores, threads, offline, forbidden)| Machine {
        packages,
        cores,
        threads,
        offline,
        forbidden,
    })
}

fn numbers(set: &CpuSet) -> BTreeSet<u16> {
    set.iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_usable_cpu_is_in_exactly_one_core(machine in machines()) {
        let usable = machine.usable_cores();
        let mut seen = BTreeSet::new();
        for core in usable.cores() {
            prop_assert!(!core.cpus.is_empty());
            for cpu in core.cpus.iter() {
                prop_assert!(seen.insert(cpu), "CPU {cpu} is in two cores");
            }
        }
        prop_assert_eq!(&seen, &machine.usable());
        prop_assert_eq!(numbers(&usable.cpus()), seen);
        let packages: Vec<u32> = usable.cores().iter().map(|core| core.package).collect();
        prop_assert!(packages.is_sorted(), "the cores of one package are neighbours");
    }

    #[test]
    fn ranks_share_a_core_only_when_all_cores_are_taken(machine in machines(), ranks in 1..20_u32) {
        let usable = machine.usable_cores();
        let cores = usable.cores().len();
        let planned = plan(&usable, &CpuBind::to(Object::Core), ranks);
        if cores == 0 {
            let is_refused = matches!(planned, Err(BindError::Nothing { .. }));
            prop_assert!(is_refused);
            return Ok(());
        }
        let planned = planned.unwrap();
        prop_assert_eq!(planned.len(), ranks as usize);
        for (rank, cpus) in planned.iter().enumerate() {
            prop_assert_eq!(cpus.as_ref(), Some(&usable.cores()[rank % cores].cpus));
        }
    }

    #[test]
    fn a_thread_of_its_own_is_one_usable_cpu(machine in machines(), ranks in 0..40_u32) {
        let usable = machine.usable_cores();
        let Ok(planned) = plan(&usable, &CpuBind::to(Object::Thread), ranks) else {
            prop_assert!(machine.usable().is_empty());
            return Ok(());
        };
        let first_round: Vec<u16> = planned.iter().flatten().take(machine.usable().len()).flat_map(CpuSet::iter).collect();
        prop_assert!(planned.iter().all(|cpus| cpus.as_ref().is_some_and(|cpus| cpus.len() == 1)));
        let distinct: BTreeSet<u16> = first_round.iter().copied().collect();
        prop_assert_eq!(distinct.len(), first_round.len(), "none is taken twice before all are taken");
        prop_assert!(distinct.is_subset(&machine.usable()));
    }

    #[test]
    fn each_core_next_to_gpus_is_of_one_of_them_and_gpus_alike_have_as_many(
        machine in machines(), gpus in vec((0..8_u16, 1..8_u16), 0..5), ranks in 0..9_u32,
    ) {
        let near: Vec<CpuSet> = gpus.iter().map(|&(first, count)| (first..first + count).collect()).collect();
        let usable = machine.with_gpus(&near);
        let mut of_gpus: Vec<BTreeSet<u16>> = vec![BTreeSet::new(); near.len()];
        let mut counts = vec![0_usize; near.len()];
        for core in usable.cores() {
            let number = core.gpu as usize;
            prop_assert_eq!(number == 0, near.iter().all(|cpus| cpus.is_disjoint(&core.cpus)));
            if number > 0 {
                prop_assert!(!near[number - 1].is_disjoint(&core.cpus), "GPU {number} is not next to CPUs {}", core.cpus);
                of_gpus[number - 1].extend(core.cpus.iter());
                counts[number - 1] += 1;
            }
        }
        if near.windows(2).all(|pair| pair[0] == pair[1]) {
            let (least, most) = (counts.iter().min(), counts.iter().max());
            prop_assert!(least.zip(most).is_none_or(|(least, most)| most - least <= 1), "{counts:?}");
        }
        of_gpus.retain(|cpus| !cpus.is_empty());
        prop_assert_eq!(Object::Gpu.count(&usable) as usize, of_gpus.len());
        match plan(&usable, &CpuBind::to(Object::Gpu), ranks) {
            Ok(planned) => for (rank, cpus) in planned.iter().flatten().enumerate() {
                prop_assert_eq!(&numbers(cpus), &of_gpus[rank % of_gpus.len()]);
            },
            Err(error) => prop_assert!(of_gpus.is_empty() && ranks > 0, "{error}"),
        }
    }

    #[test]
    fn a_map_is_followed_or_the_first_cpu_that_is_not_there_is_named(
        machine in machines(), entries in vec(0..16_u16, 1..5), ranks in 1..9_u32,
    ) {
        let usable = machine.usable_cores();
        let sets: Vec<CpuSet> = entries.iter().map(|&cpu| [cpu].into_iter().collect()).collect();
        let used = &entries[..entries.len().min(ranks as usize)];
        let missing = used.iter().position(|cpu| !machine.usable().contains(cpu));
        match (plan(&usable, &CpuBind::Map(sets.clone()), ranks), missing) {
            (Ok(planned), None) => {
                let expected = (0..ranks as usize).map(|rank| Some(sets[rank % sets.len()].clone()));
                prop_assert_eq!(planned, expected.collect::<Vec<_>>());
            }
            (Err(BindError::NoSuchCpu { local_rank, cpu, available }), Some(first)) => {
                prop_assert_eq!((local_rank as usize, cpu), (first, used[first]));
                prop_assert_eq!(numbers(&available), machine.usable());
            }
            (other, missing) => prop_assert!(false, "{other:?} where {missing:?} is missing"),
        }
    }

    #[test]
    fn without_binding_no_rank_is_bound(machine in machines(), ranks in 0..9_u32) {
        prop_assert_eq!(plan(&machine.usable_cores(), &CpuBind::None, ranks), Ok(vec![None; ranks as usize]));
    }

    #[test]
    fn a_set_of_cpus_prints_as_the_kernel_reads_it(cpus in vec(0..9000_u16, 0..40)) {
        let set: CpuSet = cpus.iter().copied().collect();
        let text = set.to_string();
        prop_assert_eq!(text.parse::<CpuSet>(), Ok(set.clone()));
        prop_assert_eq!(set.len(), cpus.iter().collect::<BTreeSet<_>>().len());
        prop_assert!(cpus.iter().all(|&cpu| set.contains(cpu)));
        prop_assert_eq!(numbers(&set.intersection(&set)), numbers(&set));
    }

    #[test]
    fn a_limit_is_read_as_it_is_written(soft in any::<u64>(), hard in any::<u64>()) {
        let text = format!("nofile={soft}:{hard}");
        match text.parse::<Limit>() {
            Ok(limit) => {
                prop_assert!(soft <= hard);
                prop_assert_eq!(limit, Limit { resource: LimitedResource::Nofile, soft, hard });
            }
            Err(error) => prop_assert!(soft > hard, "{error}"),
        }
    }
}
