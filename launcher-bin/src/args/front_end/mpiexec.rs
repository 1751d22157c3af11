//! The words of `mpiexec` and `mpirun`: the MPI standard's (MPI 4.1, 11.5), Hydra's (MPICH), Intel MPI's and Open MPI's.
//!
//! They contradict each other in one flag, `-N`: for Hydra it is the number of ranks, for Open MPI that of ranks on a node. There the
//! dialect decides: `LATTICE_MPIEXEC`, else the flags that one dialect alone has, else the MPI library of the program.

mod binding;
mod dialect;
mod intel;
mod output;
mod slots;
mod values;
mod variables;

use std::cell::LazyCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use self::binding::{bind_to, cpu_list, cpus_per_rank, map_by, membind, oversubscribe};
use self::dialect::{Dialect, VARIABLE, dialect, version};
use self::output::{output, output_filename, stream_buffering};
use self::values::{
    display, environment, environment_of_all, error_pattern, export_list, export_one, host, hosts, launch_mca, mca,
    output_pattern, path, pmix_mca, rank_by, ranks, ranks_of_each_host, ranks_per_host, universe_size,
};
use super::Meaning::{Made, Nothing, OfLaunch, OfProgram, Refused};
use super::line::Line;
use super::variables::set;
use super::{Answer, Flag, FrontEnd, Refusal, Takes, distinct, find, next_word, text_of, unknown};
use crate::args::SEPARATOR;
use crate::cluster::{ALLOCATION, NO_ALLOCATION};
use crate::console::Verbosity;
use crate::hostfile;
use crate::request::HOSTS_VARIABLE;

const fn flag(names: &'static [&'static str], takes: Takes, meaning: super::Meaning) -> Flag {
    Flag { names, takes, meaning }
}

const NO_SSH: &str = "nodes are reached through their agents";
const NO_TUNING: &str = "it is a setting of another launcher";

/// The flags of all dialects. `-N` and `-c`, which the dialects read differently, are not among them, nor are those that ask for an answer or
/// name a file.
pub(super) const FLAGS: &[Flag] = &[
    // the MPI standard
    flag(&["n", "np"], Takes::Value, Made("-n N", ranks)),
    flag(&["host"], Takes::Value, Made("--host HOSTS", host)),
    flag(&["wdir", "wd", "dir"], Takes::Value, OfProgram("--chdir")),
    flag(&["path"], Takes::Value, Made("the program's file in DIR", path)),
    flag(&["arch"], Takes::Value, Refused("type lattice launch -w NODES for nodes of one architecture")),
    flag(&["soft"], Takes::Value, Refused("type -n N for a number of ranks")),
    flag(&["initial-errhandler", "memory-alloc-kinds"], Takes::Value, Nothing("a program chooses it for itself here")),
    // nodes
    flag(&["hosts"], Takes::Value, Made("--host HOSTS, or -w NODES", hosts)),
    flag(&["H"], Takes::Value, Made("--host HOSTS", host)),
    flag(&["f", "hostfile", "default-hostfile"], Takes::Value, OfLaunch("--hostfile")),
    flag(&["machinefile", "machine"], Takes::Value, OfLaunch("--hostfile")),
    flag(
        &["ppn", "perhost", "grr"],
        Takes::Value,
        Made("-m plane=N; --tasks-per-node without -n; --tasks-per 1:core:again for allcores", ranks_per_host),
    ),
    flag(&["npernode"], Takes::Value, Made("--tasks-per-node=N, and -m plane=N with -n", ranks_of_each_host)),
    flag(&["pernode"], Takes::Nothing, OfLaunch("--tasks-per-node=1")),
    flag(
        &["map-by"],
        Takes::Value,
        Made(
            "--distribution, --tasks-per K:OBJECT, --rankfile, --host, or :over=OBJECT and :cores=N of --cpu-bind",
            map_by,
        ),
    ),
    flag(
        &["npersocket"],
        Takes::Value,
        Made("--tasks-per K:socket", |line, ranks| {
            line.places.is_mapped = true;
            line.add_to_launch("--tasks-per", Some(format!("{}:socket", ranks.to_string_lossy()).as_ref()));
            Ok(())
        }),
    ),
    flag(&["rankfile", "rf"], Takes::Value, OfLaunch("--rankfile")),
    flag(
        &["cpu-set", "cpu-list"],
        Takes::Value,
        Made("--cpu-bind=core-map:CORES, for all ranks, or one for each with --bind-to cpu-list:ordered", cpu_list),
    ),
    flag(&["rank-by"], Takes::Value, Made("--rank-by", rank_by)),
    flag(&["bind-to"], Takes::Value, Made("--cpu-bind", bind_to)),
    flag(&["membind"], Takes::Value, Made("--mem-bind=none, or local for bind:OBJECT", membind)),
    flag(&["bind-to-core"], Takes::Nothing, Made("--cpu-bind=cores", |line, _| bind_to(line, "core".as_ref()))),
    flag(&["bind-to-socket"], Takes::Nothing, Made("--cpu-bind=sockets", |line, _| bind_to(line, "socket".as_ref()))),
    flag(&["bind-to-none"], Takes::Nothing, Made("--cpu-bind=none", |line, _| bind_to(line, "none".as_ref()))),
    flag(&["bynode", "rr"], Takes::Nothing, Made("--distribution=cyclic", |line, _| map_by(line, "node".as_ref()))),
    flag(
        &["byslot"],
        Takes::Nothing,
        Made("ranks fill a node before the next one, as is usual", |line, _| map_by(line, "slot".as_ref())),
    ),
    flag(&["bysocket"], Takes::Nothing, Made(":over=sockets of --cpu-bind", |line, _| map_by(line, "socket".as_ref()))),
    flag(&["cpus-per-proc", "cpus-per-rank"], Takes::Value, Made("--cpu-bind=cores:cores=N", cpus_per_rank)),
    flag(&["gpus-per-proc"], Takes::Value, OfLaunch("--gpus-per-task")),
    flag(
        &["oversubscribe"],
        Takes::Nothing,
        Made(":overcommit of --cpu-bind; hosts get as many slots more as there are ranks", oversubscribe),
    ),
    flag(&["nooversubscribe"], Takes::Nothing, Nothing("it is so anyway for lines of Open MPI")),
    flag(
        &["use-hwthread-cpus"],
        Takes::Nothing,
        Made("--tasks-per=1:hwthread: a slot for each hardware thread", |line, _| {
            line.places.counts_threads = true;
            Ok(())
        }),
    ),
    flag(&["nolocal", "skip-launch-node"], Takes::Nothing, Refused("type lattice launch -x NODE to leave a node out")),
    // environment
    flag(&["genv"], Takes::Pair, Made("--env NAME=VALUE, for every program", environment_of_all)),
    flag(&["env"], Takes::Pair, Made("--env NAME=VALUE", environment)),
    flag(&["x"], Takes::Value, Made("--env NAME[=VALUE], for every program", export_one)),
    flag(&["genvlist", "envlist"], Takes::Value, Made("--export=NAMES", export_list)),
    flag(&["genvnone", "envnone"], Takes::Nothing, OfLaunch("--export=NONE")),
    flag(&["genvall", "envall"], Takes::Nothing, Nothing("all variables are passed on anyway")),
    flag(
        &["mca", "omca", "gmca"],
        Takes::Pair,
        Made(
            "--env OMPI_MCA_NAME=VALUE, for every program, or the flag that a parameter of the launcher stands for",
            mca,
        ),
    ),
    flag(&["pmixmca"], Takes::Pair, Made("--env PMIX_MCA_NAME=VALUE, for every program", pmix_mca)),
    flag(&["prtemca"], Takes::Pair, Made("the flag that the parameter stands for, if any", launch_mca)),
    // output
    flag(&["l", "prepend-rank", "tag-output"], Takes::Nothing, OfLaunch("--label")),
    flag(&["timestamp-output"], Takes::Nothing, OfLaunch("--timestamp")),
    flag(&["prepend-pattern"], Takes::Value, Refused("type -prepend-rank")),
    flag(&["outfile-pattern"], Takes::Value, Made("--output, with %N for %h and %n for %p", output_pattern)),
    flag(&["errfile-pattern"], Takes::Value, Made("--error, with the same letters", error_pattern)),
    flag(&["output"], Takes::Value, Made("--label, --timestamp, or --output and --error for file=NAME", output)),
    flag(&["output-filename"], Takes::Value, Made("--output=NAME.%j.%r.out --error=NAME.%j.%r.err", output_filename)),
    flag(&["s", "stdin"], Takes::Value, OfLaunch("--stdin")),
    flag(&["merge-stderr-to-stdout", "stderr-to-stdout"], Takes::Nothing, Refused("type 2>&1 behind the line")),
    flag(&["xml"], Takes::Nothing, Refused("type lattice launch --json")),
    flag(&["xterm"], Takes::Value, Refused("start it as the program: mpiexec -n 1 xterm -e ./a.out")),
    flag(&["ordered-output"], Takes::Nothing, Nothing("ranks' output is passed on by whole lines anyway")),
    flag(
        &["stream-buffering"],
        Takes::Value,
        Made("--unbuffered for 0; 1 and 2 choose nothing, for output is passed on by whole lines", stream_buffering),
    ),
    flag(&["show-progress"], Takes::Nothing, Nothing("on a terminal the start is shown anyway")),
    flag(&["print-all-exitcodes"], Takes::Nothing, Nothing("-v tells how each rank has ended")),
    flag(
        &["report-bindings", "display-map", "print-rank-map", "display-allocation", "display-devel-map"],
        Takes::Nothing,
        OfLaunch("--show-map"),
    ),
    flag(&["display"], Takes::Value, Made("--show-map", display)),
    flag(&["do-not-launch"], Takes::Nothing, OfLaunch("--dry-run")),
    // failures and time
    flag(&["timeout"], Takes::Value, OfLaunch("--timeout")),
    flag(&["disable-auto-cleanup", "enable-recovery", "continuous"], Takes::Nothing, OfLaunch("--kill-on-bad-exit=0")),
    flag(&["with-ft"], Takes::Value, Made("-K0 and OMPI_MCA_mpi_ft_enable=1, unless it is no", fault_tolerance)),
    flag(
        &["report-state-on-timeout", "get-stack-traces"],
        Takes::Nothing,
        Nothing("the call stacks of ranks are shown anyway when --timeout is over"),
    ),
    // PMI
    flag(&["usize"], Takes::Value, Made("--universe-size N", universe_size)),
    flag(&["pmi-port"], Takes::Nothing, OfLaunch("--pmi-port")),
    flag(&["pset"], Takes::Value, OfProgram("--pset")),
    // settings of other launchers
    flag(
        &[
            "bootstrap",
            "bootstrap-exec",
            "launcher",
            "launcher-exec",
            "launch-agent",
            "bootstrap-exec-args",
            "rmk",
            "prefix",
        ],
        Takes::Value,
        Nothing(NO_SSH),
    ),
    flag(
        &[
            "iface",
            "nameserver",
            "demux",
            "topolib",
            "localhost",
            "ckpointlib",
            "ckpoint-prefix",
            "order-nodes",
            "personality",
            "ompi-server",
            "gpu-subdevs-per-proc",
        ],
        Takes::Value,
        Nothing(NO_TUNING),
    ),
    flag(
        &[
            "disable-hostname-propagation",
            "enable-x",
            "disable-x",
            "noprefix",
            "leave-session-attached",
            "debug-daemons",
            "debug-devel",
            "d",
        ],
        Takes::Nothing,
        Nothing(NO_TUNING),
    ),
    flag(
        &["allow-run-as-root"],
        Takes::Nothing,
        Nothing("root may run launches, unless `allow_root` of an agent says no"),
    ),
    flag(&["am"], Takes::Value, Refused("type --mca NAME VALUE for each line of the file")),
    flag(
        &["tune"],
        Takes::Value,
        Refused("type --mca NAME VALUE for each line of Open MPI's file, -genv I_MPI_TUNING_BIN FILE for Intel MPI's"),
    ),
    flag(
        &["trace", "check_mpi", "ilp64"],
        Takes::Nothing,
        Refused("type -genv LD_PRELOAD FILE, with the library that it stands for"),
    ),
    flag(&["max-restarts"], Takes::Value, Nothing("a rank that fails is not started anew")),
    flag(&["preload-binary"], Takes::Nothing, Made("--bcast, for all programs", preload_binary)),
    flag(&["preload-files"], Takes::Value, OfLaunch("--preload-files")),
    flag(&["preload-files-dest-dir"], Takes::Value, OfLaunch("--preload-dest-dir")),
    flag(
        &["gdb", "tv", "debug", "valgrind"],
        Takes::Nothing,
        Refused("start it as the program: mpiexec -n 1 gdb --args ./a.out"),
    ),
];

/// Open MPI's user-level failure mitigation, in the values that mpirun takes.
fn fault_tolerance(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    match value.to_str() {
        Some("no" | "false" | "0") => {}
        Some("yes" | "true" | "1" | "ulfm" | "mpi") => {
            line.add_to_launch("--kill-on-bad-exit", Some("0".as_ref()));
            line.add_to_every_program("--env", "OMPI_MCA_mpi_ft_enable=1".as_ref());
        }
        _ => {
            let (value, reason) = (value.to_string_lossy().into_owned(), "type ulfm or no".to_owned());
            return Err(Refusal::Value { flag: "--with-ft", value, reason });
        }
    }
    Ok(())
}

/// Each program may have it.
fn preload_binary(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    if !line.has("--bcast") {
        line.add_to_launch("--bcast", None);
    }
    Ok(())
}

/// Each variable that stands for a flag, with whose lines heed it.
#[cfg(test)]
pub(super) fn variables() -> Vec<(&'static str, &'static str, &'static str)> {
    variables::all()
}

pub(super) fn translate(words: &[OsString]) -> Result<Answer, Refusal> {
    dialect::check_variable()?;
    let mut line = Line::default();
    if let Some(answer) = read(words, &mut line)? {
        return Ok(answer);
    }
    read_usual_file(&mut line, |name| std::env::var_os(name))?;
    // Asked for only where it matters: it may read the program's file.
    let dialect = LazyCell::new(|| dialect(words));
    variables::heed(&mut line, || *dialect, |name| std::env::var_os(name))?;
    slots::settle_hosts(&mut line)?;
    if line.places.is_in_sequence {
        slots::put_in_sequence(&mut line)?;
    }
    slots::fill_cores(&mut line, || *dialect)?;
    match line.places.overcommit {
        true => slots::add_slots(&mut line)?,
        false => slots::go_round(&mut line, || *dialect),
    }
    if std::env::var_os(ALLOCATION).is_some_and(|id| !id.is_empty() && id != NO_ALLOCATION) {
        slots::span(&mut line);
    }
    let names_hosts = std::env::var_os(HOSTS_VARIABLE).is_some_and(|hosts| !hosts.is_empty());
    slots::settle(&mut line, || *dialect, names_hosts);
    slots::tell_universe(&mut line, || *dialect);
    binding::settle(&mut line, || *dialect);
    settle_nodes(&mut line)?;
    values::settle_ranks_per_host(&mut line);
    Ok(Answer::Line(line.finish()))
}

/// Reads programs with their flags, one behind each `:`.
fn read(words: &[OsString], line: &mut Line) -> Result<Option<Answer>, Refusal> {
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
            match read_flag(word, &mut rest, program, line)? {
                Some(Read::Answer(answer)) => return Ok(Some(answer)),
                Some(Read::File) => is_file = true,
                None => {}
            }
        }
        // A file of programs stands for programs of its own.
        if !is_file || !rest.is_empty() {
            line.end_program(rest);
        }
    }
    Ok(None)
}

/// A flag that is more than a choice.
enum Read {
    /// It asks for an answer, and nothing else counts.
    Answer(Answer),
    /// It has named a file of programs.
    File,
}

fn is_flag(word: &OsStr) -> bool {
    word.as_bytes().len() > 1 && word.as_bytes()[0] == b'-'
}

/// Reads one flag; `rest` begins behind it and is moved on by the words that it takes.
fn read_flag(
    word: &OsStr,
    rest: &mut &[OsString],
    program: &[OsString],
    line: &mut Line,
) -> Result<Option<Read>, Refusal> {
    let typed = word.to_string_lossy().into_owned();
    let bytes = word.as_bytes();
    let dashes = bytes.iter().take_while(|&&byte| byte == b'-').count();
    let (name, glued) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(equals) => (&bytes[dashes..equals], Some(OsStr::from_bytes(&bytes[equals + 1..]))),
        None => (&bytes[dashes..], None),
    };
    let name = String::from_utf8_lossy(name).into_owned();
    match name.as_str() {
        "h" | "help" | "?" => return Ok(Some(Read::Answer(Answer::Help))),
        "V" | "version" | "info" => return Ok(Some(Read::Answer(Answer::Text(version(program))))),
        "v" | "verbose" => line.verbosity = Some(Verbosity::Verbose),
        "q" | "quiet" => line.verbosity = Some(Verbosity::Quiet),
        "configfile" | "app" | "appfile" => {
            let file = value(&typed, glued, rest)?;
            read_file(&typed, &file, line)?;
            return Ok(Some(Read::File));
        }
        "N" => {
            let value = value(&typed, glued, rest)?;
            match dialect(program) {
                Some(Dialect::OpenMpi) => line.add_to_launch("--tasks-per-node", Some(&value)),
                Some(Dialect::Hydra | Dialect::Intel) => ranks(line, &value)?,
                None => return Err(ambiguous_n()),
            }
        }
        "c" => ranks(line, &value(&typed, glued, rest)?)?,
        _ => match find(FLAGS, &name) {
            Some(flag) => {
                let value = value_of(flag, &typed, glued, rest)?;
                flag.apply(line, typed.split('=').next().unwrap_or_default(), value.as_deref())?;
            }
            None => match name.find(|letter: char| letter.is_ascii_digit()) {
                Some(at) if matches!(&name[..at], "n" | "np") => ranks(line, OsStr::new(&name[at..]))?,
                _ => return Err(unknown(FrontEnd::Mpiexec, &typed)),
            },
        },
    }
    Ok(None)
}

/// The value of a flag of the table, as it takes it.
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

/// A value: what is glued to the flag, else the next word.
fn value(typed: &str, glued: Option<&OsStr>, rest: &mut &[OsString]) -> Result<OsString, Refusal> {
    glued.map_or_else(|| next_word(typed, rest), |glued| Ok(glued.to_owned()))
}

/// Reads a file of programs with their flags: one on each line (MPI 4.1, 11.5; Open MPI's application context).
fn read_file(typed: &str, path: &OsStr, line: &mut Line) -> Result<(), Refusal> {
    if line.is_in_file {
        let instead = "a file of programs names no other one".to_owned();
        return Err(Refusal::Refused { flag: typed.to_owned(), instead });
    }
    line.is_in_file = true;
    let failed = |reason: String| Refusal::File { path: path.into(), reason };
    let text = text_of(path)?;
    for (number, text) in (1..).zip(text.lines().map(str::trim)) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let words = shlex::split(text).ok_or_else(|| failed(format!("line {number}: a quote is not closed")))?;
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        if read(&words, line)?.is_some() {
            return Err(failed(format!("line {number}: help and version are no part of a program")));
        }
    }
    line.is_in_file = false;
    Ok(())
}

/// Variable of Hydra's that names a file of programs, which counts in a line without one.
const CONFIG_FILE: &str = "HYDRA_CONFIG_FILE";

fn read_usual_file(line: &mut Line, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Refusal> {
    let is_open = line.programs().len() == 1 && dialect::by_name() != Some(Dialect::OpenMpi);
    if let Some(file) = set(variable, CONFIG_FILE).filter(|_| is_open && line.programs()[0].is_nothing()) {
        line.note(format!("{CONFIG_FILE}={}: as -configfile", file.display()));
        line.clear_programs();
        read_file(CONFIG_FILE, &file, line)?;
    }
    Ok(())
}

/// A hostfile beside a number of ranks on each node: the nodes are those of the file, in its order, and its slots do not count.
fn settle_nodes(line: &mut Line) -> Result<(), Refusal> {
    if !line.has("--tasks-per-node") {
        return Ok(());
    }
    if let Some(path) = line.take("--hostfile") {
        let hosts = hostfile::read(path.as_ref())
            .map_err(|error| Refusal::File { path: path.into(), reason: error.to_string() })?;
        let names = distinct(hosts.into_iter().map(|host| host.node));
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

fn ambiguous_n() -> Refusal {
    let instead = format!(
        "-N is the number of ranks for MPICH, and of ranks on a node for Open MPI: type -n N or --npernode N, \
         or set {VARIABLE}=hydra|ompi"
    );
    Refusal::Refused { flag: "-N".to_owned(), instead }
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
            assert!(read(&words, &mut line).unwrap().is_none());
            read_usual_file(&mut line, |_| Some(file.path().into())).unwrap();
            let words = line.finish().words;
            assert_eq!(words.join(OsStr::new(" ")), expected);
        }
    }
}
