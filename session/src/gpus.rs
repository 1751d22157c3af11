//! GPUs of each rank: the GPUs of its node that a rank may use. They are set by the variables that the makers' runtimes read. Pure.
//!
//! ```text
//! per-task:N   the next N GPUs for each rank, shared with no other rank on the node
//! single:K     one GPU for K neighbouring ranks
//! closest      the GPUs next to the CPUs that the rank is bound to
//! map:0,2-3    the entry of the rank's local number; the list restarts after its last entry; `+` joins GPUs
//! ```
//!
//! The words are srun's (`--gpu-bind`, srun(1)). GPUs are numbered in the order of their PCI addresses, among the GPUs that an outer launcher
//! allows by the same variables. Inside a job that has GPUs 2 and 3 of four, GPU 0 is 2.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use lattice_inventory::{CpuSet, PciDevice, Template};

use crate::count::counted;

/// GPUs that each rank may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuBind {
    /// All GPUs, unless the environment restricts them.
    #[default]
    None,
    /// This many GPUs for each rank, shared with no other rank.
    PerTask(NonZeroU32),
    /// One GPU for this many neighbouring ranks.
    Single(NonZeroU32),
    /// The GPUs next to the rank's CPUs.
    Closest,
    /// By local rank.
    Map(Vec<CpuSet>),
}

/// Refusal of a text as a binding to GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} binds to no GPUs; none, closest, single:K, per-task:N and map:0,1+2 are possible")]
pub struct GpuBindParseError {
    /// The text.
    pub text: String,
}

/// Reason why ranks cannot have the requested GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The node has no GPU of a maker with a known runtime.
    #[error("ranks are to be bound to GPUs, and this node knows of none")]
    None,
    /// An outer launcher allows no GPU.
    #[error("ranks are to be bound to GPUs, and {variable}={value} of the surroundings allows none of this node")]
    Hidden {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The node has too few GPUs, or an outer launcher allows too few.
    #[error("{} needed for {}, and this node has {there}", counted(*needed, "GPU"), counted(*ranks, "rank"))]
    TooFew {
        /// Number of ranks on the node.
        ranks: usize,
        /// Number of GPUs that they need.
        needed: u64,
        /// Number of GPUs.
        there: usize,
    },
    /// A map names a GPU that the node does not have.
    #[error("GPU {number} is named, and this node has {there} for its ranks, counted from 0")]
    NoSuch {
        /// Number of the GPU.
        number: usize,
        /// Number of GPUs.
        there: usize,
    },
}

/// A maker of GPUs, and the variables that select the GPUs of its runtime.
struct Maker {
    vendor: u16,
    variable: &'static str,
    /// A variable that makes its runtime number GPUs like this module.
    order: Option<(&'static str, &'static str)>,
}

const MAKERS: [Maker; 3] = [
    // CUDA C++ Programming Guide, "CUDA Environment Variables": without the second variable, the fastest GPU is first.
    Maker { vendor: 0x10de, variable: "CUDA_VISIBLE_DEVICES", order: Some(("CUDA_DEVICE_ORDER", "PCI_BUS_ID")) },
    // ROCm, "GPU isolation techniques".
    Maker { vendor: 0x1002, variable: "ROCR_VISIBLE_DEVICES", order: None },
    // oneAPI Level Zero specification, "Environment Variables"; its devices are in the order of their PCI addresses.
    Maker { vendor: 0x8086, variable: "ZE_AFFINITY_MASK", order: Some(("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")) },
];

/// A GPU that ranks may use.
struct Gpu<'node> {
    /// Its name in the variable: a number, or the identifier that an outer launcher uses.
    name: String,
    /// `None` if the name does not identify the device.
    device: Option<&'node PciDevice>,
}

impl Gpu<'_> {
    fn is_near(&self, cpus: &CpuSet) -> bool {
        self.device.is_none_or(|device| !device.cpus.is_disjoint(cpus))
    }
}

/// Returns the GPUs of `devices` that the value of a maker's variable allows, in its order. Like the runtimes, it stops at the first invalid
/// name: `NoDevFiles`, -1 and the number of a missing GPU hide all names after them.
fn allowed<'node>(devices: &[&'node PciDevice], value: Option<&str>) -> Vec<Gpu<'node>> {
    let Some(value) = value else {
        let all = devices.iter().enumerate();
        return all.map(|(number, device)| Gpu { name: number.to_string(), device: Some(*device) }).collect();
    };
    let gpu = |name: &str| {
        // Intel writes a part of a GPU as GPU.PART.
        let number = name.split('.').next().and_then(|number| number.parse::<usize>().ok());
        let device = number.map(|number| devices.get(number).copied());
        let is_identifier = ["GPU-", "MIG-"].iter().any(|prefix| name.starts_with(prefix));
        match device {
            Some(Some(device)) => Some(Gpu { name: name.to_owned(), device: Some(device) }),
            None if is_identifier => Some(Gpu { name: name.to_owned(), device: None }),
            _ => None,
        }
    };
    value.split(',').map(str::trim).map_while(gpu).collect()
}

impl GpuBind {
    /// Returns the variables of each rank of a node, by local rank. `cpus` has the CPUs of the bound ranks. `outer` returns the value that a
    /// variable has for the ranks without this binding.
    ///
    /// # Errors
    /// Fails if the node does not have the GPUs, or an outer launcher does not allow them.
    pub fn variables(
        &self,
        node: &Template,
        cpus: &[Option<CpuSet>],
        outer: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Vec<(&'static str, String)>>, GpuError> {
        if *self == Self::None {
            return Ok(vec![Vec::new(); cpus.len()]);
        }
        let devices = node.gpus();
        let vendor = devices.first().map(|gpu| gpu.id[0]);
        let maker = MAKERS.iter().find(|maker| Some(maker.vendor) == vendor).ok_or(GpuError::None)?;
        let variable = maker.variable;
        let value = outer(variable);
        let gpus = allowed(&devices, value.as_deref());
        if let (Some(value), true) = (value, gpus.is_empty()) {
            return Err(GpuError::Hidden { variable, value });
        }
        let chosen = self.chosen(&gpus, cpus)?;
        let variables = |numbers: Vec<usize>| {
            let list = numbers.iter().map(|&number| gpus[number].name.as_str()).collect::<Vec<_>>().join(",");
            let order = maker.order.map(|(name, value)| (name, value.to_owned()));
            [(variable, list)].into_iter().chain(order).collect()
        };
        Ok(chosen.into_iter().map(variables).collect())
    }

    /// Returns the indices in `gpus` of each rank's GPUs.
    fn chosen(&self, gpus: &[Gpu<'_>], cpus: &[Option<CpuSet>]) -> Result<Vec<Vec<usize>>, GpuError> {
        let (ranks, there) = (cpus.len(), gpus.len());
        let all = || (0..there).collect::<Vec<_>>();
        match self {
            Self::None => Ok(vec![all(); ranks]),
            Self::PerTask(share) => {
                let share = share.get() as usize;
                let needed = (share as u64).saturating_mul(ranks as u64);
                if needed > there as u64 {
                    return Err(GpuError::TooFew { ranks, needed, there });
                }
                Ok((0..ranks).map(|local| (local * share..(local + 1) * share).collect()).collect())
            }
            Self::Single(ranks_each) => {
                Ok((0..ranks).map(|local| vec![local / ranks_each.get() as usize % there]).collect())
            }
            Self::Closest => {
                let near = |cpus: &CpuSet| (0..there).filter(|&gpu| gpus[gpu].is_near(cpus)).collect::<Vec<_>>();
                let of_rank = |cpus: &Option<CpuSet>| {
                    // For an unbound rank all GPUs are equally close. The same holds if no GPU is next to the rank's CPUs.
                    cpus.as_ref().map(near).filter(|near| !near.is_empty()).unwrap_or_else(all)
                };
                Ok(cpus.iter().map(of_rank).collect())
            }
            Self::Map(entries) => {
                let entry = |local: usize| -> Result<Vec<usize>, GpuError> {
                    let numbers: Vec<usize> = entries[local % entries.len()].iter().map(usize::from).collect();
                    match numbers.iter().find(|&&number| number >= there) {
                        Some(&number) => Err(GpuError::NoSuch { number, there }),
                        None => Ok(numbers),
                    }
                };
                (0..ranks).map(entry).collect()
            }
        }
    }
}

impl FromStr for GpuBind {
    type Err = GpuBindParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || GpuBindParseError { text: text.to_owned() };
        let (word, value) = text.split_once(':').unwrap_or((text, ""));
        let number = || value.parse().map_err(|_| refused());
        let set = |entry: &str| entry.replace('+', ",").parse::<CpuSet>().ok().filter(|set| !set.is_empty());
        Ok(match word {
            "none" if value.is_empty() => Self::None,
            "closest" if value.is_empty() => Self::Closest,
            "per-task" | "per_task" => Self::PerTask(number()?),
            "single" => Self::Single(number()?),
            "map" | "map_gpu" => Self::Map(value.split(',').map(set).collect::<Option<_>>().ok_or_else(refused)?),
            _ => return Err(refused()),
        })
    }
}

impl fmt::Display for GpuBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::PerTask(gpus) => write!(f, "per-task:{gpus}"),
            Self::Single(ranks) => write!(f, "single:{ranks}"),
            Self::Closest => f.write_str("closest"),
            Self::Map(entries) => {
                let entry = |set: &CpuSet| set.to_string().replace(',', "+");
                write!(f, "map:{}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lattice_inventory::PciKind;

    use super::*;

    /// GPUs of a maker, each next to four CPUs.
    fn node(vendor: u16, gpus: u8) -> Template {
        let device = |number: u8, kind, vendor| PciDevice {
            address: format!("0000:{:02x}:00.0", 16 * number + 1).parse().unwrap(),
            kind,
            class: 0x0302,
            id: [vendor, 1],
            board: [0, 0],
            revision: 0,
            numa: None,
            cpus: format!("{}-{}", 4 * number, 4 * number + 3).parse().unwrap(),
            link_mb: 0,
            model: String::new(),
            names: Vec::new(),
        };
        // The board's own screen is not a GPU for programs.
        let screen = device(15, PciKind::Gpu, 0x1a03);
        let pci = (0..gpus).map(|number| device(number, PciKind::Gpu, vendor)).chain([screen]).collect();
        Template { pci, ..Template::default() }
    }

    fn seen(bind: &str, vendor: u16, gpus: u8, cpus: &[&str]) -> Result<Vec<String>, GpuError> {
        seen_inside(None, bind, vendor, gpus, cpus)
    }

    /// The same if an outer launcher has set the maker's variable.
    fn seen_inside(
        outer: Option<&str>,
        bind: &str,
        vendor: u16,
        gpus: u8,
        cpus: &[&str],
    ) -> Result<Vec<String>, GpuError> {
        let cpus: Vec<Option<CpuSet>> =
            cpus.iter().map(|set| set.parse().ok().filter(|set: &CpuSet| !set.is_empty())).collect();
        let outer = |name: &str| outer.filter(|_| name.ends_with("_VISIBLE_DEVICES")).map(str::to_owned);
        let variables = bind.parse::<GpuBind>().unwrap().variables(&node(vendor, gpus), &cpus, outer)?;
        let text = |variables: &Vec<(&str, String)>| {
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        Ok(variables.iter().map(text).collect())
    }

    #[track_caller]
    fn check(bind: &str, cpus: &[&str], expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|list| format!("ROCR_VISIBLE_DEVICES={list}")).collect();
        assert_eq!(seen(bind, 0x1002, 4, cpus), Ok(expected), "{bind}");
    }

    #[test]
    fn each_way_to_bind_chooses_gpus() {
        let unbound = ["", "", "", ""];
        check("per-task:1", &unbound, &["0", "1", "2", "3"]);
        check("per_task:2", &unbound[..2], &["0,1", "2,3"]);
        check("single:2", &unbound, &["0", "0", "1", "1"]);
        check("map_gpu:3,1", &unbound[..3], &["3", "1", "3"]);
        check("map:0+2,1-3", &unbound[..2], &["0,2", "1,2,3"]);
        check("closest", &["5", "0,13", "40", ""], &["1", "0,3", "0,1,2,3", "0,1,2,3"]);
        assert_eq!(seen("none", 0x1002, 4, &[""]), Ok(vec![String::new()]));
    }

    #[test]
    fn ranks_get_only_gpus_that_an_outer_launcher_allows() {
        let check = |outer: &str, bind: &str, cpus: &[&str], expected: &[&str]| {
            let expected: Vec<String> = expected.iter().map(|list| format!("ROCR_VISIBLE_DEVICES={list}")).collect();
            assert_eq!(seen_inside(Some(outer), bind, 0x1002, 4, cpus), Ok(expected), "{outer} {bind}");
        };
        check("2,3", "per-task:1", &["", ""], &["2", "3"]);
        check("2, 3", "single:1", &["", "", ""], &["2", "3", "2"]);
        check("3,1", "map:0,1", &["", ""], &["3", "1"]);
        // CPU 5 is next to GPU 1, which belongs to another job.
        check("2,3", "closest", &["13", "5"], &["3", "2,3"]);
        check("1,9,2", "closest", &[""], &["1"]);
        check("GPU-ab,GPU-cd", "per-task:1", &["", ""], &["GPU-ab", "GPU-cd"]);
        assert_eq!(seen_inside(Some("2,3"), "none", 0x1002, 4, &[""]), Ok(vec![String::new()]));

        let refused = |outer, bind| seen_inside(Some(outer), bind, 0x10de, 4, &["", "", ""]).unwrap_err();
        assert_eq!(refused("2,3", "per-task:1"), GpuError::TooFew { ranks: 3, needed: 3, there: 2 });
        assert_eq!(refused("2,3", "map:2"), GpuError::NoSuch { number: 2, there: 2 });
        for value in ["", "-1", "NoDevFiles", "4"] {
            let variable = "CUDA_VISIBLE_DEVICES";
            assert_eq!(refused(value, "closest"), GpuError::Hidden { variable, value: value.to_owned() });
        }
    }

    #[test]
    fn each_maker_has_its_variable() {
        let of = |vendor| seen("per-task:1", vendor, 2, &["", ""]).unwrap()[1].clone();
        assert_eq!(of(0x10de), "CUDA_VISIBLE_DEVICES=1 CUDA_DEVICE_ORDER=PCI_BUS_ID");
        assert_eq!(of(0x1002), "ROCR_VISIBLE_DEVICES=1");
        assert_eq!(of(0x8086), "ZE_AFFINITY_MASK=1 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1");
    }

    #[test]
    fn gpus_that_are_not_there_are_refused() {
        let refused = |bind, gpus| seen(bind, 0x10de, gpus, &["", "", ""]).unwrap_err();
        assert_eq!(refused("per-task:2", 4), GpuError::TooFew { ranks: 3, needed: 6, there: 4 });
        assert_eq!(refused("map:0,4", 4), GpuError::NoSuch { number: 4, there: 4 });
        assert_eq!(refused("closest", 0), GpuError::None);
        for text in ["", "closest:1", "single", "single:0", "per-task:x", "map", "map:0,,1", "mask_gpu:1"] {
            assert!(text.parse::<GpuBind>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["none", "closest", "single:3", "per-task:2", "map:0,1+3,2-4+6"] {
            assert_eq!(text.parse::<GpuBind>().unwrap().to_string(), text);
        }
    }
}
