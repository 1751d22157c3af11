//! Flags of `srun` (srun(1) of Slurm 22.05 to 24.05), and its defaults. Standard input goes to all tasks. A failed task does not end the
//! remaining tasks. Standard error follows standard output. Bound tasks are distributed over the sockets of their node.

mod array_letters;
mod flags;
mod gpus;
mod values;
mod variables;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

pub(super) use self::flags::FLAGS;
use self::values::add_nodes;
use super::components::{self, Reach};
use super::flag::{Answer, Refusal, Takes, find, next_word, unknown};
use super::line::Line;
use crate::idle::{self, IDLE, Idle, Value};
use crate::line::SEPARATOR;

/// Each variable that stands for a flag, with its launcher and the flag.
#[cfg(test)]
pub(super) fn variables() -> Vec<(&'static str, &'static str, &'static str)> {
    let counted = [("SLURM_NTASKS", "ntasks"), ("SLURM_NPROCS", "ntasks")];
    counted.iter().chain(variables::all()).map(|&(name, flag)| (name, "srun", flag)).collect()
}

/// First names of flags that apply only to the component of srun that has them. Slurm resets them before it reads the next component
/// (`reset_each_pass` of its table of options). Other flags apply until a component sets them again. Flags that do no harm to a component
/// without them, such as `--bcast`, are omitted.
const OF_ONE_COMPONENT: [&str; 14] = [
    "ntasks-per-core",
    "ntasks-per-socket",
    "ntasks-per-gpu",
    "m",
    "cpu-bind",
    "c",
    "mem-bind",
    "hint",
    "threads-per-core",
    "gpus-per-task",
    "gpu-bind",
    "cpus-per-gpu",
    "tres-bind",
    "r",
];

pub(super) fn translate(words: &[OsString]) -> Result<Answer, Refusal> {
    let mut line = Line::default();
    if let Some(answer) = read(words, &mut line)? {
        return Ok(answer);
    }
    components::check(
        &line,
        FLAGS,
        |name| if OF_ONE_COMPONENT.contains(&name) { Reach::Own } else { Reach::Following },
    )?;
    variables::heed(&mut line, |name| std::env::var_os(name))?;
    values::check_display(&line, |name| std::env::var_os(name))?;
    gpus::settle(&mut line)?;
    line.hand_down("--chdir");
    if let Some(signal) = line.value("--signal").filter(|_| !line.has("--time")) {
        let reason =
            "type -t TIME as well: it comes ahead of the limit of this line, not of the allocation's".to_owned();
        return Err(Refusal::Value { flag: "--signal", value: signal.to_string_lossy().into_owned(), reason });
    }
    values::settle_hint(&mut line);
    add_nodes(&mut line);
    add_defaults(&mut line);
    if line.is_in_allocation() {
        variables::heed_nodes(&mut line, |name| std::env::var_os(name));
    }
    Ok(Answer::Line(line.finish()))
}

/// Reads the programs with their flags. A `:` separates programs.
fn read(words: &[OsString], line: &mut Line) -> Result<Option<Answer>, Refusal> {
    for program in words.split(|word| word == SEPARATOR) {
        let mut rest = program;
        while let Some((word, behind)) = rest.split_first() {
            let bytes = word.as_bytes();
            if bytes.len() < 2 || bytes[0] != b'-' {
                break;
            }
            rest = behind;
            if word == "--" {
                break;
            }
            let answer = match bytes.strip_prefix(b"--") {
                Some(long) => read_long(OsStr::from_bytes(long), &mut rest, line)?,
                None => read_letters(OsStr::from_bytes(&bytes[1..]), &mut rest, line)?,
            };
            if answer.is_some() {
                return Ok(answer);
            }
        }
        line.end_program(rest);
    }
    Ok(None)
}

/// Adds the defaults of srun.
fn add_defaults(line: &mut Line) {
    let placed = ["--nodes", "--tasks-per-node", "--tasks-per", "--hostfile", "--multi-prog", "--relative", "--pty"];
    let is_counted = line.is_counted() || placed.iter().any(|flag| line.has(flag));
    let in_allocation = line.is_in_allocation();
    if in_allocation && !line.has("--overcommit") {
        line.add_to_launch("--no-overcommit", None);
    }
    if !is_counted && in_allocation {
        line.note("without -n: one task on each node of the allocation, or of those that -w names".to_owned());
        line.add_to_launch("--tasks-per-node", Some("1".as_ref()));
    }
    if !line.has("--kill-on-bad-exit") {
        line.add_to_launch("--kill-on-bad-exit", Some("0".as_ref()));
    }
    if !line.has("--stdin") && !line.has("--pty") {
        line.add_to_launch("--stdin", Some("all".as_ref()));
    }
    if !line.has("--bcast") && line.take("--send-libs").is_some() {
        line.note("--send-libs is ignored without --bcast".to_owned());
    }
    if !line.has("--output") && !line.has("--error") && line.remove("--append") {
        line.note("--open-mode is ignored without --output or --error".to_owned());
    }
    if !line.has_typed("e")
        && let Some(file) = line.value("--output")
    {
        line.add_to_launch("--error", Some(&file));
    }
    if ["--cpu-bind", "--cpus-per-task", "--hint", "--threads-per-core"].iter().any(|flag| line.has(flag)) {
        let order = line.take("--distribution");
        let order = order.as_ref().map_or("*".into(), |order| order.to_string_lossy());
        if order.splitn(3, ':').nth(2).is_some() {
            line.note("the third word of --distribution is ignored: srun's tasks take the threads of a core before the next one's".to_owned());
        }
        line.add_to_launch("--distribution", Some(order_within_nodes(&order).as_ref()));
    }
    line.add_to_launch("--slurm-env", None);
}

/// An order of ranks among nodes and sockets. A missing word, or `*`, means cyclic among sockets (srun(1), --distribution). The third word, for
/// cores, is removed: it does not affect the masks of tasks (recorded from Slurm 22.05; its task/affinity never reads it).
fn order_within_nodes(order: &str) -> String {
    let mut words = order.splitn(3, ':');
    let nodes = words.next().unwrap_or("*");
    let sockets = words.next().filter(|word| *word != "*").unwrap_or("cyclic");
    format!("{nodes}:{sockets}")
}

/// Reads `--name`, `--name=value` or `--name value`. The name may be abbreviated if unambiguous.
fn read_long(word: &OsStr, rest: &mut &[OsString], line: &mut Line) -> Result<Option<Answer>, Refusal> {
    let bytes = word.as_bytes();
    let (name, glued) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(equals) => (&bytes[..equals], Some(OsStr::from_bytes(&bytes[equals + 1..]))),
        None => (bytes, None),
    };
    let name = String::from_utf8_lossy(name).into_owned();
    let typed = format!("--{name}");
    match name.as_str() {
        "help" | "usage" => return Ok(Some(Answer::Help)),
        "version" => return Ok(Some(Answer::Text(VERSION.to_owned()))),
        "mpi" if glued == Some("list".as_ref()) => return Ok(Some(Answer::Text(MPI_LIST.to_owned()))),
        "cpu-bind" | "cpu_bind" if glued == Some("help".as_ref()) => {
            return Ok(Some(Answer::Text(CPU_BINDINGS.to_owned())));
        }
        "mem-bind" | "mem_bind" if glued == Some("help".as_ref()) => {
            return Ok(Some(Answer::Text(MEM_BINDINGS.to_owned())));
        }
        _ => {}
    }
    let name = whole_name(&name)?;
    if let Some(idle) = IDLE.iter().find(|idle| idle.long == name) {
        let value = match (idle.value, glued) {
            (Value::Required, None) => Some(next_word(&typed, rest)?),
            (_, glued) => glued.map(OsStr::to_owned),
        };
        ignore(line, &typed, idle, value.as_deref());
        return Ok(None);
    }
    let flag = find(FLAGS, name).ok_or_else(|| unknown("srun", FLAGS, &typed))?;
    let value = match (flag.takes, glued) {
        (Takes::Nothing | Takes::Optional, None) => None,
        (Takes::Nothing, Some(_)) => return Err(Refusal::HasValue { flag: typed }),
        (_, Some(glued)) => Some(glued.to_owned()),
        (Takes::Value | Takes::Pair, None) => Some(next_word(&typed, rest)?),
    };
    flag.apply(line, &typed, value.as_deref())?;
    Ok(None)
}

/// Records an ignored flag.
fn ignore(line: &mut Line, typed: &str, flag: &Idle, value: Option<&OsStr>) {
    if flag.long == "gpus" {
        line.gpus = value.map(OsStr::to_owned);
    }
    line.ignore(flag.notice, value, idle::note(typed, flag.reason));
}

/// The known name that equals `name`, or the only one that starts with it.
fn whole_name(name: &str) -> Result<&'static str, Refusal> {
    let of_table = FLAGS.iter().flat_map(|flag| flag.names).copied().filter(|name| name.len() > 1);
    let known: Vec<&'static str> = of_table.chain(IDLE.iter().map(|idle| idle.long)).collect();
    if let Some(exact) = known.iter().find(|known| **known == name) {
        return Ok(exact);
    }
    let begun: Vec<&'static str> = known.into_iter().filter(|known| known.starts_with(name)).collect();
    match begun.as_slice() {
        [] => Err(unknown("srun", FLAGS, &format!("--{name}"))),
        [one] => Ok(one),
        several => {
            let among = several.iter().map(|name| format!("--{name}")).collect();
            Err(Refusal::Ambiguous { flag: format!("--{name}"), among })
        }
    }
}

/// Reads letters after one dash: flags without values, and at the end one with its value after it or in the next word.
fn read_letters(letters: &OsStr, rest: &mut &[OsString], line: &mut Line) -> Result<Option<Answer>, Refusal> {
    let bytes = letters.as_bytes();
    for (at, &letter) in bytes.iter().enumerate() {
        let name = char::from(letter).to_string();
        let typed = format!("-{name}");
        match letter {
            b'h' => return Ok(Some(Answer::Help)),
            b'V' => return Ok(Some(Answer::Text(VERSION.to_owned()))),
            _ => {}
        }
        let behind = OsStr::from_bytes(&bytes[at + 1..]);
        let value =
            |rest: &mut &[OsString]| if behind.is_empty() { next_word(&typed, rest) } else { Ok(behind.to_owned()) };
        if let Some(idle) = IDLE.iter().find(|idle| idle.short == Some(char::from(letter))) {
            let given = match idle.value {
                Value::No | Value::Optional => None,
                Value::Required => Some(value(rest)?),
            };
            ignore(line, &typed, idle, given.as_deref());
            match idle.value {
                Value::No => continue,
                Value::Optional | Value::Required => return Ok(None),
            }
        }
        let flag = find(FLAGS, &name).ok_or_else(|| unknown("srun", FLAGS, &typed))?;
        match flag.takes {
            Takes::Nothing => flag.apply(line, &typed, None)?,
            Takes::Optional => {
                flag.apply(line, &typed, Some(behind).filter(|behind| !behind.is_empty()))?;
                return Ok(None);
            }
            Takes::Value | Takes::Pair => {
                flag.apply(line, &typed, Some(&value(rest)?))?;
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// Output of `--version`. likwid-mpirun reads the first word, PRRTE the second.
const VERSION: &str = concat!("slurm 22.05.8 (Lattice ", env!("CARGO_PKG_VERSION"), ")\n");
/// Output of `--cpu-bind=help`, and then of `--mem-bind=help`.
const CPU_BINDINGS: &str = "--cpu-bind=[verbose,|quiet,]TYPE binds the CPUs of each task:\n\
    \tnone\n\trank\n\tthreads, cores, sockets, ldoms\n\tmap_cpu:LIST, mask_cpu:LIST\n\tmap_ldom:LIST, mask_ldom:LIST\n";
const MEM_BINDINGS: &str = "--mem-bind=[verbose,|quiet,]TYPE[,prefer] binds the memory of each task:\n\
    \tnone\n\tlocal\n\trank\n\tmap_mem:LIST, mask_mem:LIST\n";
/// Output of `--mpi=list`, as from Slurm 22.05.
const MPI_LIST: &str = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n";
