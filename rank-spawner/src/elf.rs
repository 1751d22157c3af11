//! Header of an ELF file (`elf(5)`): the fields that decide if this machine can execute the file.
//!
//! The crate `object` reads the structures. This module defines the machine of this program, the names of other machines, and
//! the limits for reading a file with a false header.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use object::elf::{self, FileHeader32, FileHeader64, FileType, Machine};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

const OUR_MACHINE: Machine = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64
} else if cfg!(target_arch = "aarch64") {
    elf::EM_AARCH64
} else if cfg!(target_arch = "riscv64") {
    elf::EM_RISCV
} else if cfg!(target_arch = "powerpc64") {
    elf::EM_PPC64
} else if cfg!(target_arch = "s390x") {
    elf::EM_S390
} else {
    panic!("add the ELF machine number of this architecture")
};

/// Number of program headers above which the kernel rejects a program: their table may have 64 KiB.
const PROGRAM_HEADERS_MAX: u16 = (65_536 / size_of::<elf::ProgramHeader64<Endianness>>()) as u16;

/// Length of the loader's path above which the kernel rejects a program, in bytes (`PATH_MAX`).
const INTERPRETER_MAX: u64 = 4096;

/// Header of an ELF file. Each method reads only the parts of the file that it needs.
pub(crate) struct Header<'file> {
    file: &'file ReadCache<File>,
    endian: Endianness,
    kind: FileType,
    machine: Machine,
    /// The 64-bit header; `None` for a 32-bit file, of which no more is read.
    wide: Option<&'file FileHeader64<Endianness>>,
}

impl<'file> Header<'file> {
    /// Reads a header; `None` if the file is not an ELF file.
    pub(crate) fn parse(file: &'file ReadCache<File>) -> Option<Self> {
        if let Ok(header) = FileHeader64::<Endianness>::parse(file) {
            let endian = header.endian().ok()?;
            let (kind, machine) = (header.e_type(endian), header.e_machine(endian));
            return Some(Self { file, endian, kind, machine, wide: Some(header) });
        }
        let header = FileHeader32::<Endianness>::parse(file).ok()?;
        let endian = header.endian().ok()?;
        let (kind, machine) = (header.e_type(endian), header.e_machine(endian));
        Some(Self { file, endian, kind, machine, wide: None })
    }

    /// True if word size, byte order and machine equal this program's.
    pub(crate) fn is_ours(&self) -> bool {
        self.wide.is_some() && self.endian == Endianness::default() && self.machine == OUR_MACHINE
    }

    /// Name of the architecture, as `uname -m` prints it.
    pub(crate) fn architecture(&self) -> Cow<'static, str> {
        let little = self.endian == Endianness::Little;
        Cow::Borrowed(match (self.machine, self.wide.is_some(), little) {
            (elf::EM_386, ..) => "i386",
            (elf::EM_MIPS, ..) => "mips",
            (elf::EM_PPC, ..) => "powerpc",
            (elf::EM_PPC64, _, true) => "powerpc64le",
            (elf::EM_PPC64, ..) => "powerpc64",
            (elf::EM_S390, true, _) => "s390x",
            (elf::EM_ARM, ..) => "arm",
            (elf::EM_SPARCV9, ..) => "sparc64",
            (elf::EM_IA_64, ..) => "ia64",
            (elf::EM_X86_64, true, _) => "x86_64",
            (elf::EM_X86_64, false, _) => "x32",
            (elf::EM_AARCH64, ..) => "aarch64",
            (elf::EM_RISCV, true, _) => "riscv64",
            (elf::EM_RISCV, false, _) => "riscv32",
            (elf::EM_LOONGARCH, ..) => "loongarch64",
            (Machine(number), ..) => return Cow::Owned(format!("ELF machine {number}")),
        })
    }

    /// Kind of the file if it is not a program; `None` for a program.
    pub(crate) fn not_a_program(&self) -> Option<&'static str> {
        match self.kind {
            elf::ET_REL => Some("an object file that was not linked"),
            // Programs at a fixed address, and position-independent programs.
            elf::ET_EXEC | elf::ET_DYN => None,
            elf::ET_CORE => Some("a core dump"),
            _ => Some("an ELF file of unknown type"),
        }
    }

    /// Path of the program's dynamic loader; `None` for a static program, a 32-bit program, or an unreadable path.
    ///
    /// Reads at most 68 KiB, independently of the file's content.
    pub(crate) fn interpreter(&self) -> Option<PathBuf> {
        let header = self.wide?;
        // `object` would take a larger number from another place in the file, and read that many headers.
        if header.e_phnum(self.endian) > PROGRAM_HEADERS_MAX {
            return None;
        }
        let headers = header.program_headers(self.endian, self.file).ok()?;
        let interpreter = headers.iter().find(|header| header.p_type(self.endian) == elf::PT_INTERP)?;
        if interpreter.p_filesz(self.endian) > INTERPRETER_MAX {
            return None;
        }
        let path = interpreter.interpreter(self.endian, self.file).ok()??;
        Some(OsString::from_vec(path.to_owned()).into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LITTLE: u8 = 1;
    const BIG: u8 = 2;

    /// A header of 64 bytes with no data after it.
    fn header(class: u8, data: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data, 1]);
        let order = |number: u16| if data == BIG { number.to_be_bytes() } else { number.to_le_bytes() };
        bytes[16..18].copy_from_slice(&order(kind));
        bytes[18..20].copy_from_slice(&order(machine));
        bytes
    }

    fn file(bytes: &[u8]) -> ReadCache<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        ReadCache::new(file)
    }

    #[test]
    fn architectures_have_the_names_people_know() {
        let check = |class, data, machine, expected| {
            let file = file(&header(class, data, 2, machine));
            let header = Header::parse(&file).unwrap();
            assert_eq!(header.architecture(), expected);
            assert!(!header.is_ours() || expected == std::env::consts::ARCH);
        };
        check(2, LITTLE, 62, "x86_64");
        check(1, LITTLE, 62, "x32");
        check(2, LITTLE, 183, "aarch64");
        check(2, BIG, 21, "powerpc64");
        check(2, LITTLE, 21, "powerpc64le");
        check(1, LITTLE, 3, "i386");
        check(2, LITTLE, 4711, "ELF machine 4711");
    }

    #[test]
    fn this_test_is_a_program_of_ours_and_names_its_loader() {
        let file = ReadCache::new(File::open("/proc/self/exe").unwrap());
        let header = Header::parse(&file).unwrap();
        assert!(header.is_ours());
        assert_eq!(header.not_a_program(), None);
        if let Some(loader) = header.interpreter() {
            assert!(loader.is_absolute() && loader.exists(), "{loader:?}");
        }
    }

    #[test]
    fn object_files_and_short_files_are_no_programs() {
        let check = |kind, expected| {
            let file = file(&header(2, LITTLE, kind, 62));
            assert_eq!(Header::parse(&file).unwrap().not_a_program(), Some(expected));
        };
        check(1, "an object file that was not linked");
        check(4, "a core dump");
        check(0xfe00, "an ELF file of unknown type");
        for bytes in [b"\x7fELF".as_slice(), b"", &header(3, LITTLE, 2, 62), &header(2, LITTLE, 2, 62)[..63]] {
            assert!(Header::parse(&file(bytes)).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn a_lying_program_header_table_costs_nothing() {
        let data = if cfg!(target_endian = "big") { BIG } else { LITTLE };
        let entry_len = 56_u16;
        let check = |offset: u64, len: u16, count: u16, rest: &[u8]| {
            let mut bytes = header(2, data, 2, OUR_MACHINE.0);
            bytes[32..40].copy_from_slice(&offset.to_ne_bytes());
            bytes[54..56].copy_from_slice(&len.to_ne_bytes());
            bytes[56..58].copy_from_slice(&count.to_ne_bytes());
            bytes.extend(rest);
            assert_eq!(Header::parse(&file(&bytes)).unwrap().interpreter(), None);
        };
        check(u64::MAX, entry_len, 10, &[]);
        check(64, entry_len, 10, &[]);
        check(64, entry_len, u16::MAX, &[0; 128]);
        check(64, entry_len + 8, 1, &[0; 128]);
        // Loader with a path beyond the end of the file, and with a path without a terminator.
        let entry = |offset: u64, len: u64| {
            let mut entry = vec![0; 56 + 8];
            entry[..4].copy_from_slice(&3_u32.to_ne_bytes());
            entry[8..16].copy_from_slice(&offset.to_ne_bytes());
            entry[32..40].copy_from_slice(&len.to_ne_bytes());
            entry[56..].fill(b'x');
            entry
        };
        check(64, entry_len, 1, &entry(1 << 40, 8));
        check(64, entry_len, 1, &entry(120, 8));
        check(64, entry_len, 1, &entry(0, u64::MAX));
    }
}
