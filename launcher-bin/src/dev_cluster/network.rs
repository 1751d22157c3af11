//! The network of a cluster in namespaces: one for each node, and one more with the bridge that connects them.
//!
//! ```text
//! namespace of node0             the switch                        namespace of node1
//! ┌───────────────────┐   ┌──────────────────────────────┐   ┌───────────────────┐
//! │ lo                │   │ lo                           │   │                lo │
//! │ eth0 10.20.0.1/24 ╪═══╪ port0 ─ bridge 10.20.0.254 ─ port1 ═══ eth0 10.20.0.2 │
//! └───────────────────┘   └──────────────────────────────┘   └───────────────────┘
//! ```
//!
//! Nothing is put into the namespace that this program runs in. The namespaces have no names: each lives as long as a
//! process is in it, or somebody holds the descriptors that are returned here.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::plan::Plan;

/// The addresses of all nodes differ in the last byte.
const PREFIX_LEN: u8 = 24;

/// The numbers of interfaces. They are ours to choose, because nobody else is in these namespaces; `lo` is the first one ever.
const LO: u32 = 1;
const BRIDGE: u32 = 2;
const ETH0: u32 = 2;
const FIRST_PORT: u32 = 3;

/// The bridge's own hardware address, of those that nobody else is given. Without it a bridge takes the lowest of its ports'
/// and changes it with them: a node whose last process ends takes its port along, and all others would talk to nobody until
/// they ask for the address again, seconds later.
const BRIDGE_HARDWARE_ADDRESS: [u8; 6] = [0x02, 0, 0, 0, 0, 0xfe];

/// The namespaces of a network that is ready for use.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) switch: OwnedFd,
    /// In the order of the plan's nodes.
    pub(super) nodes: Vec<OwnedFd>,
}

/// Failure to make the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The kernel makes no namespace for us.
    #[error("cannot make a network namespace: {0}; being root is not enough in some containers: try --loopback")]
    Namespace(#[from] nix::Error),
    /// The kernel refuses an interface or an address.
    #[error("cannot set up {what}: {error}; try --loopback")]
    Link {
        /// Interface, or its node.
        what: String,
        /// Error of the kernel.
        error: rtnetlink::Error,
    },
    /// Netlink cannot be used at all.
    #[error("cannot speak to the kernel about network interfaces: {0}; try --loopback")]
    Netlink(#[from] io::Error),
}

impl Network {
    /// Makes the namespaces of all nodes of the plan, with all interfaces and addresses.
    ///
    /// # Errors
    /// Fails without leaving anything, as where we lack privileges.
    pub(super) fn new(plan: &Plan) -> Result<Self, NetworkError> {
        // A thread can be in a namespace of its own; this one comes back from none.
        let made = thread::scope(|scope| scope.spawn(|| Self::in_this_thread(plan)).join());
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn in_this_thread(plan: &Plan) -> Result<Self, NetworkError> {
        let switch = new_namespace()?;
        let nodes = plan.nodes.iter().map(|_| new_namespace()).collect::<Result<Vec<_>, _>>()?;
        let network = Self { switch, nodes };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(network.connect(plan))?;
        Ok(network)
    }

    async fn connect(&self, plan: &Plan) -> Result<(), NetworkError> {
        let links = Links::of(&self.switch)?;
        links.start(LO).await.map_err(failed("lo"))?;
        links.add_bridge(*plan.api.ip()).await?;
        for (index, node) in (0..).zip(&self.nodes) {
            links.add_cable(index, node).await?;
        }
        for (namespace, node) in self.nodes.iter().zip(&plan.nodes) {
            let links = Links::of(namespace)?;
            let failed = || failed(&node.name);
            links.start(LO).await.map_err(failed())?;
            links.start(ETH0).await.map_err(failed())?;
            links.add_address(ETH0, *node.agent.ip()).await.map_err(failed())?;
        }
        Ok(())
    }
}

/// Takes this thread into a new network namespace.
fn new_namespace() -> Result<OwnedFd, NetworkError> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// The interfaces of one namespace.
struct Links {
    netlink: Handle,
}

impl Links {
    /// Takes this thread into the namespace: a netlink socket belongs to the one that it was made in.
    fn of(namespace: &OwnedFd) -> Result<Self, NetworkError> {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        let (connection, netlink, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Self { netlink })
    }

    async fn start(&self, interface: u32) -> Result<(), rtnetlink::Error> {
        let up = LinkMessageBuilder::<LinkUnspec>::new().index(interface).up().build();
        self.netlink.link().set(up).execute().await
    }

    async fn add_bridge(&self, address: Ipv4Addr) -> Result<(), NetworkError> {
        let bridge = LinkBridge::new("bridge").index(BRIDGE).address(BRIDGE_HARDWARE_ADDRESS.to_vec()).up().build();
        self.netlink.link().add(bridge).execute().await.map_err(failed("a bridge"))?;
        self.add_address(BRIDGE, address).await.map_err(failed("the bridge's address"))
    }

    /// Adds a port to the bridge, and a cable from it to `eth0` of a node.
    async fn add_cable(&self, index: u32, node: &OwnedFd) -> Result<(), NetworkError> {
        let name = format!("port{index}");
        // It cannot be up before it is connected.
        let far_end = LinkMessageBuilder::<LinkUnspec>::new().name("eth0").index(ETH0).setns_by_fd(node.as_raw_fd());
        let cable = LinkVeth::new(&name, "eth0")
            .index(FIRST_PORT + index)
            .controller(BRIDGE)
            .up()
            .set_info_data(InfoData::Veth(InfoVeth::Peer(far_end.build())));
        self.netlink.link().add(cable.build()).execute().await.map_err(failed(&name))
    }

    async fn add_address(&self, interface: u32, address: Ipv4Addr) -> Result<(), rtnetlink::Error> {
        self.netlink.address().add(interface, address.into(), PREFIX_LEN).execute().await
    }
}

fn failed(what: &str) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
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

    /// As root: every node has its own name, interface, hosts, shared memory, and reaches the other. Else: told what to do.
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
                hosts: &hosts,
                stop_over: &stop_over,
            };
            let mut command = Command::new("bash");
            let child = Confinement::Node(node).start(command.args(["-c", script]).stdout(Stdio::piped())).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        let seen = run(0, "hostname; ls /sys/class/net /dev/shm; getent hosts node1");
        assert_eq!(seen, "node0\n/dev/shm:\n\n/sys/class/net:\neth0\nlo\n10.20.0.2       node1\n");
        // Nobody listens: whoever says so is at the other end of the cable.
        let answer = run(1, "(exec 3<>/dev/tcp/node0/9) 2>&1; (exec 3<>/dev/tcp/10.20.0.254/9) 2>&1");
        assert!(answer.contains("node0/9: Connection refused"), "{answer}");
        assert!(answer.contains("10.20.0.254/9: Connection refused"), "{answer}");
    }
}
