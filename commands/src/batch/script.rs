//! The script of a batch job, and the options in it.
//!
//! ```text
//! #!/bin/bash
//! #LATTICE --nodes=4 --time=2:00:00      options stand before the first command
//! #LATTICE output=run-%j.txt             with dashes, or without
//! lattice launch ./a.out                 lines from here on are not parsed
//! ```
//!
//! Without such lines, `#SBATCH` lines are read. They have the same options.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;

use crate::args::{BatchArgs, BatchOptions};

/// Maximum size of a script in bytes. It is passed in base64 in an environment variable, which Linux limits to 128 KiB (MAX_ARG_STRLEN).
const SCRIPT_MAX: u64 = 96_000;

/// File for a script on standard input.
const STANDARD_INPUT: &str = "/dev/stdin";

/// Marks of option lines, by precedence. Only lines with the first mark that occurs in the script are read.
const MARKS: [&str; 2] = ["#LATTICE", SBATCH];

/// Mark of option lines in Slurm scripts.
const SBATCH: &str = "#SBATCH";

/// A script and its options.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) bytes: Vec<u8>,
    pub(super) options: BatchOptions,
}

/// Refusal of a script.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// There is no script.
    #[error(
        "there is no script\ntry: lattice batch SCRIPT; or lattice batch --wrap COMMAND; or lattice batch < SCRIPT"
    )]
    None,
    /// The command of `--wrap` is too long.
    #[error(
        "the command of --wrap has more than {SCRIPT_MAX} bytes; write it to a script, which reads the rest from files"
    )]
    LongCommand,
    /// The script cannot be read, or is too long.
    #[error("cannot read the script {}: {error}{}", path.display(), instead(error))]
    Read {
        /// The file.
        path: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// The first line does not name an interpreter.
    #[error("{} is no script: its first line must begin with #! and name its interpreter, as in #!/bin/bash\n\
         try: that line first; or lattice batch --wrap COMMAND, which needs no script", path.display())]
    NoInterpreter {
        /// The file.
        path: PathBuf,
    },
    /// The script has Windows line ends. The kernel finds no interpreter with a carriage return in its name.
    #[error(
        "{0} has line ends of Windows (CR LF), of which its interpreter finds nothing\ntry: dos2unix {0}, or sed -i 's/\\r$//' {0}",
        path.display()
    )]
    CarriageReturn {
        /// The file.
        path: PathBuf,
    },
    /// Options conflict.
    #[error("{reason}")]
    Options {
        /// The fault.
        reason: String,
    },
    /// A line with options is invalid.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// The fault.
        reason: String,
    },
}

impl Script {
    /// The script of a command line: a file, a shell command, or standard input.
    ///
    /// # Errors
    /// See the variants of [`ScriptError`].
    pub(super) fn of(args: &BatchArgs) -> Result<Self, ScriptError> {
        match (&args.script, &args.wrap) {
            (Some(path), _) => Self::read(path),
            (None, Some(command)) => {
                let bytes = format!("#!/bin/sh\n{command}\n").into_bytes();
                match bytes.len() as u64 > SCRIPT_MAX {
                    true => Err(ScriptError::LongCommand),
                    false => Ok(Self { bytes, options: BatchOptions::default() }),
                }
            }
            (None, None) if io::stdin().is_terminal() => Err(ScriptError::None),
            (None, None) => Self::read(Path::new(STANDARD_INPUT)),
        }
    }

    /// Reads a script and its options.
    fn read(path: &Path) -> Result<Self, ScriptError> {
        let bytes = bounded_file::bytes(path, SCRIPT_MAX);
        let bytes = bytes.map_err(|error| ScriptError::Read { path: path.to_owned(), error })?;
        if bytes.is_empty() && path == Path::new(STANDARD_INPUT) {
            return Err(ScriptError::None);
        }
        if !bytes.starts_with(b"#!") {
            return Err(ScriptError::NoInterpreter { path: path.to_owned() });
        }
        if bytes.split(|&byte| byte == b'\n').next().is_some_and(|line| line.ends_with(b"\r")) {
            return Err(ScriptError::CarriageReturn { path: path.to_owned() });
        }
        let options = options(&String::from_utf8_lossy(&bytes));
        let options = options.map_err(|(line, reason)| ScriptError::Line { path: path.to_owned(), line, reason })?;
        Ok(Self { bytes, options })
    }
}

/// Returns true for a Slurm script: its options are in `#SBATCH` lines.
pub(super) fn is_of_slurm(script: &[u8]) -> bool {
    mark_of(&String::from_utf8_lossy(script)) == Some(SBATCH)
}

/// Returns true for a script with options only in `#PBS` lines, which are not read.
pub(super) fn is_of_pbs(script: &[u8]) -> bool {
    let text = String::from_utf8_lossy(script);
    mark_of(&text).is_none() && marked(&text, "#PBS").next().is_some()
}

/// Suggested command if the script does not exist.
fn instead(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => {
            "\ntry: the path of another file; or lattice batch --wrap COMMAND, for a line of the shell"
        }
        _ => "",
    }
}

fn mark_of(text: &str) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| marked(text, mark).next().is_some())
}

/// Options of all lines. Later lines override earlier lines. An error has the number of its line.
fn options(text: &str) -> Result<BatchOptions, (usize, String)> {
    let mut options = BatchOptions::default();
    let Some(mark) = mark_of(text) else { return Ok(options) };
    for (number, rest) in marked(text, mark) {
        let words = shlex::split(rest).ok_or_else(|| (number, "a quotation mark has no second one".to_owned()))?;
        options = BatchOptions::of_line(words).map_err(|reason| (number, reason))?.over(options);
    }
    Ok(options)
}

/// Lines with a mark before the first command: the line numbers, and the text after the mark.
fn marked<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let head = text.lines().take_while(|line| line.trim_start().is_empty() || line.starts_with('#'));
    head.enumerate().filter_map(move |(index, line)| {
        let rest = line.strip_prefix(mark).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))?;
        Some((index + 1, rest))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use lattice_console::Verbosity;

    #[test]
    fn the_script_of_the_design_document_says_what_it_needs() {
        let text = "#!/bin/bash\n#LATTICE nodes=64\n#LATTICE walltime=2:00:00\n#LATTICE vcluster=hpc-batch\n\
            #LATTICE network_domain=my-training-run\n\n# No SSH.\nlattice launch -n 256 ./my_mpi_training\n";
        let found = options(text).unwrap();
        assert_eq!((found.count, found.time), (Some(64), Some(Duration::from_secs(7200))));
        assert_eq!(found.vcluster.as_deref(), Some("hpc-batch"));
    }

    #[test]
    fn lines_of_sbatch_count_where_there_are_none_of_ours() {
        let text = "#!/bin/bash -l\n#SBATCH -J wave -p debug -A acct\n#SBATCH --ntasks=6 --ntasks-per-node=4 # two nodes\n\
            #SBATCH --cpus-per-task=2 --mem=4G -q night\n#SBATCH --time=0-01:30:00\n#SBATCH --mail-type=END\n\
            module load x\n#SBATCH --nodes=9\nsrun ./a.out\n";
        let found = options(text).unwrap();
        assert_eq!((found.job_name.as_deref(), found.time), (Some("wave"), Some(Duration::from_secs(5400))));
        assert_eq!((found.count, found.tasks.nodes(None)), (None, Some(2)));
        let variables: Vec<String> = found.tasks.variables().map(|(name, number)| format!("{name}={number}")).collect();
        assert_eq!(
            variables,
            ["SLURM_NTASKS=6", "SLURM_NTASKS_PER_NODE=4", "SLURM_CPUS_PER_TASK=2", "SRUN_CPUS_PER_TASK=2"]
        );
        assert_eq!(found.notes(Verbosity::Verbose).len(), 5);
        let notes = found.notes(Verbosity::Normal);
        let ignored: Vec<_> = notes.iter().filter_map(|note| note.split(" is ignored").next()).collect();
        assert_eq!(ignored, ["note: --mail-type or --mail-user", "note: --mem", "note: --partition"]);
        let found = options("#!/bin/sh\n#SBATCH -N 4 --array=1-9\n#LATTICE -N 2\n").unwrap();
        assert_eq!(found.count, Some(2));
        let refused = options("#!/bin/sh\n#SBATCH --array=1-9\n").unwrap_err();
        assert!(refused.0 == 2 && refused.1.starts_with("there is no option --array"), "{refused:?}");
    }

    #[test]
    fn only_lines_before_the_first_command_count() {
        let text = "#!/bin/sh\n##LATTICE nodes=9\n#LATTICES nodes=9\n# a comment\n#LATTICE --job-name='a b' # why\n\
            #LATTICE --nodes=2\n#LATTICE nodes=3\n#LATTICE\necho\n#LATTICE nodes=4 --nonsense\n";
        let found = options(text).unwrap();
        assert_eq!((found.count, found.job_name.as_deref()), (Some(3), Some("a b")));
    }

    #[test]
    fn lines_of_pbs_are_noticed_where_there_are_no_others() {
        assert!(is_of_pbs(b"#!/bin/sh\n#PBS -l nodes=2\necho\n"));
        assert!(!is_of_pbs(b"#!/bin/sh\n#PBS -l nodes=2\n#SBATCH -N 2\n"));
        assert!(!is_of_pbs(b"#!/bin/sh\necho\n#PBS -l nodes=2\n"));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named_by_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("job.sh");
        let refused = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            Script::read(&path).unwrap_err().to_string().replace(path.to_str().unwrap(), "job.sh")
        };
        let line = refused(b"#!/bin/sh\n\n#LATTICE --node=2\n");
        assert_eq!(line, "job.sh, line 3: there is no option --node; the nearest is --nodes");
        assert_eq!(refused(b"#!/bin/sh\n#LATTICE 'x\n"), "job.sh, line 2: a quotation mark has no second one");
        let windows = refused(b"#!/bin/bash\r\n#SBATCH -N 2\r\n");
        assert!(windows.starts_with("job.sh has line ends of Windows (CR LF)"), "{windows}");
        assert!(windows.ends_with("\ntry: dos2unix job.sh, or sed -i 's/\\r$//' job.sh"), "{windows}");
        assert!(refused(b"echo").starts_with("job.sh is no script: its first line must begin with #!"));
        let long = refused(&[b"#!/bin/sh\n".as_slice(), &[b'#'; 96_000]].concat());
        assert_eq!(long, "cannot read the script job.sh: it has more than 96000 bytes");
    }
}
