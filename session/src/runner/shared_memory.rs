//! Shared memory of MPI libraries that has ambiguous names, or that stays on a node.
//!
//! MPICH leaves shared memory when a program ends without `MPI_Finalize`. Since 4.2, ranks of a node meet in a POSIX shared-memory
//! object. Each rank derives the name of the object from PMI data. The object is removed when the rank that made it finalizes. A rank
//! that is killed, crashes or calls `MPI_Abort` leaves it, with megabytes of the node's memory. No other launcher removes it (Hydra
//! 5.0.2: measured).
//!
//! Open MPI 4.1 names a segment `vader_segment.HOST.UID.JOB.LOCAL_RANK`. Two nodes can be one host: a cluster on the loopback interface,
//! or `--via ssh` to one machine under two names. Their ranks use each other's segments, and crash (measured with 4.1.4).

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::gethostname;
use pmi_core::ids::NodeIndex;

use crate::spec::SessionSpec;

/// Directory of POSIX shared memory (`shm_open(3)`).
const DIRECTORY: &str = "/dev/shm";

/// Returns the paths of the objects that this node's ranks of the job may have made; most jobs have none of them. The names are MPICH
/// 5.0.2's (`src/mpid/ch4/shm/posix`): a word, the hash of the name of the key-value space, the node's number in `PMI_process_mapping`.
pub(super) fn of_mpich(spec: &SessionSpec) -> [PathBuf; 2] {
    let NodeIndex(node) = spec.node;
    let world = fnv1a(spec.job.id.as_str().as_bytes());
    ["mpich_shm", "mpich_vci"].map(|word| PathBuf::from(format!("{DIRECTORY}/{word}_{world:x}_{node}")))
}

/// Removes these objects. The session runs as the user, so an object of another user with such a name stays.
pub(super) fn remove_mpich(spec: &SessionSpec) {
    for object in of_mpich(spec) {
        let _ = fs::remove_file(object);
    }
}

/// Returns a separate directory for the segments of Open MPI 4.1, if the node may share its host with other nodes: its name is not the
/// host's.
pub(super) fn of_open_mpi(spec: &SessionSpec) -> Option<PathBuf> {
    let host = gethostname().ok()?.to_string_lossy().into_owned();
    let has_it_in_common = spec.hosts.len() > 1 && label(spec.host(spec.node)) != label(&host);
    has_it_in_common.then(|| Path::new(DIRECTORY).join(spec.directory_name()))
}

/// Returns a name without its domain.
fn label(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

/// The 32-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first value comes from the authors of the hash; the other one is the name that MPICH 5.0.2 made.
    #[test]
    fn names_are_hashed_as_mpich_does() {
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv1a(b"kvs_qvgc05argm_0"), 0x398a_7b38);
    }
}
