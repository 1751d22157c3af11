//! Files for output of ranks. They are opened before the first rank starts, one for each name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lattice_session::event::Stream;
use pmi_core::ids::Rank;

use super::prepared::PreparedLaunch;
use super::writer::{Place, PlaceName};

/// Open files of a launch, and the file of each stream of a rank.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Each file once.
    pub(crate) places: Vec<Place>,
    /// Index into `places` for each stream of a rank. Streams without an entry go to standard output or standard error of the launcher.
    pub(crate) routes: HashMap<(Rank, Stream), usize>,
}

/// A file for output of ranks cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output of rank {rank} to {}: {source}\ntry: {}", path.display(), instead(path))]
pub struct FileError {
    /// First rank with this file.
    pub rank: Rank,
    /// The file.
    pub path: PathBuf,
    /// Error of the system.
    #[source]
    pub source: io::Error,
}

/// Remedy for a file that cannot be opened.
fn instead(path: &Path) -> String {
    match path.parent() {
        Some(directory) if directory != Path::new("") && !directory.exists() => {
            format!("mkdir -p {}", directory.display())
        }
        _ => "-o with a file that you may write, such as %j.out".to_owned(),
    }
}

/// Identity of a file, independent of its name: device and inode.
type Identity = (u64, u64);

impl Files {
    /// Opens every file that `launch` names, and truncates it unless output is appended. Creates a directory with a field in its name, with all
    /// its parents.
    ///
    /// # Errors
    /// Fails at the first file that cannot be opened. Files that were opened before it remain.
    pub(crate) fn open(launch: &PreparedLaunch) -> Result<Self, FileError> {
        let mut files = Self::default();
        if launch.output.stdout.is_none() && launch.output.stderr.is_none() {
            return Ok(files);
        }
        let mut names: HashMap<PathBuf, usize> = HashMap::new();
        let mut identities: HashMap<Identity, usize> = HashMap::new();
        let own = own_streams();
        let append = launch.output.append;
        let mut options = File::options();
        options.create(true).write(!append).append(append).truncate(!append);
        for row in &launch.ranks {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let Some(path) = launch.output_file(row, stream) else { continue };
                let index = match names.entry(path) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let path = new.key().clone();
                        let mut add = || files.add(path.clone(), &options, &own, &mut identities);
                        let added = match add() {
                            Err(error) if error.kind() == io::ErrorKind::NotFound && launch.makes_directory(stream) => {
                                path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| add())
                            }
                            added => added,
                        };
                        let index = added.map_err(|source| FileError { rank: row.place.rank, path, source })?;
                        *new.insert(index)
                    }
                };
                files.routes.insert((row.place.rank, stream), index);
            }
        }
        Ok(files)
    }

    /// Opens `path`, unless the file is already open under another name.
    ///
    /// Does not open a standard stream again, neither as `/dev/stdout` nor as the file to which a shell redirected it. A second open would
    /// truncate the file, and would write from its start, in conflict with other writes to it.
    fn add(
        &mut self,
        path: PathBuf,
        options: &OpenOptions,
        own: &[(Identity, Place)],
        known: &mut HashMap<Identity, usize>,
    ) -> io::Result<usize> {
        let there = std::fs::metadata(&path).ok().map(|metadata| identity(&metadata));
        let place = match own.iter().find(|(stream, _)| there == Some(*stream)) {
            Some((_, Place { name, file })) => Place { name: name.clone(), file: file.try_clone()? },
            None => Place { file: options.open(&path)?, name: PlaceName::File(path) },
        };
        let index = *known.entry(identity(&place.file.metadata()?)).or_insert(self.places.len());
        if index == self.places.len() {
            self.places.push(place);
        }
        Ok(index)
    }
}

/// Standard output and standard error of the launcher, if open.
fn own_streams() -> Vec<(Identity, Place)> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let own = [(PlaceName::Stdout, stdout.as_fd()), (PlaceName::Stderr, stderr.as_fd())];
    let open = own.into_iter().filter_map(|(name, stream)| {
        let file = File::from(stream.try_clone_to_owned().ok()?);
        Some((identity(&file.metadata().ok()?), Place { name, file }))
    });
    open.collect()
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}
