//! Flags of `mpiexec` and `mpirun`: of the MPI standard (MPI 4.1, 11.5), Hydra (MPICH), Intel MPI and Open MPI.
//!
//! The launchers differ in one flag: `-N` is the number of ranks for Hydra, and the number of ranks on a node for Open MPI. They also differ in
//! their defaults: slots, binding, the size of the universe. In these cases the [dialect](dialect::Dialect) of the line decides, which is
//! determined before its words are read.

mod adoption;
mod binding;
mod detection;
mod dialect;
mod flags;
mod intel;
mod output;
mod slots;
mod values;
mod variables;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use lattice_console::Verbosity;
use lattice_console::environment::HOSTS;
use lattice_console::environment::{ALLOCATION, NO_ALLOCATION};

use self::detection::{dialect, is_flag, is_reader, version};
use self::dialect::Dialect;
pub(crate) use self::dialect::Name;
pub(super) use self::flags::FLAGS;
use self::values::ranks;
use super::components::{self, Reach};
use super::flag::{Answer, Flag, Refusal, Takes, distinct, find, next_word, text_of, unknown};
use super::line::Line;
use super::variables::set;
use crate::config_lines::config_lines;
use crate::hostfile;
use crate::line::SEPARATOR;

/// Each variable that stands for a flag, with the launchers that read it, and the flag.
#[cfg(test)]
pub(super) fn variables() -> Vec<(&'static str, &'static str, &'static str)> {
    variables::all()
}

pub(super) fn translate(words: &[OsString], name: Name) -> Result<Answer, Refusal> {
    if let Some(adoption) = adoption::of(words) {
        return adoption.map(Answer::Line);
    }
    dialect::check_variable()?;
    let dialect = dialect(words, name);
    let mut line = Line::default();
    match read(words, dialect, &mut line)? {
        Some(Question::Help) => return Ok(Answer::Help),
        Some(Question::Version) => return Ok(Answer::Text(version(words, name))),
        None => {}
    }
    read_usual_file(&mut line, dialect, |name| std::env::var_os(name))?;
    components::check(&line, FLAGS, |_| Reach::All)?;
    // Intel MPI also reads its variables from the line, not only from the environment.
    let own = line.variables();
    let of_line = |name: &str| {
        let set = own.iter().rev().find(|(known, _)| name.starts_with("I_MPI_") && known == name);
        set.map(|(_, value)| value.clone())
    };
    variables::heed(&mut line, FLAGS, dialect, |name| of_line(name).or_else(|| std::env::var_os(name)))?;
    binding::check(&line)?;
    let is_allocated = std::env::var_os(ALLOCATION).is_some_and(|id| !id.is_empty() && id != NO_ALLOCATION);
    let names_hosts = std::env::var_os(HOSTS).is_some_and(|hosts| !hosts.is_empty());
    slots::settle(&mut line, dialect, slots::Surroundings { is_allocated, names_hosts })?;
    binding::settle(&mut line, dialect);
    settle_nodes(&mut line)?;
    values::settle_ranks_per_host(&mut line);
    Ok(Answer::Line(line.finish()))
}

/// Reads the programs with their flags. A `:` separates programs.
fn read(words: &[OsString], dialect: Dialect, line: &mut Line) -> Result<Option<Question>, Refusal> {
    for program in words.split(|word| word == SEPARATOR) {
        let (mut rest, mut is_file) = (program, false);
        while let Some((word, behind)) = rest.split_first() {
            if !is_flag(word) {
                break;
            }
            rest = behind;
            if word == "--" {
                break;
            }
            match read_flag(word, &mut rest, dialect, line)? {
                Some(Read::Question(question)) => return Ok(Some(question)),
                Some(Read::File) => is_file = true,
                None => {}
            }
        }
        // A part of the line that names a file of programs needs no program of its own.
        if !is_file || !rest.is_empty() {
            line.end_program(rest);
        }
    }
    Ok(None)
}

/// A request for a text.
enum Question {
    Help,
    Version,
}

/// A flag with a special effect.
enum Read {
    /// The flag requests a text; the rest of the line is ignored.
    Question(Question),
    /// The flag named a file of programs, which has been read.
    File,
}

/// Reads one flag. `rest` starts after the flag, and advances past its values.
fn read_flag(word: &OsStr, rest: &mut &[OsString], dialect: Dialect, line: &mut Line) -> Result<Option<Read>, Refusal> {
    let typed = word.to_string_lossy().into_owned();
    let bytes = word.as_bytes();
    let dashes = bytes.iter().take_while(|&&byte| byte == b'-').count();
    let (name, glued) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(equals) => (&bytes[dashes..equals], Some(OsStr::from_bytes(&bytes[equals + 1..]))),
        None => (&bytes[dashes..], None),
    };
    let name = String::from_utf8_lossy(name).into_owned();
    match name.as_str() {
        "h" | "help" | "?" => return Ok(Some(Read::Question(Question::Help))),
        "V" | "version" | "info" => return Ok(Some(Read::Question(Question::Version))),
        "v" | "verbose" => line.verbosity = Some(Verbosity::Verbose),
        "q" | "quiet" => line.verbosity = Some(Verbosity::Quiet),
        "configfile" | "app" | "appfile" => {
            let file = value(&typed, glued, rest)?;
            read_file(&typed, &file, dialect, line)?;
            return Ok(Some(Read::File));
        }
        "N" => {
            let value = value(&typed, glued, rest)?;
            // After a number of ranks, `-N` cannot be another one.
            match dialect {
                Dialect::Hydra | Dialect::Intel if line.program().ranks.is_none() => ranks(line, &value)?,
                _ => flags::PER_NODE.apply(line, &typed, Some(&value))?,
            }
        }
        "c" => ranks(line, &value(&typed, glued, rest)?)?,
        "s" => match glued.or_else(|| rest.first().map(OsString::as_os_str)).is_some_and(is_reader) {
            // Intel MPI: the ranks that read standard input. Open MPI's flag has no value.
            true => line.add_to_launch("--stdin", Some(&value(&typed, glued, rest)?)),
            false => flags::preload_binary(line, OsStr::new(""))?,
        },
        _ => match find(FLAGS, &name) {
            Some(flag) => {
                let value = value_of(flag, &typed, glued, rest)?;
                flag.apply(line, typed.split('=').next().unwrap_or_default(), value.as_deref())?;
            }
            None => match name.find(|letter: char| letter.is_ascii_digit()) {
                Some(at) if matches!(&name[..at], "n" | "np") => ranks(line, OsStr::new(&name[at..]))?,
                _ => return Err(unknown("mpiexec", FLAGS, &typed)),
            },
        },
    }
    Ok(None)
}

/// The value of a flag of the table, in the form that the flag takes.
fn value_of(
    flag: &Flag,
    typed: &str,
    glued: Option<&OsStr>,
    rest: &mut &[OsString],
) -> Result<Option<OsString>, Refusal> {
    match flag.takes {
        Takes::Nothing if glued.is_some() => Err(Refusal::HasValue { flag: typed.to_owned() }),
        Takes::Nothing => Ok(None),
        Takes::Optional => Ok(glued.map(OsStr::to_owned)),
        Takes::Value => value(typed, glued, rest).map(Some),
        Takes::Pair => {
            let first = value(typed, glued, rest)?;
            if first.as_bytes().contains(&b'=') {
                return Ok(Some(first));
            }
            let second = value(typed, None, rest)?;
            Ok(Some(OsString::from_vec([first.as_bytes(), b"=", second.as_bytes()].concat())))
        }
    }
}

/// A value: the text after `=`, else the next word.
fn value(typed: &str, glued: Option<&OsStr>, rest: &mut &[OsString]) -> Result<OsString, Refusal> {
    glued.map_or_else(|| next_word(typed, rest), |glued| Ok(glued.to_owned()))
}

/// Reads a file with one program and its flags on each line (MPI 4.1, 11.5; Open MPI's application context).
fn read_file(typed: &str, path: &OsStr, dialect: Dialect, line: &mut Line) -> Result<(), Refusal> {
    if line.is_in_file {
        let instead = "a file of programs names no other one".to_owned();
        return Err(Refusal::Refused { flag: typed.to_owned(), instead });
    }
    line.is_in_file = true;
    let failed = |reason: String| Refusal::File { path: path.into(), reason };
    let text = text_of(path)?;
    for (number, text) in config_lines(&text) {
        let words = shlex::split(&text).ok_or_else(|| failed(format!("line {number}: a quote is not closed")))?;
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        if read(&words, dialect, line)?.is_some() {
            return Err(failed(format!("line {number}: help and version are no part of a program")));
        }
    }
    line.is_in_file = false;
    Ok(())
}

/// Hydra's variable for a file of programs, for lines without a program.
const CONFIG_FILE: &str = "HYDRA_CONFIG_FILE";

fn read_usual_file(
    line: &mut Line,
    dialect: Dialect,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Refusal> {
    let is_open = line.programs().len() == 1 && dialect != Dialect::OpenMpi;
    if let Some(file) = set(variable, CONFIG_FILE).filter(|_| is_open && line.programs()[0].is_nothing()) {
        line.note(format!("{CONFIG_FILE}={}: as -configfile", file.display()));
        line.clear_programs();
        read_file(CONFIG_FILE, &file, dialect, line)?;
    }
    Ok(())
}

/// With a number of ranks on each node, a hostfile or host list sets the nodes and their order. Its slots are ignored.
fn settle_nodes(line: &mut Line) -> Result<(), Refusal> {
    if !line.has("--tasks-per-node") {
        return Ok(());
    }
    if let Some(path) = line.take("--hostfile") {
        let hosts = hostfile::read(path.as_ref())
            .map_err(|error| Refusal::File { path: path.into(), reason: error.to_string() })?;
        let names = distinct(hosts.names());
        line.add_to_launch("--nodelist", Some(names.join(",").as_ref()));
    } else if let Some(text) = line.take("--host") {
        let names = text
            .to_string_lossy()
            .split(',')
            .map(|host| host.split(':').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>();
        line.add_to_launch("--nodelist", Some(distinct(names).join(",").as_ref()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_programs_that_the_environment_names_counts_in_a_line_without_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "-n 1 ./a\n-n 2 ./b\n").unwrap();
        for (flags, expected) in [
            (vec!["-l"], "--label --ntasks=1 ./a : --ntasks=2 ./b"),
            (vec![], "--ntasks=1 ./a : --ntasks=2 ./b"),
            (vec!["-n", "3", "./c"], "--ntasks=3 ./c"),
        ] {
            let mut line = Line::default();
            let words: Vec<OsString> = flags.into_iter().map(OsString::from).collect();
            assert!(read(&words, Dialect::Hydra, &mut line).unwrap().is_none());
            read_usual_file(&mut line, Dialect::Hydra, |_| Some(file.path().into())).unwrap();
            let words = line.finish().words;
            assert_eq!(words.join(OsStr::new(" ")), expected);
        }
    }
}
