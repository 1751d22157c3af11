//! Users of a file among the ranks: by the descriptors and the maps of their processes, as `/proc` shows them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::unistd::Pid;

use crate::process_table::ProcessTable;

/// The rank that has a file open or mapped itself; `None` if none has.
pub fn user_of_file(path: &Path, ranks: &[Pid]) -> Option<Pid> {
    ranks.iter().copied().find(|&rank| uses(rank, path))
}

/// The rank that has a file open or mapped, itself or in a process below it; `None` if none has. Reads all of `/proc`.
pub fn user_of_file_below(path: &Path, ranks: &[Pid]) -> Option<Pid> {
    let table = ProcessTable::read().ok()?;
    ranks.iter().copied().find(|&rank| table.trees([rank]).into_iter().any(|pid| uses(pid, path)))
}

fn uses(pid: Pid, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_open = descriptors.into_iter().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path));
    is_open || is_mapped(pid, path)
}

fn is_mapped(pid: Pid, path: &Path) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.split(|&byte| byte == b'\n').any(|line| line.ends_with(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};

    use super::*;

    #[test]
    fn who_has_a_file_open_is_found_by_the_rank_above_and_others_are_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = "exec 9<\"$1\"; sleep 1000 & exec 9<&-; echo there; wait";
        let start = |path: &Path| {
            let mut command = Command::new("bash");
            command.args(["-c", script, "bash"]).arg(path).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut said = [0; 6];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
            child
        };
        let mut processes = [start(Path::new("/dev/null")), start(file.path())];
        let ranks = processes.each_ref().map(|process| Pid::from_raw(process.id().cast_signed()));
        let found = user_of_file_below(file.path(), &ranks);
        let none = [user_of_file(file.path(), &ranks), user_of_file_below(file.path(), &ranks[..1])];
        for process in &mut processes {
            let below = ProcessTable::read().unwrap().trees([Pid::from_raw(process.id().cast_signed())]);
            below.into_iter().for_each(|pid| _ = kill(pid, Signal::SIGKILL));
            process.wait().unwrap();
        }
        assert_eq!((found, none), (Some(ranks[1]), [None; 2]));
        assert_eq!(user_of_file(file.path(), &[Pid::this()]), Some(Pid::this()));
    }
}
