//! CPU binding: the policy that a user requests, as a type and as text. [`plan`](mod@plan) computes the CPUs of each rank.

mod cores;
mod plan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::num::{NonZeroU32, ParseIntError};
use std::str::FromStr;

use lattice_inventory::{CpuSet, CpuSetParseError};

pub use self::cores::{CoreSet, CoreSetParseError};
pub use self::plan::{BindError, BindHereError, plan, plan_here, usable_here};

/// Binding policy of the ranks of a launch on each of its nodes.
///
/// As text, which [`FromStr`] reads and [`Display`](fmt::Display) writes:
///
/// ```text
/// none                                    rank                   map:0,2+6,4-5       numa-map:0,1
/// core-map:0,2-3+5,1/0                                           cores of each rank of a node, counted from 0; after `S/`, on socket S
/// rank-core-map:0,2-3+5,1/0                                      the same for each rank of the launch
/// threads | cores | l3caches | numa | sockets | gpus | nics      the object that each rank gets
///     [:cpus=N | :cores=N]                                       its share, widened to the object
///     [:over=OBJECT[*N] | :each-over=OBJECT]                     ranks, N at a time, or each CPU of a rank, are dealt out over these;
///                                                                a second one deals out over smaller objects
///     [:in-order | :numbered-over=OBJECT]                        then ranks are numbered in the order of their CPUs, or dealing out
///     [:threads-per-core=N] [:cores-per-socket=N]                number that is used of each
///     [:overcommit]                                              ranks share CPUs if there are too few
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CpuBind {
    /// Ranks may run on all CPUs of the launcher.
    #[default]
    None,
    /// Each rank gets an object of its own.
    To(ObjectBind),
    /// The n-th local rank gets the n-th CPU by number.
    Rank,
    /// The n-th local rank gets the n-th set.
    Map(Vec<CpuSet>),
    /// The n-th local rank gets the CPUs of the n-th NUMA node in this list.
    NumaMap(Vec<u16>),
    /// The n-th local rank gets the n-th set of cores.
    CoreMap(Vec<CoreSet>),
    /// The n-th rank of the launch gets the n-th set of cores of its node; [`CpuBind::of_ranks`] makes it a map of local ranks.
    RankCoreMap(Vec<CoreSet>),
}

/// Binding to objects of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectBind {
    /// Smallest object that a rank gets as a whole.
    pub object: Object,
    /// Share of each rank. Without one it is one object, and ranks after the last object start again at the first.
    pub share: Option<Share>,
    /// Objects that ranks are dealt out over, the larger ones first. Without them consecutive ranks are neighbours.
    pub deals: [Option<Deal>; 2],
    /// Order of the rank numbers among the dealt places.
    pub numbering: Numbering,
    /// Part of the node that ranks are bound to.
    pub part: NodePart,
    /// Behaviour if the node has less room than the shares need.
    pub shortage: Shortage,
}

/// Object of a node that ranks are bound to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Object {
    /// Hardware thread. Ranks use all threads of a core before the next core.
    Thread,
    /// Core with all its hardware threads.
    Core,
    /// Cores next to a GPU. Several GPUs with the same cores divide them.
    Gpu,
    /// Cores next to a network interface, divided in the same way.
    Nic,
    /// Cores that share a level-3 cache; the package if it has none.
    L3Cache,
    /// NUMA node.
    Numa,
    /// Processor package.
    Socket,
}

/// Round-robin distribution over objects of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deal {
    /// Kind of the objects.
    pub over: Object,
    /// Unit of the distribution.
    pub what: Dealt,
    /// Number of ranks that an object gets at a time.
    pub at_once: NonZeroU32,
}

impl Deal {
    /// Deals out one unit at a time over these objects.
    pub const fn over(over: Object, what: Dealt) -> Self {
        Self { over, what, at_once: NonZeroU32::MIN }
    }
}

/// Order in which the ranks of a node get the dealt places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numbering {
    /// Order in which the places were dealt out.
    #[default]
    AsDealt,
    /// Order of the CPUs, by socket, NUMA node, level-3 cache and core.
    InOrder,
    /// Consecutive ranks are on different objects of this kind.
    Over(Object),
}

/// Unit that is dealt out over objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dealt {
    /// Consecutive ranks; the CPUs of each are neighbours.
    Ranks,
    /// The CPUs of each rank, or its cores if shares are whole cores.
    Cpus,
}

/// Part of a node that is used: its first hardware threads and cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodePart {
    /// Number of hardware threads of each core; `None` for all.
    pub threads_per_core: Option<NonZeroU32>,
    /// Number of cores of each socket; `None` for all.
    pub cores_per_socket: Option<NonZeroU32>,
}

/// Share of the CPUs that one rank gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Number of hardware threads, which Slurm calls CPUs. The share has whole cores unless the object is the hardware thread.
    Cpus(NonZeroU32),
    /// Number of cores.
    Cores(NonZeroU32),
    /// Cores divided by ranks of the node, rounded down; at least one core.
    Even,
}

/// Behaviour if the node has less room than the shares need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shortage {
    /// The launch is refused.
    #[default]
    Refused,
    /// Ranks share CPUs.
    Shared,
    /// No rank of the node is bound. This also applies if the node has more ranks than cores (or than hardware threads, if ranks are bound
    /// to threads).
    Unbound,
}

/// Error for a text that is not a [`CpuBind`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuBindParseError {
    /// Unknown kind of binding.
    #[error(
        "there is no CPU binding {text:?}; there are none, threads, cores, l3caches, numa, sockets, gpus, nics, rank, \
         map:<cpus of each rank>, core-map:<cores of each rank> and numa-map:<NUMA node of each rank>"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// A part after the object is not valid.
    #[error(
        "{text:?} is nothing that a binding may have; there are cpus=N, cores=N, even, threads-per-core=N, cores-per-socket=N, in-order, \
         numbered-over=<objects>, and overcommit or or-none, each once, and over=<objects>, over=<objects>*N or each-over=<objects>, twice"
    )]
    Detail {
        /// The text.
        text: String,
    },
    /// An entry of the map is not valid.
    #[error("CPU map: {0}")]
    Map(#[from] CpuSetParseError),
    /// An entry of the map of cores is not valid.
    #[error(transparent)]
    CoreMap(#[from] CoreSetParseError),
    /// An entry of the map of NUMA nodes is not a number.
    #[error("map of NUMA nodes: {0}")]
    NumaMap(#[from] ParseIntError),
}

impl CpuBind {
    /// Binds consecutive ranks to consecutive objects of this kind, one object to each rank.
    pub const fn to(object: Object) -> Self {
        let part = NodePart { threads_per_core: None, cores_per_socket: None };
        let numbering = Numbering::AsDealt;
        Self::To(ObjectBind { object, share: None, deals: [None; 2], numbering, part, shortage: Shortage::Refused })
    }

    /// The binding for a node with these ranks of the launch, in their order. A map of the launch's ranks becomes a map of local ranks.
    pub fn of_ranks(&self, ranks: impl IntoIterator<Item = u32>) -> Cow<'_, Self> {
        match self {
            Self::RankCoreMap(sets) if !sets.is_empty() => {
                let of = |rank: u32| sets[rank as usize % sets.len()].clone();
                Cow::Owned(Self::CoreMap(ranks.into_iter().map(of).collect()))
            }
            _ => Cow::Borrowed(self),
        }
    }
}

impl Object {
    const ALL: [Self; 7] = [Self::Thread, Self::Core, Self::Gpu, Self::Nic, Self::L3Cache, Self::Numa, Self::Socket];

    /// Word of [`CpuBind`]'s text for this object.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Thread => "threads",
            Self::Core => "cores",
            Self::L3Cache => "l3caches",
            Self::Gpu => "gpus",
            Self::Nic => "nics",
            Self::Numa => "numa",
            Self::Socket => "sockets",
        }
    }

    /// Name of the object in a sentence.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Thread => "hardware thread",
            Self::Core => "core",
            Self::L3Cache => "level-3 cache",
            Self::Gpu => "GPU",
            Self::Nic => "network interface",
            Self::Numa => "NUMA node",
            Self::Socket => "socket",
        }
    }

    /// True for devices. Only the cores next to a device belong to it.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::Gpu | Self::Nic)
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|object| object.word() == word)
    }

    /// Object with this name in srun, Hydra, Open MPI or Lattice: `hwthread`, `core`, `l3cache`, `numa`, `ldom`, `socket`, `package`, `gpu`,
    /// `nic` and similar names.
    pub fn called(word: &str) -> Option<Self> {
        Some(match word {
            "hwthread" | "hwthreads" | "thread" => Self::Thread,
            "core" => Self::Core,
            "l3cache" | "l3" => Self::L3Cache,
            "gpu" => Self::Gpu,
            "nic" => Self::Nic,
            "numanode" | "ldom" | "ldoms" => Self::Numa,
            "socket" | "package" | "packages" => Self::Socket,
            word => return Self::of(word),
        })
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for CpuBind {
    type Err = CpuBindParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (word, rest) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
        match (word, rest) {
            ("none", None) => Ok(Self::None),
            ("rank", None) => Ok(Self::Rank),
            ("map", Some(map)) => Ok(Self::Map(map.split(',').map(map_entry).collect::<Result<_, _>>()?)),
            ("core-map", Some(map)) => Ok(Self::CoreMap(map.split(',').map(str::parse).collect::<Result<_, _>>()?)),
            ("rank-core-map", Some(map)) => {
                Ok(Self::RankCoreMap(map.split(',').map(str::parse).collect::<Result<_, _>>()?))
            }
            ("numa-map", Some(map)) => Ok(Self::NumaMap(map.split(',').map(str::parse).collect::<Result<_, _>>()?)),
            _ => match Object::of(word) {
                Some(object) => {
                    rest.into_iter().flat_map(|rest| rest.split(':')).try_fold(Self::to(object), Self::detailed)
                }
                None => Err(CpuBindParseError::Unknown { text: text.to_owned() }),
            },
        }
    }
}

impl ObjectBind {
    /// Devices that determine the cores of ranks.
    fn devices(&self) -> impl Iterator<Item = Object> {
        let over = self.deals.into_iter().flatten().map(|deal| deal.over);
        over.chain([self.object]).filter(|object| object.is_device())
    }
}

impl CpuBind {
    /// The binding with one more option from its text.
    fn detailed(self, text: &str) -> Result<Self, CpuBindParseError> {
        let wrong = || CpuBindParseError::Detail { text: text.to_owned() };
        let Self::To(mut bind) = self else { return Err(wrong()) };
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let number = || value.and_then(|value| value.parse().ok()).ok_or_else(wrong);
        match name {
            "cpus" if bind.share.is_none() => bind.share = Some(Share::Cpus(number()?)),
            "cores" if bind.share.is_none() => bind.share = Some(Share::Cores(number()?)),
            "even" if value.is_none() && bind.share.is_none() => bind.share = Some(Share::Even),
            "over" | "each-over" => {
                let what = if name == "over" { Dealt::Ranks } else { Dealt::Cpus };
                let free = bind.deals.iter_mut().find(|deal| deal.is_none()).ok_or_else(wrong)?;
                let value = value.ok_or_else(wrong)?;
                let (object, at_once) = match value.split_once('*') {
                    Some((object, number)) if what == Dealt::Ranks => (object, number.parse().map_err(|_| wrong())?),
                    _ => (value, NonZeroU32::MIN),
                };
                *free = Some(Deal { over: Object::of(object).ok_or_else(wrong)?, what, at_once });
            }
            "in-order" if value.is_none() && bind.numbering == Numbering::AsDealt => {
                bind.numbering = Numbering::InOrder;
            }
            "numbered-over" if bind.numbering == Numbering::AsDealt => {
                bind.numbering = Numbering::Over(value.and_then(Object::of).ok_or_else(wrong)?);
            }
            "threads-per-core" if bind.part.threads_per_core.is_none() => bind.part.threads_per_core = Some(number()?),
            "cores-per-socket" if bind.part.cores_per_socket.is_none() => bind.part.cores_per_socket = Some(number()?),
            "overcommit" if value.is_none() && bind.shortage == Shortage::Refused => bind.shortage = Shortage::Shared,
            "or-none" if value.is_none() && bind.shortage == Shortage::Refused => bind.shortage = Shortage::Unbound,
            _ => return Err(wrong()),
        }
        Ok(Self::To(bind))
    }
}

/// Parses one entry of a map: a CPU list in the kernel's format, with `+` in place of commas. An empty list is an error.
pub(crate) fn map_entry(text: &str) -> Result<CpuSet, CpuSetParseError> {
    match text.replace('+', ",").parse::<CpuSet>() {
        Ok(set) if set.is_empty() => Err(CpuSetParseError { text: text.to_owned() }),
        result => result,
    }
}

impl fmt::Display for CpuBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: ToString>(entries: &[T]) -> String {
            entries.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        match self {
            Self::None => f.write_str("none"),
            Self::To(bind) => bind.fmt(f),
            Self::Rank => f.write_str("rank"),
            Self::Map(sets) => {
                let entries: Vec<String> = sets.iter().map(|set| set.to_string().replace(',', "+")).collect();
                write!(f, "map:{}", list(&entries))
            }
            Self::NumaMap(nodes) => write!(f, "numa-map:{}", list(nodes)),
            Self::CoreMap(sets) => write!(f, "core-map:{}", list(sets)),
            Self::RankCoreMap(sets) => write!(f, "rank-core-map:{}", list(sets)),
        }
    }
}

impl fmt::Display for ObjectBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(f)?;
        match self.share {
            Some(Share::Cpus(number)) => write!(f, ":cpus={number}")?,
            Some(Share::Cores(number)) => write!(f, ":cores={number}")?,
            Some(Share::Even) => f.write_str(":even")?,
            None => {}
        }
        for Deal { over, what, at_once } in self.deals.iter().flatten() {
            let name = if *what == Dealt::Ranks { "over" } else { "each-over" };
            write!(f, ":{name}={over}")?;
            if at_once.get() > 1 {
                write!(f, "*{at_once}")?;
            }
        }
        match self.numbering {
            Numbering::AsDealt => {}
            Numbering::InOrder => f.write_str(":in-order")?,
            Numbering::Over(object) => write!(f, ":numbered-over={object}")?,
        }
        let NodePart { threads_per_core, cores_per_socket } = self.part;
        for (name, number) in [("threads-per-core", threads_per_core), ("cores-per-socket", cores_per_socket)] {
            if let Some(number) = number {
                write!(f, ":{name}={number}")?;
            }
        }
        match self.shortage {
            Shortage::Refused => Ok(()),
            Shortage::Shared => f.write_str(":overcommit"),
            Shortage::Unbound => f.write_str(":or-none"),
        }
    }
}
