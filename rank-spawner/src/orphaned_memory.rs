//! Shared memory that MPI libraries make under names by chance, for ranks of a node to meet in, and take away again as soon as all have it: a
//! rank that is killed in between leaves it. And segments of Open MPI whose rank has not told its server of them.
//!
//! Nothing in the name tells whose it is. But who made it has it open, and then mapped: a file of the user's, no older than the launch, that no
//! process of the user has open or mapped was left by somebody who is gone. While a process of the user may not be looked at, and may have such
//! a file, none is removed: see [`may_use`]. To watch the directory instead costs each launch some 8 ms, which
//! the kernel takes to close an inotify descriptor (measured with Linux 6.18).

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::unistd::{Pid, geteuid, getpid};

use crate::last_resort::is_fork_server;
use crate::pinned::CLOCK_SLACK;
use crate::process_table::Process;

/// Directory of POSIX shared memory (`shm_open(3)`).
const DIRECTORY: &str = "/dev/shm";
/// Names of MPICH 4.0 (`mpl_shm_mmap.c`: `mkstemp`), and of UCX (`mm_posix.c`), without what chance adds.
const NAMES: [&str; 2] = ["mpich_shar_tmp", "ucx_shm_posix_"];
/// Most signs that chance adds.
const CHANCE_MAX: usize = 16;
/// Most files that are looked at.
const FILES_MAX: usize = 1 << 16;

/// Removes such files of this process's user that are not older than `since`, and that no process has open or mapped any more. Without such a
/// file it reads one directory, otherwise all of `/proc`. It removes none while a process of the user runs that began no earlier than this one,
/// or has shared memory, and may not be looked at. It may block.
pub fn remove_orphaned_memory(since: SystemTime) {
    let since = since.checked_sub(CLOCK_SLACK).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().take(FILES_MAX).flatten();
    let known =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| is_by_chance(name) || is_segment(name)));
    let mut left: Vec<(PathBuf, Metadata)> =
        known.filter_map(|entry| Some((entry.path(), own_since(&entry.path(), since)?))).collect();
    if left.is_empty() {
        return;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for process in numbers {
        match files_of(process) {
            Some(used) => left.retain(|(path, _)| !used.iter().any(|file| file == path)),
            None if is_hidden_user(process) => return,
            None => {}
        }
    }
    for (path, status) in left {
        // Another one may have taken its name.
        if own_since(&path, since).is_some_and(|now| (now.dev(), now.ino()) == (status.dev(), status.ino())) {
            let _ = fs::remove_file(path);
        }
    }
}

/// True for the name of a segment that Open MPI 5 makes for a rank (`btl_sm_component.c`), and has its server remove: of one that has not
/// reached its server nobody knows. Host, uid, job in hexadecimal digits and rank on the node follow.
fn is_segment(name: &str) -> bool {
    let parts: Option<Vec<&str>> = name.strip_prefix("sm_segment.").map(|rest| rest.rsplitn(4, '.').collect());
    let is_of = |part: &str, is_digit: fn(&u8) -> bool| !part.is_empty() && part.bytes().all(|byte| is_digit(&byte));
    matches!(parts.as_deref(), Some([rank, job, uid, host]) if !host.is_empty()
        && is_of(rank, u8::is_ascii_digit) && is_of(job, u8::is_ascii_hexdigit) && is_of(uid, u8::is_ascii_digit))
}

/// True for a name with what chance adds.
fn is_by_chance(name: &str) -> bool {
    let chance = NAMES.iter().find_map(|known| name.strip_prefix(known)).unwrap_or_default();
    (1..=CHANCE_MAX).contains(&chance.len()) && chance.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Facts about a file of this process's user that has come or changed since then.
fn own_since(path: &Path, since: SystemTime) -> Option<Metadata> {
    let status = fs::symlink_metadata(path).ok()?;
    let came = status.created().or_else(|_| status.modified()).ok()?;
    (status.is_file() && status.uid() == geteuid().as_raw() && came >= since).then_some(status)
}

/// True for a process that may not be looked at, and may have such a file all the same. Sessions have none, nor has the first process of a
/// node or a container, which may have more rights than this one.
fn is_hidden_user(process: u32) -> bool {
    let (Ok(pid), Some(own)) = (i32::try_from(process).map(Pid::from_raw), Process::read(getpid())) else {
        return false;
    };
    let Some(Process { parent, start, .. }) = Process::read(pid) else { return false };
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let age = if start < own.start { Age::Older } else { Age::Younger };
    process != 1 && may_use(&String::from_utf8_lossy(&status), geteuid().as_raw(), age) && !is_fork_server(parent)
}

/// Age of a process, compared with that of this one.
#[derive(Clone, Copy, Debug)]
enum Age {
    Older,
    Younger,
}

/// True if a process of this `status` is the user's, and may have shared memory of a launch that is not over. `/proc/PID/fd` belongs to root
/// for a program that the user may execute and not read, as it does for `sshd` and others that were root: those are older, and have none.
fn may_use(status: &str, user: u32, age: Age) -> bool {
    let first = |name: &str| -> Option<u32> {
        status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    // A process that has ended has no memory, and no such line.
    let Some(shared) = first("RssShmem:") else { return false };
    first("Uid:") == Some(user) && (shared > 0 || matches!(age, Age::Younger))
}

/// Files below the directory that a process has open or mapped; `None` for one that may not be looked at.
fn files_of(process: u32) -> Option<Vec<PathBuf>> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let mut files: Vec<PathBuf> = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
    let mapped = maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let at = line.windows(DIRECTORY.len()).position(|part| part == DIRECTORY.as_bytes())?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(&line[at..])))
    });
    files.extend(mapped);
    files.retain(|file| file.starts_with(DIRECTORY));
    Some(files)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_names_that_are_known_count() {
        for name in ["mpich_shar_tmpXCOeb8", "ucx_shm_posix_c668751"] {
            assert!(is_by_chance(name), "{name}");
        }
        for other in
            ["mpich_shar_tmp", "mpich_shm_9bd3af6d_0", "sem.4ZsTUI", "ucx_shm_posix_../../x", "xmpich_shar_tmpa"]
        {
            assert!(!is_by_chance(other), "{other}");
        }
    }

    #[test]
    fn segments_of_open_mpi_are_known_by_their_parts() {
        for name in ["sm_segment.vm.1001.5a3f0000.0", "sm_segment.n7.cluster.example.0.1.12"] {
            assert!(is_segment(name), "{name}");
        }
        for other in ["sm_segment.vm", "sm_segment.1001.1.0", "sm_segment.vm.x.1.0", "sm_segment.vm.1.g.0", "vm.1.1.0"]
        {
            assert!(!is_segment(other), "{other}");
        }
    }

    #[test]
    fn of_processes_that_may_not_be_looked_at_those_count_that_may_have_such_memory() {
        let status = |user: u32, shared: &str| format!("Name:\tx\nUid:\t{user}\t0\t0\t0\nVmRSS:\t9 kB\n{shared}\n");
        for (status, age, expected) in [
            (status(7, "RssShmem:\t       0 kB"), Age::Younger, true),
            (status(7, "RssShmem:\t       4 kB"), Age::Older, true),
            (status(7, "RssShmem:\t       0 kB"), Age::Older, false),
            (status(8, "RssShmem:\t       4 kB"), Age::Younger, false),
            (status(7, "Threads:\t1"), Age::Younger, false),
            (String::new(), Age::Younger, false),
        ] {
            assert_eq!(may_use(&status, 7, age), expected, "{age:?} {status}");
        }
    }

    #[test]
    fn what_somebody_uses_and_what_is_older_stays() {
        let name = |kind: &str| PathBuf::from(format!("{DIRECTORY}/mpich_shar_tmp{kind}{}", std::process::id()));
        let [held, old, left] = ["h", "o", "l"].map(name);
        let begin = SystemTime::now();
        let holder = fs::File::create(&held).unwrap();
        fs::write(&old, "x").unwrap();
        remove_orphaned_memory(begin + Duration::from_secs(60));
        assert!(old.exists(), "it is older than the launch");
        fs::write(&left, "x").unwrap();
        fs::remove_file(&old).unwrap();
        remove_orphaned_memory(begin);
        assert!(held.exists() && !left.exists());
        drop(holder);
        remove_orphaned_memory(begin);
        assert!(!held.exists());
    }
}
