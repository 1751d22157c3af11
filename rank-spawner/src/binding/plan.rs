//! Computes the CPUs of each rank from a policy. All functions but [`plan_here`] and [`usable_here`] are pure.

mod pool;

use std::collections::HashMap;

use lattice_inventory::{CpuSet, ThisNode, UsableCore, UsableCores};

use self::pool::{Pool, Worth};
use super::{CoreSet, CpuBind, Deal, Numbering, Object, ObjectBind, Share, Shortage};
use crate::syscalls;

/// Error of [`plan`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The map names a CPU that does not exist, is offline, or is outside of the launch's cpuset.
    #[error(
        "local rank {local_rank} is to be bound to CPU {cpu}, but this launch may use CPUs {available}; name some of those, or have \
         --cpu-bind=cores choose"
    )]
    NoSuchCpu {
        /// The first local rank that the entry is for.
        local_rank: u32,
        /// The CPU in the entry.
        cpu: u16,
        /// CPUs that the launch may use.
        available: CpuSet,
    },
    /// The map names a NUMA node that does not exist, or that has no CPU in the launch's cpuset.
    #[error(
        "local rank {local_rank} is to be bound to NUMA node {node}, but this launch may use CPUs {available}, which are not of it; \
         name another, or have --cpu-bind=numa choose"
    )]
    NoSuchNumaNode {
        /// The first local rank that the entry is for.
        local_rank: u32,
        /// The NUMA node in the entry.
        node: u16,
        /// CPUs that the launch may use.
        available: CpuSet,
    },
    /// The map names a core that does not exist.
    #[error(
        "local rank {local_rank} is to be bound to cores {cores}, but this launch may use {there}, which are CPUs {available}; \
         name some of those, or have --cpu-bind=cores choose"
    )]
    NoSuchCore {
        /// The first local rank that the entry is for.
        local_rank: u32,
        /// The cores in the entry.
        cores: CoreSet,
        /// Number of cores by socket.
        there: String,
        /// CPUs that the launch may use.
        available: CpuSet,
    },
    /// The ranks need more CPUs than the launch may use.
    #[error(
        "{ranks} local ranks are to be bound to {asked}, but CPUs {available}, which this launch may use, are enough for {room}; start fewer \
         on a node, or let them share with --overcommit"
    )]
    TooFew {
        /// Number of the ranks.
        ranks: u32,
        /// The requested policy.
        asked: CpuBind,
        /// Number of ranks for which there is room.
        room: u32,
        /// CPUs that the launch may use.
        available: CpuSet,
    },
    /// The launch may use no object of this kind.
    #[error("ranks are to be bound to {asked}, but this launch may use none; leave them unbound with --cpu-bind=none")]
    Nothing {
        /// The requested policy.
        asked: CpuBind,
    },
}

/// Error of [`plan_here`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindHereError {
    /// The system does not list the CPUs of the node.
    #[error("cannot bind ranks: {reason}")]
    Unread {
        /// Reason, as text.
        reason: String,
    },
    /// The system call for this process's affinity failed.
    #[error("cannot read the affinity of this process: {0}")]
    Affinity(#[source] nix::Error),
    /// The node cannot satisfy the policy.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// Calls [`plan`] for the CPUs of this node that this process may use.
///
/// # Errors
/// See the variants of [`BindHereError`].
pub fn plan_here(node: &ThisNode, bind: &CpuBind, local_ranks: u32) -> Result<Vec<Option<CpuSet>>, BindHereError> {
    if *bind == CpuBind::None {
        return Ok(vec![None; local_ranks as usize]);
    }
    Ok(plan(&usable_here(node)?, bind, local_ranks)?)
}

/// The cores of this node that this process may use.
///
/// # Errors
/// Fails if the system does not list them.
pub fn usable_here(node: &ThisNode) -> Result<UsableCores, BindHereError> {
    // The affinity mask: the kernel keeps it within the cpuset.
    let allowed = CpuSet::from_mask(&syscalls::affinity().map_err(BindHereError::Affinity)?);
    let inventory = node.inventory();
    if let Some(trouble) = inventory.trouble.iter().find(|trouble| trouble.source == "cpu") {
        return Err(BindHereError::Unread { reason: trouble.reason.clone() });
    }
    Ok(UsableCores::of(&inventory.template, &allowed))
}

/// The CPUs of each of `local_ranks` ranks, in their order on this node; `None` leaves a rank unbound.
///
/// Unless each rank has a share, ranks after the last object or map entry start again at the first.
///
/// # Errors
/// See the variants of [`BindError`].
pub fn plan(usable: &UsableCores, bind: &CpuBind, local_ranks: u32) -> Result<Vec<Option<CpuSet>>, BindError> {
    let places: Vec<CpuSet> = match bind {
        CpuBind::None => return Ok(vec![None; local_ranks as usize]),
        CpuBind::To(bind) => {
            let part = usable.first(bind.part.threads_per_core, bind.part.cores_per_socket);
            let may_be_unbound = bind.shortage == Shortage::Unbound;
            let dealt = match bind.share.map(|share| shares(&part, bind, share, local_ranks)) {
                Some(Err(_)) if may_be_unbound => return Ok(vec![None; local_ranks as usize]),
                Some(dealt) => dealt?,
                None if may_be_unbound && bind.object.min(Object::Core).count(&part) < local_ranks => {
                    return Ok(vec![None; local_ranks as usize]);
                }
                None => match objects(&part, bind, local_ranks) {
                    none if none.is_empty() && may_be_unbound => return Ok(vec![None; local_ranks as usize]),
                    dealt => dealt,
                },
            };
            let taken = dealt.iter().cycle().take(local_ranks as usize).cloned().collect();
            numbered(&part, taken, bind.numbering)
        }
        CpuBind::Rank => usable.cpus().iter().map(|cpu| [cpu].into_iter().collect()).collect(),
        CpuBind::Map(sets) => {
            check_map(sets, &usable.cpus(), local_ranks)?;
            sets.clone()
        }
        CpuBind::NumaMap(nodes) => numa_map(usable, nodes, local_ranks)?,
        CpuBind::CoreMap(sets) | CpuBind::RankCoreMap(sets) => core_map(usable, sets, local_ranks)?,
    };
    if places.is_empty() && local_ranks > 0 {
        return Err(BindError::Nothing { asked: bind.clone() });
    }
    Ok(places.iter().cycle().take(local_ranks as usize).cloned().map(Some).collect())
}

/// Usable part of an object, or of an indivisible part of one.
#[derive(Clone, Debug)]
struct Place<'node> {
    cpus: CpuSet,
    /// First core of the place, which gives its location.
    at: &'node UsableCore,
}

impl<'node> Place<'node> {
    /// The place divided by cores.
    fn cores(&self, cores: &'node [UsableCore]) -> Vec<Self> {
        let part = |at: &'node UsableCore| Self { cpus: at.cpus.intersection(&self.cpus), at };
        cores.iter().map(part).filter(|part| !part.cpus.is_empty()).collect()
    }
}

/// Key of a core that is next to no device of the kind.
const NO_DEVICE: (u32, u32) = (0, 0);

/// Identity of the object of this kind that has the core.
fn key(core: &UsableCore, object: Object) -> (u32, u32) {
    match object {
        // Each thread and core is a place of its own.
        Object::Thread | Object::Core => (core.package, core.cpus.first().unwrap_or_default().into()),
        Object::L3Cache => (core.package, core.l3_cache),
        Object::Gpu => (0, core.gpu),
        Object::Nic => (0, core.nic),
        Object::Numa => (0, core.numa_node.into()),
        Object::Socket => (core.package, 0),
    }
}

/// True if a core belongs to an object of this kind. A core next to no device belongs to none.
fn is_beside(core: &UsableCore, object: Object) -> bool {
    !object.is_device() || key(core, object) != NO_DEVICE
}

/// The objects of a kind that ranks may get. If ranks are dealt out over devices, only the objects next to one.
fn places_for<'node>(usable: &'node UsableCores, bind: &ObjectBind, object: Object) -> Vec<Place<'node>> {
    let mut places = places(usable.cores(), object);
    places.retain(|place| bind.devices().all(|device| is_beside(place.at, device)));
    places
}

/// The objects of a kind, in the order of their cores. Devices are in the order of their numbers.
fn places(cores: &[UsableCore], object: Object) -> Vec<Place<'_>> {
    let mut places: Vec<Place<'_>> = Vec::new();
    for core in cores {
        if object == Object::Thread {
            places.extend(core.cpus.iter().map(|cpu| Place { cpus: [cpu].into_iter().collect(), at: core }));
            continue;
        }
        if !is_beside(core, object) {
            continue;
        }
        match places.iter_mut().find(|place| key(place.at, object) == key(core, object)) {
            Some(place) => place.cpus.add(&core.cpus),
            None => places.push(Place { cpus: core.cpus.clone(), at: core }),
        }
    }
    if object.is_device() {
        places.sort_by_key(|place| key(place.at, object));
    }
    places
}

/// The CPUs of each object in the order of the ranks. An object is repeated `local_ranks` times in a row at most.
fn objects(usable: &UsableCores, bind: &ObjectBind, local_ranks: u32) -> Vec<CpuSet> {
    let has_so_many = |deal: &Deal| (deal.at_once.get() > 1 || deal.over.is_device()) && deal.over <= bind.object;
    if let Some(deal) = bind.deals[0].filter(has_so_many) {
        // Each object that is not larger than the object of the binding gets `at_once` ranks.
        let places = places(usable.cores(), deal.over).into_iter();
        let widened = places.map(|place| widened(usable.cores(), &place.cores(usable.cores()), bind.object));
        return widened.flat_map(|cpus| vec![cpus; deal.at_once.get().min(local_ranks) as usize]).collect();
    }
    let mut pool = Pool::of(places_for(usable, bind, bind.object), &bind.deals);
    let mut dealt = Vec::new();
    while pool.take(1, |_| 1, &mut dealt) > 0 {}
    dealt.into_iter().map(|place| place.cpus).collect()
}

impl Object {
    /// Number of objects of this kind among some cores.
    pub fn count(self, usable: &UsableCores) -> u32 {
        places(usable.cores(), self).len() as u32
    }
}

/// Sorts the CPU sets of the ranks into the order of the rank numbers.
fn numbered(usable: &UsableCores, mut dealt: Vec<CpuSet>, numbering: Numbering) -> Vec<CpuSet> {
    let first = |set: &CpuSet| {
        let cpu = set.first()?;
        usable.cores().iter().position(|core| core.cpus.contains(cpu)).map(|core| (core, cpu))
    };
    match numbering {
        Numbering::AsDealt => {}
        Numbering::InOrder => dealt.sort_by_key(first),
        Numbering::Over(object) => {
            // The n-th set of each object precedes the next set of any object.
            let mut counts = HashMap::new();
            let turn = |set: &CpuSet| {
                let object = first(set).map(|(core, _)| key(&usable.cores()[core], object));
                let count = counts.entry(object).or_insert(0_u32);
                *count += 1;
                *count
            };
            dealt.sort_by_key(first);
            let turns: Vec<u32> = dealt.iter().map(turn).collect();
            let mut in_turn: Vec<_> = turns.into_iter().zip(dealt).collect();
            in_turn.sort_by_key(|&(turn, _)| turn);
            dealt = in_turn.into_iter().map(|(_, set)| set).collect();
        }
    }
    dealt
}

/// The CPUs of each rank, if each rank has a share.
fn shares(usable: &UsableCores, bind: &ObjectBind, share: Share, ranks: u32) -> Result<Vec<CpuSet>, BindError> {
    let unit = match (bind.object, share) {
        (Object::Thread, Share::Cpus(_)) => Object::Thread,
        _ => Object::Core,
    };
    let places = places_for(usable, bind, unit);
    if places.is_empty() && ranks > 0 {
        return Err(BindError::Nothing { asked: CpuBind::To(*bind) });
    }
    let (wanted, worth): (_, Worth) = match share {
        Share::Cpus(number) => (number.get() as usize, |place| place.cpus.len()),
        Share::Cores(number) => (number.get() as usize, |_| 1),
        Share::Even => ((places.len() / ranks.max(1) as usize).max(1), |_| 1),
    };
    let all = || Pool::of(places.clone(), &bind.deals);
    let (mut free, mut is_untouched) = (all(), true);
    let mut taken = Vec::new();
    while taken.len() < ranks as usize {
        if free.worth(worth) >= wanted {
            let mut parts = Vec::new();
            free.take(wanted, worth, &mut parts);
            taken.push(widened(usable.cores(), &parts, bind.object));
            is_untouched = false;
        } else if bind.shortage == Shortage::Shared && !is_untouched {
            (free, is_untouched) = (all(), true);
        } else {
            let (room, available) = (taken.len() as u32, usable.cpus());
            return Err(BindError::TooFew { ranks, asked: CpuBind::To(*bind), room, available });
        }
    }
    Ok(taken)
}

/// The CPUs of all objects that have one of these parts.
fn widened(cores: &[UsableCore], parts: &[Place<'_>], object: Object) -> CpuSet {
    match object {
        Object::Thread | Object::Core => parts.iter().flat_map(|part| part.cpus.iter()).collect(),
        Object::Gpu | Object::Nic | Object::L3Cache | Object::Numa | Object::Socket => {
            let is_touched = |core: &&UsableCore| parts.iter().any(|part| key(part.at, object) == key(core, object));
            cores.iter().filter(is_touched).flat_map(|core| core.cpus.iter()).collect()
        }
    }
}

/// Checks that all CPUs exist in the entries that the ranks use.
fn check_map(sets: &[CpuSet], available: &CpuSet, local_ranks: u32) -> Result<(), BindError> {
    for (local_rank, set) in (0..local_ranks).zip(sets) {
        if let Some(cpu) = set.iter().find(|&cpu| !available.contains(cpu)) {
            return Err(BindError::NoSuchCpu { local_rank, cpu, available: available.clone() });
        }
    }
    Ok(())
}

/// The CPUs of the NUMA nodes that the ranks use.
fn numa_map(usable: &UsableCores, nodes: &[u16], local_ranks: u32) -> Result<Vec<CpuSet>, BindError> {
    let of = |(local_rank, &node): (u32, &u16)| {
        let cores = usable.cores().iter().filter(|core| core.numa_node == node);
        let cpus: CpuSet = cores.flat_map(|core| core.cpus.iter()).collect();
        match cpus.is_empty() {
            true => Err(BindError::NoSuchNumaNode { local_rank, node, available: usable.cpus() }),
            false => Ok(cpus),
        }
    };
    (0..local_ranks).zip(nodes).map(of).collect()
}

/// The CPUs of the cores that the ranks use.
fn core_map(usable: &UsableCores, sets: &[CoreSet], local_ranks: u32) -> Result<Vec<CpuSet>, BindError> {
    let of = |(local_rank, set): (u32, &CoreSet)| {
        set.cpus(usable).ok_or_else(|| {
            let sockets = usable.cores().chunk_by(|one, other| one.package == other.package);
            let sockets: Vec<String> = sockets.map(|cores| cores.len().to_string()).collect();
            let there =
                format!("cores 0 to {} ({} by socket)", usable.cores().len().saturating_sub(1), sockets.join(", "));
            BindError::NoSuchCore { local_rank, cores: set.clone(), there, available: usable.cpus() }
        })
    };
    (0..local_ranks).zip(sets).map(of).collect()
}
