//! This node, as the processes of one boot share it: read once, kept, and told to ranks.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::allowed::Allowed;
use crate::cpus::{CpuSet, NodeSet};
use crate::kept::{Keeping, Kept, KeptError, Validity, online, read_text};
use crate::node::Inventory;
use crate::registered_memory;
use crate::root::Root;
use crate::seen_file::SeenFile;
use crate::unchanged::Signs;
use crate::xml;

/// Variable that names a file with the topology of this node, as PMIx calls it.
const CACHE: &str = "PMIX_TOPOLOGY_CACHE";

/// The path from any working directory: ranks may have another one.
fn absolute(path: OsString) -> PathBuf {
    std::path::absolute(&path).unwrap_or_else(|_| path.into())
}

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
    /// True if it is in files.
    is_kept: bool,
    /// True if there were signs that this process may use all of it.
    is_all_allowed: bool,
    /// Signs that there were when it was last looked at; `None` where the kernel gives none.
    signs: Mutex<Option<Signs>>,
}

/// Topology of this node, as hwloc reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedTopology {
    text: Option<String>,
    file: Option<SeenFile>,
}

impl SharedTopology {
    /// File that has it, and is there until nobody has used it for a month; `None` if there is none.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(SeenFile::path)
    }

    /// The XML, which is read now if it was not before.
    ///
    /// # Errors
    /// Fails if somebody has removed or changed the file since it was found.
    pub fn text(&self) -> io::Result<Cow<'_, str>> {
        match (&self.text, &self.file) {
            (Some(text), _) => Ok(text.into()),
            (None, Some(file)) => file.read().map(Cow::Owned),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Default for ThisNode {
    /// This node, from what root or this user has kept since the kernel was started; else it is read, and kept.
    fn default() -> Self {
        let (machine, user) = (Keeping::of_machine(), Keeping::of_user());
        let keepings = if user == machine { vec![machine] } else { vec![machine, user] };
        let cache = std::env::var_os(CACHE).filter(|file| !file.is_empty()).map(absolute);
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
        let signs = Signs::now(&self.root);
        let found = Found { signs: Mutex::new(signs.clone()), ..self.read() };
        self.keep_signs(signs, &found);
        // Whoever has asked before keeps the answer.
        let _ = self.found.set(found);
    }

    /// False if nothing of this node has changed since it was read, or [`changed`](Self::changed) has looked: there are the same signs, which takes
    /// some microseconds. Also where the kernel gives none.
    pub fn may_have_changed(&self) -> bool {
        let signs = Signs::now(&self.root);
        signs.is_some() && *self.found().signs.lock() != signs
    }

    /// This node as it is now, read anew and kept, if it is not what was found; `None` if it is.
    pub fn changed(&self) -> Option<Self> {
        // Before anything else, for it may change meanwhile.
        let signs = Signs::now(&self.root);
        if Inventory::read(&self.root) == *self.inventory() {
            *self.found().signs.lock() = signs;
            return None;
        }
        let (root, keepings, cache) = (self.root.clone(), self.keepings.clone(), self.cache.clone());
        let anew = Self { root, keepings, cache, found: OnceLock::new() };
        anew.read_anew();
        Some(anew)
    }

    /// The inventory of this node.
    pub fn inventory(&self) -> &Inventory {
        let found = self.found();
        found.inventory.get_or_init(|| {
            let opened = found.kept.lock().take();
            let kept = match opened {
                Some(mut kept) => kept.inventory().map_err(read_anew).ok(),
                None => self.open(|mut kept| kept.inventory()),
            };
            kept.or_else(|| self.read().inventory.into_inner()).unwrap_or_default()
        })
    }

    /// The topology for ranks that this process starts, which may use what its control groups leave it; `None` if it is better that they
    /// look for themselves.
    pub fn topology(&self) -> Option<SharedTopology> {
        if self.cache.is_none() && self.found().is_all_allowed {
            return self.found().whole.clone();
        }
        let online = online(&self.root).ok()?;
        match Allowed::to_this_process(&self.root, &online) {
            None => self.cached(&online).or_else(|| self.found().whole.clone()),
            Some(allowed) => Some(SharedTopology { text: Some(xml::write(self.inventory(), &allowed)?), file: None }),
        }
    }

    /// True if this node may have a device for which communication libraries register memory: one of a fabric with remote direct memory
    /// access, a GPU, XPMEM or KNEM. It is looked for at each call, in some ten files of the kernel.
    pub fn registers_memory(&self) -> bool {
        registered_memory::is_possible(&self.root)
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
            let (seen, text) = read_text(path)?;
            let of = xml::read(&text).map_err(|error| wrong(error.to_string()))?;
            match of.cpus == *online {
                true => Ok(SharedTopology { text: Some(text), file: Some(seen) }),
                false => Err(wrong(format!("its CPUs are {}, and {online} are online", of.cpus))),
            }
        };
        read()
            .inspect_err(|error| tracing::warn!("{CACHE} is of no use, and ranks are told what was read here: {error}"))
            .ok()
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            // Before anything else, for it may change meanwhile.
            let signs = Signs::now(&self.root);
            let unchanged = signs.as_ref().and_then(|signs| self.unchanged(signs));
            let found = unchanged.unwrap_or_else(|| {
                let found = self.kept().unwrap_or_else(|| self.read());
                self.keep_signs(signs.clone(), &found);
                found
            });
            Found { signs: Mutex::new(signs), ..found }
        })
    }

    /// What is kept of this node, if there are the signs of that.
    fn unchanged(&self, signs: &Signs) -> Option<Found> {
        let file = self.keepings.iter().find_map(|keeping| keeping.unchanged(signs))?;
        let whole = file.map(|file| SharedTopology { text: None, file: Some(file) });
        Some(Found { whole, is_all_allowed: true, ..Found::default() })
    }

    /// What is kept of this node, held against all that it depends on.
    fn kept(&self) -> Option<Found> {
        let (xml, kept) = self.open(|kept| Ok((kept.xml()?, kept)))?;
        let whole = xml.map(|(file, text)| SharedTopology { text: Some(text), file: Some(file) });
        Some(Found { kept: Mutex::new(Some(kept)), whole, is_kept: true, ..Found::default() })
    }

    /// Part of what is kept of this node; of directories whose content is of no use for more reasons than its age, that is told.
    fn open<T>(&self, part: impl Fn(Kept) -> Result<T, KeptError>) -> Option<T> {
        let now = Validity::now(&self.root).ok()?;
        self.keepings.iter().find_map(|keeping| {
            let opened = keeping.open(&now).and_then(|kept| kept.map(&part).transpose());
            opened.map_err(read_anew).ok().flatten()
        })
    }

    fn read(&self) -> Found {
        let before = Validity::now(&self.root).ok();
        let inventory = Inventory::read(&self.root);
        let text = xml::write(&inventory, &Allowed::all(&inventory.template));
        // What could not be read this time may be read next time, and CPUs may have come or gone meanwhile.
        let is_whole = inventory.trouble.is_empty() && before.is_some() && before == Validity::now(&self.root).ok();
        let stored = self.keepings.last().zip(before.filter(|_| is_whole)).and_then(|(keeping, now)| {
            let stored = keeping.store(&now, &inventory, text.as_deref());
            stored.inspect_err(|error| tracing::debug!("the inventory of this node is not kept: {error}")).ok()
        });
        let is_kept = stored.is_some();
        let whole = text.map(|text| SharedTopology { text: Some(text), file: stored.flatten() });
        Found { inventory: inventory.into(), whole, is_kept, ..Found::default() }
    }

    /// Keeps the signs that there were before everything was looked at, if this process may use the whole node.
    fn keep_signs(&self, signs: Option<Signs>, found: &Found) {
        let Some((signs, keeping)) = signs.zip(self.keepings.last()).filter(|_| found.is_kept) else { return };
        let Ok(online) = online(&self.root) else { return };
        if signs.are_of_cpus(&online) && Allowed::to_this_process(&self.root, &online).is_none() {
            let file = found.whole.as_ref().and_then(|whole| whole.file.as_ref());
            if let Err(error) = keeping.keep_signs(&signs, file) {
                tracing::debug!("each launch looks at the whole node: {error}");
            }
        }
    }
}

fn read_anew(error: KeptError) {
    tracing::warn!("the inventory of this node is read anew: {error}");
}
