//! Directory for new control groups: the directory of this process's own group, if this process may change it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getpid};

use super::{CgroupError, KILL, PROCESSES};

/// Directory of this process's control group, in which this process can make groups and move processes to them.
///
/// # Errors
/// Fails if there is none. The function makes a trial group to find out.
pub fn usable_cgroup() -> Result<PathBuf, CgroupError> {
    let read = |path| fs::read_to_string(path).map_err(|_| CgroupError::NotMounted);
    let directory = directory(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
    let directory = directory.filter(|directory| directory.is_dir()).ok_or(CgroupError::NotMounted)?;
    if try_out(&directory).map_err(|error| CgroupError::NotWritable { path: directory.clone(), error })? {
        Ok(directory)
    } else {
        Err(CgroupError::NoKill)
    }
}

/// Makes a trial group and removes it; returns false if the kernel cannot kill groups.
fn try_out(directory: &Path) -> io::Result<bool> {
    // To move a process, write access to the common ancestor of both groups is needed.
    access(&directory.join(PROCESSES), AccessFlags::W_OK)?;
    let trial = directory.join(format!("lattice-trial-{}", getpid()));
    // A leftover trial group of a killed process with this number also works: numbers repeat in containers.
    fs::create_dir(&trial).or_else(|error| if trial.is_dir() { Ok(()) } else { Err(error) })?;
    let can_kill = trial.join(KILL).exists();
    fs::remove_dir(&trial)?;
    Ok(can_kill)
}

/// Directory of a process's group, by its `/proc/PID/cgroup` and `/proc/PID/mountinfo` (see cgroups(7) and proc_pid_mountinfo(5)).
fn directory(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    // If two file systems are mounted at one place, the later one is visible.
    mounts.lines().rev().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        Some(Path::new(point).join(group.strip_prefix(root).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "32 24 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n\
        33 32 0:29 / /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw\n\
        34 32 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

    #[track_caller]
    fn check(groups: &str, mounts: &str, expected: Option<&str>) {
        assert_eq!(directory(groups, mounts).as_deref(), expected.map(Path::new), "{groups} {mounts}");
    }

    #[test]
    fn the_group_is_found_below_the_mount_that_has_it() {
        check("4:memory:/a\n0::/b/c\n", HYBRID, Some("/sys/fs/cgroup/unified/b/c"));
        check("0::/\n", HYBRID, Some("/sys/fs/cgroup/unified/"));
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n";
        let unit = "0::/system.slice/lattice-agent.service\n";
        check(unit, unified, Some("/sys/fs/cgroup/system.slice/lattice-agent.service"));
    }

    #[test]
    fn a_container_sees_a_part_of_the_hierarchy() {
        let part = "30 23 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw\n";
        check("0::/docker/abc/d\n", part, Some("/sys/fs/cgroup/d"));
        check("0::/docker/xyz\n", part, None);
        check("4:memory:/a\n", HYBRID, None);
        check("0::/\n", "34 32 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", None);
    }
}
