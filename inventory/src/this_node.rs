//! This node, as the processes of one boot share it: read once, kept, and told to ranks.

use std::path::PathBuf;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::allowed::Allowed;
use crate::cpus::{CpuSet, NodeSet};
use crate::kept::{Keeping, Kept, KeptError, Validity, online, read_text};
use crate::node::Inventory;
use crate::root::Root;
use crate::xml;

/// Variable that names a file with the topology of this node, as PMIx calls it.
const CACHE: &str = "PMIX_TOPOLOGY_CACHE";

/// This node. Nothing is read before it is asked for.
#[derive(Debug)]
pub struct ThisNode {
    root: Root,
    /// Directories that are looked in, in this order; what is in none is kept in the last one.
    keepings: Vec<Keeping>,
    /// File of somebody else's with the topology, which counts before what is read here.
    cache: Option<PathBuf>,
    found: OnceLock<Found>,
}

/// Knowledge of the node.
#[derive(Debug, Default)]
struct Found {
    /// What was kept and is not read yet.
    kept: Mutex<Option<Kept>>,
    inventory: OnceLock<Inventory>,
    /// The topology for those who may use the whole node.
    whole: Option<SharedTopology>,
}

/// Topology of this node, as hwloc reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedTopology {
    /// The XML.
    pub text: String,
    /// File that has it, and is there for as long as the kernel runs; `None` if there is none.
    pub file: Option<PathBuf>,
}

impl Default for ThisNode {
    /// This node, from what root or this user has kept since the kernel was started; else it is read, and kept.
    fn default() -> Self {
        let (machine, user) = (Keeping::of_machine(), Keeping::of_user());
        let keepings = if user == machine { vec![machine] } else { vec![machine, user] };
        let cache = std::env::var_os(CACHE).filter(|file| !file.is_empty()).map(PathBuf::from);
        Self { cache, ..Self::below(Root::default(), keepings) }
    }
}

impl ThisNode {
    /// The node below `root`, from the first directory that has it; else it is read, and kept in the last one.
    pub fn below(root: Root, keepings: Vec<Keeping>) -> Self {
        Self { root, keepings, cache: None, found: OnceLock::new() }
    }

    /// The same, of which a file has the topology for ranks, in XML of hwloc 2.
    #[must_use]
    pub fn with_cache(self, file: impl Into<PathBuf>) -> Self {
        Self { cache: Some(file.into()), ..self }
    }

    /// Reads this node whatever was kept of it, and keeps that, for a daemon that starts: devices may have come and gone.
    pub fn read_anew(&self) {
        // Whoever has asked before keeps the answer.
        let _ = self.found.set(self.read());
    }

    /// The inventory of this node.
    pub fn inventory(&self) -> &Inventory {
        let found = self.found();
        found.inventory.get_or_init(|| {
            let kept = found.kept.lock().take().map(|mut kept| kept.inventory());
            let kept = kept.transpose().unwrap_or_else(|error| {
                tracing::warn!("the inventory of this node is read anew: {error}");
                None
            });
            kept.or_else(|| self.read().inventory.into_inner()).unwrap_or_default()
        })
    }

    /// The topology for ranks that this process starts, which may use what its control groups leave it; `None` if it is better that they
    /// look for themselves.
    pub fn topology(&self) -> Option<SharedTopology> {
        let online = online(&self.root).ok()?;
        match Allowed::to_this_process(&self.root, &online) {
            None => self.cached(&online).or_else(|| self.found().whole.clone()),
            Some(allowed) => Some(SharedTopology { text: xml::write(self.inventory(), &allowed)?, file: None }),
        }
    }

    /// NUMA nodes with memory that this process may use: the kernel refuses to bind memory to any other.
    pub fn memory_nodes(&self) -> NodeSet {
        let Inventory { template, memory, .. } = self.inventory();
        let with_memory = template.numa.iter().zip(memory).filter(|(_, bytes)| **bytes > 0);
        let nodes: NodeSet = with_memory.map(|(node, _)| node.id).collect();
        let allowed = online(&self.root).ok().and_then(|online| Allowed::to_this_process(&self.root, &online));
        allowed.map_or(nodes.clone(), |allowed| nodes.intersection(&allowed.nodes))
    }

    /// The topology in the file that [`CACHE`] names, if it is of this node; if not, that is told.
    fn cached(&self, online: &CpuSet) -> Option<SharedTopology> {
        let path = self.cache.as_deref()?;
        let wrong = |reason: String| KeptError::Damaged { path: path.to_owned(), reason };
        let read = || {
            let text = read_text(path)?;
            let of = xml::read(&text).map_err(|error| wrong(error.to_string()))?;
            match of.cpus == *online {
                true => Ok(SharedTopology { text, file: Some(path.to_owned()) }),
                false => Err(wrong(format!("its CPUs are {}, and {online} are online", of.cpus))),
            }
        };
        read()
            .inspect_err(|error| tracing::warn!("{CACHE} is of no use, and ranks are told what was read here: {error}"))
            .ok()
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| self.kept().unwrap_or_else(|| self.read()))
    }

    /// What is kept of this node; of directories whose content is of no use for more reasons than its age, that is told.
    fn kept(&self) -> Option<Found> {
        let now = Validity::now(&self.root).ok()?;
        self.keepings.iter().find_map(|keeping| {
            let opened = keeping.open(&now).and_then(|kept| kept.map(|kept| Ok((kept.xml()?, kept))).transpose());
            let (xml, kept) = match opened {
                Ok(found) => found?,
                Err(error) => {
                    tracing::warn!("the inventory of this node is read anew: {error}");
                    return None;
                }
            };
            let whole = xml.map(|(file, text)| SharedTopology { text, file: Some(file) });
            Some(Found { kept: Mutex::new(Some(kept)), inventory: OnceLock::new(), whole })
        })
    }

    fn read(&self) -> Found {
        let before = Validity::now(&self.root).ok();
        let inventory = Inventory::read(&self.root);
        let text = xml::write(&inventory, &Allowed::all(&inventory.template));
        // What could not be read this time may be read next time, and CPUs may have come or gone meanwhile.
        let is_whole = inventory.trouble.is_empty() && before.is_some() && before == Validity::now(&self.root).ok();
        let file = self.keepings.last().zip(before.filter(|_| is_whole)).and_then(|(keeping, now)| {
            let stored = keeping.store(&now, &inventory, text.as_deref());
            stored
                .inspect_err(|error| tracing::debug!("the inventory of this node is not kept: {error}"))
                .ok()
                .flatten()
        });
        let whole = text.map(|text| SharedTopology { text, file });
        Found { kept: Mutex::new(None), inventory: inventory.into(), whole }
    }
}
