//! As much of an ELF file as tells whether this machine can run it (`elf(5)`).

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The size of a 64-bit ELF header, in bytes; a 32-bit one is shorter.
pub(crate) const HEADER_LEN: usize = 64;

const CLASS_64: u8 = 2;
const OUR_DATA: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else if cfg!(target_arch = "riscv64") {
    243
} else if cfg!(target_arch = "powerpc64") {
    21
} else if cfg!(target_arch = "s390x") {
    22
} else {
    panic!("add the ELF machine number of this architecture")
};

/// What the first bytes of an ELF file say.
pub(crate) struct Header {
    class: u8,
    data: u8,
    kind: u16,
    machine: u16,
    program_headers: u64,
    program_header_len: u16,
    program_header_count: u16,
}

impl Header {
    /// Reads a header; `None` if the bytes are not the beginning of an ELF file.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(b"\x7fELF") || bytes.len() < HEADER_LEN {
            return None;
        }
        let (class, data) = (bytes[4], bytes[5]);
        let short = |at: usize| {
            let pair = [bytes[at], bytes[at + 1]];
            if data == 2 { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
        };
        Some(Self {
            class,
            data,
            kind: short(16),
            machine: short(18),
            // These three are used only where class and byte order are ours.
            program_headers: u64::from_ne_bytes(bytes[32..40].try_into().ok()?),
            program_header_len: short(54),
            program_header_count: short(56),
        })
    }

    /// Whether class, byte order and machine are those of this program.
    pub(crate) fn is_ours(&self) -> bool {
        (self.class, self.data, self.machine) == (CLASS_64, OUR_DATA, OUR_MACHINE)
    }

    /// The architecture in the words of `uname -m`.
    pub(crate) fn architecture(&self) -> Cow<'static, str> {
        let wide = self.class == CLASS_64;
        let little = self.data == 1;
        Cow::Borrowed(match (self.machine, wide, little) {
            (3, ..) => "i386",
            (8, ..) => "mips",
            (20, ..) => "powerpc",
            (21, _, true) => "powerpc64le",
            (21, ..) => "powerpc64",
            (22, true, _) => "s390x",
            (40, ..) => "arm",
            (43, ..) => "sparc64",
            (50, ..) => "ia64",
            (62, true, _) => "x86_64",
            (62, false, _) => "x32",
            (183, ..) => "aarch64",
            (243, true, _) => "riscv64",
            (243, false, _) => "riscv32",
            (258, ..) => "loongarch64",
            (other, ..) => return Cow::Owned(format!("ELF machine {other}")),
        })
    }

    /// What the file is, where it is not a program.
    pub(crate) fn not_a_program(&self) -> Option<&'static str> {
        match self.kind {
            1 => Some("an object file that was not linked"),
            // Programs at a fixed address, and position-independent ones.
            2 | 3 => None,
            4 => Some("a core dump"),
            _ => Some("an ELF file of unknown type"),
        }
    }

    /// The dynamic loader that the program names; `None` for a static program, or where it cannot be read.
    ///
    /// Only for headers that are ours. Reads at most 64 KiB, whatever the file says.
    pub(crate) fn interpreter(&self, file: &File) -> Option<PathBuf> {
        const INTERP: u32 = 3;
        const ENTRY_LEN: usize = 56;
        const PATH_MAX: u64 = 4096;
        let entry_len = usize::from(self.program_header_len);
        let table_len = entry_len * usize::from(self.program_header_count);
        // The kernel refuses other entries and longer tables as well.
        if entry_len != ENTRY_LEN || table_len > 65_536 {
            return None;
        }
        let mut table = vec![0; table_len];
        file.read_exact_at(&mut table, self.program_headers).ok()?;
        let entry = table.chunks_exact(ENTRY_LEN).find(|entry| entry[..4] == INTERP.to_ne_bytes())?;
        let long = |at: usize| entry[at..at + 8].try_into().ok().map(u64::from_ne_bytes);
        let (offset, len) = (long(8)?, long(32)?);
        let mut path = vec![0; usize::try_from(len.min(PATH_MAX)).ok()?];
        file.read_exact_at(&mut path, offset).ok()?;
        path.truncate(path.iter().position(|&byte| byte == 0)?);
        Some(OsString::from_vec(path).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, data: u8, kind: u16, machine: u16) -> Option<Header> {
        let mut bytes = [0; HEADER_LEN];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data]);
        let order = |number: u16| if data == 2 { number.to_be_bytes() } else { number.to_le_bytes() };
        bytes[16..18].copy_from_slice(&order(kind));
        bytes[18..20].copy_from_slice(&order(machine));
        Header::parse(&bytes)
    }

    #[test]
    fn architectures_have_the_names_people_know() {
        let check = |class, data, machine, expected| {
            let header = header(class, data, 2, machine).unwrap();
            assert_eq!(header.architecture(), expected);
            assert!(!header.is_ours() || expected == std::env::consts::ARCH);
        };
        check(2, 1, 62, "x86_64");
        check(1, 1, 62, "x32");
        check(2, 1, 183, "aarch64");
        check(2, 2, 21, "powerpc64");
        check(2, 1, 21, "powerpc64le");
        check(1, 1, 3, "i386");
        check(2, 1, 4711, "ELF machine 4711");
    }

    #[test]
    fn this_test_is_a_program_of_ours_and_names_its_loader() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut bytes = [0; HEADER_LEN];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let header = Header::parse(&bytes).unwrap();
        assert!(header.is_ours());
        assert_eq!(header.not_a_program(), None);
        if let Some(loader) = header.interpreter(&file) {
            assert!(loader.is_absolute() && loader.exists(), "{loader:?}");
        }
    }

    #[test]
    fn object_files_and_short_files_are_no_programs() {
        assert_eq!(header(2, 1, 1, 62).unwrap().not_a_program(), Some("an object file that was not linked"));
        assert_eq!(header(2, 1, 4, 62).unwrap().not_a_program(), Some("a core dump"));
        assert!(Header::parse(b"\x7fELF").is_none());
    }

    #[test]
    fn a_lying_program_header_table_costs_nothing() {
        let mut header = header(2, OUR_DATA, 2, OUR_MACHINE).unwrap();
        header.program_headers = u64::MAX;
        header.program_header_len = 56;
        header.program_header_count = u16::MAX;
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(header.interpreter(&file), None);
        header.program_header_count = 10;
        assert_eq!(header.interpreter(&file), None);
    }
}
