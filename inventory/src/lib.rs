//! Inventory of a node, read from `/sys` and `/proc`: CPUs, caches, NUMA nodes, NICs, GPUs; and its topology in hwloc's
//! format.
//!
//! ```text
//! Root ──sources──> Inventory { Template, addresses, trouble } ──Tree──> xml, Localities
//!                       │  │                 └──UsableCores──> binding
//!                       │  └── signature: one for each kind of node
//!                       └── ThisNode: stored while the kernel runs
//! ```
//!
//! Other crates bind ranks and pass the topology to libraries.

mod allowed;
mod cpus;
mod difference;
mod distances;
mod kept;
mod locality;
mod near_devices;
mod node;
pub mod picture;
pub mod plain_file;
mod registered_memory;
mod root;
mod seen_file;
mod source;
mod template;
mod this_node;
mod tree;
mod unchanged;
mod usable;
pub mod xml;

pub use allowed::Allowed;
pub use cpus::{CpuSet, CpuSetParseError, NodeSet};
pub use difference::differences;
pub use kept::Keeping;
pub use locality::Localities;
pub use node::{AddressKind, DeviceAddress, Devices, Inventory, Trouble};
pub use root::{ReadError, Root};
pub use source::{NodeRecord, SOURCES, Source, deliver};
pub use template::{
    CacheKind, CacheType, CoreKind, Group, NumaNode, OsDevice, OsKind, PciAddress, PciAddressError, PciDevice, PciKind,
    Signature, Template,
};
pub use this_node::{SharedTopology, ThisNode};
pub use tree::{Object, ObjectKind, Tree, TreeNode};
pub use usable::{UsableCore, UsableCores};
