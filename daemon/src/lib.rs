//! Parts that daemons of Lattice share with the programs that start them: settings files, identity settings, metrics page, log, build,
//! runtime, allocator, machine addresses, escaped text, and membership in a cluster without an administrator.
#![deny(unsafe_code)]

mod allocator;
pub mod build;
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

/// Default of `min_uid`, the smallest uid of users that get nodes and run processes on them. Smaller numbers belong to system accounts, by the
/// usual settings of login.defs(5).
pub const MIN_UID: u32 = 1000;
