//! CPU binding: the policy a user asks for, and the CPUs of each rank that follow from it. Pure but for [`plan_here`].

use std::fmt;
use std::str::FromStr;

use lattice_inventory::{CpuSet, CpuSetParseError, ThisNode, UsableCores};
use serde::{Deserialize, Serialize};

use crate::syscalls;

/// Binding policy: `none`, `cores`, `threads`, or `map:` with one CPU or range per rank, as in `map:0,2,4-5`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CpuBind {
    /// Ranks may run wherever the launcher may.
    #[default]
    None,
    /// Each rank gets a core with all its hardware threads.
    Cores,
    /// Each rank gets one hardware thread; a core's threads are used up before the next core's.
    Threads,
    /// The n-th local rank gets the n-th set.
    Map(Vec<CpuSet>),
}

/// Error for a text that is no [`CpuBind`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuBindParseError {
    /// No such way to bind.
    #[error("there is no CPU binding {text:?}; there are none, cores, threads and map:<cpus of each rank>")]
    Unknown {
        /// The text seen.
        text: String,
    },
    /// An entry of the map cannot be read.
    #[error("CPU map: {0}")]
    Map(#[from] CpuSetParseError),
}

/// Error of [`plan`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The map names a CPU that is not there, is offline, or lies outside of our cpuset.
    #[error("local rank {local_rank} shall be bound to CPU {cpu}, but this launch may use CPUs {available}")]
    NoSuchCpu {
        /// The first local rank that the entry is for.
        local_rank: u32,
        /// The CPU it asks for.
        cpu: u16,
        /// CPUs that the launch may use.
        available: CpuSet,
    },
    /// There is nothing to bind to.
    #[error("ranks shall be bound to {asked}, but this launch may use none")]
    Nothing {
        /// Policy that was asked for.
        asked: CpuBind,
    },
}

impl FromStr for CpuBind {
    type Err = CpuBindParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "cores" => Ok(Self::Cores),
            "threads" => Ok(Self::Threads),
            other => match other.strip_prefix("map:") {
                Some(map) => Ok(Self::Map(map.split(',').map(map_entry).collect::<Result<_, _>>()?)),
                None => Err(CpuBindParseError::Unknown { text: text.to_owned() }),
            },
        }
    }
}

/// Reads one entry of a map, which unlike a list of the kernel's is never empty.
fn map_entry(text: &str) -> Result<CpuSet, CpuSetParseError> {
    match text.parse::<CpuSet>() {
        Ok(set) if set.is_empty() => Err(CpuSetParseError { text: text.to_owned() }),
        result => result,
    }
}

impl fmt::Display for CpuBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Cores => f.write_str("cores"),
            Self::Threads => f.write_str("threads"),
            Self::Map(sets) => {
                let sets: Vec<String> = sets.iter().map(CpuSet::to_string).collect();
                write!(f, "map:{}", sets.join(","))
            }
        }
    }
}

/// Error of [`plan_here`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindHereError {
    /// The system does not tell which CPUs there are.
    #[error("cannot bind ranks: {reason}")]
    Unread {
        /// Observation, in words.
        reason: String,
    },
    /// The system does not tell which CPUs this process may use.
    #[error("cannot read the affinity of this process: {0}")]
    Affinity(#[source] nix::Error),
    /// The policy cannot be met.
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
    // Its affinity, which the kernel keeps within its cpuset.
    let allowed = CpuSet::from_mask(&syscalls::affinity().map_err(BindHereError::Affinity)?);
    let inventory = node.inventory();
    if let Some(trouble) = inventory.trouble.iter().find(|trouble| trouble.source == "cpu") {
        return Err(BindHereError::Unread { reason: trouble.reason.clone() });
    }
    Ok(plan(&UsableCores::of(&inventory.template, &allowed), bind, local_ranks)?)
}

/// The CPUs of each of `local_ranks` ranks, in their order on this node; `None` leaves a rank unbound.
///
/// Ranks beyond the last core, hardware thread or entry of the map begin again with the first.
///
/// # Errors
/// Fails if the map names a CPU that is not among `usable`, or there is nothing to bind to.
pub fn plan(usable: &UsableCores, bind: &CpuBind, local_ranks: u32) -> Result<Vec<Option<CpuSet>>, BindError> {
    let cores = usable.cores().iter().map(|core| core.cpus.clone());
    let places: Vec<CpuSet> = match bind {
        CpuBind::None => return Ok(vec![None; local_ranks as usize]),
        CpuBind::Cores => cores.collect(),
        CpuBind::Threads => {
            cores.flat_map(|cpus| cpus.iter().map(|cpu| [cpu].into_iter().collect()).collect::<Vec<_>>()).collect()
        }
        CpuBind::Map(sets) => {
            check_map(sets, &usable.cpus(), local_ranks)?;
            sets.clone()
        }
    };
    if places.is_empty() {
        return Err(BindError::Nothing { asked: bind.clone() });
    }
    Ok(places.iter().cycle().take(local_ranks as usize).cloned().map(Some).collect())
}

/// Checks that all CPUs exist in the entries that some rank uses.
fn check_map(sets: &[CpuSet], available: &CpuSet, local_ranks: u32) -> Result<(), BindError> {
    for (local_rank, set) in (0..local_ranks).zip(sets) {
        if let Some(cpu) = set.iter().find(|&cpu| !available.contains(cpu)) {
            return Err(BindError::NoSuchCpu { local_rank, cpu, available: available.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lattice_inventory::{Group, Template};

    use super::*;

    /// Two packages of two cores of two threads, the second threads numbered last.
    fn eight_threads(allowed: &str) -> UsableCores {
        let groups =
            |lists: &[&str]| lists.iter().map(|cpus| Group { cpus: cpus.parse().unwrap(), id: None }).collect();
        let template = Template {
            cpus: "0-7".parse().unwrap(),
            packages: groups(&["0-1,4-5", "2-3,6-7"]),
            cores: groups(&["0,4", "1,5", "2,6", "3,7"]),
            ..Template::default()
        };
        UsableCores::of(&template, &allowed.parse().unwrap())
    }

    fn check(allowed: &str, bind: &str, ranks: u32, expected: &[&str]) {
        let planned = plan(&eight_threads(allowed), &bind.parse().unwrap(), ranks).unwrap();
        let planned: Vec<String> = planned.into_iter().map(|set| set.unwrap().to_string()).collect();
        assert_eq!(planned, expected, "{bind} with {allowed}");
    }

    #[test]
    fn cores_are_given_out_whole_and_in_order() {
        check("0-7", "cores", 3, &["0,4", "1,5", "2,6"]);
        check("0-7", "cores", 5, &["0,4", "1,5", "2,6", "3,7", "0,4"]);
        check("1,5-6", "cores", 3, &["1,5", "6", "1,5"]);
    }

    #[test]
    fn threads_are_given_out_core_by_core() {
        check("0-7", "threads", 3, &["0", "4", "1"]);
        check("4-5", "threads", 3, &["4", "5", "4"]);
    }

    #[test]
    fn a_map_is_followed_and_wraps_round() {
        check("0-7", "map:0,2,4-5", 4, &["0", "2", "4-5", "0"]);
    }

    #[test]
    fn unbound_ranks_have_no_set() {
        assert_eq!(plan(&eight_threads(""), &CpuBind::None, 2), Ok(vec![None, None]));
    }

    #[test]
    fn what_cannot_be_had_is_named_beside_what_there_is() {
        let refuse = |allowed: &str, bind: &str, ranks: u32| {
            plan(&eight_threads(allowed), &bind.parse().unwrap(), ranks).unwrap_err().to_string()
        };
        let absent = "local rank 1 shall be bound to CPU 9, but this launch may use CPUs 0-3";
        assert_eq!(refuse("0-3", "map:0,9,77", 2), absent);
        assert_eq!(refuse("", "cores", 1), "ranks shall be bound to cores, but this launch may use none");
        // An entry that no rank uses may name anything.
        assert!(plan(&eight_threads("0"), &"map:0,99".parse().unwrap(), 1).is_ok());
    }

    #[test]
    fn bindings_are_read_and_written_alike() {
        for text in ["none", "cores", "threads", "map:0,2,4-5"] {
            assert_eq!(text.parse::<CpuBind>().unwrap().to_string(), text);
        }
        for text in ["", "core", "map", "map:", "map:0,,1", "map:x", "map:3-1"] {
            assert!(text.parse::<CpuBind>().is_err(), "{text:?} was taken");
        }
    }
}
