//! Slingshot devices, from `/sys/class/cxi_user`.

use super::pci::name_devices;
use super::{NodeRecord, Source, Trouble, shared_addresses};
use crate::node::{AddressKind, Inventory};
use crate::root::{ReadError, Root};
use crate::template::OsKind;

/// See the [module](self).
pub(super) struct Slingshot;

impl Source for Slingshot {
    fn name(&self) -> &'static str {
        "slingshot"
    }

    fn gives(&self) -> &'static str {
        "Slingshot addresses"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        name_devices(root, "cxi_user", OsKind::Cxi, into)?;
        for name in root.names("sys/class/cxi_user")? {
            let nid = root.word(&format!("sys/class/cxi_user/{name}/device/properties/nid"));
            into.add_address(&name, AddressKind::Nid, nid);
        }
        Ok(())
    }

    fn deliver(&self, nodes: &[NodeRecord<'_>]) -> Vec<Trouble> {
        shared_addresses(self, AddressKind::Nid, nodes)
    }
}
