//! Facts about the job that its ranks can request by name.

use super::node::JobNode;
use super::places::Places;
use crate::ids::{LocalRank, NodeIndex};
use crate::job::Job;
use crate::wire::{LIMITS_ANNOUNCED, Response, VALUE_MAX_ANNOUNCED};

/// Names of the constant facts about a job.
///
/// MPICH 4.1 and later read the file of `PMI_hwloc_xmlfile` (`src/util/mpir_pmi.c`). Without a readable file they discover the topology
/// themselves.
const CONSTANT: [&str; 5] =
    ["PMI_process_mapping", "PMI_hwloc_xmlfile", "universeSize", "hasNameServ", "lattice.limits"];

/// Facts about the job.
pub(super) struct Facts {
    /// `PMI_process_mapping`, formatted once: every rank must read the same text.
    mapping: Option<String>,
    /// PMI-2's `universeSize`; -1 if unset, as in Hydra.
    universe_size: String,
    /// File with the description of the node, for hwloc.
    topology_file: Option<String>,
    pub(super) places: Places,
    /// Descriptor number of the memory that ranks of this node share.
    pub(super) memory: Option<String>,
    /// True if the host publishes names.
    pub(super) has_names: bool,
}

impl Facts {
    /// Facts about a job with `ranks` ranks on this node.
    pub(super) fn new(job: &Job, node: NodeIndex, ranks: usize) -> Self {
        Self {
            mapping: job.placement.process_mapping(),
            universe_size: universe_size(job).map_or(-1, i64::from).to_string(),
            topology_file: None,
            places: Places::new(job, node, ranks),
            memory: None,
            has_names: true,
        }
    }

    /// Ignores a name that PMI-1 cannot transfer.
    pub(super) fn offer_topology(&mut self, file: &str) {
        let fits = file.len() < VALUE_MAX_ANNOUNCED && file.bytes().all(|byte| byte.is_ascii_graphic());
        self.topology_file = fits.then(|| file.to_owned());
    }

    /// The answer to a request for a fact. An unknown fact is not found: every client has a fallback.
    pub(super) fn get<'s>(&'s self, node: &'s JobNode, local: LocalRank, key: &[u8]) -> Response<'s> {
        let value = str::from_utf8(key).ok().and_then(|name| match name {
            "lattice.topo" => self.places.of(local.index()),
            name => self.value(node, name),
        });
        Response::Value(value.map(str::as_bytes))
    }

    /// The constant facts, as far as they are known.
    pub(super) fn constant<'s>(&'s self, node: &'s JobNode) -> impl Iterator<Item = (&'static str, &'s str)> {
        CONSTANT.into_iter().filter_map(|name| self.value(node, name).map(|value| (name, value)))
    }

    /// The value of one of [`CONSTANT`], or of a variable fact.
    fn value<'s>(&'s self, node: &'s JobNode, name: &str) -> Option<&'s str> {
        match name {
            "PMI_process_mapping" => self.mapping.as_deref(),
            "lattice.limits" => Some(LIMITS_ANNOUNCED),
            "PMI_hwloc_xmlfile" => self.topology_file.as_deref(),
            "universeSize" => Some(&self.universe_size),
            "hasNameServ" => Some(if self.has_names { "TRUE" } else { "FALSE" }),
            // Requests for which other servers end the job. Clients check this attribute before they send them.
            "lattice.ext" if node.settings.resources => Some("getbyidx,create_kvs,topo,memory,barrier_group,resource"),
            "lattice.ext" => Some("getbyidx,create_kvs,topo,memory,barrier_group"),
            // MPICH reads it with `get` in PMI-1 and with `kvs-get` in PMI-2.
            "PMI_dead_processes" => node.deaths.text(),
            "lattice.memory" => self.memory.as_deref(),
            name => self.places.job_attribute(name),
        }
    }
}

/// Unset for 0, because the program would read 0 as its `MPI_UNIVERSE_SIZE`.
pub(super) fn universe_size(job: &Job) -> Option<u32> {
    job.universe_size.filter(|&size| size > 0)
}
