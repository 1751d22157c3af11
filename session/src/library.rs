//! Finds the MPI library of a rank in the memory map of its process, or in the list of libraries that its program
//! needs.

use std::fs;
use std::path::Path;

use object::read::elf::{Dyn, FileHeader};

use crate::event::{MpiFamily, MpiLibrary};

/// File names that identify an MPI library: prefix of the name, library, protocol.
///
/// `mpirun` of Open MPI has `libopen-rte`, `libopen-pal` and `libpmix` without `libmpi`, and is no MPI program. The
/// order matters: `libmpi.so.12` is the common name of MPICH and compatible libraries, `libmpi.so.40` is Open MPI's.
const KNOWN: &[(&str, &str, MpiFamily)] = &[
    ("libmpi_cray", "Cray MPICH", MpiFamily::Vendor),
    ("libmpi_gnu", "Cray MPICH", MpiFamily::Vendor),
    ("libmpi.so.40", "Open MPI", MpiFamily::Pmix),
    ("libmpi.so.20", "Open MPI", MpiFamily::Pmix),
    ("libmpich", "MPICH", MpiFamily::Pmi),
    ("libmpi.so.12", "MPICH or Intel MPI", MpiFamily::Pmi),
    ("libmpi.so.0", "MPICH", MpiFamily::Pmi),
    ("libpmi2.so", "a PMI-2 program", MpiFamily::Pmi),
    ("libpmi.so", "a PMI-1 program", MpiFamily::Pmi),
];

/// Returns the MPI library that the process has mapped, if any and if the process can be inspected.
pub fn in_process(pid: u32) -> Option<MpiLibrary> {
    // Paths of mapped files need not be UTF-8.
    let map = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let map = String::from_utf8_lossy(&map);
    best(map.lines().filter_map(|line| line.split_whitespace().nth(5)))
}

/// Returns true if the library of the process can still contact its PMI server: a silent process may then only be slow.
///
/// The function reads the environment with which the program was started. A descriptor counts only while it is open, a
/// port always.
pub fn may_still_call(pid: u32, family: Option<MpiFamily>) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let value = |name: &str| {
        let mut variables = environment.split(|&byte| byte == 0);
        variables.find_map(|variable| str::from_utf8(variable).ok()?.strip_prefix(name)?.strip_prefix('='))
    };
    let is_open = |fd: &str| fs::symlink_metadata(format!("/proc/{pid}/fd/{fd}")).is_ok();
    let by_pmi = || value("PMI_FD").is_some_and(is_open) || value("PMI_PORT").is_some();
    let by_pmix = || value("PMIX_NAMESPACE").is_some();
    match family {
        Some(MpiFamily::Pmi) => by_pmi(),
        Some(MpiFamily::Pmix) => by_pmix(),
        None => by_pmi() || by_pmix(),
        Some(_) => false,
    }
}

/// Returns the MPI library that the program lists as needed. A script has no such list. The list omits libraries that
/// are loaded later.
pub fn needed_by(program: &Path) -> Option<MpiLibrary> {
    // The file is read in pieces: a program may be much larger than its list of libraries.
    let cache = object::ReadCache::new(fs::File::open(program).ok()?);
    let header = object::elf::FileHeader64::<object::Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &cache).ok()?;
    let (entries, link) = sections.dynamic(endian, &cache).ok()??;
    let strings = sections.strings(endian, &cache, link).ok()?;
    let needed: Vec<String> = entries
        .iter()
        .filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED)
        .filter_map(|entry| Some(String::from_utf8_lossy(entry.string(endian, strings).ok()?).into_owned()))
        .collect();
    best(needed.iter().map(String::as_str))
}

/// Returns the MPI library in a file, by the name of the file.
pub fn of_file(file: &Path) -> Option<MpiLibrary> {
    best(std::iter::once(file.to_str()?))
}

/// Returns the first known library, in the order of the table.
fn best<'a>(files: impl Iterator<Item = &'a str> + Clone) -> Option<MpiLibrary> {
    let base_name = |file: &'a str| file.rsplit('/').next().unwrap_or(file);
    KNOWN.iter().find_map(|&(prefix, name, family)| {
        let file = files.clone().find(|file| base_name(file).starts_with(prefix))?;
        Some(MpiLibrary { name: name.to_owned(), file: file.to_owned(), family })
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn libraries_are_told_by_their_files() {
        let check = |files: &[&str], expected: Option<&str>| {
            assert_eq!(best(files.iter().copied()).map(|library| library.name).as_deref(), expected);
        };
        check(&["/usr/lib/libc.so.6"], None);
        check(&["/usr/lib/libpmix.so.2", "/opt/lib/libmpi.so.40.30.4"], Some("Open MPI"));
        check(&["/usr/lib/x86_64-linux-gnu/libmpich.so.12.2.0"], Some("MPICH"));
        check(&["/opt/lib/libopen-rte.so.40", "/opt/lib/libopen-pal.so.40.30.4", "/usr/lib/libpmix.so.2"], None);
        check(&["libmpi.so.12"], Some("MPICH or Intel MPI"));
    }

    #[test]
    fn a_process_may_call_while_it_has_its_descriptor_or_its_variables() {
        let check = |variables: &[(&str, &str)], family, expected: bool| {
            let mut command = Command::new("/bin/cat");
            command.arg("/proc/self/environ").arg("-").env_clear().env("OTHER", "1").envs(variables.iter().copied());
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // The first byte of output shows that the process has its environment.
            process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let may = may_still_call(process.id(), family);
            process.kill().unwrap();
            process.wait().unwrap();
            assert_eq!(may, expected, "{variables:?} {family:?}");
        };
        let (open, closed) = (("PMI_FD", "0"), ("PMI_FD", "999999"));
        check(&[open], Some(MpiFamily::Pmi), true);
        check(&[open], None, true);
        check(&[closed], Some(MpiFamily::Pmi), false);
        check(&[closed, ("PMI_PORT", "[::1]:7")], Some(MpiFamily::Pmi), true);
        check(&[open], Some(MpiFamily::Pmix), false);
        check(&[("PMIX_NAMESPACE", "job")], Some(MpiFamily::Pmix), true);
        check(&[open, ("PMIX_NAMESPACE", "job")], Some(MpiFamily::Vendor), false);
        check(&[], None, false);
    }

    #[test]
    fn a_program_without_mpi_needs_none() {
        assert_eq!(needed_by(Path::new("/bin/sh")), None);
        assert_eq!(needed_by(Path::new("/nonexistent")), None);
        assert_eq!(in_process(std::process::id()), None);
    }
}
