//! Clusters on this machine, as the tests use them: each test has one of its own, made and taken away by `lattice dev-cluster`.

use std::fs;
use std::path::Path;

use crate::command::{Command, lattice};

/// A cluster of so many nodes; what runs in it is still to be added, in the words of somebody who sits at it.
pub fn cluster(nodes: u32) -> Command {
    lattice("dev-cluster --nodes").arg(nodes.to_string()).words("--")
}

/// `lattice launch` with these flags as all that runs in a cluster; the program is still to be added.
pub fn launch_on(nodes: u32, flags: &str) -> Command {
    cluster(nodes).words("lattice launch").words(flags)
}

/// The names of this machine's network interfaces, sorted.
pub fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").expect("/sys is mounted").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Whether any process is in the namespace, which is named as `/proc/PID/ns` does: `net:[4026531840]`.
pub fn is_inhabited(namespace: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc can be read").flatten();
    let kind = namespace.split(':').next().unwrap_or_default().to_owned();
    let mut inhabited = processes.filter_map(|process| fs::read_link(process.path().join("ns").join(&kind)).ok());
    inhabited.any(|inhabited| inhabited == Path::new(namespace))
}
