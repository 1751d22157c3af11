//! Signs by which a process knows that what is kept of a node is still true, without a look at all that it was held against.
//!
//! ```text
//! unchanged-SYS    one line of JSON: the signs as they were when everything had been looked at, and the file with the topology
//! ```
//!
//! The kernel counts what it tells of devices that come, go and change, CPUs that go offline and network interfaces among them
//! (`kobject_uevent`). While that number and the mounted `/sys` are the same, so are the lists in it. CPUs and NUMA nodes of control groups, of
//! which it tells nothing, are the limits of the process. Who sees other signs looks at everything, as if there were none.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::allowed::Limits;
use crate::cpus::{CpuSet, NodeSet};
use crate::kept::{self, Keeping, KeptError};
use crate::root::Root;
use crate::seen_file::SeenFile;

/// Longest file of signs, in bytes.
const FILE_MAX: usize = 4096;

/// What is other than before if anything of the node is, or what this process may use of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Signs {
    /// The mounted `/sys`: its device, and when it was made, in seconds and nanoseconds. Each start of the kernel makes one, and each
    /// network namespace that mounts it.
    sys: (u64, i64, i64),
    /// Number of messages of the kernel on devices.
    events: u64,
    /// CPUs that this process may run on.
    cpus: CpuSet,
    /// NUMA nodes of which it may have memory.
    nodes: NodeSet,
}

impl Signs {
    /// Those that this process sees; `None` where the kernel does not count its messages.
    pub(crate) fn now(root: &Root) -> Option<Self> {
        let sys = fs::metadata(root.path("sys")).ok()?;
        let events = root.number("sys/kernel/uevent_seqnum")?;
        let Limits { cpus, nodes } = Limits::of_this_process(root)?;
        Some(Self { sys: (sys.dev(), sys.ctime(), sys.ctime_nsec()), events, cpus, nodes })
    }

    /// True if this process may run on these CPUs, and on no others.
    pub(crate) fn are_of_cpus(&self, cpus: &CpuSet) -> bool {
        self.cpus == *cpus
    }

    fn file_name(&self) -> String {
        format!("unchanged-{:x}", self.sys.0)
    }
}

/// Content of the file of signs.
#[derive(Debug, Serialize, Deserialize)]
struct Unchanged {
    version: u32,
    signs: Signs,
    /// Topology of the whole node, of which this process may use everything; `None` if nobody can be told it.
    topology: Option<SeenFile>,
}

impl Keeping {
    /// The topology that was kept when there were these signs; `None` if nothing is known of them.
    pub(crate) fn unchanged(&self, signs: &Signs) -> Option<Option<SeenFile>> {
        self.check_directory().ok()?;
        let mut file = kept::open(&self.path(&signs.file_name())).ok()?;
        let mut line = [0; FILE_MAX];
        let length = file.read(&mut line).ok()?;
        let known: Unchanged = serde_json::from_slice(&line[..length]).ok()?;
        let holds = known.version == kept::VERSION && known.signs == *signs;
        (holds && known.topology.as_ref().is_none_or(SeenFile::is_as_seen)).then_some(known.topology)
    }

    /// Keeps the signs of a node of which everything was looked at after they were seen, by a process that may use all of it.
    ///
    /// # Errors
    /// Fails if the directory cannot be written, or others could write in it.
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
