//! The cores that this process may use, as the kernel describes them under `/sys/devices/system`.
//!
//! Reads only; who gets which core is decided in [`crate::binding`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cpus::{CpuSet, CpuSetParseError};
use crate::syscalls;

/// The usable cores of this machine, those of one package and NUMA node next to each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    cores: Vec<Core>,
}

/// A core, as far as this process may use it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Core {
    /// The processor package, usually a socket.
    pub package: u32,
    /// The NUMA node.
    pub numa_node: u32,
    /// Hardware threads that are online and allowed; never empty.
    pub cpus: CpuSet,
}

/// Error of [`Topology::read`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Failure to read a file that every kernel offers.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file holds something else than a list of CPUs.
    #[error("cannot read {}: {source}", path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// Error in the list.
        source: CpuSetParseError,
    },
    /// The system does not tell which CPUs this process may use.
    #[error("cannot read the affinity of this process: {0}")]
    Affinity(#[source] nix::Error),
}

impl Topology {
    /// The cores that this process may use.
    ///
    /// # Errors
    /// Fails where `/sys` is not mounted.
    pub fn of_this_process() -> Result<Self, TopologyError> {
        Self::read(Path::new("/sys/devices/system"), &allowed_cpus()?)
    }

    /// Reads the directories `cpu` and `node` under `root`, leaving out every CPU that is offline or not in `allowed`.
    ///
    /// A kernel without NUMA has no `node`, and some virtual machines tell nothing about a CPU: those count as node 0 and
    /// as a core of its own.
    ///
    /// # Errors
    /// Fails if the list of online CPUs is missing, or a list is malformed.
    pub fn read(root: &Path, allowed: &CpuSet) -> Result<Self, TopologyError> {
        let online = root.join("cpu/online");
        let usable = read_list(&online)?.ok_or_else(|| missing(online))?.intersection(allowed);
        let nodes = read_numa_nodes(&root.join("node"))?;
        let mut cores = Vec::new();
        for cpu in usable.iter() {
            let about = root.join(format!("cpu/cpu{cpu}/topology"));
            let siblings = match read_list(&about.join("core_cpus_list"))? {
                // The name before Linux 5.3.
                None => read_list(&about.join("thread_siblings_list"))?,
                list => list,
            };
            let cpus = siblings.map_or_else(|| [cpu].into_iter().collect(), |list| list.intersection(&usable));
            // Each core is met once per hardware thread and taken with its first.
            if cpus.iter().next() == Some(cpu) {
                let package = read_number(&about.join("physical_package_id")).unwrap_or(0);
                cores.push(Core { package, numa_node: nodes.get(&cpu).copied().unwrap_or(0), cpus });
            }
        }
        cores.sort();
        Ok(Self { cores })
    }

    /// The cores by package, NUMA node and lowest CPU number.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Union of the CPUs of all cores.
    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().flat_map(|core| core.cpus.iter()).collect()
    }
}

/// The CPUs that this process may run on: its affinity, which the kernel keeps within its cpuset.
fn allowed_cpus() -> Result<CpuSet, TopologyError> {
    syscalls::affinity().map(|mask| CpuSet::from_mask(&mask)).map_err(TopologyError::Affinity)
}

/// The NUMA node of each CPU.
fn read_numa_nodes(directory: &Path) -> Result<BTreeMap<u16, u32>, TopologyError> {
    let mut nodes = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else {
            continue;
        };
        let cpus = read_list(&entry.path().join("cpulist"))?.unwrap_or_default();
        nodes.extend(cpus.iter().map(|cpu| (cpu, node)));
    }
    Ok(nodes)
}

/// The list in a file; `None` if there is no such file.
fn read_list(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.trim_end().parse() {
            Ok(list) => Ok(Some(list)),
            Err(source) => Err(TopologyError::List { path: path.to_owned(), source }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TopologyError::Read { path: path.to_owned(), source }),
    }
}

fn read_number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim_end().parse().ok()
}

fn missing(path: PathBuf) -> TopologyError {
    TopologyError::Read { path, source: io::ErrorKind::NotFound.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up `/sys/devices/system`: `cores` are (package, list of hardware threads), `nodes` are lists of CPUs.
    fn tree(online: &str, cores: &[(u32, &str)], nodes: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = root.path().join(path);
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
        root
    }

    fn check(root: &Path, allowed: &str, expected: &[(u32, u32, &str)]) {
        let topology = Topology::read(root, &allowed.parse().unwrap()).unwrap();
        let seen: Vec<_> =
            topology.cores().iter().map(|core| (core.package, core.numa_node, core.cpus.to_string())).collect();
        let expected: Vec<_> = expected.iter().map(|&(package, node, cpus)| (package, node, cpus.to_owned())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn hardware_threads_make_one_core() {
        // Numbered as Intel does: the second threads follow all the first ones.
        let root = tree("0-7", &[(0, "0,4"), (0, "1,5"), (1, "2,6"), (1, "3,7")], &["0-1,4-5", "2-3,6-7"]);
        check(root.path(), "0-7", &[(0, 0, "0,4"), (0, 0, "1,5"), (1, 1, "2,6"), (1, 1, "3,7")]);
    }

    #[test]
    fn cores_of_one_node_are_neighbours_even_when_numbers_alternate() {
        let root = tree("0-3", &[(0, "0"), (1, "1"), (0, "2"), (1, "3")], &["0,2", "1,3"]);
        check(root.path(), "0-3", &[(0, 0, "0"), (0, 0, "2"), (1, 1, "1"), (1, 1, "3")]);
    }

    #[test]
    fn offline_and_forbidden_cpus_do_not_exist() {
        let root = tree("0-4,6-7", &[(0, "0,4"), (0, "1,5"), (0, "2,6"), (0, "3,7")], &["0-7"]);
        check(root.path(), "0-7", &[(0, 0, "0,4"), (0, 0, "1"), (0, 0, "2,6"), (0, 0, "3,7")]);
        // A cpuset may hold only the second thread of a core.
        check(root.path(), "5-7", &[(0, 0, "6"), (0, 0, "7")]);
        check(root.path(), "100", &[]);
    }

    #[test]
    fn a_kernel_that_tells_nothing_has_cores_of_one_cpu() {
        let root = tree("0-1", &[], &[]);
        check(root.path(), "0-1", &[(0, 0, "0"), (0, 0, "1")]);
    }

    #[test]
    fn a_missing_or_broken_list_is_named() {
        let root = tempfile::tempdir().unwrap();
        let read = || Topology::read(root.path(), &CpuSet::default()).unwrap_err().to_string();
        assert!(read().contains("cpu/online"), "{}", read());
        fs::create_dir(root.path().join("cpu")).unwrap();
        fs::write(root.path().join("cpu/online"), "zero").unwrap();
        assert!(read().ends_with(r#"cpu/online: "zero" is not a CPU number or a range such as 4-7"#), "{}", read());
    }

    #[test]
    fn this_machine_has_cores() {
        let topology = Topology::of_this_process().unwrap();
        assert!(!topology.cores().is_empty());
        assert_eq!(topology.cpus(), allowed_cpus().unwrap());
    }
}
