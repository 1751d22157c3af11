//! `--mem-bind`, in the words of srun(1).

use rank_spawner::{CpuSet, MemBind, MemoryNodes, Strictness};

use super::cpu_bind::{NoBinding, mask};

/// Refusal of a text as a binding of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoMemBinding {
    #[error(
        "{word:?} binds memory to nothing; none, local, rank, map_mem:LIST and mask_mem:LIST are possible, with `prefer,` before them"
    )]
    Word { word: String },
    #[error("{word:?} is one binding too many")]
    Twice { word: String },
    #[error("{number:?} is not the number of a NUMA node")]
    Number { number: String },
    #[error(transparent)]
    Mask(#[from] NoBinding),
}

/// Reads one entry of a list: the NUMA nodes of a rank.
type ReadEntry = fn(&str) -> Result<CpuSet, NoMemBinding>;

/// Reads words between commas, of which a map's or a mask's list may have several. `verbose`, `quiet` and `nosort` say nothing about the nodes.
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
                let read: ReadEntry = if name == "map_mem" { one } else { |word| Ok(mask(word)?) };
                of_list = Some(read);
                MemoryNodes::Map(vec![read(first)?])
            }
            _ => match (&mut nodes, of_list) {
                (Some(MemoryNodes::Map(list)), Some(read)) => {
                    list.push(read(word)?);
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
        // Without a binding there is nothing to prefer.
        None => Ok(MemBind::None),
    }
}

/// The one NUMA node of a number, in hexadecimal behind `0x`.
fn one(number: &str) -> Result<CpuSet, NoMemBinding> {
    let node = match number.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => number.parse(),
    };
    let node = node.map_err(|_| NoMemBinding::Number { number: number.to_owned() })?;
    Ok([node].into_iter().collect())
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
