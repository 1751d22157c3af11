//! The files that ranks' output goes to: opened before the first rank starts, one for each name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lattice_session::event::Stream;
use pmi_core::ids::Rank;

use super::writer::{Place, PlaceName};
use crate::prepared::PreparedLaunch;

/// The open files of a launch, and who writes to which.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Each file once.
    pub(crate) places: Vec<Place>,
    /// The index into `places` of each rank's stream; a stream that is not in here goes to ours.
    pub(crate) routes: HashMap<(Rank, Stream), usize>,
}

/// A file for ranks' output cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output of rank {rank} to {}: {source}", path.display())]
pub struct FileError {
    /// The first rank that was to write to it.
    pub rank: Rank,
    /// The file.
    pub path: PathBuf,
    /// Error of the system.
    #[source]
    pub source: io::Error,
}

/// Identity of a file, whatever its name: device and inode.
type Identity = (u64, u64);

impl Files {
    /// Opens every file that `launch` names, and empties those that are not to be appended to.
    ///
    /// # Errors
    /// Fails at the first file that cannot be opened; those opened before it exist from then on.
    pub(crate) fn open(launch: &PreparedLaunch) -> Result<Self, FileError> {
        let mut files = Self::default();
        let mut names: HashMap<PathBuf, usize> = HashMap::new();
        let mut identities: HashMap<Identity, usize> = HashMap::new();
        let append = launch.output.append;
        let mut options = File::options();
        options.create(true).write(!append).append(append).truncate(!append);
        for row in &launch.ranks {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let Some(path) = launch.output_file(row, stream) else { continue };
                let index =
                    match names.entry(path) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => {
                            let path = new.key().clone();
                            let index = files
                                .add(path.clone(), &options, &mut identities)
                                .map_err(|source| FileError { rank: row.place.rank, path, source })?;
                            *new.insert(index)
                        }
                    };
                files.routes.insert((row.place.rank, stream), index);
            }
        }
        Ok(files)
    }

    /// Opens `path`, unless it is a file that is open already under another name.
    fn add(&mut self, path: PathBuf, options: &OpenOptions, known: &mut HashMap<Identity, usize>) -> io::Result<usize> {
        let place = match own_stream(&path) {
            Some(own) => own,
            None => Place { file: options.open(&path)?, name: PlaceName::File(path) },
        };
        let index = *known.entry(identity(&place.file.metadata()?)).or_insert(self.places.len());
        if index == self.places.len() {
            self.places.push(place);
        }
        Ok(index)
    }
}

/// One of our own streams, if that is what the name stands for: `/dev/stdout`, or the file that a shell has opened for it. Opened anew it
/// would be emptied, and written from its beginning beside what else is written there.
fn own_stream(path: &Path) -> Option<Place> {
    let named = identity(&std::fs::metadata(path).ok()?);
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let own = [(PlaceName::Stdout, stdout.as_fd()), (PlaceName::Stderr, stderr.as_fd())];
    own.into_iter().find_map(|(name, stream)| {
        let file = File::from(stream.try_clone_to_owned().ok()?);
        (identity(&file.metadata().ok()?) == named).then_some(Place { name, file })
    })
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}
