//! Memory of other processes, for tests of data that must not be in it. These tests require root.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use memchr::memmem;

/// Maximum size of a read, in bytes.
const CHUNK: usize = 1 << 20;
const PAGE: u64 = 4096;

/// Returns the positions in `needles` of the texts that are in the memory of the process. Only resident and swapped pages are searched,
/// because processes reserve far more memory than they ever write. Returns nothing if the process ends in the meantime.
///
/// # Panics
/// Panics if a needle is empty or longer than a chunk.
pub fn found(pid: u32, needles: &[&[u8]]) -> Vec<usize> {
    let longest = needles.iter().map(|needle| needle.len()).max().unwrap_or(1);
    assert!(longest < CHUNK && needles.iter().all(|needle| !needle.is_empty()), "needles can be looked for");
    let open = |file: &str| File::open(format!("/proc/{pid}/{file}"));
    let (Ok(memory), Ok(pagemap)) = (open("mem"), open("pagemap")) else { return Vec::new() };
    let mut found = vec![false; needles.len()];
    let mut bytes = vec![0; CHUNK + longest - 1];
    for (start, end) in resident(pid).into_iter().flat_map(|region| present(&pagemap, region)) {
        // Chunks overlap, so that no needle is split between two chunks.
        for at in (start..end).step_by(CHUNK) {
            let wanted = bytes.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            // Regions of devices cannot be read.
            let Ok(read) = memory.read_at(&mut bytes[..wanted], at) else { continue };
            for (needle, found) in needles.iter().zip(&mut found) {
                *found |= contains(&bytes[..read], needle);
            }
        }
    }
    (0..needles.len()).filter(|&needle| found[needle]).collect()
}

/// Returns true if `bytes` contains `needle`.
pub fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    memmem::find(bytes, needle).is_some()
}

/// Returns the positions of `needle` in `bytes`, without overlaps.
pub fn positions<'b>(bytes: &'b [u8], needle: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    memmem::find_iter(bytes, needle)
}

/// Returns the start and the end address of each region with a resident or swapped page, except unchanged mappings of files. The end is
/// exclusive.
fn resident(pid: u32) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut regions = Vec::new();
    let mut region = None;
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "Rss:" | "Swap:" if !rest.trim_start().starts_with("0 ") => regions.extend(region.take()),
            _ if !first.ends_with(':') => region = addresses(first).filter(|_| may_be_written(rest)),
            _ => {}
        }
    }
    regions
}

/// Returns true for memory without a file, or with write access. After rights, position and device comes the inode of the file.
fn may_be_written(rest: &str) -> bool {
    let mut words = rest.split_whitespace();
    words.next().is_some_and(|rights| rights.contains('w')) || words.nth(2) == Some("0")
}

fn addresses(words: &str) -> Option<(u64, u64)> {
    let (start, end) = words.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

/// Returns the resident and swapped parts of a region.
fn present(pagemap: &File, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
    /// Bits of a page that is in memory or in swap (`Documentation/admin-guide/mm/pagemap.rst`).
    const PRESENT: u64 = 3 << 62;
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut entries = vec![0; CHUNK];
    let mut page = start;
    while page < end {
        let left = usize::try_from((end - page) / PAGE * 8).unwrap_or(usize::MAX);
        let wanted = entries.len().min(left);
        let Ok(read @ 8..) = pagemap.read_at(&mut entries[..wanted], page / PAGE * 8) else { break };
        for entry in entries[..read].chunks_exact(8) {
            let bits = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            if bits & PRESENT != 0 {
                match parts.last_mut() {
                    Some((_, last)) if *last == page => *last += PAGE,
                    _ => parts.push((page, page + PAGE)),
                }
            }
            page += PAGE;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_is_found_and_what_it_has_not_is_not() {
        let own = std::hint::black_box(vec![171_u8; CHUNK * 2 + 7]);
        // The memory contains only the complement of these bytes, except during the search.
        let absent: Vec<u8> = (0..40_u8).map(|byte| byte.wrapping_mul(37) ^ 0x5a).collect();
        assert_eq!(found(std::process::id(), &[&own[..30]]), [0]);
        assert_eq!(found(u32::MAX / 4, &[&absent]), Vec::<usize>::new());
        assert!(contains(b"xxab", b"xab") && !contains(b"xxab", b"abx"));
    }

    #[test]
    fn regions_are_read_as_far_as_they_are_in_memory() {
        assert_eq!(addresses("7f00-7f01"), Some((0x7f00, 0x7f01)));
        assert_eq!(addresses("Size:"), None);
        let own = std::hint::black_box(vec![1_u8; 1 << 22]);
        let at = own.as_ptr() as u64 + (1 << 21);
        let regions = resident(std::process::id());
        let region = *regions.iter().find(|(start, end)| (*start..*end).contains(&at)).expect("it was written");
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        assert!(present(&pagemap, region).iter().any(|(start, end)| (*start..*end).contains(&at)));
    }
}
