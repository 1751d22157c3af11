//! Generated machines in the kernel's format: as lists for this crate, as masks for hwloc.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lattice_inventory::{CpuSet, Root};
use tempfile::TempDir;

/// Machine in a directory.
pub(crate) struct Machine {
    directory: TempDir,
}

/// Cache of some CPUs: index, level, type, size in KiB, CPUs.
pub(crate) type Cache<'a> = (usize, u8, &'a str, u64, &'a str);

impl Machine {
    /// A machine with the CPUs `known`, of which `online` are online.
    pub(crate) fn new(known: &str, online: &str) -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        machine.write("sys/devices/system/cpu/online", online);
        machine.write("sys/devices/system/cpu/possible", known);
        machine.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB");
        machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Made-up <Processor> \"X\" & Sons\n");
        machine.write("proc/sys/kernel/random/boot_id", "aabb");
        machine.write("proc/sys/kernel/arch", "x86_64");
        for cpu in set(known).iter() {
            fs::create_dir_all(machine.path(&format!("sys/devices/system/cpu/cpu{cpu}"))).unwrap();
        }
        machine
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.directory.path())
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> &Self {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.to_owned() + "\n").unwrap();
        self
    }

    /// Writes a set in both formats.
    fn write_set(&self, list: &str, mask: &str, cpus: &str) {
        self.write(list, cpus);
        self.write(mask, &words(&set(cpus)));
    }

    /// Sets an architecture other than x86_64.
    pub(crate) fn arch(&self, arch: &str) -> &Self {
        self.write("proc/sys/kernel/arch", arch).write("proc/hwloc-nofile-info", &format!("Architecture: {arch}"))
    }

    /// Puts this process into a control group, mounted as in a line of `/proc/mounts`. Its binding has one CPU.
    pub(crate) fn control_group(&self, mount: &str, group: &str, files: [(&str, &str); 2]) -> &Self {
        self.write("proc/mounts", &format!("proc /proc proc rw,nosuid 0 0\n{mount} 0 0"));
        self.write("proc/self/cpuset", group);
        let directory = mount.split(' ').nth(1).unwrap().trim_start_matches('/');
        for (file, list) in files {
            self.write(&format!("{directory}{group}/{file}"), list);
        }
        let [(_, cpus), (_, nodes)] = files;
        let first = set(cpus).first().unwrap();
        self.write("proc/self/status", &format!("Cpus_allowed_list:\t{first}\nMems_allowed_list:\t{nodes}"))
    }

    /// Books or drawers (`book`, `drawer`), numbered in their order.
    pub(crate) fn books(&self, level: &str, groups: &[&str]) -> &Self {
        for (number, cpus) in groups.iter().enumerate() {
            for cpu in set(cpus).iter() {
                let about = format!("sys/devices/system/cpu/cpu{cpu}/topology/{level}");
                self.write_set(&format!("{about}_siblings_list"), &format!("{about}_siblings"), cpus);
                self.write(&format!("{about}_id"), &number.to_string());
            }
        }
        self
    }

    /// Groups of CPUs of one level (`core`, `cluster`, `die`, `package`), numbered in their order.
    pub(crate) fn groups(&self, level: &str, groups: &[&str]) -> &Self {
        for (number, cpus) in groups.iter().enumerate() {
            for cpu in set(cpus).iter() {
                let about = format!("sys/devices/system/cpu/cpu{cpu}/topology");
                self.write_set(&format!("{about}/{level}_cpus_list"), &format!("{about}/{level}_cpus"), cpus);
                let id = if level == "package" { "physical_package_id".to_owned() } else { format!("{level}_id") };
                self.write(&format!("{about}/{id}"), &number.to_string());
            }
        }
        self
    }

    /// Caches of 64-byte lines and 8 ways.
    pub(crate) fn caches(&self, caches: &[Cache<'_>]) -> &Self {
        for (number, (index, level, kind, size, cpus)) in caches.iter().enumerate() {
            for cpu in set(cpus).iter() {
                let about = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
                self.write_set(&format!("{about}/shared_cpu_list"), &format!("{about}/shared_cpu_map"), cpus);
                self.write(&format!("{about}/level"), &level.to_string());
                self.write(&format!("{about}/type"), kind);
                self.write(&format!("{about}/size"), &format!("{size}K"));
                self.write(&format!("{about}/coherency_line_size"), "64");
                self.write(&format!("{about}/physical_line_partition"), "1");
                self.write(&format!("{about}/number_of_sets"), &(size * 1024 / 64 / 8).to_string());
                self.write(&format!("{about}/id"), &number.to_string());
            }
        }
        self
    }

    /// NUMA nodes of 4 GiB: CPUs, and distances to all nodes.
    pub(crate) fn numa(&self, nodes: &[(&str, &str)]) -> &Self {
        let numbered: Vec<_> =
            (0..).zip(nodes).map(|(number, (cpus, distances))| (number, *cpus, *distances)).collect();
        self.numbered_numa(&numbered)
    }

    /// NUMA nodes of 4 GiB: number, CPUs, and distances to all nodes.
    pub(crate) fn numbered_numa(&self, nodes: &[(u16, &str, &str)]) -> &Self {
        let numbers: CpuSet = nodes.iter().map(|(number, ..)| *number).collect();
        self.write("sys/devices/system/node/online", &numbers.to_string());
        for (number, cpus, distances) in nodes {
            let about = format!("sys/devices/system/node/node{number}");
            self.write_set(&format!("{about}/cpulist"), &format!("{about}/cpumap"), cpus);
            self.write(&format!("{about}/meminfo"), &format!("Node {number} MemTotal:        4194304 kB"));
            self.write(&format!("{about}/distance"), distances);
        }
        self
    }

    /// A PCI device: address, class, vendor and device, NUMA node, CPUs next to it.
    pub(crate) fn pci(&self, address: &str, class: u32, id: [u32; 2], numa: i32, cpus: &str) -> &Self {
        let about = format!("sys/bus/pci/devices/{address}");
        let mut config = vec![0_u8; 64];
        for (at, value) in [(0, id[0]), (2, id[1])] {
            config[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
        }
        config[9..12].copy_from_slice(&class.to_le_bytes()[..3]);
        for (name, value) in [("vendor", id[0]), ("device", id[1]), ("subsystem_vendor", 0), ("subsystem_device", 0)] {
            self.write(&format!("{about}/{name}"), &format!("{value:#06x}"));
        }
        self.write(&format!("{about}/class"), &format!("{class:#08x}"));
        self.write(&format!("{about}/numa_node"), &numa.to_string());
        self.write(&format!("{about}/current_link_speed"), "16.0 GT/s PCIe");
        self.write(&format!("{about}/current_link_width"), "16");
        self.write_set(&format!("{about}/local_cpulist"), &format!("{about}/local_cpus"), cpus);
        fs::write(self.path(&format!("{about}/config")), config).unwrap();
        self
    }

    /// A name in a class of the kernel for a PCI device, with one file.
    pub(crate) fn os_device(&self, class: &str, name: &str, address: &str, file: (&str, &str)) -> &Self {
        let domain = &address[..4];
        let device = format!("sys/devices/pci{domain}:00/{address}/{class}/{name}");
        self.write(&format!("{device}/{}", file.0), file.1);
        fs::create_dir_all(self.path(&format!("sys/class/{class}"))).unwrap();
        symlink(
            format!("../../{}", device.strip_prefix("sys/").unwrap()),
            self.path(&format!("sys/class/{class}/{name}")),
        )
        .unwrap();
        // hwloc checks if the kernel device has a `device` link.
        fs::create_dir_all(self.path(&format!("sys/devices/pci{domain}:00/{address}"))).unwrap();
        let _ = symlink("../..", self.path(&format!("{device}/device")));
        self
    }
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Set as a mask in the kernel's format: words of 32 bits, the highest first.
fn words(cpus: &CpuSet) -> String {
    let count = cpus.iter().last().map_or(1, |last| last / 32 + 1);
    let word =
        |index: u16| (0..32).filter(|bit| cpus.contains(index * 32 + bit)).fold(0_u32, |word, bit| word | 1 << bit);
    (0..count).rev().map(|index| format!("{:08x}", word(index))).collect::<Vec<_>>().join(",")
}
