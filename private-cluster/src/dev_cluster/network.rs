//! Network of a cluster in namespaces: one namespace for each node, and one with the bridge that connects them.
//!
//! ```text
//! namespace of node0             the switch                        namespace of node1
//! ┌───────────────────┐   ┌──────────────────────────────┐   ┌───────────────────┐
//! │ lo                │   │ lo                           │   │                lo │
//! │ eth0 10.20.0.1/24 ╪═══╪ port0 ─ bridge 10.20.0.254 ─ port1 ═══ eth0 10.20.0.2 │
//! └───────────────────┘   └──────────────────────────────┘   └───────────────────┘
//! ```
//!
//! The namespace of this program stays unchanged. The other namespaces have no names: each exists while a process is in it, or its
//! descriptor, which is returned here, is open.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use super::isolation::HOSTS;
use super::netlink::{Kind, Netlink, NewLink};
use super::plan::Plan;

/// The addresses of all nodes differ only in the last byte.
const PREFIX_LEN: u8 = 24;

/// Interface indices. They can be chosen freely, as no other program uses these namespaces. `lo` always has the first index.
const LO: u32 = 1;
const BRIDGE: u32 = 2;
const ETH0: u32 = 2;
const FIRST_PORT: u32 = 3;

/// Hardware address of the bridge, from the range that is never assigned to devices. Without it, a bridge takes the lowest address of its
/// ports and changes it with them. When the last process of a node ends, its port disappears. All other nodes would then have no connection
/// until they resolve the address again, seconds later.
const BRIDGE_HARDWARE_ADDRESS: [u8; 6] = [0x02, 0, 0, 0, 0, 0xfe];

/// The namespaces of a network that is ready for use.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) switch: OwnedFd,
    /// In the order of the plan's nodes.
    pub(super) nodes: Vec<OwnedFd>,
}

/// Failure to create the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The kernel refuses a namespace.
    #[error("cannot make a network namespace: {0}; being root is not enough in some containers: try --loopback")]
    Namespace(#[from] nix::Error),
    /// The kernel refuses an interface or an address.
    #[error("cannot set up {what}: {error}; try --loopback")]
    Link {
        /// Interface, or its node.
        what: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The file of host names that each node replaces does not exist.
    #[error("there is no {HOSTS}, which each node replaces by a file of its own; try: touch {HOSTS}, or --loopback")]
    NoHosts,
    /// Netlink cannot be used.
    #[error("cannot speak to the kernel about network interfaces: {0}; try --loopback")]
    Netlink(#[from] io::Error),
}

impl Network {
    /// Creates the namespaces of all nodes of the plan, with all interfaces and addresses.
    ///
    /// # Errors
    /// Fails if privileges are missing, among other reasons. Nothing is left then.
    pub(super) fn new(plan: &Plan) -> Result<Self, NetworkError> {
        if !Path::new(HOSTS).exists() {
            return Err(NetworkError::NoHosts);
        }
        // A separate thread enters the namespaces, so that this thread stays in its own.
        let made = thread::scope(|scope| scope.spawn(|| Self::in_this_thread(plan)).join());
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn in_this_thread(plan: &Plan) -> Result<Self, NetworkError> {
        let switch = new_namespace()?;
        let nodes = plan.nodes.iter().map(|_| new_namespace()).collect::<Result<Vec<_>, _>>()?;
        let network = Self { switch, nodes };
        network.connect(plan)?;
        Ok(network)
    }

    fn connect(&self, plan: &Plan) -> Result<(), NetworkError> {
        let switch = netlink_of(&self.switch)?;
        switch.start(LO).map_err(failed("lo"))?;
        let kind = Kind::Bridge { address: BRIDGE_HARDWARE_ADDRESS };
        switch.add_link(&NewLink { name: "bridge", index: BRIDGE, kind }).map_err(failed("a bridge"))?;
        switch.add_address(BRIDGE, *plan.api.ip(), PREFIX_LEN).map_err(failed("the bridge's address"))?;
        for (index, far_namespace) in (0..).zip(&self.nodes) {
            let (name, index) = (format!("port{index}"), FIRST_PORT + index);
            let kind = Kind::Cable { bridge: BRIDGE, far_name: "eth0", far_index: ETH0, far_namespace };
            switch.add_link(&NewLink { name: &name, index, kind }).map_err(failed(&name))?;
        }
        for (namespace, node) in self.nodes.iter().zip(&plan.nodes) {
            let links = netlink_of(namespace)?;
            let failed = || failed(&node.name);
            links.start(LO).map_err(failed())?;
            links.start(ETH0).map_err(failed())?;
            links.add_address(ETH0, *node.agent.ip(), PREFIX_LEN).map_err(failed())?;
        }
        Ok(())
    }
}

/// Moves this thread to a new network namespace.
fn new_namespace() -> Result<OwnedFd, NetworkError> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves this thread to a namespace, and opens netlink for its interfaces.
fn netlink_of(namespace: &OwnedFd) -> Result<Netlink, NetworkError> {
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    Ok(Netlink::open()?)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> NetworkError {
    move |error| NetworkError::Link { what: what.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use nix::unistd::geteuid;

    use super::*;
    use crate::dev_cluster::isolation::{Confinement, Isolation};
    use crate::dev_cluster::plan::Kind;

    fn interfaces() -> Vec<String> {
        let entries = fs::read_dir("/sys/class/net").unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    /// As root: every node has its own name, interface, hosts and shared memory, and reaches the other node. Else: the error has advice.
    #[test]
    fn nodes_are_machines_of_their_own() {
        let plan = Plan::new(Kind::Namespaces, 2).unwrap();
        if !geteuid().is_root() {
            let refusal = Network::new(&plan).unwrap_err().to_string();
            assert!(refusal.contains("try --loopback"), "{refusal}");
            return;
        }
        let before = interfaces();
        let network = Network::new(&plan).unwrap();
        assert_eq!(interfaces(), before, "nothing is put into this machine's own network");
        let directory = tempfile::tempdir().unwrap();
        let (hosts, stop_over) = (directory.path().join("hosts"), directory.path().join("empty"));
        fs::write(&hosts, plan.hosts_file()).unwrap();
        fs::create_dir(&stop_over).unwrap();
        let run = |index: usize, script: &str| {
            let node = Isolation {
                network: network.nodes[index].as_fd(),
                host_name: &plan.nodes[index].name,
                hosts: hosts.clone(),
                stop_over: stop_over.clone(),
            };
            let mut command = Command::new("bash");
            let child = Confinement::Node(node).start(command.args(["-c", script]).stdout(Stdio::piped())).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        let seen = run(0, "hostname; ls /sys/class/net /dev/shm; getent hosts node1");
        assert_eq!(seen, "node0\n/dev/shm:\n\n/sys/class/net:\neth0\nlo\n10.20.0.2       node1\n");
        // No process listens there. The refusal comes from the other end of the cable.
        let answer = run(1, "(exec 3<>/dev/tcp/node0/9) 2>&1; (exec 3<>/dev/tcp/10.20.0.254/9) 2>&1");
        assert!(answer.contains("node0/9: Connection refused"), "{answer}");
        assert!(answer.contains("10.20.0.254/9: Connection refused"), "{answer}");
    }
}
