//! InfiniBand devices, and Ethernet devices with the same verbs, from `/sys/class/infiniband`.

use super::pci::name_devices;
use super::{NodeRecord, Source, Trouble, shared_addresses};
use crate::node::{AddressKind, Inventory};
use crate::root::{ReadError, Root};
use crate::template::OsKind;

/// See the [module](self).
pub(super) struct Infiniband;

impl Source for Infiniband {
    fn name(&self) -> &'static str {
        "infiniband"
    }

    fn gives(&self) -> &'static str {
        "InfiniBand addresses"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        name_devices(root, "infiniband", OsKind::Fabric, into)?;
        for name in root.names("sys/class/infiniband")? {
            let file = |file: &str| root.word(&format!("sys/class/infiniband/{name}/{file}"));
            into.add_address(&name, AddressKind::NodeGuid, file("node_guid"));
            into.add_address(&name, AddressKind::SystemGuid, file("sys_image_guid"));
            // A port without a subnet manager has no identifier yet.
            into.add_address(&name, AddressKind::Lid, file("ports/1/lid").filter(|lid| lid != "0x0"));
        }
        Ok(())
    }

    fn deliver(&self, nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
        shared_addresses(self, AddressKind::NodeGuid, nodes)
    }
}
