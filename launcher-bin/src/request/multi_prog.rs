//! `--multi-prog`: a file with the program of each rank, as in srun(1), "multiple program configuration".
//!
//! ```text
//! # RANKS  PROGRAM  ARGUMENTS; %t is the rank, %o its index among the ranks of its line
//! 0        ./coordinator
//! 1-3,7    ./worker --shard=%o
//! *        ./spare "rank %t"
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;
use lattice_dialects::config_lines::config_lines;
use lattice_session::rank_ranges::{RankRanges, RankRangesError};
use lattice_session::request::{ProgramRequest, Programs};
use lattice_session::spec::AppSpec;

use lattice_session::limits::RANKS_MAX;

/// Maximum size of the file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Refusal of a file of programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MultiProgError {
    /// The file cannot be read.
    #[error("--multi-prog: cannot read {}: {source}\ntry: the path of a file with lines such as 0-3 ./a.out; or ./a : -n 3 ./b, which needs none", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A line cannot be used.
    #[error("--multi-prog: {}, line {line}: {fault}\ntry: lines such as 0-3 ./a.out ARGUMENTS, with * for the rest of the ranks", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Its fault.
        #[source]
        fault: LineFault,
    },
    /// No line contains the rank.
    #[error("--multi-prog: {} has no program for rank {rank}\ntry: a last line * ./a.out, for the rest of the ranks", path.display())]
    NoProgram {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: u32,
    },
    /// Neither the file nor a flag gives the number of ranks.
    #[error("--multi-prog: {} names no last rank\ntry: -n with the number of ranks", path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// There are too many ranks.
    #[error("--multi-prog: {} is for {ranks} ranks\ntry: -n {RANKS_MAX}, or fewer", path.display())]
    TooManyRanks {
        /// The file.
        path: PathBuf,
        /// Number of ranks.
        ranks: u32,
    },
    /// The ranks have more programs than a launch may have.
    #[error("--multi-prog: {} makes {programs} programs of the ranks, with a different one beside each\ntry: at most {}; ranks with the same program beside each other are one", path.display(), Programs::MAX)]
    TooManyPrograms {
        /// The file.
        path: PathBuf,
        /// Number of programs.
        programs: usize,
    },
}

/// Fault of one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// A quote is not closed.
    #[error("a quote is not closed")]
    Quote,
    /// No program follows the ranks.
    #[error("there is no program after the ranks")]
    NoProgram,
    /// The ranks cannot be read.
    #[error("the ranks are {text:?}: {source}")]
    Ranks {
        /// Text in place of the ranks.
        text: String,
        /// The fault.
        source: RankRangesError,
    },
    /// Another line already contains the rank.
    #[error("rank {rank} has a program already")]
    Twice {
        /// The rank.
        rank: u32,
    },
    /// A rank of the line is beyond the size of the launch.
    #[error("there is no rank {rank}; -n {size} makes ranks 0 to {last}", last = size - 1)]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        size: u32,
    },
}

/// One line of the file.
struct Line {
    number: usize,
    /// `None` for all remaining ranks.
    ranks: Option<RankRanges>,
    words: Vec<String>,
}

/// Reads the file that `request` names as its program. Each result is a run of consecutive ranks with the same command. Its number is the number
/// of its line, counted from the number of `request`. Directory and variables are those of `request`.
pub(super) fn read(request: ProgramRequest) -> Result<Vec<ProgramRequest>, MultiProgError> {
    let ProgramRequest { app, ranks, number } = request;
    let path = app.directory.join(&app.program);
    let text =
        bounded_file::text(&path, BYTES_MAX).map_err(|source| MultiProgError::Read { path: path.clone(), source })?;
    let lines = parse(&text, &path)?;
    let size = match ranks {
        Some(size) => size.get(),
        None => size_of(&lines).ok_or_else(|| MultiProgError::NoSize { path: path.clone() })?,
    };
    if size > RANKS_MAX {
        return Err(MultiProgError::TooManyRanks { path, ranks: size });
    }
    let programs = in_a_row(commands(&lines, size, &path)?);
    if programs.len() > Programs::MAX {
        return Err(MultiProgError::TooManyPrograms { path, programs: programs.len() });
    }
    let program = |(Command { line, words }, ranks): (Command, u32)| {
        let mut words = words.into_iter().map(OsString::from);
        let app = AppSpec { program: words.next().unwrap_or_default(), args: words.collect(), ..app.clone() };
        ProgramRequest { app, ranks: NonZeroU32::new(ranks), number: number + line }
    };
    Ok(programs.into_iter().map(program).collect())
}

/// Parses the lines with programs.
fn parse(text: &str, path: &Path) -> Result<Vec<Line>, MultiProgError> {
    let parsed = |(number, line): (usize, String)| {
        let fault = |fault| MultiProgError::Line { path: path.to_owned(), line: number, fault };
        parse_line(number, &line).map_err(fault)
    };
    config_lines(text).into_iter().map(parsed).collect()
}

fn parse_line(number: usize, line: &str) -> Result<Line, LineFault> {
    let mut words = shlex::split(line).ok_or(LineFault::Quote)?;
    if words.len() < 2 {
        return Err(LineFault::NoProgram);
    }
    let ranks = words.remove(0);
    let ranks = match ranks.as_str() {
        "*" => None,
        list => Some(list.parse().map_err(|source| LineFault::Ranks { text: list.to_owned(), source })?),
    };
    Ok(Line { number, ranks, words })
}

/// Number of ranks in the lines; `None` if a line is for all remaining ranks.
fn size_of(lines: &[Line]) -> Option<u32> {
    let last = |line: &Line| line.ranks.as_ref().map(|ranks| ranks.greatest().0);
    lines.iter().map(last).collect::<Option<Vec<_>>>()?.into_iter().max()?.checked_add(1)
}

/// Program and arguments of a rank.
#[derive(Clone, PartialEq, Eq)]
struct Command {
    /// Number of the line among lines with programs, counted from 0.
    line: u32,
    words: Vec<String>,
}

/// Command of each rank, in order.
fn commands(lines: &[Line], size: u32, path: &Path) -> Result<BTreeMap<u32, Command>, MultiProgError> {
    let mut commands = BTreeMap::new();
    for (index, line) in (0..).zip(lines) {
        let fault = |fault| MultiProgError::Line { path: path.to_owned(), line: line.number, fault };
        if let Some(rank) = line.ranks.as_ref().map(|ranks| ranks.greatest().0).filter(|&rank| rank >= size) {
            return Err(fault(LineFault::NoSuchRank { rank, size }));
        }
        let ranks: Vec<u32> = match &line.ranks {
            Some(ranks) => ranks.ends().flat_map(|(first, last)| first..=last).collect(),
            None => (0..size).filter(|rank| !commands.contains_key(rank)).collect(),
        };
        for (offset, rank) in (0..).zip(ranks) {
            let words = line.words.iter().map(|word| filled(word, rank, offset)).collect();
            if commands.insert(rank, Command { line: index, words }).is_some() {
                return Err(fault(LineFault::Twice { rank }));
            }
        }
    }
    match (0..size).find(|rank| !commands.contains_key(rank)) {
        Some(rank) => Err(MultiProgError::NoProgram { path: path.to_owned(), rank }),
        None => Ok(commands),
    }
}

fn filled(word: &str, rank: u32, offset: u32) -> String {
    if word.contains('%') {
        word.replace("%t", &rank.to_string()).replace("%o", &offset.to_string())
    } else {
        word.to_owned()
    }
}

/// Programs with their arguments, each with its number of consecutive ranks.
fn in_a_row(commands: BTreeMap<u32, Command>) -> Vec<(Command, u32)> {
    let mut programs: Vec<(Command, u32)> = Vec::new();
    for command in commands.into_values() {
        match programs.last_mut() {
            Some((last, ranks)) if *last == command => *ranks += 1,
            _ => programs.push((command, 1)),
        }
    }
    programs
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn programs(text: &str, ranks: Option<u32>) -> Result<Vec<(u32, u32, String)>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let app = AppSpec {
            program: file.path().into(),
            args: Vec::new(),
            directory: "/".into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        };
        let request = ProgramRequest { app, ranks: ranks.and_then(NonZeroU32::new), number: 5 };
        let words = |app: &AppSpec| {
            let args = app.args.iter().map(|arg| format!(" {}", arg.display())).collect::<String>();
            format!("{}{args}", app.program.display())
        };
        let name = file.path().display().to_string();
        match read(request) {
            Ok(programs) => {
                let seen =
                    |program: &ProgramRequest| (program.number, program.ranks.unwrap().get(), words(&program.app));
                Ok(programs.iter().map(seen).collect())
            }
            Err(error) => Err(error.to_string().replace(&name, "FILE").replace("--multi-prog: ", "")),
        }
    }

    #[test]
    fn each_line_is_a_program_whose_ranks_in_a_row_are_together() {
        let check = |text: &str, ranks, expected: &[(u32, u32, &str)]| {
            let seen = programs(text, ranks).unwrap();
            let seen: Vec<_> = seen.iter().map(|(number, ranks, words)| (*number, *ranks, words.as_str())).collect();
            assert_eq!(seen, expected, "{text}");
        };
        check("0 a\n1-3 b x\n", None, &[(5, 1, "a"), (6, 3, "b x")]);
        check("1-3 b\n0,4 a\n", None, &[(6, 1, "a"), (5, 3, "b"), (6, 1, "a")]);
        check("0,2 a\n1,3 b\n", None, &[(5, 1, "a"), (6, 1, "b"), (5, 1, "a"), (6, 1, "b")]);
        check("0 a\n1 a\n", None, &[(5, 1, "a"), (6, 1, "a")]);
        check("# all\n\n0 a\n* b 'x y'\n", Some(3), &[(5, 1, "a"), (6, 2, "b x y")]);
        check(
            "0-1 a %t:%o\n2-3 b %t:%o \\\n  end\n",
            None,
            &[(5, 1, "a 0:0"), (5, 1, "a 1:1"), (6, 1, "b 2:0 end"), (6, 1, "b 3:1 end")],
        );
        check("* a %t", Some(2), &[(5, 1, "a 0"), (5, 1, "a 1")]);
    }

    #[test]
    fn a_file_that_makes_no_launch_is_refused_with_the_line() {
        for (text, ranks, expected) in [
            (
                "0 a\n2 b\n",
                None,
                "FILE has no program for rank 1\ntry: a last line * ./a.out, for the rest of the ranks",
            ),
            ("* a\n", None, "FILE names no last rank\ntry: -n with the number of ranks"),
            ("", None, "FILE names no last rank\ntry: -n with the number of ranks"),
            ("0 a\n0-1 b\n", None, "FILE, line 2: rank 0 has a program already"),
            ("0-4 a\n", Some(2), "FILE, line 1: there is no rank 4; -n 2 makes ranks 0 to 1"),
            ("0-1048576 a\n", None, "FILE is for 1048577 ranks\ntry: -n 1048576, or fewer"),
            ("0 'a\n", None, "FILE, line 1: a quote is not closed"),
            ("0\n", None, "FILE, line 1: there is no program after the ranks"),
            (
                "0-4095 a %t\n4096 b\n",
                None,
                "FILE makes 4097 programs of the ranks, with a different one beside each\ntry: at most 4096; ranks with the same program beside each other are one",
            ),
        ] {
            let error = programs(text, ranks).unwrap_err();
            assert!(error.starts_with(expected) && error.contains("\ntry: "), "{text}: {error}");
        }
        assert!(programs("x a\n", None).unwrap_err().starts_with("FILE, line 1: the ranks are \"x\": "));
    }
}
