//! Model and UUID of NVIDIA GPUs, from `/proc/driver/nvidia/gpus`.

use super::Source;
use crate::node::{AddressKind, Inventory};
use crate::root::{ReadError, Root};
use crate::template::PciAddress;

const GPUS: &str = "proc/driver/nvidia/gpus";

/// See the [module](self).
pub(super) struct Nvidia;

impl Source for Nvidia {
    fn name(&self) -> &'static str {
        "nvidia"
    }

    fn gives(&self) -> &'static str {
        "models of NVIDIA GPUs"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        for name in root.names(GPUS)? {
            let Ok(address) = name.parse::<PciAddress>() else { continue };
            let about = root.text(&format!("{GPUS}/{name}/information"))?.unwrap_or_default();
            let field = |name: &str| {
                let value = about.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
                value.map(|value| value.trim().to_owned())
            };
            // A driver that could not read the UUID shows question marks.
            into.add_address(&name, AddressKind::Uuid, field("GPU UUID").filter(|uuid| !uuid.contains('?')));
            if let Some((device, model)) = into.template.pci_mut(address).zip(field("Model")) {
                device.model = model;
            }
        }
        Ok(())
    }
}
