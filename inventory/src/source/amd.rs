//! Model and unique number of AMD GPUs, from files of their driver next to the PCI bus files.

use super::Source;
use crate::node::{AddressKind, Inventory};
use crate::root::{ReadError, Root};
use crate::template::PciKind;

/// Vendor on the PCI bus.
const VENDOR: u16 = 0x1002;

/// See the [module](self).
pub(super) struct Amd;

impl Source for Amd {
    fn name(&self) -> &'static str {
        "amd"
    }

    fn gives(&self) -> &'static str {
        "UUIDs of AMD GPUs"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        let is_amd_gpu = |kind, vendor| kind == PciKind::Gpu && vendor == VENDOR;
        let gpus = into.template.pci.iter().filter(|device| is_amd_gpu(device.kind, device.id[0]));
        let gpus: Vec<_> = gpus.map(|device| device.address).collect();
        for address in gpus {
            let file = |file: &str| root.word(&format!("sys/bus/pci/devices/{address}/{file}"));
            into.add_address(&address.to_string(), AddressKind::Uuid, file("unique_id"));
            if let Some((device, model)) = into.template.pci_mut(address).zip(file("product_name")) {
                device.model = model;
            }
        }
        Ok(())
    }
}
