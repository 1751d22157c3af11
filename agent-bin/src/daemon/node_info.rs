//! Name and resources of this node, as sent to the API server.

use std::fs;

/// The first label of the host name.
pub(super) fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

/// The addresses by which other nodes may reach this one, IPv4 first.
pub(super) fn network_addresses() -> Vec<String> {
    lattice_daemon::network_addresses().iter().map(ToString::to_string).collect()
}

/// Resources of this node.
pub(super) struct Resources {
    /// Processors that this process may use.
    pub(super) cores: u32,
    /// Size of memory, in bytes; 0 if the kernel does not report it.
    pub(super) memory_bytes: u64,
    /// Addresses by which other nodes may reach this one, IPv4 first.
    pub(super) network_addresses: Vec<String>,
}

/// The present resources of this node.
pub(super) fn resources() -> Resources {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    Resources { cores, memory_bytes: memory_bytes(), network_addresses: network_addresses() }
}

fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes: Option<u64> = total.and_then(|total| total.split_whitespace().next()?.parse().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_itself() {
        assert!(memory_bytes() > 1 << 20);
        assert!(!host_name().contains('.'));
    }
}
