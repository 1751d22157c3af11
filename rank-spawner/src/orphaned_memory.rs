//! Shared memory that MPI libraries make under names by chance, for ranks of a node to meet in, and take away again as soon as all have it: a
//! rank that is killed in between leaves it. And segments of Open MPI whose rank has not told its server of them.
//!
//! A name by chance does not identify its process. But the process that created the file has it open, and then mapped: a file of the user, no
//! older than the launch, that no process of the user has open or mapped was left by a process that has ended. While a process of the user may
//! not be read, and may have such a file, none is removed: see [`may_use`]. To watch the directory instead costs each launch some 8 ms, which
//! the kernel takes to close an inotify descriptor (measured with Linux 6.18).
//!
//! A segment of Open MPI is different: a program that is run again in a living job (`--restartable`) opens the file that the program before it
//! left. So it stays as well while a process of its job runs.

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
    let mut left: Vec<Left> = entries.filter_map(|entry| Left::new(entry.path(), since)).collect();
    if left.is_empty() {
        return;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for process in numbers {
        match files_of(process) {
            Some(used) => {
                let has_segment = left.iter().any(|file| file.job.is_some());
                let job = if has_segment { job_of(process) } else { None };
                left.retain(|file| !used.contains(&file.path) && (file.job.is_none() || file.job != job));
            }
            None if is_hidden_user(process) => return,
            None => {}
        }
    }
    for file in left {
        // Another one may have taken its name.
        let identity = (file.status.dev(), file.status.ino());
        if own_since(&file.path, since).is_some_and(|now| (now.dev(), now.ino()) == identity) {
            let _ = fs::remove_file(file.path);
        }
    }
}

/// A file that may have been left by a process that has ended.
struct Left {
    path: PathBuf,
    status: Metadata,
    /// For a segment of Open MPI.
    job: Option<u32>,
}

impl Left {
    /// Returns `None` for a file of another kind, of another user, or from before `since`.
    fn new(path: PathBuf, since: SystemTime) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let job = segment_job(name);
        if job.is_none() && !is_by_chance(name) {
            return None;
        }
        let status = own_since(&path, since)?;
        Some(Self { path, status, job })
    }
}

/// The job in the name of a segment that Open MPI 5 creates for a rank (`btl_sm_component.c`), and has its server remove. The server knows
/// none of a rank that has not reached it. The name has host, uid, job in hexadecimal digits and rank on the node.
fn segment_job(name: &str) -> Option<u32> {
    let parts: Vec<&str> = name.strip_prefix("sm_segment.")?.rsplitn(4, '.').collect();
    let &[rank, job, uid, host] = parts.as_slice() else { return None };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_hexadecimal = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_segment = !host.is_empty() && is_number(rank) && is_number(uid) && is_hexadecimal;
    is_segment.then(|| u32::from_str_radix(job, 16).ok()).flatten()
}

/// The number that Open MPI 5 computes from the PMIx namespace of a process (`opal_pmix_convert_nspace`); `None` for a process in no namespace.
fn job_of(process: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let namespace =
        environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(b"PMIX_NAMESPACE="))?;
    Some(number_of(namespace))
}

/// A hash of 16 bits in the upper half, and the number after the last `@` in the lower one.
fn number_of(namespace: &[u8]) -> u32 {
    let at = namespace.iter().rposition(|&byte| byte == b'@');
    let (family, local) = at.map_or((namespace, &b""[..]), |at| (&namespace[..at], &namespace[at + 1..]));
    let digits = local.iter().take_while(|byte| byte.is_ascii_digit());
    let local = digits.fold(0_u32, |number, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
    let hash = one_at_a_time(family);
    ((hash >> 16) ^ (hash & 0xffff)) << 16 | (local & 0xffff)
}

/// Bob Jenkins's hash of that name (`OPAL_HASH_STR`).
fn one_at_a_time(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0_u32, |hash, &byte| {
        let hash = hash.wrapping_add(u32::from(byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    let hash = hash.wrapping_add(hash << 3);
    let hash = hash ^ (hash >> 11);
    hash.wrapping_add(hash << 15)
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
            assert!(segment_job(name).is_some(), "{name}");
        }
        for other in ["sm_segment.vm", "sm_segment.1001.1.0", "sm_segment.vm.x.1.0", "sm_segment.vm.1.g.0", "vm.1.1.0"]
        {
            assert_eq!(segment_job(other), None, "{other}");
        }
    }

    /// Names that Open MPI 5.0.11 gave its segments.
    #[test]
    fn the_job_of_a_segment_is_computed_from_the_namespace() {
        for (namespace, job) in [
            ("kvs_c3d7nr8sb2_0.1c13d01c2698ddb12eae2786ec3f37a1", "868a0000"),
            ("kvs_pxmvj2htr6_0.c49062055926179a52ae3d38b838dccc", "6a140000"),
            ("singleton.vm.10138", "b9bd0000"),
        ] {
            assert_eq!(segment_job(&format!("sm_segment.vm.0.{job}.2")), Some(number_of(namespace.as_bytes())));
        }
        assert_eq!(number_of(b"singleton.vm.10138@66"), 0xb9bd_0042);
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
    fn a_segment_stays_while_a_process_of_its_job_runs() {
        let namespace = format!("job-{}", std::process::id());
        let job = number_of(namespace.as_bytes());
        let path = PathBuf::from(format!("{DIRECTORY}/sm_segment.vm.{}.{job:x}.0", geteuid()));
        let begin = SystemTime::now();
        let mut shell =
            std::process::Command::new("sleep").arg("1000").env("PMIX_NAMESPACE", namespace).spawn().unwrap();
        fs::write(&path, "x").unwrap();
        remove_orphaned_memory(begin);
        let stayed = path.exists();
        shell.kill().unwrap();
        shell.wait().unwrap();
        remove_orphaned_memory(begin);
        assert!(stayed && !path.exists());
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
