//! Memory of other processes, for tests of what must not be in it. It takes root.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use memchr::memmem;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;
const PAGE: u64 = 4096;

/// Positions in `needles` of those that the memory of the process has somewhere. Only pages that are in memory are looked at, for processes
/// reserve far more than they ever write. A process that ends meanwhile has none.
///
/// # Panics
/// If a needle is empty or longer than a chunk.
pub fn found(pid: u32, needles: &[&[u8]]) -> Vec<usize> {
    let longest = needles.iter().map(|needle| needle.len()).max().unwrap_or(1);
    assert!(longest < CHUNK && needles.iter().all(|needle| !needle.is_empty()), "needles can be looked for");
    let open = |file: &str| File::open(format!("/proc/{pid}/{file}"));
    let (Ok(memory), Ok(pagemap)) = (open("mem"), open("pagemap")) else { return Vec::new() };
    let mut found = vec![false; needles.len()];
    let mut bytes = vec![0; CHUNK + longest - 1];
    for (start, end) in resident(pid).into_iter().flat_map(|region| present(&pagemap, region)) {
        // Chunks overlap, so that no needle lies between two.
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

/// True if `needle` stands somewhere in `bytes`.
pub fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    memmem::find(bytes, needle).is_some()
}

/// Positions of `needle` in `bytes`, which do not overlap.
pub fn positions<'b>(bytes: &'b [u8], needle: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    memmem::find_iter(bytes, needle)
}

/// First and one past the last address of each region of which at least a page is in memory, but for what is as it is in a file.
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

/// True for memory that no file holds, or that can be written to; after rights, position and device comes the file's inode.
fn may_be_written(rest: &str) -> bool {
    let mut words = rest.split_whitespace();
    words.next().is_some_and(|rights| rights.contains('w')) || words.nth(2) == Some("0")
}

fn addresses(words: &str) -> Option<(u64, u64)> {
    let (start, end) = words.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

/// The parts of a region that are in memory.
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
        // Of these bytes memory has the complement alone, but for the moment in which they are looked for.
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
