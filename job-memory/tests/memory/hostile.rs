//! Ranks that try to change the memory, and descriptors of other files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use job_memory::{JobFacts, JobReader, JobWriter, NotReadable};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::JOB;

fn created() -> (JobWriter, OwnedFd) {
    JobWriter::with_capacity(&JobFacts { job_id: JOB.to_owned(), ..JobFacts::default() }, 1 << 20).unwrap()
}

#[test]
fn no_rank_can_change_the_memory_however_it_opens_it() {
    let (_writer, descriptor) = created();
    let for_reading = File::from(descriptor);
    let path = format!("/proc/self/fd/{}", for_reading.as_raw_fd());
    assert!((&for_reading).write_all(b"x").is_err());
    assert!(MmapRaw::map_raw(&for_reading).is_err());
    let mut for_writing = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert!(for_writing.write_all(b"x").is_err());
    assert!(MmapRaw::map_raw(&for_writing).is_err());
    for len in [0, 1 << 19, 1 << 21] {
        assert!(for_writing.set_len(len).is_err(), "set to {len} bytes");
    }
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert!(fallocate(&for_writing, hole, 0, 4096).is_err());
    assert!(fcntl(&for_writing, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    assert!(JobReader::of(for_reading, JOB).is_ok(), "it is as it was");
}

#[test]
fn memory_that_others_may_write_to_is_not_believed() {
    let file = File::from(memfd_create("lattice-job-memory", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(1 << 20).unwrap();
    assert!(matches!(JobReader::of(file.try_clone().unwrap(), JOB), Err(NotReadable::NotSealed)));
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK)).unwrap();
    assert!(matches!(JobReader::of(file, JOB), Err(NotReadable::Version { seen: 0 })));
}

#[test]
fn memory_shorter_than_a_header_is_refused() {
    for len in [0, 8, 128] {
        let mut file = File::from(memfd_create("lattice-job-memory", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all(&b"LATTJOB1\x01\0\0\0\x04\x03\x02\x01".repeat(8)[..len]).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK)).unwrap();
        let refused = JobReader::of(file, JOB).unwrap_err();
        assert!(matches!(refused, NotReadable::Version { .. } | NotReadable::System(_)), "{len} bytes: {refused}");
    }
}

#[test]
fn a_descriptor_that_is_something_else_is_left_alone() {
    let check = |file: &File, expected: &str| {
        let refused = JobReader::inherited(file.as_raw_fd(), JOB).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    check(&File::open("/dev/null").unwrap(), "is no job memory: /dev/null");
    check(&File::from(memfd_create("other", MFdFlags::empty()).unwrap()), "is no job memory: /memfd:other");
    let refused = JobReader::inherited(i32::MAX, JOB).unwrap_err().to_string();
    assert_eq!(refused, "descriptor 2147483647 is no job memory: No such file or directory (os error 2)");
    let (_writer, descriptor) = created();
    assert!(JobReader::inherited(descriptor.as_raw_fd(), JOB).is_ok());
}

#[test]
fn a_map_for_reading_can_be_made_of_part_of_it() {
    let (_writer, descriptor) = created();
    let map = MmapOptions::new().len(4096).map_raw_read_only(&File::from(descriptor)).unwrap();
    assert_eq!(map.len(), 4096);
}
