//! CPUs and NUMA nodes that the control groups of a process leave it, which is what hwloc looks at. A process's affinity is less than
//! that where somebody bound it.

use crate::cpus::{CpuSet, NodeSet};
use crate::root::Root;
use crate::template::Template;
use crate::tree::Tree;

/// What a process may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// CPUs.
    pub cpus: CpuSet,
    /// NUMA nodes.
    pub nodes: NodeSet,
}

impl Allowed {
    /// Everything that a node has.
    pub fn all(template: &Template) -> Self {
        Self { cpus: template.cpus.clone(), nodes: Tree::of(template).root.nodes }
    }

    /// What this process may use; `None` if that is everything, of a node with the CPUs `online`.
    pub fn to_this_process(root: &Root, online: &CpuSet) -> Option<Self> {
        let status = root.word("proc/self/status")?;
        let list = |name: &str| -> Option<CpuSet> {
            status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
        };
        let (affinity, nodes) = (list("Cpus_allowed_list:")?, list("Mems_allowed_list:")?);
        let mut cpus = affinity.intersection(online);
        if cpus != *online {
            cpus = cpuset_of_group(root).unwrap_or_else(|| online.clone()).intersection(online);
        }
        let possible: NodeSet =
            root.list("sys/devices/system/node/online").ok().flatten().unwrap_or_else(|| nodes.clone());
        let nodes = nodes.intersection(&possible);
        (cpus != *online || nodes != possible).then_some(Self { cpus, nodes })
    }
}

/// The CPUs of this process's control group, of either version; `None` where the group says nothing of CPUs.
fn cpuset_of_group(root: &Root) -> Option<CpuSet> {
    let groups = root.word("proc/self/cgroup")?;
    let path = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/').to_owned();
        match controllers {
            "" => Some(("sys/fs/cgroup".to_owned(), path)),
            _ if controllers.split(',').any(|name| name == "cpuset") => Some(("sys/fs/cgroup/cpuset".to_owned(), path)),
            _ => None,
        }
    };
    groups.lines().filter_map(path).find_map(|(mount, path)| {
        let files = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
        files.iter().find_map(|file| {
            // A process in a container may see its own group as the root.
            [format!("{mount}/{path}/{file}"), format!("{mount}/{file}")]
                .iter()
                .find_map(|file| root.list(file).ok().flatten().filter(|cpus| !cpus.is_empty()))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_cpuset_counts_and_a_binding_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = Root::at(directory.path());
        let online: CpuSet = "0-7".parse().unwrap();
        let words = |allowed: Option<Allowed>| allowed.map(|a| (a.cpus.to_string(), a.nodes.to_string()));
        assert_eq!(words(Allowed::to_this_process(&root, &online)), None);
        write("sys/devices/system/node/online", "0-1\n");
        let status = |cpus: &str, nodes: &str| {
            write("proc/self/status", &format!("Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}\n"));
        };
        status("0-63", "0-63");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), None);
        // Bound by somebody, without a cpuset.
        status("3", "0-1");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), None);
        write("proc/self/cgroup", "0::/job_1/step\n");
        write("sys/fs/cgroup/job_1/step/cpuset.cpus.effective", "2-3\n");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), Some(("2-3".into(), "0-1".into())));
        write("proc/self/cgroup", "4:cpu,cpuacct:/\n3:cpuset:/job_1\n");
        write("sys/fs/cgroup/cpuset/job_1/cpuset.cpus", "0-3\n");
        status("0-3", "0");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), Some(("0-3".into(), "0".into())));
    }
}
