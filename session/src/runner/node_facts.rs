//! Facts about the node for its ranks, so that no rank needs to collect them: the topology of the node in the form of hwloc, and the places
//! of bound ranks.
//!
//! ```text
//! MPICH 4.1 and later      the file, by PMI-1's get of PMI_hwloc_xmlfile
//! Open MPI 4.1 and 5       the text, by PMIx's get of pmix.hwlocxml2; places among the facts about the job
//! ```

use std::cell::OnceCell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lattice_inventory::{Localities, SharedTopology, ThisNode};
use pmi_core::ids::Rank;
use pmi_core::server::RankDomains;
use pmix_core::BoundPlace;
use rank_spawner::{BindHereError, CpuBind, CpuSet, MemBind, MemBindError, MemoryPolicy, plan, plan_here, usable_here};

use crate::gpus::{GpuBind, GpuError};
use crate::settings::LaunchSettings;
use crate::spec::SessionSpec;

/// The node of a session, as far as it matters to ranks.
#[derive(Debug, Default)]
pub(super) struct NodeFacts {
    node: ThisNode,
    shared: OnceCell<Option<Shared>>,
    localities: OnceCell<Localities>,
}

/// The node's topology, in the forms for ranks.
#[derive(Debug)]
struct Shared {
    topology: SharedTopology,
    /// Its text, which is read if a rank needs it.
    text: OnceCell<Option<Bytes>>,
    /// File of this launch alone, if there is no shared one; removed with the session's directory.
    own: Option<PathBuf>,
}

impl Shared {
    fn of(topology: SharedTopology, spec: &SessionSpec) -> Self {
        // The topology is stored nowhere, or covers only the part of the node that this launch's control groups allow.
        let own = match topology.file() {
            Some(_) => None,
            None => topology
                .text()
                .and_then(|text| create_own_file(spec, &text))
                .inspect_err(|error| {
                    let (launch, name) = (&spec.launch_id, own_file_of(spec));
                    tracing::warn!(launch, "ranks get no file with the topology: {}: {error}", name.display());
                })
                .ok(),
        };
        Self { topology, text: OnceCell::new(), own }
    }

    fn text(&self) -> Option<Bytes> {
        let read = || {
            let text = self.topology.text();
            let text = text.inspect_err(|error| tracing::warn!("ranks receive no topology of this node: {error}"));
            Some(text.ok()?.into_owned().into())
        };
        self.text.get_or_init(read).clone()
    }

    fn file(&self) -> Option<&Path> {
        self.topology.file().or(self.own.as_deref())
    }
}

impl NodeFacts {
    /// Returns the CPUs of each of these ranks. It avoids taken CPUs as long as the other CPUs are enough.
    ///
    /// # Errors
    /// Fails if the ranks cannot be bound as requested.
    pub(super) fn plan(
        &self,
        bind: &CpuBind,
        ranks: &[Rank],
        taken: &CpuSet,
    ) -> Result<Vec<Option<CpuSet>>, BindHereError> {
        let bind = bind.of_ranks(ranks.iter().map(|rank| rank.0));
        let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        if !taken.is_empty() && *bind != CpuBind::None {
            let free = usable_here(&self.node)?.without(taken);
            let is_enough = |planned: &[Option<CpuSet>]| {
                let cpus: CpuSet = planned.iter().flatten().flat_map(CpuSet::iter).collect();
                cpus.len() >= planned.iter().flatten().map(CpuSet::len).sum()
            };
            if let Some(planned) = plan(&free, &bind, count).ok().filter(|planned| is_enough(planned)) {
                return Ok(planned);
            }
        }
        plan_here(&self.node, &bind, count)
    }

    /// Returns the memory policy of each rank with these CPUs.
    ///
    /// # Errors
    /// Fails if the node does not have the NUMA nodes.
    pub(super) fn memory(
        &self,
        bind: &MemBind,
        cpus: &[Option<CpuSet>],
    ) -> Result<Vec<Option<MemoryPolicy>>, MemBindError> {
        // The inventory is read only if it is needed.
        if *bind == MemBind::None {
            Ok(vec![None; cpus.len()])
        } else {
            bind.plan(&self.node.inventory().template, &self.node.memory_nodes(), cpus)
        }
    }

    /// Returns the variables that select the GPUs of each rank with these CPUs, among the GPUs that an outer launcher allows. The outer
    /// launcher's variable comes from the environment of this process, which belongs to this node. If it is not set there, it comes from
    /// the environment that ranks start with.
    ///
    /// # Errors
    /// Fails if the node does not have the GPUs.
    pub(super) fn gpus(
        &self,
        settings: &LaunchSettings,
        cpus: &[Option<CpuSet>],
    ) -> Result<Vec<Vec<(&'static str, String)>>, GpuError> {
        // The inventory is read only if it is needed.
        if settings.gpu_bind == GpuBind::None {
            return Ok(Vec::new());
        }
        let of_launch =
            |name: &str| settings.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let outer = |name: &str| {
            let value = std::env::var_os(name).or_else(|| of_launch(name).cloned())?;
            Some(value.to_string_lossy().into_owned())
        };
        settings.gpu_bind.variables(&self.node.inventory().template, cpus, outer)
    }

    /// Returns true if ranks may find a device here for which they register memory.
    pub(super) fn registers_memory(&self) -> bool {
        self.node.registers_memory()
    }

    /// Returns the topology as text; `None` if ranks should read the topology themselves.
    pub(super) fn topology(&self, spec: &SessionSpec) -> Option<Bytes> {
        self.shared(spec)?.text()
    }

    /// Returns the file of the topology; `None` if ranks can read none, or if it was removed.
    pub(super) fn topology_file(&self, spec: &SessionSpec) -> Option<&str> {
        self.shared(spec)?.file().filter(|file| file.exists())?.to_str()
    }

    /// Returns the places of ranks with these CPUs; empty if no rank is bound.
    pub(super) fn places(&self, cpus: &[Option<CpuSet>]) -> Vec<Option<BoundPlace>> {
        if cpus.iter().all(Option::is_none) {
            return Vec::new();
        }
        let localities = self.localities();
        let place = |cpus: &CpuSet| BoundPlace { cpus: cpus.to_string(), locality: localities.locality(cpus) };
        cpus.iter().map(|cpus| cpus.as_ref().map(place)).collect()
    }

    /// Returns the parts of the node to which ranks with these CPUs are confined; empty if no rank is bound.
    pub(super) fn domains(&self, cpus: &[Option<CpuSet>]) -> Vec<RankDomains> {
        let of = |cpus: &Option<CpuSet>| {
            cpus.as_ref().map_or_else(RankDomains::default, |cpus| {
                let localities = self.localities();
                RankDomains { numa: localities.numa(cpus), l3: localities.l3(cpus) }
            })
        };
        if cpus.iter().all(Option::is_none) { Vec::new() } else { cpus.iter().map(of).collect() }
    }

    fn localities(&self) -> &Localities {
        self.localities.get_or_init(|| Localities::of(&self.node.inventory().template))
    }

    fn shared(&self, spec: &SessionSpec) -> Option<&Shared> {
        self.shared.get_or_init(|| Some(Shared::of(self.node.topology()?, spec))).as_ref()
    }
}

/// Returns the path of the topology file that a session makes if there is no shared one.
fn own_file_of(spec: &SessionSpec) -> PathBuf {
    spec.session_directory().join("topology.xml")
}

/// Writes a file that only this launch reads. Returns its path.
fn create_own_file(spec: &SessionSpec, text: &str) -> io::Result<PathBuf> {
    let path = own_file_of(spec);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}
