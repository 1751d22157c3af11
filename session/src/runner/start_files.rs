//! Shared memory that MPI libraries make under names by chance, for ranks of a node to meet in, and take away again as soon as all have it: a rank that
//! is killed in between leaves it.
//!
//! Nothing in the name tells whose it is. So the directory is watched while ranks run: a file that appears under such a name and that a rank here,
//! or a process below it, has open at that moment was made by this launch, and is kept as if the rank had registered it (see
//! [`resources`](super::resources)); one that vanishes is forgotten. A file of others is open in none of the ranks when it appears.

use std::future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rank_spawner::watched;
use tokio::io::unix::AsyncFd;

use super::shared_memory::DIRECTORY;

/// Names of MPICH 4.0 (`mpl_shm_mmap.c`: `mkstemp`), and of UCX (`mm_posix.c`), without what chance adds.
const NAMES: [&str; 2] = ["mpich_shar_tmp", "ucx_shm_posix_"];
/// Most signs that chance adds.
const CHANCE_MAX: usize = 16;

/// Files of such names in the directory of shared memory, as they come and go.
pub(super) struct StartFiles {
    /// `None` where the system has no watch left: then such files stay, as they do without this.
    watch: Option<Watch>,
}

struct Watch {
    inotify: Inotify,
    /// The same, as the runtime waits for it.
    ready: AsyncFd<OwnedFd>,
}

/// A file that has appeared, or has vanished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartFile {
    /// Its name, without directory.
    pub(super) name: String,
    pub(super) is_there: bool,
}

impl StartFile {
    pub(super) fn path(&self) -> PathBuf {
        [DIRECTORY, &self.name].iter().collect()
    }
}

impl StartFiles {
    /// Begins to watch. Needs a tokio runtime with I/O.
    pub(super) fn watch() -> Self {
        let watch = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            inotify.add_watch(DIRECTORY, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE)?;
            let ready = watched(inotify.as_fd().try_clone_to_owned()?)?;
            io::Result::Ok(Watch { inotify, ready })
        };
        Self { watch: watch().ok() }
    }

    /// Waits for the next ones. Cancel-safe.
    pub(super) async fn next(&mut self) -> Vec<StartFile> {
        loop {
            let Some(watch) = &self.watch else { return future::pending().await };
            let events = match watch.ready.readable().await {
                Ok(mut ready) => ready.try_io(|_| Ok(watch.inotify.read_events()?)),
                Err(error) => Ok(Err(error)),
            };
            match events {
                Ok(Ok(events)) => {
                    let files = events.into_iter().filter_map(|event| file(event.name?.to_str()?, event.mask));
                    let files: Vec<StartFile> = files.collect();
                    if !files.is_empty() {
                        return files;
                    }
                }
                Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => self.watch = None,
                // Interrupted, or there was nothing to read.
                _ => {}
            }
        }
    }
}

/// The file of an event, if it has such a name.
fn file(name: &str, mask: AddWatchFlags) -> Option<StartFile> {
    let chance = NAMES.iter().find_map(|known| name.strip_prefix(known))?;
    let is_known = (1..=CHANCE_MAX).contains(&chance.len()) && chance.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_known.then(|| StartFile { name: name.to_owned(), is_there: mask.contains(AddWatchFlags::IN_CREATE) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_known_count() {
        let seen = |name: &str| file(name, AddWatchFlags::IN_CREATE);
        for name in ["mpich_shar_tmpXCOeb8", "ucx_shm_posix_c668751"] {
            assert_eq!(seen(name), Some(StartFile { name: name.to_owned(), is_there: true }));
        }
        assert!(!file("mpich_shar_tmpXCOeb8", AddWatchFlags::IN_DELETE).unwrap().is_there);
        for other in
            ["mpich_shar_tmp", "mpich_shm_9bd3af6d_0", "sem.4ZsTUI", "ucx_shm_posix_../../x", "xmpich_shar_tmpa"]
        {
            assert_eq!(seen(other), None, "{other}");
        }
    }
}
