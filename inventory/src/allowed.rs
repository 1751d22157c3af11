//! CPUs and NUMA nodes that a process may use under its control groups, as hwloc computes them. The affinity of a bound process is
//! smaller.

use crate::cpus::{CpuSet, NodeSet};
use crate::root::Root;
use crate::template::Template;
use crate::tree::Tree;

mod limits;

pub(crate) use limits::Limits;

/// CPUs and NUMA nodes that a process may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// CPUs.
    pub cpus: CpuSet,
    /// NUMA nodes.
    pub nodes: NodeSet,
}

impl Allowed {
    /// All CPUs and NUMA nodes of a node.
    pub fn all(template: &Template) -> Self {
        Self { cpus: template.cpus.clone(), nodes: Tree::of(template).root.nodes }
    }

    /// CPUs and NUMA nodes that this process may use; `None` if it may use all of a node with the CPUs `online`.
    pub fn to_this_process(root: &Root, online: &CpuSet) -> Option<Self> {
        let Limits { cpus: affinity, nodes } = Limits::of_this_process(root)?;
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

/// CPUs of this process's control group, of version 1 or 2; `None` if the group does not limit CPUs.
fn cpuset_of_group(root: &Root) -> Option<CpuSet> {
    let group = root.word("proc/self/cpuset").or_else(|| group_of_cpuset(&root.word("proc/self/cgroup")?))?;
    let mounts = root.word("proc/mounts")?;
    mounts.lines().filter_map(mount).find_map(|(mount, files)| {
        files.iter().find_map(|file| {
            // A process in a container may see its own group as the root.
            [format!("{mount}{group}/{file}"), format!("{mount}/{file}")]
                .iter()
                .find_map(|file| root.list(file.trim_start_matches('/')).ok().flatten().filter(|cpus| !cpus.is_empty()))
        })
    })
}

/// The group with the cpuset controller, otherwise the group of version 2: some kernels list the controller only there.
fn group_of_cpuset(groups: &str) -> Option<String> {
    let of = |is_it: &dyn Fn(&str) -> bool| {
        let (_, path) = groups
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
            .find(|(names, _)| is_it(names))?;
        Some(path.to_owned())
    };
    of(&|names| names.split(',').any(|name| name == "cpuset")).or_else(|| of(&str::is_empty))
}

/// Mount point of control groups with CPUs, from a line of the mounted file systems, and the files with the CPUs.
fn mount(line: &str) -> Option<(&str, &'static [&'static str])> {
    let mut words = line.split(' ').skip(1);
    let (directory, kind, options) = (words.next()?, words.next()?, words.next()?);
    let has = |name: &str| options.split(',').any(|option| option == name);
    let files: &[&str] = match kind {
        "cgroup2" => &["cpuset.cpus.effective"],
        // Older than control groups, but mounted like one.
        "cpuset" => &["cpus"],
        "cgroup" if has("cpuset") && has("noprefix") => &["cpus"],
        "cgroup" if has("cpuset") => &["cpuset.effective_cpus", "cpuset.cpus"],
        _ => return None,
    };
    Some((directory, files))
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
        // Bound without a cpuset.
        status("3", "0-1");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), None);
        // As mounted by systemd: version 2 has no cpuset controller while version 1 has it.
        let systemd =
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        write("proc/mounts", systemd);
        write("proc/self/cgroup", "0::/job_1/step\n");
        write("sys/fs/cgroup/job_1/step/cpuset.cpus.effective", "2-3\n");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), Some(("2-3".into(), "0-1".into())));
        write("proc/self/cgroup", "4:cpu,cpuacct:/\n3:cpuset:/job_1\n0::/other\n");
        write("sys/fs/cgroup/cpuset/job_1/cpuset.cpus", "0-3\n");
        status("0-3", "0");
        assert_eq!(words(Allowed::to_this_process(&root, &online)), Some(("0-3".into(), "0".into())));
    }

    #[test]
    fn control_groups_are_found_where_they_are_mounted() {
        let check = |mounts: &str, file: &str| {
            let directory = tempfile::tempdir().unwrap();
            let write = |path: &str, text: &str| {
                let path = directory.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            write("proc/self/status", "Cpus_allowed_list:\t5\nMems_allowed_list:\t0\n");
            write("proc/self/cpuset", "/uid_7/job_9\n");
            // The step has no CPUs of its own.
            write("proc/self/cgroup", "0::/uid_7/job_9/step_0\n");
            write("proc/mounts", mounts);
            write(file, "4-5\n");
            let allowed = Allowed::to_this_process(&Root::at(directory.path()), &"0-7".parse().unwrap());
            assert_eq!(allowed.map(|allowed| allowed.cpus.to_string()), Some("4-5".to_owned()), "{mounts}");
        };
        check("none /cgroup/cpuset cgroup rw,relatime,cpuset 0 0", "cgroup/cpuset/uid_7/job_9/cpuset.cpus");
        check("none /dev/cpuset cgroup rw,cpuset,noprefix 0 0", "dev/cpuset/uid_7/job_9/cpus");
        check("none /dev/cpuset cpuset rw 0 0", "dev/cpuset/uid_7/job_9/cpus");
        check("none /sys/fs/cgroup cgroup2 rw 0 0", "sys/fs/cgroup/uid_7/job_9/cpuset.cpus.effective");
        check("tmpfs /run tmpfs rw 0 0\nnone /sys/fs/cgroup cgroup2 rw 0 0", "sys/fs/cgroup/cpuset.cpus.effective");
    }
}
