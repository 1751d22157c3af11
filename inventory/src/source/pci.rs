//! Network interfaces, GPUs and disks on the PCI bus, with the kernel's names for them.
//!
//! The source never reads the file `config`: on some machines it takes a millisecond per device, while other files take some
//! microseconds.

use super::{NodeRecord, Source, Trouble, shared_addresses};
use crate::node::{AddressKind, Inventory};
use crate::root::{ReadError, Root};
use crate::template::{OsDevice, OsKind, PciAddress, PciDevice, PciKind};

const DEVICES: &str = "sys/bus/pci/devices";

/// See the [module](self).
pub(super) struct Pci;

impl Source for Pci {
    fn name(&self) -> &'static str {
        "pci"
    }

    fn gives(&self) -> &'static str {
        "complete list of devices, and no topology for ranks"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        // An unreadable device does not affect other devices.
        let mut unread = None;
        for name in root.names(DEVICES)? {
            let Ok(address) = name.parse() else { continue };
            match device(root, &name, address) {
                Ok(device) => into.template.pci.extend(device),
                Err(error) => unread = unread.or(Some(error)),
            }
        }
        for (class, kind) in [("net", OsKind::Net), ("drm", OsKind::Gpu), ("block", OsKind::Block)] {
            name_devices(root, class, kind, into)?;
        }
        for device in &into.template.pci.clone() {
            for os in device.names.iter().filter(|os| os.kind == OsKind::Net) {
                into.add_address(&os.name, AddressKind::Mac, root.word(&format!("sys/class/net/{}/address", os.name)));
            }
        }
        unread.map_or(Ok(()), Err)
    }

    /// GPUs of all vendors have unique UUIDs.
    fn deliver(&self, nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
        shared_addresses(self, AddressKind::Uuid, nodes)
    }
}

/// Adds the names in `/sys/class/CLASS` to the PCI devices with these names.
///
/// # Errors
/// Fails if the directory exists and is not readable.
pub(super) fn name_devices(root: &Root, class: &str, kind: OsKind, into: &mut Inventory) -> Result<(), ReadError> {
    for name in root.names(&format!("sys/class/{class}"))? {
        let file = format!("sys/class/{class}/{name}");
        let path =
            root.link(&file).filter(|path| path.contains("/pci")).or_else(|| root.link(&format!("{file}/device")));
        // The device is the last address on the path from the root of the bus.
        let address = path.as_deref().and_then(|path| path.rsplit('/').find_map(|part| part.parse().ok()));
        let Some(device) = address.and_then(|address| into.template.pci_mut(address)) else { continue };
        if belongs(kind, device.kind, &name) {
            device.names.push(OsDevice { kind, name });
        }
    }
    Ok(())
}

/// False for names of other things in the class: partitions, display connectors.
fn belongs(kind: OsKind, device: PciKind, name: &str) -> bool {
    let digits = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match kind {
        OsKind::Block => device == PciKind::Nvme && name.starts_with("nvme") && !name.contains(['p', 'c']),
        OsKind::Gpu => device == PciKind::Gpu && (digits("card") || digits("renderD")),
        OsKind::Net | OsKind::Fabric | OsKind::Cxi => device == PciKind::Nic,
    }
}

/// Use of a device of a class; `None` for classes that parallel programs do not use.
pub(crate) fn kind(class: u16) -> Option<PciKind> {
    match class {
        // Networks, and InfiniBand among the serial buses.
        0x0200..=0x02ff | 0x0c06 => Some(PciKind::Nic),
        // Displays and processing accelerators.
        0x0300..=0x03ff | 0x1200..=0x12ff => Some(PciKind::Gpu),
        0x0108 => Some(PciKind::Nvme),
        _ => None,
    }
}

fn device(root: &Root, name: &str, address: PciAddress) -> Result<Option<PciDevice>, ReadError> {
    let file = |file: &str| format!("{DEVICES}/{name}/{file}");
    // Class, subclass and programming interface.
    let class = root.hex(&file("class")).unwrap_or(0) >> 8;
    let Some((class, kind)) = u16::try_from(class).ok().and_then(|class| Some((class, kind(class)?))) else {
        return Ok(None);
    };
    let hex = |name: &str| root.hex(&file(name)).and_then(|value| u16::try_from(value).ok()).unwrap_or(0);
    Ok(Some(PciDevice {
        address,
        kind,
        class,
        id: [hex("vendor"), hex("device")],
        board: [hex("subsystem_vendor"), hex("subsystem_device")],
        revision: u8::try_from(hex("revision")).unwrap_or(0),
        numa: root.number(&file("numa_node")),
        cpus: root.list(&file("local_cpulist"))?.unwrap_or_default(),
        link_mb: link_mb(root, kind, &file),
        model: String::new(),
        names: Vec::new(),
    }))
}

/// Speed of a device's link in MB/s: the present speed, but the maximum speed for GPUs. GPUs slow their links down when idle, and the
/// kind of a node must not depend on that.
fn link_mb(root: &Root, kind: PciKind, file: &impl Fn(&str) -> String) -> u32 {
    let link = |which: &str| {
        let (speed, width) = (file(&format!("{which}_link_speed")), file(&format!("{which}_link_width")));
        link_speed(root.word(&speed), root.number(&width))
    };
    let at_most = if kind == PciKind::Gpu { link("max") } else { 0 };
    if at_most > 0 { at_most } else { link("current") }
}

/// Speed of a link in MB/s, from a text such as `16.0 GT/s PCIe` and the number of lanes; 0 if it is unknown.
fn link_speed(transfers: Option<String>, lanes: Option<u32>) -> u32 {
    let transfers = transfers.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0);
    // Eight bits take ten transfers in the first two generations; 128 bits take 130 in later ones.
    let code = if transfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    let speed = transfers * code * f64::from(lanes.unwrap_or(0)) * 1000.0 / 8.0;
    if (0.0..1e9).contains(&speed) { speed.round() as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_as_fast_as_their_lanes_are() {
        assert_eq!(link_speed(Some("16.0 GT/s PCIe".to_owned()), Some(16)), 31508);
        assert_eq!(link_speed(Some("5 GT/s".to_owned()), Some(4)), 2000);
        assert_eq!(link_speed(Some("Unknown".to_owned()), Some(255)), 0);
        assert_eq!(link_speed(None, None), 0);
    }

    #[test]
    fn disks_are_told_from_their_partitions() {
        let is = |name: &str| belongs(OsKind::Block, PciKind::Nvme, name);
        assert!(is("nvme0n1") && !is("nvme0n1p2") && !is("nvme0c1n1") && !is("sda"));
        let is = |name: &str| belongs(OsKind::Gpu, PciKind::Gpu, name);
        assert!(is("card0") && is("renderD128") && !is("card0-DP-1") && !is("version"));
    }
}
