//! Parts that daemons of Lattice and those who start them share: settings files, the settings of an identity, the page of metrics,
//! the log, the runtime and its allocator, addresses of the machine, text of others made harmless, and membership in a cluster without an administrator.
#![deny(unsafe_code)]

mod allocator;
pub mod identity;
pub mod log;
pub mod membership;
pub mod metrics_page;
mod network_addresses;
mod printable;
mod runtime;
pub mod settings_file;

pub use self::network_addresses::network_addresses;
pub use self::printable::printable;
pub use self::runtime::runtime;

/// The default of `min_uid`, the number of the first user who gets nodes and runs anything on them. Below are accounts of the system
/// itself, by the usual settings of login.defs(5).
pub const MIN_UID: u32 = 1000;
