//! Values of `--cpu-bind`, in the words of Lattice and of srun(1).

use rank_spawner::{CpuBind, CpuBindParseError, Object};

use super::list_entries::{NoEntry, list, mask, number, set};

/// Error for a text that is no binding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoBinding {
    #[error(transparent)]
    Word(#[from] CpuBindParseError),
    #[error(transparent)]
    Entry(#[from] NoEntry),
    #[error("the mask {mask:?} names several NUMA nodes; a rank is bound to one, or to CPUs by mask_cpu")]
    NumaMask { mask: String },
}

/// A requested binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// The binding; `None` for the default one.
    pub bind: Option<CpuBind>,
    /// True for `verbose`: the CPUs of each rank are shown.
    pub is_shown: bool,
}

/// Parses `[verbose,|quiet,]BINDING`, or `verbose` or `quiet` alone.
pub(super) fn parse(text: &str) -> Result<BindRequest, NoBinding> {
    let (first, rest) = text.split_once(',').unwrap_or((text, ""));
    let (is_shown, bind) = match first {
        "verbose" | "v" => (true, rest),
        "quiet" | "q" => (false, rest),
        _ => (false, text),
    };
    let is_usual = bind.is_empty() && !text.is_empty();
    let bind = if is_usual { None } else { Some(binding(bind)?) };
    Ok(BindRequest { bind, is_shown })
}

fn binding(text: &str) -> Result<CpuBind, NoBinding> {
    let word = match text {
        "no" => "none",
        "rank_ldom" => Object::Numa.word(),
        word => Object::called(word).map_or(word, |object| object.word()),
    };
    match word.split_once(':') {
        Some(("map_cpu", entries)) => Ok(CpuBind::Map(list(entries, set)?)),
        Some(("mask_cpu", entries)) => Ok(CpuBind::Map(list(entries, mask)?)),
        Some(("map_ldom", entries)) => Ok(CpuBind::NumaMap(list(entries, number)?)),
        Some(("mask_ldom", entries)) => Ok(CpuBind::NumaMap(list(entries, numa_mask)?)),
        _ => Ok(word.parse()?),
    }
}

/// The NUMA node in a mask, which must have exactly one.
fn numa_mask(text: &str) -> Result<u16, NoBinding> {
    let nodes = mask(text)?;
    match nodes.first() {
        Some(node) if nodes.len() == 1 => Ok(node),
        _ => Err(NoBinding::NumaMask { mask: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_srun_mean_what_they_mean_there() {
        for (text, expected) in [
            ("none", "none"),
            ("no", "none"),
            ("core", "cores"),
            ("cores", "cores"),
            ("verbose,cores", "cores"),
            ("q,threads", "threads"),
            ("map_cpu:0,2", "map:0,2"),
            ("mask_cpu:0x1,0xc", "map:0,2-3"),
            ("map_cpu:0*2,0x3", "map:0,0,3"),
            ("map_cpu:0-1,2+4", "map:0-1,2+4"),
            ("mask_cpu:0xf*2", "map:0-3,0-3"),
            ("map_ldom:0*2,0x1", "numa-map:0,0,1"),
            ("mask_ldom:0x2*2", "numa-map:1,1"),
            ("map:0,2-3", "map:0,2-3"),
            ("sockets", "sockets"),
            ("verbose,ldoms", "numa"),
            ("rank_ldom", "numa"),
            ("rank", "rank"),
            ("map_ldom:1,0", "numa-map:1,0"),
            ("mask_ldom:0x1,0x4", "numa-map:0,2"),
            ("hwthread", "threads"),
            ("l3cache", "l3caches"),
            ("gpu", "gpus"),
            ("nics", "nics"),
            ("cores:cores=2:over=numa", "cores:cores=2:over=numa"),
        ] {
            assert_eq!(parse(text).unwrap().bind.unwrap().to_string(), expected, "{text}");
        }
        let CpuBind::Map(sets) = binding("mask_cpu:0x5,F0").unwrap() else { panic!("a map") };
        assert_eq!(sets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0,2", "4-7"]);
    }

    #[test]
    fn verbose_shows_cpus_and_leaves_the_usual_binding() {
        let usual = |is_shown| BindRequest { bind: None, is_shown };
        for (text, expected) in
            [("verbose", usual(true)), ("v", usual(true)), ("quiet", usual(false)), ("q", usual(false))]
        {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        for (text, is_shown) in
            [("verbose,cores", true), ("v,map_cpu:0,1", true), ("quiet,cores", false), ("cores", false)]
        {
            let request = parse(text).unwrap();
            assert_eq!((request.bind.is_some(), request.is_shown), (true, is_shown), "{text}");
        }
    }

    #[test]
    fn what_is_no_binding_is_refused() {
        for text in [
            "",
            "corees",
            "verbose,corees",
            "mask_cpu:",
            "mask_cpu:0x",
            "mask_cpu:0",
            "mask_cpu:0x1,zz",
            "map_cpu:x",
            "mask_ldom:3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
