//! Children of a process, from the lists of its threads.
//!
//! A table of all processes costs some microseconds for each process of the node, and sixteen sessions on one machine read each other's. So the
//! children of this process come from the lists of its threads, `/proc/self/task/*/children`. A list can omit a child while another child is
//! reaped. Callers therefore repeat until `wait` reports that no child is left. Some kernels have no such lists; then all processes are read.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::unistd::{Pid, getpid};

/// Largest number of threads whose children are read one by one: their lists cost as much as the lines of some hundred processes.
pub(crate) const LISTS_MAX: usize = 256;

/// Numbers of the children of a process, from the lists of its threads; none for a process that has ended. `None` if the kernel has no such lists
/// (`CONFIG_PROC_CHILDREN`), or if there are more than `left`, which is reduced by the read ones.
pub(crate) fn listed_children(parent: Pid, left: &mut usize) -> io::Result<Option<Vec<Pid>>> {
    let mut children = Vec::new();
    let threads = match fs::read_dir(format!("/proc/{parent}/task")) {
        Ok(threads) => threads,
        Err(_) if parent != getpid() => return Ok(Some(children)),
        Err(error) => return Err(error),
    };
    for thread in threads {
        // It can end meanwhile. Its children then belong to another thread.
        let Ok(thread) = thread else { continue };
        let Some(fewer) = left.checked_sub(1) else { return Ok(None) };
        *left = fewer;
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => {
                children.extend(list.split_ascii_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw));
            }
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            // The kernel has no lists, or the thread has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(children))
}
