//! Sources of an inventory. Each source reads one part of the node, and its failure does not affect other sources.

mod amd;
mod caches;
mod cpu;
mod infiniband;
mod memory;
mod nvidia;
mod pci;
mod slingshot;

use std::collections::HashMap;

pub(crate) use self::pci::kind as pci_kind;
use crate::node::{AddressKind, BOOT_ID, Devices, Inventory, Trouble};
use crate::root::{ReadError, Root};

/// Directory of the CPUs.
const SYSTEM_CPU: &str = "sys/devices/system/cpu";

/// Source of an inventory.
pub trait Source: Sync {
    /// Name in messages.
    fn name(&self) -> &'static str;

    /// Noun for the missing data if the source fails; it follows the word "no".
    fn gives(&self) -> &'static str;

    /// Reads the source's part of a node. Runs on the node.
    ///
    /// # Errors
    /// Fails if a required file is missing or not valid.
    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError>;

    /// Checks the devices of all nodes together. Returns problems that no single node can detect.
    fn deliver(&self, _nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
        Vec::new()
    }
}

/// All sources. The PCI source precedes sources that add to its devices.
pub const SOURCES: &[&dyn Source] = &[
    &cpu::Cpus,
    &memory::Memory,
    &pci::Pci,
    &slingshot::Slingshot,
    &infiniband::Infiniband,
    &nvidia::Nvidia,
    &amd::Amd,
];

/// Name of a node with the addresses of its devices.
#[derive(Clone, Copy, Debug)]
pub struct NodeRecord<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// The addresses.
    pub devices: &'a Devices,
}

impl Inventory {
    /// Runs all sources for the node with `/sys` and `/proc` below `root`. A failed source adds an entry to `trouble`.
    pub fn read(root: &Root) -> Self {
        Self::read_from(root, SOURCES)
    }

    /// Runs these sources in order: later ones add to devices that earlier ones have found.
    pub fn read_from(root: &Root, sources: &[&dyn Source]) -> Self {
        let mut inventory = Self {
            boot_id: root.word(BOOT_ID).unwrap_or_default(),
            kernel: root.word("proc/sys/kernel/osrelease").unwrap_or_default(),
            ..Self::default()
        };
        for source in sources {
            if let Err(error) = source.collect(root, &mut inventory) {
                inventory.trouble.push(Trouble { source: source.name().to_owned(), reason: error.to_string() });
            }
        }
        inventory.template.sort();
        inventory
    }
}

/// Runs the check of each source on the devices of all nodes.
pub fn deliver(nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
    SOURCES.iter().flat_map(|source| source.deliver(nodes)).collect()
}

/// Problem entry for each address of this kind that devices on two nodes have: one of them answers messages for the
/// other.
fn shared_addresses(source: &dyn Source, kind: AddressKind, nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
    let mut seen: HashMap<&str, (&str, &str)> = HashMap::new();
    let mut trouble = Vec::new();
    for record in nodes {
        for (device, addresses) in record.devices {
            for address in addresses.iter().filter(|address| address.kind == kind) {
                let (node, other) = *seen.entry(&address.value).or_insert((record.node, device));
                if node != record.node {
                    let (word, value, here) = (kind.word(), &address.value, record.node);
                    let reason = format!("{device} of {here} and {other} of {node} have the same {word}, {value}");
                    trouble.push(Trouble { source: source.name().to_owned(), reason });
                }
            }
        }
    }
    trouble
}
