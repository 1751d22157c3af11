//! Description of a kind of node: all properties that are equal on nodes of one purchase, in a canonical form with a signature.
//!
//! Names and numbers are the kernel's. Lists are sorted, so that equal nodes have equal bytes.

use std::fmt;
use std::str::FromStr;

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuSet;

/// Kind of node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Template {
    /// Machine, as in `uname -m`.
    pub arch: String,
    /// Processor model from its vendor; empty if the kernel does not report it.
    pub model: String,
    /// Online CPUs.
    pub cpus: CpuSet,
    /// CPUs that the kernel lists as offline.
    pub offline: CpuSet,
    /// Drawers of books, on machines that have them (IBM Z), by lowest CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawers: Vec<Group>,
    /// Books of packages, on machines that have them (IBM Z), by lowest CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub books: Vec<Group>,
    /// Processor packages, usually sockets, by lowest CPU.
    pub packages: Vec<Group>,
    /// Dies of packages with several dies, by lowest CPU.
    pub dies: Vec<Group>,
    /// Clusters of cores in a die with several clusters, by lowest CPU.
    pub clusters: Vec<Group>,
    /// Cores, by lowest CPU. A CPU for which the kernel reports no location is in no core.
    pub cores: Vec<Group>,
    /// Caches of each kind, by level and type.
    pub caches: Vec<CacheKind>,
    /// NUMA nodes, by number; empty if the kernel has no NUMA.
    pub numa: Vec<NumaNode>,
    /// Kinds of cores of a processor with several kinds, the slowest first.
    pub core_kinds: Vec<CoreKind>,
    /// PCI devices that parallel programs use, by address.
    pub pci: Vec<PciDevice>,
}

/// CPUs of one object, with the kernel's number of the object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Group {
    /// CPUs; never empty.
    pub cpus: CpuSet,
    /// Number of the package, die, cluster, core or cache; `None` if the kernel gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
}

/// Caches that differ only in the CPUs that they serve.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct CacheKind {
    /// Level, from 1.
    pub level: u8,
    /// Contents.
    pub kind: CacheType,
    /// Size in bytes.
    pub size: u64,
    /// Size of a line in bytes; 0 if unknown.
    pub line: u32,
    /// Number of ways; 0 if unknown.
    pub ways: u32,
    /// The caches, by lowest CPU.
    pub instances: Vec<Group>,
}

/// Contents of a cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    /// Data and instructions.
    Unified,
    /// Data.
    Data,
    /// Instructions.
    Instruction,
}

/// NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NumaNode {
    /// Number.
    pub id: u16,
    /// CPUs of the node; empty for memory without CPUs.
    pub cpus: CpuSet,
    /// CPUs nearest to the memory, if they differ from the CPUs of the node: memory on a device or a slower bus. Otherwise
    /// empty.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub near: CpuSet,
    /// Size of the memory, rounded to GiB. The exact size depends on the amount that firmware reserves on each node.
    pub memory_gib: u64,
    /// Distances from the kernel to all nodes, in the order of their numbers; empty if unknown.
    pub distances: Vec<u32>,
}

impl NumaNode {
    /// CPUs nearest to the memory; empty if no CPUs are nearer than the rest.
    pub fn nearest(&self) -> &CpuSet {
        if self.near.is_empty() { &self.cpus } else { &self.near }
    }
}

/// Cores of one kind, on a processor with several kinds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct CoreKind {
    /// Speed relative to the other kinds, in the kernel's units.
    pub capacity: u32,
    /// Name of the kind, if it has one.
    pub name: String,
    /// CPUs.
    pub cpus: CpuSet,
}

/// PCI device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PciDevice {
    /// Address.
    pub address: PciAddress,
    /// Use of the device.
    pub kind: PciKind,
    /// Class and subclass.
    pub class: u16,
    /// Vendor and device.
    pub id: [u16; 2],
    /// Vendor and device of the board.
    pub board: [u16; 2],
    /// Revision.
    pub revision: u8,
    /// NUMA node next to the device; `None` if the kernel does not report it.
    pub numa: Option<u16>,
    /// CPUs next to the device.
    pub cpus: CpuSet,
    /// Speed of the link, in MB/s per direction; 0 if unknown.
    pub link_mb: u32,
    /// Model name from the vendor; empty if the driver does not report it.
    pub model: String,
    /// Kernel devices of the PCI device.
    pub names: Vec<OsDevice>,
}

/// Use of a PCI device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PciKind {
    /// Network interface.
    Nic,
    /// Graphics processor or another accelerator.
    Gpu,
    /// Solid-state disk.
    Nvme,
}

/// Kernel device that a driver made for a PCI device.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct OsDevice {
    /// Kind.
    pub kind: OsKind,
    /// Name, such as `hsn0`.
    pub name: String,
}

/// Kind of a kernel device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OsKind {
    /// Block device.
    Block,
    /// Graphics device.
    Gpu,
    /// Network interface.
    Net,
    /// InfiniBand device.
    Fabric,
    /// Slingshot device.
    Cxi,
}

/// Address of a PCI device: domain, bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

/// Error for a text that is not a PCI address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a PCI address such as 0000:3b:00.0")]
pub struct PciAddressError {
    /// The text.
    pub text: String,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let has_form =
                (4..=8).contains(&domain.len()) && bus.len() == 2 && device.len() == 2 && function.len() == 1;
            let byte = |digits| u8::from_str_radix(digits, 16).ok();
            let domain = u32::from_str_radix(domain, 16).ok()?;
            has_form.then_some(Self { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
        };
        parsed().ok_or_else(|| PciAddressError { text: text.to_owned() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

/// Signature of a template: equal for equal templates only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Signature(pub [u8; Self::LEN]);

impl Signature {
    /// Length in bytes.
    pub const LEN: usize = 16;
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Template {
    /// Template in its canonical form.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a template has no map with keys that are not text")
    }

    /// Signature of the canonical form.
    pub fn signature(&self) -> Signature {
        let hash = digest::digest(&digest::SHA256, &self.encode());
        let mut signature = [0; Signature::LEN];
        signature.copy_from_slice(&hash.as_ref()[..Signature::LEN]);
        Signature(signature)
    }

    /// Memory of all NUMA nodes together. The sum saturates: a template may come from an untrusted file.
    pub fn memory_gib(&self) -> u64 {
        self.numa.iter().fold(0, |all, node| all.saturating_add(node.memory_gib))
    }

    /// Sorts all lists.
    pub(crate) fn sort(&mut self) {
        let groups = [&mut self.drawers, &mut self.books, &mut self.packages, &mut self.dies, &mut self.clusters];
        for groups in groups.into_iter().chain([&mut self.cores]) {
            groups.sort_unstable_by_key(|group| group.cpus.first());
        }
        for kind in &mut self.caches {
            kind.instances.sort_unstable_by_key(|group| group.cpus.first());
        }
        self.caches.sort_unstable();
        self.numa.sort_unstable_by_key(|node| node.id);
        self.core_kinds.sort_unstable();
        self.pci.sort_unstable_by_key(|device| device.address);
        for device in &mut self.pci {
            device.names.sort_unstable();
            device.names.dedup();
        }
    }

    /// PCI device with this address.
    pub(crate) fn pci_mut(&mut self, address: PciAddress) -> Option<&mut PciDevice> {
        self.pci.iter_mut().find(|device| device.address == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_field_is_another_signature() {
        let template = Template { cpus: "0-3".parse().unwrap(), ..Template::default() };
        let check = |changed: Template| {
            assert_ne!(changed.signature(), template.signature(), "{changed:?}");
            let again: Template = serde_json::from_slice(&changed.encode()).unwrap();
            assert_eq!(again, changed);
        };
        assert_eq!(template.clone().signature(), template.signature());
        let group = Group { cpus: "0-3".parse().unwrap(), id: None };
        check(Template { arch: "aarch64".into(), ..template.clone() });
        check(Template { offline: "4".parse().unwrap(), ..template.clone() });
        check(Template { packages: vec![group.clone()], ..template.clone() });
        check(Template { dies: vec![group.clone()], ..template.clone() });
        check(Template { cores: vec![Group { id: Some(0), ..group }], ..template.clone() });
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["0000:3b:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        for text in ["", "3b:00.0", "0000:3b:00", "0000:3b:00.00", "virtio2", "0000:3b:00.g"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
