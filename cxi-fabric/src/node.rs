//! CXI services: the part of the fabric that belongs to one NIC of one node.
//!
//! A service allows the processes of a user to open endpoints on some VNIs, with some traffic classes and a share of the NIC.
//! Only root can make one. [`claim`] makes one on every NIC or none at all, [`release`] destroys them; both use a [`CxiBackend`].

mod claim;
mod command;
mod config;
mod libcxi;
mod limits;
mod paper;
mod privilege;
#[cfg(any(test, feature = "fake"))]
mod recorded;
mod sysfs;
mod usage;

use std::fmt;

use serde::Deserialize;
use thiserror::Error;

pub use claim::{Claim, ClaimError, NicService, NodeServices, Stuck, claim, given, holders, release};
pub use command::CxiServiceCommand;
#[cfg(feature = "fuzzing")]
pub(crate) use command::{read_created, read_list};
pub use config::{NodeBackend, NodeConfigError, NodeFabricConfig};
pub use libcxi::{LibCxi, LoadError};
pub use limits::{Limit, Limits, Resource, Warning};
pub use paper::PaperNics;
pub use privilege::may_make_services;
#[cfg(any(test, feature = "fake"))]
pub use recorded::{Recorded, RecordedNic};
pub use sysfs::Sysfs;
pub use usage::{Usage, Use};

use crate::vni::Vni;

/// Limit on the VNIs of one service.
pub const VNIS_PER_SERVICE: usize = 4;

/// NIC of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name, as in libfabric: `cxi0`.
    pub name: String,
    /// True if its link is up; ranks use only such NICs.
    pub is_up: bool,
}

/// Traffic classes that ranks may use, as the bit mask of `SLINGSHOT_TCS`. A configuration lists their names in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct TrafficClasses(u8);

/// The text is not a traffic class, or the list is empty.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} is no list of traffic classes; those are dedicated_access, low_latency, bulk_data and best_effort")]
pub struct TrafficClassError(String);

impl TrafficClasses {
    /// Names of the classes, as spelt by `cxi_service`, in the order of their bits.
    pub const NAMES: [&'static str; 4] = ["DEDICATED_ACCESS", "LOW_LATENCY", "BULK_DATA", "BEST_EFFORT"];

    /// Classes in the mask `bits`; bits other than the four classes are ignored.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xf)
    }

    /// Mask of the classes.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Presence of each class, in the order of [`TrafficClasses::NAMES`].
    pub fn flags(self) -> [bool; 4] {
        std::array::from_fn(|class| self.0 >> class & 1 == 1)
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().zip(self.flags()).filter_map(|(name, is_in)| is_in.then_some(name))
    }
}

impl TryFrom<Vec<String>> for TrafficClasses {
    type Error = TrafficClassError;

    fn try_from(names: Vec<String>) -> Result<Self, TrafficClassError> {
        let bad = || TrafficClassError(format!("{names:?}"));
        let bit = |name: &String| Self::NAMES.iter().position(|class| class.to_ascii_lowercase() == *name);
        let bits = names.iter().try_fold(0_u8, |bits, name| Some(bits | 1 << bit(name)?));
        bits.filter(|bits| *bits != 0).map(Self).ok_or_else(bad)
    }
}

impl Default for TrafficClasses {
    /// Low latency and best effort, which sites usually allow for all users.
    fn default() -> Self {
        Self(0xa)
    }
}

impl fmt::Display for TrafficClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Description of a service to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// User that may use the service.
    pub uid: u32,
    /// VNIs of the service; at least one, at most [`VNIS_PER_SERVICE`].
    pub vnis: Vec<Vni>,
    /// Traffic classes of the service.
    pub traffic_classes: TrafficClasses,
    /// Share of the NIC.
    pub limits: Limits,
}

/// Service found on a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundService {
    /// Number of the service on this NIC.
    pub svc_id: u32,
    /// Users of the service; empty if all users may use it.
    pub uids: Vec<u32>,
    /// VNIs to which the service is restricted.
    pub vnis: Vec<Vni>,
}

/// Operations on the services of this node's NICs.
pub trait CxiBackend: Send + Sync {
    /// NICs of this node, in the order of their names. An empty list is not an error: the node may have no Slingshot.
    fn nics(&self) -> Result<Vec<Nic>, CxiError>;

    /// Makes a service and returns its number.
    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError>;

    /// Destroys a service.
    fn destroy(&self, nic: &str, svc_id: u32) -> Result<(), CxiError>;

    /// Lists the services of a NIC.
    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError>;
}

/// Error of a back end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CxiError {
    /// A process still has an endpoint of the service open. This may be temporary.
    #[error("{nic}: the service is busy: a process still uses it")]
    Busy {
        /// The NIC.
        nic: String,
    },
    /// The NIC has fewer resources than requested.
    #[error("{nic}: {shortage}")]
    Short {
        /// The NIC.
        nic: String,
        /// Resource that is short.
        shortage: Shortage,
    },
    /// The service does not exist.
    #[error("{nic}: there is no service {svc_id}")]
    Unknown {
        /// The NIC.
        nic: String,
        /// The service.
        svc_id: u32,
    },
    /// Only root may make services.
    #[error("{nic}: not permitted; CXI services take CAP_SYS_ADMIN, so the node agent has to run as root")]
    Denied {
        /// The NIC.
        nic: String,
    },
    /// A call to the kernel failed.
    #[error("{nic}: {action} failed: {source}")]
    System {
        /// The NIC.
        nic: String,
        /// Action that failed.
        action: &'static str,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The name of the NIC is not `cxi` and a number.
    #[error("`{0}` is no CXI device; those are called cxi0, cxi1, ...")]
    NicName(String),
    /// The program failed.
    #[error("{command}: {trouble}")]
    Command {
        /// Command line.
        command: String,
        /// Description of the failure.
        trouble: String,
    },
}

impl CxiError {
    /// Meaning of an error number of the driver.
    fn from_errno(nic: &str, action: &'static str, errno: i32) -> Self {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        const EBUSY: i32 = 16;
        let nic = nic.to_owned();
        match errno {
            EPERM | EACCES => Self::Denied { nic },
            EBUSY => Self::Busy { nic },
            _ => Self::System { nic, action, source: std::io::Error::from_raw_os_error(errno) },
        }
    }
}

/// Resource of which a NIC has too little for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Shortage {
    /// Too little of one resource.
    #[error("{asked} {resource} were to be reserved, {available} are free")]
    Resource {
        /// Resource.
        resource: Resource,
        /// Requested number.
        asked: u16,
        /// Available number.
        available: u16,
    },
    /// No pool of list entries is free: there are 16.
    #[error("all pools of list entries are taken")]
    ListEntryPools,
    /// No pool of trigger list entries is free: a NIC has room for at most four services with such a pool.
    #[error("all pools of trigger list entries are taken")]
    TriggerPools,
    /// The back end does not report the resource.
    #[error("the NIC has not enough resources left")]
    Unknown,
}
