//! Inventory of one node: its kind, and its differences from other nodes of the kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::template::Template;

/// Inventory of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// Kind of node.
    pub template: Template,
    /// Addresses of its devices.
    pub devices: Devices,
    /// Exact size of the memory of each NUMA node in bytes, in the order of [`Template::numa`]; one entry for the whole machine
    /// without NUMA.
    pub memory: Vec<u64>,
    /// Identity of the boot in which this was read.
    pub boot_id: String,
    /// Kernel release.
    pub kernel: String,
    /// Failures of sources, with reasons.
    pub trouble: Vec<Trouble>,
}

/// Addresses of a node's devices, by the kernel's name of a device, or by PCI address for a device without a name.
pub type Devices = BTreeMap<String, Vec<DeviceAddress>>;

/// Failure of a source, or an anomaly that it found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trouble {
    /// Name of the source.
    pub source: String,
    /// Reason, as text.
    pub reason: String,
}

/// Address of a device, for other devices or for its driver.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DeviceAddress {
    /// Kind of address.
    pub kind: AddressKind,
    /// The address.
    pub value: String,
}

/// Kind of a device's address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressKind {
    /// Ethernet address.
    Mac,
    /// GUID of an InfiniBand device.
    NodeGuid,
    /// GUID of the InfiniBand adapter with the device.
    SystemGuid,
    /// Local identifier of the first InfiniBand port; the subnet manager can change it.
    Lid,
    /// Address on a Slingshot fabric.
    Nid,
    /// UUID of a GPU.
    Uuid,
}

impl AddressKind {
    /// Name of the kind of address in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mac => "MAC address",
            Self::NodeGuid => "node GUID",
            Self::SystemGuid => "system image GUID",
            Self::Lid => "LID",
            Self::Nid => "Slingshot address",
            Self::Uuid => "UUID",
        }
    }
}

impl Inventory {
    /// Inventory of any node of a kind: without addresses, and with rounded memory sizes.
    pub fn of_kind(template: Template) -> Self {
        let memory = template.numa.iter().map(|node| node.memory_gib.saturating_mul(1 << 30)).collect();
        Self { template, memory, ..Self::default() }
    }

    /// Adds an address of a device, unless it is empty or exists already.
    pub(crate) fn add_address(&mut self, device: &str, kind: AddressKind, value: Option<String>) {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return };
        let addresses = self.devices.entry(device.to_owned()).or_default();
        if addresses.iter().all(|address| address.kind != kind) {
            addresses.push(DeviceAddress { kind, value });
        }
    }

    /// An address of a device.
    pub fn address(&self, device: &str, kind: AddressKind) -> Option<&str> {
        let address = self.devices.get(device)?.iter().find(|address| address.kind == kind)?;
        Some(&address.value)
    }
}

/// File with the identity of the boot.
pub(crate) const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
