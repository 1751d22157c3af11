//! Identification of a process, for later checks that it is still alive.

use std::fs;
use std::path::Path;

use nix::unistd::gethostname;
use ring::digest;
use serde::{Deserialize, Serialize};

/// Identification of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Name of its machine.
    pub host: String,
    /// Installation id of its machine (machine-id(5)); empty if there is none.
    #[serde(default)]
    pub machine: String,
    /// Boot id of the kernel.
    pub boot: String,
    /// Namespace of its pid.
    pub pid_namespace: String,
    /// Its pid.
    pub pid: u32,
    /// Start time in ticks since the boot.
    pub started: u64,
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process is alive.
    Lives,
    /// The process has ended.
    Gone,
    /// The process is on another machine, or in another container, and cannot be checked from here.
    Elsewhere,
}

impl Mark {
    /// Mark of this process.
    pub fn of_this_process() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pid = std::process::id();
        let pid_namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            host: gethostname().unwrap_or_default().to_string_lossy().into_owned(),
            machine: line("/etc/machine-id"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            pid_namespace: pid_namespace.to_string_lossy().into_owned(),
            pid,
            started: start_of(pid).unwrap_or_default(),
        }
    }

    /// Returns the state of this process from the view of the process with the mark `ours`.
    pub fn life(&self, ours: &Self) -> Life {
        if self.boot != ours.boot {
            // Its machine was rebooted, or is another one. Machines with a shared home may have the same name, and machines with a shared
            // image the same id.
            let is_ours = !ours.machine.is_empty() && (&self.machine, &self.host) == (&ours.machine, &ours.host);
            return if is_ours { Life::Gone } else { Life::Elsewhere };
        }
        if self.pid_namespace != ours.pid_namespace {
            return Life::Elsewhere;
        }
        // The kernel reuses a pid, but not together with its start time.
        if start_of(self.pid) == Some(self.started) { Life::Lives } else { Life::Gone }
    }
}

/// Maximum ancestors that are compared.
const ANCESTORS_MAX: usize = 32;

/// Hashes of the ancestors of this process, the nearest first, up to the first process of its container. Two processes with a common ancestor
/// have a hash in common, also if they run on different machines.
pub fn ancestors() -> Vec<u64> {
    let mark = Mark::of_this_process();
    let parent = |below: &Process| Some(below.parent).filter(|&parent| parent > 1).and_then(Process::read);
    let own = Process::read(mark.pid);
    let above = std::iter::successors(own.as_ref().and_then(parent), parent).take(ANCESTORS_MAX);
    above.filter(Process::runs).map(|process| mark.hash(process.pid, process.started)).collect()
}

impl Mark {
    /// Hash of a process of this mark's machine.
    fn hash(&self, pid: u32, started: u64) -> u64 {
        let text = format!("{}\0{}\0{pid}\0{started}", self.boot, self.pid_namespace);
        let digest = digest::digest(&digest::SHA256, text.as_bytes());
        digest.as_ref().iter().take(8).fold(0, |hash, &byte| (hash << 8) | u64::from(byte))
    }
}

/// Process as in `proc_pid_stat(5)`.
struct Process {
    pid: u32,
    state: String,
    parent: u32,
    /// Start time in ticks since the boot.
    started: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
        // The name may contain any bytes, also parentheses and invalid UTF-8. Field 3 follows it.
        let text = String::from_utf8_lossy(&text);
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
        Some(Self { pid, state, parent, started: fields.nth(22 - 5)?.parse().ok()? })
    }

    /// Returns false for a process that is only waiting to be reaped.
    fn runs(&self) -> bool {
        self.state != "Z" && self.state != "X"
    }
}

/// Start time of a process in ticks since the boot; `None` if there is no such process, or it is only waiting to be reaped.
fn start_of(pid: u32) -> Option<u64> {
    Process::read(pid).filter(Process::runs).map(|process| process.started)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn children_of_one_process_have_it_as_their_nearest_common_ancestor() {
        let mark = Mark::of_this_process();
        let hash = |pid| mark.hash(pid, start_of(pid).unwrap());
        let own = ancestors();
        assert_eq!(
            own.first(),
            Process::read(mark.pid).map(|own| own.parent).filter(|&pid| pid > 1).map(hash).as_ref()
        );
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        assert_eq!(Process::read(child.id()).unwrap().parent, mark.pid);
        assert_ne!(hash(child.id()), hash(mark.pid));
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_told_from_another_one_of_its_number() {
        let ours = Mark { machine: "this".to_owned(), ..Mark::of_this_process() };
        assert!(ours.started > 0);
        let before = Mark { boot: "an earlier one".to_owned(), ..ours.clone() };
        for (other, expected) in [
            (ours.clone(), Life::Lives),
            (Mark { started: ours.started + 1, ..ours.clone() }, Life::Gone),
            (Mark { pid: u32::MAX, ..ours.clone() }, Life::Gone),
            (before.clone(), Life::Gone),
            (Mark { host: "another".to_owned(), ..before.clone() }, Life::Elsewhere),
            (Mark { machine: "another of this name".to_owned(), ..before.clone() }, Life::Elsewhere),
            (Mark { machine: String::new(), ..before.clone() }, Life::Elsewhere),
            (Mark { pid_namespace: "a container's".to_owned(), ..ours.clone() }, Life::Elsewhere),
        ] {
            assert_eq!(other.life(&ours), expected, "{other:?}");
        }
        let nameless = |mark: &Mark| Mark { machine: String::new(), ..mark.clone() };
        assert_eq!(nameless(&ours).life(&nameless(&ours)), Life::Lives);
        assert_eq!(nameless(&before).life(&nameless(&ours)), Life::Elsewhere, "nothing tells the two machines apart");
    }

    #[test]
    fn a_child_that_has_ended_is_gone() {
        // Its name is not valid UTF-8.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"sl\xffeep"));
        symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg0("sleep").arg("1000").spawn().unwrap();
        let ours = Mark::of_this_process();
        let mark = Mark { pid: child.id(), started: start_of(child.id()).unwrap(), ..ours.clone() };
        assert_eq!(mark.life(&ours), Life::Lives);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(mark.life(&ours), Life::Gone);
    }
}
