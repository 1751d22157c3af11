//! This node, shared by the processes of one boot: read once, stored, and passed to ranks.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::allowed::Allowed;
use crate::cpus::{CpuSet, NodeSet};
use crate::kept::{Keeping, KeptError, StoredFiles, Validity, online, read_text};
use crate::node::Inventory;
use crate::registered_memory;
use crate::root::Root;
use crate::seen_file::SeenFile;
use crate::unchanged::Signs;
use crate::xml;

/// Variable with the path of a topology file of this node; the name comes from PMIx.
const CACHE: &str = "PMIX_TOPOLOGY_CACHE";

/// Path that is independent of the working directory: ranks may have another one.
fn absolute(path: OsString) -> PathBuf {
    std::path::absolute(&path).unwrap_or_else(|_| path.into())
}

/// This node. Each part is read on first use.
#[derive(Debug)]
pub struct ThisNode {
    root: Root,
    /// Directories to search, in this order. An inventory that is in none is stored in the last one.
    keepings: Vec<Keeping>,
    /// Topology file of another program; it overrides the topology of this crate.
    cache: Option<PathBuf>,
    found: OnceLock<Found>,
}

/// State of the node.
#[derive(Debug, Default)]
struct Found {
    /// Stored inventory that is not read yet.
    kept: Mutex<Option<StoredFiles>>,
    inventory: OnceLock<Inventory>,
    /// Topology for processes that may use the whole node.
    whole: Option<SharedTopology>,
    /// True if the inventory is stored in files.
    is_kept: bool,
    /// True if signs showed that this process may use the whole node.
    is_all_allowed: bool,
    /// Signs at the last check; `None` if the kernel provides none.
    signs: Mutex<Option<Signs>>,
}

/// Topology of this node in hwloc's format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedTopology {
    text: Option<String>,
    file: Option<SeenFile>,
}

impl SharedTopology {
    /// File with the topology, which stays until it has been unused for a month; `None` if there is none.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(SeenFile::path)
    }

    /// The XML text. Reads the file if the text is not in memory.
    ///
    /// # Errors
    /// Fails if the file has been removed or changed since it was found.
    pub fn text(&self) -> io::Result<Cow<'_, str>> {
        match (&self.text, &self.file) {
            (Some(text), _) => Ok(text.into()),
            (None, Some(file)) => file.read().map(Cow::Owned),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Default for ThisNode {
    /// This node, from the files that root or this user has stored in the present boot. Otherwise it is read and stored.
    fn default() -> Self {
        let (machine, user) = (Keeping::of_machine(), Keeping::of_user());
        let keepings = if user == machine { vec![machine] } else { vec![machine, user] };
        let cache = std::env::var_os(CACHE).filter(|file| !file.is_empty()).map(absolute);
        Self { cache, ..Self::below(Root::default(), keepings) }
    }
}

impl ThisNode {
    /// Node below `root`, from the first directory that has it. Otherwise it is read, and stored in the last directory.
    pub fn below(root: Root, keepings: Vec<Keeping>) -> Self {
        Self { root, keepings, cache: None, found: OnceLock::new() }
    }

    /// The node with a file, in XML of hwloc 2, as topology for ranks.
    #[must_use]
    pub fn with_cache(self, file: impl Into<PathBuf>) -> Self {
        Self { cache: Some(file.into()), ..self }
    }

    /// Reads this node independently of stored files, and stores the result. For a daemon that starts: devices may have come and gone.
    pub fn read_anew(&self) {
        let signs = Signs::now(&self.root);
        let found = Found { signs: Mutex::new(signs.clone()), ..self.read() };
        self.keep_signs(signs, &found);
        // An earlier result stays in use.
        let _ = self.found.set(found);
    }

    /// Returns false if the node has not changed since it was read, or since [`changed`](Self::changed) checked it: its signs are equal. This
    /// takes some microseconds. Also returns false if the kernel provides no signs.
    pub fn may_have_changed(&self) -> bool {
        let signs = Signs::now(&self.root);
        signs.is_some() && *self.found().signs.lock() != signs
    }

    /// The present node, newly read and stored, if it differs from the known state; otherwise `None`.
    pub fn changed(&self) -> Option<Self> {
        // Read first, because the node may change meanwhile.
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

    /// Inventory of this node.
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

    /// Topology for ranks that this process starts, with the CPUs and NUMA nodes that its control groups allow. `None` if ranks should read the
    /// node themselves.
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

    /// True if this node may have a device for which communication libraries register memory: a device of an RDMA fabric, a GPU, XPMEM or KNEM.
    /// Each call checks about ten files of the kernel.
    pub fn registers_memory(&self) -> bool {
        registered_memory::is_possible(&self.root)
    }

    /// NUMA nodes with memory that this process may use. The kernel rejects a memory binding to any other node.
    pub fn memory_nodes(&self) -> NodeSet {
        let Inventory { template, memory, .. } = self.inventory();
        let with_memory = template.numa.iter().zip(memory).filter(|(_, bytes)| **bytes > 0);
        let nodes: NodeSet = with_memory.map(|(node, _)| node.id).collect();
        let allowed = online(&self.root).ok().and_then(|online| Allowed::to_this_process(&self.root, &online));
        allowed.map_or(nodes.clone(), |allowed| nodes.intersection(&allowed.nodes))
    }

    /// Topology in the file of [`CACHE`], if it belongs to this node; otherwise logs a warning.
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
            .inspect_err(|error| {
                tracing::warn!("{CACHE} cannot be used, and ranks receive the data that was read here: {error}");
            })
            .ok()
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            // Read first, because the node may change meanwhile.
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

    /// Stored state of this node, if its signs are equal to the present ones.
    fn unchanged(&self, signs: &Signs) -> Option<Found> {
        let file = self.keepings.iter().find_map(|keeping| keeping.unchanged(signs))?;
        let whole = file.map(|file| SharedTopology { text: None, file: Some(file) });
        Some(Found { whole, is_all_allowed: true, ..Found::default() })
    }

    /// Stored state of this node, after a check against all its dependencies.
    fn kept(&self) -> Option<Found> {
        let (xml, kept) = self.open(|kept| Ok((kept.xml()?, kept)))?;
        let whole = xml.map(|(file, text)| SharedTopology { text: Some(text), file: Some(file) });
        Some(Found { kept: Mutex::new(Some(kept)), whole, is_kept: true, ..Found::default() })
    }

    /// Part of the stored state of this node. Logs a warning for a directory that is unusable for a reason other than its age.
    fn open<T>(&self, part: impl Fn(StoredFiles) -> Result<T, KeptError>) -> Option<T> {
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
        // An incomplete inventory is not stored: the missing part may be readable next time. CPUs may have come or gone meanwhile.
        let is_whole = inventory.trouble.is_empty() && before.is_some() && before == Validity::now(&self.root).ok();
        let stored = self.keepings.last().zip(before.filter(|_| is_whole)).and_then(|(keeping, now)| {
            let stored = keeping.store(&now, &inventory, text.as_deref());
            stored.inspect_err(|error| tracing::debug!("the inventory of this node is not kept: {error}")).ok()
        });
        let is_kept = stored.is_some();
        let whole = text.map(|text| SharedTopology { text: Some(text), file: stored.flatten() });
        Found { inventory: inventory.into(), whole, is_kept, ..Found::default() }
    }

    /// Stores the signs that were read before the check, if this process may use the whole node.
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
