//! Signs that show that the stored state of a node is still valid, without a complete check.
//!
//! ```text
//! unchanged-SYS    one line of JSON: the signs at the time of the complete check, and the file with the topology
//! ```
//!
//! The kernel counts its events on devices that appear, disappear and change, including offline CPUs and network interfaces (`kobject_uevent`).
//! While this number and the mounted `/sys` are the same, the lists in `/sys` are the same. Control groups cause no events, so the signs
//! include the limits of the process. If the signs differ, the process makes the complete check.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::allowed::Limits;
use crate::cpus::{CpuSet, NodeSet};
use crate::kept::{self, Keeping, KeptError};
use crate::root::Root;
use crate::seen_file::SeenFile;

/// Limit on the length of a file of signs, in bytes.
const FILE_MAX: usize = 4096;

/// Values of which at least one changes when the node changes, or the part of it that this process may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Signs {
    /// The mounted `/sys`: its device and creation time, in seconds and nanoseconds. Each boot makes a new one, and so does each network
    /// namespace that mounts it.
    sys: (u64, i64, i64),
    /// Number of device events of the kernel.
    events: u64,
    /// CPUs that this process may run on.
    cpus: CpuSet,
    /// NUMA nodes that can provide its memory.
    nodes: NodeSet,
}

impl Signs {
    /// Present signs; `None` if the kernel does not count events.
    pub(crate) fn now(root: &Root) -> Option<Self> {
        let sys = fs::metadata(root.path("sys")).ok()?;
        let events = root.number("sys/kernel/uevent_seqnum")?;
        let Limits { cpus, nodes } = Limits::of_this_process(root)?;
        Some(Self { sys: (sys.dev(), sys.ctime(), sys.ctime_nsec()), events, cpus, nodes })
    }

    /// True if this process may run on exactly these CPUs.
    pub(crate) fn are_of_cpus(&self, cpus: &CpuSet) -> bool {
        self.cpus == *cpus
    }

    fn file_name(&self) -> String {
        format!("unchanged-{:x}", self.sys.0)
    }
}

/// Content of a file of signs.
#[derive(Debug, Serialize, Deserialize)]
struct Unchanged {
    version: u32,
    signs: Signs,
    /// Topology of the whole node, for a process that may use all of it; `None` if the node has no topology file.
    topology: Option<SeenFile>,
}

impl Keeping {
    /// Topology stored with these signs; `None` if no such signs are stored.
    pub(crate) fn unchanged(&self, signs: &Signs) -> Option<Option<SeenFile>> {
        self.check_directory().ok()?;
        let mut file = kept::open(&self.path(&signs.file_name())).ok()?;
        let mut line = [0; FILE_MAX];
        let length = file.read(&mut line).ok()?;
        let known: Unchanged = serde_json::from_slice(&line[..length]).ok()?;
        let holds = known.version == kept::VERSION && known.signs == *signs;
        (holds && known.topology.as_ref().is_none_or(SeenFile::is_as_seen)).then_some(known.topology)
    }

    /// Stores signs that were read before a complete check of the node. The process must be allowed to use the whole node.
    ///
    /// # Errors
    /// Fails if the directory is not writable, or is writable for another user.
    pub(crate) fn keep_signs(&self, signs: &Signs, topology: Option<&SeenFile>) -> Result<(), KeptError> {
        let known = Unchanged { version: kept::VERSION, signs: signs.clone(), topology: topology.cloned() };
        let path = self.path(&signs.file_name());
        self.create()?;
        let line = serde_json::to_vec(&known)
            .map_err(|error| KeptError::System { path: path.clone(), source: error.into() })?;
        let is_first = !path.exists();
        self.replace(&path, &[&line])?;
        if is_first {
            self.make_room();
        }
        Ok(())
    }
}
