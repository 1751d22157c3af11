//! Caches of CPUs, from `/sys/devices/system/cpu/cpu*/cache`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::SYSTEM_CPU;
use crate::cpus::CpuSet;
use crate::root::{ReadError, Root};
use crate::template::{CacheKind, CacheType, Group};

/// Number of caches of a CPU that are read, by index.
const CACHES_MAX: usize = 10;

/// Caches found so far.
#[derive(Default)]
pub(super) struct Caches {
    /// By directory index. Caches with the same index have the same kind, except on processors with several kinds of
    /// cores.
    found: [CpuSet; CACHES_MAX],
    /// Indexes of the caches of a core, by its first CPU. Saves one directory read for each further CPU of the core.
    indexes: HashMap<u16, Vec<usize>>,
    /// Properties of a cache, by index and size. Saves five file reads for each of hundreds of caches.
    known: HashMap<(usize, u64), Option<CacheKind>>,
    kinds: Vec<CacheKind>,
}

impl Caches {
    /// Adds the caches of a CPU that serve no earlier CPU. `core` has the CPUs of its core.
    pub(super) fn read(&mut self, root: &Root, cpu: u16, core: &CpuSet, online: &CpuSet) -> Result<(), ReadError> {
        // Indexes have gaps if the kernel does not show a cache.
        let indexes = match self.indexes.entry(core.first().unwrap_or(cpu)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(root.numbered(&format!("{SYSTEM_CPU}/cpu{cpu}/cache"), "index")?),
        };
        for index in indexes.iter().copied().filter(|&index| index < CACHES_MAX) {
            if self.found[index].contains(cpu) {
                continue;
            }
            let about = format!("{SYSTEM_CPU}/cpu{cpu}/cache/index{index}");
            let Some(list) = root.list(&format!("{about}/shared_cpu_list"))? else { continue };
            // The kernel does not always list the CPUs that share a cache.
            let list = if list.is_empty() { core } else { &list };
            let cpus = list.intersection(online);
            if !cpus.contains(cpu) {
                continue;
            }
            self.found[index].add(&cpus);
            let size = root.number::<u64>(&format!("{about}/size")).unwrap_or(0).saturating_mul(1024);
            let kind = self.known.entry((index, size)).or_insert_with(|| describe(root, &about, size));
            let Some(kind) = kind.clone() else { continue };
            let group = Group { cpus, id: root.number(&format!("{about}/id")) };
            let same = |other: &&mut CacheKind| CacheKind { instances: Vec::new(), ..(**other).clone() } == kind;
            match self.kinds.iter_mut().find(same) {
                Some(kind) => kind.instances.push(group),
                None => self.kinds.push(CacheKind { instances: vec![group], ..kind }),
            }
        }
        Ok(())
    }

    pub(super) fn into_kinds(self) -> Vec<CacheKind> {
        self.kinds
    }
}

/// Level, type, line size and ways of a cache; `None` if the kernel does not report level and type.
fn describe(root: &Root, about: &str, size: u64) -> Option<CacheKind> {
    let number = |name: &str| root.number::<u32>(&format!("{about}/{name}"));
    let kind = match root.word(&format!("{about}/type"))?.as_str() {
        "Data" => CacheType::Data,
        "Instruction" => CacheType::Instruction,
        _ => CacheType::Unified,
    };
    let level = u8::try_from(number("level")?).ok()?;
    let line = number("coherency_line_size").unwrap_or(0);
    let sets = number("number_of_sets").unwrap_or(0);
    let lines_a_tag = number("physical_line_partition").unwrap_or(1);
    // `ways_of_associativity` has different meanings on different processors.
    let bytes_a_way =
        [lines_a_tag, sets].into_iter().fold(u64::from(line), |way, times| way.saturating_mul(times.into()));
    let ways = if sets > 1 { size.checked_div(bytes_a_way).unwrap_or(0) } else { 0 };
    Some(CacheKind { level, kind, size, line, ways: u32::try_from(ways).unwrap_or(0), instances: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numbers_that_no_cache_has_end_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join(SYSTEM_CPU).join("cpu0/cache/index0");
        fs::create_dir_all(&cache).unwrap();
        let (number, size) = (u32::MAX.to_string(), format!("{}K", u64::MAX));
        for (file, text) in [
            ("type", "Unified"),
            ("level", "1"),
            ("shared_cpu_list", "0"),
            ("size", &size),
            ("coherency_line_size", &number),
            ("number_of_sets", &number),
            ("physical_line_partition", &number),
        ] {
            fs::write(cache.join(file), text).unwrap();
        }
        let (mut caches, only) = (Caches::default(), "0".parse::<CpuSet>().unwrap());
        caches.read(&Root::at(directory.path()), 0, &only, &only).unwrap();
        let kinds = caches.into_kinds();
        assert_eq!((kinds.len(), kinds[0].size, kinds[0].ways), (1, u64::MAX, 1));
    }
}
