//! `--bcast` and `--preload-files`: files of a launch that are copied to its nodes, and their destinations. The copy of a program replaces the
//! program, and finds the shared libraries that are copied with it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lattice_console::environment::{self, Environment};
use lattice_console::machine::Machine;
use lattice_session::random;
use lattice_session::request::ProgramRequest;
use lattice_session::spec::AppSpec;
use rank_spawner::{Program, ProgramError};

use super::shared_libraries::{self, SharedLibrariesError};
use crate::args::{Compression, CopyArgs, Excluded, SendLibs};

/// Variable with the directories that the loader searches first (ld.so(8)).
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Refusal of a copy. No process was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The destination is not an absolute path.
    #[error("{flag}={}: the copy needs an absolute path\ntry: {flag}=/tmp/", path.display())]
    Relative {
        /// The flag.
        flag: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Several programs have one file as destination.
    #[error(
        "--bcast={}: {programs} programs cannot be copied to one file\n\
         try: --bcast={0}/, a directory; or --bcast, for one of their own",
        path.display()
    )]
    OnePlace {
        /// The path.
        path: PathBuf,
        /// Number of programs.
        programs: usize,
    },
    /// The program does not exist on this machine.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The shared libraries of a program cannot be determined.
    #[error(transparent)]
    SharedLibraries(#[from] SharedLibrariesError),
    /// A file cannot be copied.
    #[error("--preload-files: cannot copy {}: {reason}\ntry: {}", path.display(), instead(path))]
    File {
        /// The file.
        path: PathBuf,
        /// Reason, as text.
        reason: String,
    },
    /// Two files have the same destination.
    #[error("--preload-files: {} and {} would both be {} on the nodes\ntry: another name for one of them", files[0].display(), files[1].display(), target.display())]
    SameName {
        /// The files.
        files: [PathBuf; 2],
        /// The copy.
        target: PathBuf,
    },
    /// The system refuses random bytes for a name.
    #[error("--bcast: cannot draw a name: {0}")]
    Random(#[source] io::Error),
}

impl CopyError {
    /// Error of the program; `None` for other errors.
    pub(super) fn program(&self) -> Option<&ProgramError> {
        match self {
            Self::Program(error) => Some(error),
            _ => None,
        }
    }
}

/// Files and directories for the nodes before a launch starts, in the order of their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    pub(crate) things: Vec<Thing>,
    pub(crate) compression: Compression,
    /// Shared libraries that were not found on this machine.
    pub(crate) missing: Vec<String>,
}

/// A file or directory that is created on each node, and removed afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A directory.
    Directory(PathBuf, Before),
    /// A file.
    File(FileCopy),
}

/// A file and its copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileCopy {
    pub(crate) source: PathBuf,
    /// Absolute path of each copy.
    pub(crate) target: PathBuf,
    pub(crate) before: Before,
}

/// State of a destination that is permitted before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Absent, in a directory of this launch.
    Ours,
    /// Absent; anything else is an error.
    Nothing,
    /// An equal file or directory, which is used and kept; anything else is an error.
    Same,
}

impl Copies {
    /// Copies that the flags request. Copies replace the programs. `exported` are the variables of all programs.
    pub(super) fn of(
        args: &CopyArgs,
        programs: &mut [ProgramRequest],
        exported: &Environment,
        machine: &Machine,
    ) -> Result<Self, CopyError> {
        let mut copies = Self { compression: args.compress, ..Self::default() };
        if let Some(target) = &args.bcast {
            let libraries = (args.send_libs == SendLibs::Yes).then_some(&args.bcast_exclude);
            copies.add_programs(target, libraries, programs, exported, machine)?;
        }
        copies.add_files(args, programs, machine)?;
        Ok(copies)
    }

    /// The files, without the directories.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileCopy> {
        self.things.iter().filter_map(|thing| match thing {
            Thing::File(file) => Some(file),
            Thing::Directory(..) => None,
        })
    }

    fn add_programs(
        &mut self,
        target: &Path,
        libraries: Option<&Excluded>,
        programs: &mut [ProgramRequest],
        exported: &Environment,
        machine: &Machine,
    ) -> Result<(), CopyError> {
        let find = |app: &AppSpec| {
            let path = variable_of(app, "PATH", exported).or_else(|| {
                let own = machine.variable("PATH".as_ref()).map(OsStr::to_owned);
                own.filter(|_| !app.removes("PATH"))
            });
            Program::resolve(&app.program, path.as_deref(), &app.directory).map(|found| found.path().into())
        };
        let sources = programs.iter().map(|program| find(&program.app)).collect::<Result<Vec<PathBuf>, _>>()?;
        let mut distinct: Vec<PathBuf> = Vec::new();
        for source in &sources {
            if !distinct.contains(source) {
                distinct.push(source.clone());
            }
        }
        let before = if target.as_os_str().is_empty() { Before::Ours } else { Before::Nothing };
        let places = self.places(target, &distinct)?;
        for (source, place) in distinct.iter().zip(places) {
            let is_it = |&(_, known): &(usize, &PathBuf)| known == source;
            let theirs: Vec<usize> = sources.iter().enumerate().filter(is_it).map(|(index, _)| index).collect();
            self.things.push(Thing::File(FileCopy { source: source.clone(), target: place.clone(), before }));
            let first = library_path(&programs[theirs[0]].app, exported);
            let beside = PathBuf::from(with(place.as_os_str(), "_libs"));
            let has_libraries = match libraries {
                Some(excluded) => self.add_libraries(source, (&beside, before), first.as_deref(), excluded)?,
                None => false,
            };
            for index in theirs {
                let app = &mut programs[index].app;
                app.program = place.clone().into();
                if has_libraries {
                    let path = begun_with(&beside, library_path(app, exported).as_deref());
                    app.set.push((LIBRARY_PATH.into(), path));
                }
            }
        }
        Ok(())
    }

    /// Destinations of the copies of these programs. `target` is a directory if it ends with a slash. If it is empty, the launch creates its own
    /// directory.
    fn places(&mut self, target: &Path, sources: &[PathBuf]) -> Result<Vec<PathBuf>, CopyError> {
        let directory = if target.as_os_str().is_empty() {
            let directory =
                Path::new("/tmp").join(format!("lattice-bcast-{}", random::id().map_err(CopyError::Random)?));
            self.things.push(Thing::Directory(directory.clone(), Before::Ours));
            directory
        } else if !target.is_absolute() {
            return Err(CopyError::Relative { flag: "--bcast", path: target.to_owned() });
        } else if target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            target.to_owned()
        } else if sources.len() > 1 {
            return Err(CopyError::OnePlace { path: target.to_owned(), programs: sources.len() });
        } else {
            return Ok(vec![target.to_owned()]);
        };
        let mut places: Vec<PathBuf> = Vec::new();
        for source in sources {
            let name = source.file_name().unwrap_or_default();
            let names = std::iter::once(name.to_owned()).chain((1..).map(|number| with(name, &format!("-{number}"))));
            let mut free = names.map(|name| directory.join(name)).filter(|place| !places.contains(place));
            places.extend(free.next());
        }
        Ok(places)
    }

    /// Adds the libraries of a program to the directory. Returns false if there are none.
    fn add_libraries(
        &mut self,
        program: &Path,
        (directory, before): (&Path, Before),
        path: Option<&OsStr>,
        excluded: &Excluded,
    ) -> Result<bool, CopyError> {
        let mut files = Vec::new();
        for library in shared_libraries::needed_by(program, path)? {
            match library.path {
                None => self.missing.push(library.name),
                Some(source) if excluded.0.iter().any(|excluded| source.starts_with(excluded)) => {}
                Some(source) => {
                    let target = directory.join(library.name);
                    files.push(Thing::File(FileCopy { source, target, before: Before::Ours }));
                }
            }
        }
        let has_some = !files.is_empty();
        self.things.extend(has_some.then(|| Thing::Directory(directory.to_owned(), before)));
        self.things.append(&mut files);
        Ok(has_some)
    }

    fn add_files(&mut self, args: &CopyArgs, programs: &[ProgramRequest], machine: &Machine) -> Result<(), CopyError> {
        let mut directories: Vec<&Path> = match args.preload_dest_dir.as_deref() {
            Some(path) if path.is_relative() => {
                return Err(CopyError::Relative { flag: "--preload-dest-dir", path: path.to_owned() });
            }
            Some(path) => vec![path],
            None => programs.iter().map(|program| program.app.directory.as_path()).collect(),
        };
        directories.sort_unstable();
        directories.dedup();
        for (directory, file) in directories.iter().flat_map(|to| args.preload_files.iter().map(move |file| (to, file)))
        {
            let source = machine.directory.join(file);
            let failed = |reason: String| CopyError::File { path: file.clone(), reason };
            let metadata = fs::metadata(&source).map_err(|error| failed(error.to_string()))?;
            let name = source.file_name().filter(|_| metadata.is_file());
            let target = directory.join(name.ok_or_else(|| failed("it is no regular file".to_owned()))?);
            let other = self.files().find(|other| other.target == target).map(|other| other.source.clone());
            match other {
                Some(other) if other == source => {}
                Some(other) => return Err(CopyError::SameName { files: [other, source], target }),
                None => self.things.push(Thing::File(FileCopy { source, target, before: Before::Same })),
            }
        }
        Ok(())
    }
}

/// Remedy for a file that cannot be copied.
fn instead(path: &Path) -> String {
    match path.is_dir() {
        true => format!("its files, as in --preload-files={0}/ONE,{0}/OTHER", path.display()),
        false => "the path of another file, as seen from where you are; several stand between commas".to_owned(),
    }
}

/// Directories that the loader of a program searches first.
fn library_path(app: &AppSpec, exported: &Environment) -> Option<OsString> {
    variable_of(app, LIBRARY_PATH, exported)
}

/// Value of a variable in the ranks of a program, if it is set for them or passed on.
fn variable_of(app: &AppSpec, name: &str, exported: &Environment) -> Option<OsString> {
    let set = app.set.iter().rev().find(|(set, _)| set == name).map(|(_, value)| value.clone());
    set.or_else(|| environment::value(exported, name).filter(|_| !app.removes(name)).map(OsStr::to_owned))
}

/// List of directories with `directory` in front.
fn begun_with(directory: &Path, others: Option<&OsStr>) -> OsString {
    let mut list = directory.as_os_str().to_owned();
    for others in others.into_iter().filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

fn with(name: &OsStr, end: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(end);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepared::tests::commanded;

    /// Destinations of the copies, and the programs that run, for a line of flags.
    fn copied(line: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let command = commanded(line).unwrap();
        let targets = command.copies.files().map(|file| file.target.clone()).collect();
        (targets, command.request.programs.iter().map(|program| program.app.program.clone().into()).collect())
    }

    #[test]
    fn a_copy_is_where_it_was_asked_for_and_is_what_runs() {
        let check = |flags: &str, expected: &[&str]| {
            let (targets, programs) = copied(&format!("{flags} true : false : /bin/true"));
            assert_eq!(targets, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{flags}");
            assert_eq!(programs[..2], targets[..2], "{flags}");
        };
        check("--bcast=/scratch/", &["/scratch/true", "/scratch/false", "/scratch/true-1"]);
        let (targets, programs) = copied("--bcast=/scratch/x true : true");
        assert_eq!((targets, programs), (vec!["/scratch/x".into()], vec!["/scratch/x".into(); 2]));
        let (targets, _) = copied("--bcast true");
        assert!(targets[0].starts_with("/tmp") && targets[0].ends_with("true"), "{targets:?}");
        assert_eq!(copied("--task-prolog /bin/true true").1, [PathBuf::from("/bin/sh")]);
    }

    #[test]
    fn libraries_lie_beside_their_program_and_are_looked_for_there_first() {
        let line = "--bcast=/scratch/ --send-libs --bcast-exclude=NONE --env LD_LIBRARY_PATH=/mine true";
        let command = commanded(line).unwrap();
        let libc = |file: &FileCopy| file.target.starts_with("/scratch/true_libs/") && file.source.is_file();
        assert!(command.copies.files().any(libc), "{:?}", command.copies);
        let app = &command.request.programs.iter().next().unwrap().app;
        assert_eq!(app.set.last().unwrap().1, "/scratch/true_libs:/mine");
        let command = commanded("--bcast=/scratch/ --send-libs true").unwrap();
        assert_eq!(command.copies.things.len(), 1, "nodes have their own: {:?}", command.copies);
    }

    #[test]
    fn what_cannot_be_copied_is_refused_with_what_is_possible() {
        let check = |line: &str, expected: &str| {
            let error = commanded(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        };
        check("--bcast=x/ true", "the copy needs an absolute path");
        check(
            "--bcast=/tmp/x true : false",
            "2 programs cannot be copied to one file\ntry: --bcast=/tmp/x/, a directory",
        );
        check("--preload-files=/etc true", "cannot copy /etc: it is no regular file");
        check("--preload-files=/bin/sh --preload-dest-dir=x true", "--preload-dest-dir=x: the copy needs an absolute");
        check("--preload-files=/bin/ls,/usr/bin/../bin/ls true", "would both be /ls on the nodes");
    }
}
