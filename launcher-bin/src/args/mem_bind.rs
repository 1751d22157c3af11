//! `--mem-bind`, in the words of srun(1).

use rank_spawner::{CpuSet, MemBind, MemoryNodes, Strictness};

use super::list_entries::{NoEntry, add, mask, number};

/// Error for a text that is no binding of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoMemBinding {
    #[error(
        "{word:?} binds memory to nothing; none, local, rank, map_mem:LIST and mask_mem:LIST are possible, with `prefer,` before them"
    )]
    Word { word: String },
    #[error("{word:?} is one binding too many")]
    Twice { word: String },
    #[error("NUMA nodes: {0}")]
    Entry(#[from] NoEntry),
}

/// Parser of one list entry: the NUMA nodes of a rank.
type ReadEntry = fn(&str) -> Result<CpuSet, NoEntry>;

/// Parses words separated by commas. The list of a map or mask may span several words. `verbose`, `quiet`, `sort` and `nosort` do not affect the
/// nodes.
pub(super) fn parse(text: &str) -> Result<MemBind, NoMemBinding> {
    let (mut nodes, mut is_none, mut strictness) = (None, false, Strictness::Bound);
    let mut of_list: Option<ReadEntry> = None;
    for word in text.split(',') {
        let (name, first) = word.split_once(':').map_or((word, None), |(name, first)| (name, Some(first)));
        let chosen = match (name, first) {
            ("verbose" | "v" | "quiet" | "q" | "sort" | "nosort", None) => continue,
            ("prefer" | "p", None) => {
                strictness = Strictness::Preferred;
                continue;
            }
            ("none" | "no", None) => {
                is_none = true;
                continue;
            }
            ("local", None) => MemoryNodes::Local,
            ("rank", None) => MemoryNodes::Rank,
            ("map_mem" | "mask_mem", Some(first)) => {
                let read: ReadEntry = if name == "map_mem" { one } else { mask };
                of_list = Some(read);
                let mut list = Vec::new();
                add(&mut list, first, read)?;
                MemoryNodes::Map(list)
            }
            _ => match (&mut nodes, of_list) {
                (Some(MemoryNodes::Map(list)), Some(read)) => {
                    add(list, word, read)?;
                    continue;
                }
                _ => return Err(NoMemBinding::Word { word: word.to_owned() }),
            },
        };
        if nodes.replace(chosen).is_some() {
            return Err(NoMemBinding::Twice { word: word.to_owned() });
        }
    }
    match nodes {
        Some(nodes) if !is_none => Ok(MemBind::To { nodes, strictness }),
        Some(_) => Err(NoMemBinding::Twice { word: "none".to_owned() }),
        // Without a binding, `prefer` has no effect.
        None => Ok(MemBind::None),
    }
}

/// The set of one NUMA node, by its number.
fn one(text: &str) -> Result<CpuSet, NoEntry> {
    Ok([number(text)?].into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_srun_is_read() {
        for (text, expected) in [
            ("none", "none"),
            ("no", "none"),
            ("quiet", "none"),
            ("verbose,no", "none"),
            ("local", "local"),
            ("v,local", "local"),
            ("prefer,local", "local:prefer"),
            ("local,p", "local:prefer"),
            ("rank,nosort", "rank"),
            ("map_mem:0,1,0x2", "map:0,1,2"),
            ("prefer,map_mem:1", "map:1:prefer"),
            ("map_mem:0*2,1*2,prefer", "map:0,0,1,1:prefer"),
            ("mask_mem:0x3*2,4", "map:0-1,0-1,2"),
            ("mask_mem:0x3,0x4", "map:0-1,2"),
            ("mask_mem:5,2,prefer,verbose", "map:0+2,1:prefer"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
        }
        for text in [
            "",
            "numa",
            "local,rank",
            "none,local",
            "map_mem",
            "map_mem:",
            "map_mem:x",
            "local,0",
            "mask_mem:0",
            "map_mem:-1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
