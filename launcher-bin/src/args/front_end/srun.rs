//! The words of `srun` (srun(1) of Slurm 22.05 to 24.05), and what it does without being asked: standard input goes to all tasks, a
//! task that fails leaves the others running, standard error goes where standard output goes, and tasks that are bound are dealt out over
//! the sockets of their node.

mod array_letters;
mod values;
mod variables;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use self::values::{
    add_nodes, compress, cpu_bind, distribution, epilog, error, exclude, export, gpu_bind, gpus_per_task, group, mpi,
    no_kill, node_file, node_list, nodes, open_mode, output, prolog, pty, quiet, send_libs, signal, user, verbose,
};
use super::Meaning::{Made, Nothing, OfLaunch, OfNodes, OfProgram, Refused};
use super::line::Line;
use super::{Answer, Flag, FrontEnd, Refusal, Takes, next_word, unknown};
use crate::args::SEPARATOR;
use crate::args::idle::{IDLE, Value};
use crate::cluster::{ALLOCATION, NO_ALLOCATION};

const fn flag(names: &'static [&'static str], takes: Takes, meaning: super::Meaning) -> Flag {
    Flag { names, takes, meaning }
}

/// The flags, beside those of [`IDLE`].
pub(super) const FLAGS: &[Flag] = &[
    flag(&["n", "ntasks"], Takes::Value, OfProgram("--ntasks")),
    flag(&["N", "nodes"], Takes::Value, Made("-N N or -N MIN-MAX", nodes)),
    flag(&["ntasks-per-node", "tasks-per-node"], Takes::Value, OfNodes("--tasks-per-node")),
    flag(&["ntasks-per-core"], Takes::Value, OfLaunch("--tasks-per-core")),
    flag(&["ntasks-per-socket"], Takes::Value, OfLaunch("--tasks-per-socket")),
    flag(&["w", "nodelist"], Takes::Value, Made("-w NODES; with more of -N than these, --include NODES", node_list)),
    flag(&["F", "nodefile"], Takes::Value, Made("-w NODES, those of the file", node_file)),
    flag(&["x", "exclude"], Takes::Value, Made("-x NODES", exclude)),
    flag(
        &["m", "distribution"],
        Takes::Value,
        Made(
            "--distribution=block|cyclic|plane=N[:block|cyclic|fcyclic[:...]]; arbitrary is --hostfile $SLURM_HOSTFILE; Pack is refused",
            distribution,
        ),
    ),
    flag(&["cpu-bind", "cpu_bind"], Takes::Value, Made("--cpu-bind", cpu_bind)),
    flag(&["c", "cpus-per-task"], Takes::Value, OfLaunch("--cpus-per-task")),
    flag(&["mem-bind", "mem_bind"], Takes::Value, OfLaunch("--mem-bind")),
    flag(&["hint"], Takes::Value, OfLaunch("--hint")),
    flag(&["threads-per-core"], Takes::Value, OfLaunch("--threads-per-core")),
    flag(&["gpus-per-task"], Takes::Value, Made("--gpus-per-task, without the type of GPU", gpus_per_task)),
    flag(&["gpu-bind"], Takes::Value, Made("--gpu-bind, without verbose", gpu_bind)),
    flag(&["O", "overcommit"], Takes::Nothing, OfLaunch("--overcommit")),
    flag(&["jobid"], Takes::Value, OfLaunch("--alloc")),
    flag(&["o", "output"], Takes::Value, Made("-o FILE, and -e FILE unless there is one; a task is refused", output)),
    flag(&["e", "error"], Takes::Value, Made("-e FILE; a task is refused", error)),
    flag(&["i", "input"], Takes::Value, OfLaunch("--stdin")),
    flag(&["J", "job-name"], Takes::Value, OfLaunch("--job-name")),
    flag(&["l", "label"], Takes::Nothing, OfLaunch("--label")),
    flag(&["u", "unbuffered"], Takes::Nothing, OfLaunch("--unbuffered")),
    flag(&["open-mode"], Takes::Value, Made("--append", open_mode)),
    flag(&["json"], Takes::Nothing, OfLaunch("--json")),
    flag(&["D", "chdir"], Takes::Value, OfProgram("--chdir")),
    flag(&["export"], Takes::Value, Made("--export, without names that are not set", export)),
    flag(&["bcast"], Takes::Optional, OfLaunch("--bcast")),
    flag(&["bcast-exclude"], Takes::Value, OfLaunch("--bcast-exclude")),
    flag(&["compress"], Takes::Optional, Made("--compress, which is gzip, unless it is none", compress)),
    flag(&["send-libs"], Takes::Optional, Made("--send-libs=yes|no", send_libs)),
    flag(&["propagate"], Takes::Optional, OfLaunch("--propagate")),
    flag(&["multi-prog"], Takes::Nothing, OfLaunch("--multi-prog")),
    flag(&["mpi"], Takes::Value, Made("--pmi=none for none; all others are served anyway", mpi)),
    flag(&["t", "time"], Takes::Value, OfLaunch("--time")),
    flag(&["signal"], Takes::Value, Made("--signal, with -t on the same line; without R:", signal)),
    flag(&["K", "kill-on-bad-exit"], Takes::Optional, OfLaunch("--kill-on-bad-exit")),
    flag(&["k", "no-kill"], Takes::Optional, Made("--no-kill, unless it is off", no_kill)),
    flag(&["W", "wait"], Takes::Value, OfLaunch("--wait")),
    flag(&["v", "verbose"], Takes::Nothing, Made("-v", verbose)),
    flag(&["quiet", "Q"], Takes::Nothing, Made("-q", quiet)),
    // Its long name is in that table; there the letter is taken.
    flag(&["q"], Takes::Value, Nothing("launches start at once, in an allocation that is there already")),
    flag(&["gpu-freq", "cpu-freq", "accel-bind"], Takes::Value, Nothing("ranks are bound by --cpu-bind alone")),
    flag(&["ntasks-per-gpu", "cpus-per-gpu", "mem-per-gpu"], Takes::Value, Nothing("an allocation is whole nodes")),
    flag(
        &[
            "network",
            "licenses",
            "power",
            "profile",
            "mcs-label",
            "slurmd-debug",
            "thread-spec",
            "core-spec",
            "tres-per-task",
            "switches",
            "begin",
            "priority",
            "deadline",
            "dependency",
            "cluster-constraint",
            "extra-node-info",
            "wckey",
            "acctg-freq",
            "time-min",
            "clusters",
            "mail-type",
            "mail-user",
            "mincpus",
            "tmp",
            "tres-bind",
            "cores-per-socket",
            "sockets-per-node",
            "gres-flags",
            "gpus-per-socket",
            "cluster",
            "treewidth",
        ],
        Takes::Value,
        Nothing("it is a setting of Slurm"),
    ),
    flag(
        &[
            "no-allocate",
            "contiguous",
            "spread-job",
            "use-min-nodes",
            "reboot",
            "hold",
            "interactive",
            "preserve-env",
            "bell",
            "no-bell",
        ],
        Takes::Nothing,
        Nothing("it is a setting of Slurm"),
    ),
    flag(&["test-only"], Takes::Nothing, OfLaunch("--dry-run")),
    flag(&["uid"], Takes::Value, Made("nothing, for yourself; others are refused", user)),
    flag(&["gid"], Takes::Value, Made("nothing, for your own group; others are refused", group)),
    flag(&["nice", "x11", "resv-ports"], Takes::Optional, Nothing("it is a setting of Slurm")),
    flag(&["d", "b", "S", "T", "M", "L", "B", "G"], Takes::Value, Nothing("it is a setting of Slurm")),
    flag(&["X", "E", "H", "Z"], Takes::Nothing, Nothing("it is a setting of Slurm")),
    flag(&["pty"], Takes::Optional, Made("--pty", pty)),
    flag(&["r", "relative"], Takes::Value, OfLaunch("--relative")),
    flag(&["het-group", "pack-group"], Takes::Value, Refused("separate programs by a lone `:`")),
    flag(&["container-image", "container"], Takes::Value, OfLaunch("--container")),
    flag(
        &["container-mounts", "container-workdir", "container-name", "uenv", "view", "environment"],
        Takes::Value,
        Refused("type --container IMAGE with a profile of your own in ~/.config/lattice/containers.toml"),
    ),
    flag(&["bb", "bbf", "delay-boot", "threads"], Takes::Value, Nothing("it is a setting of Slurm")),
    flag(&["quit-on-interrupt"], Takes::Nothing, Nothing("Ctrl-C ends the launch in order, a second one at once")),
    flag(&["task-prolog"], Takes::Value, OfLaunch("--task-prolog")),
    flag(&["task-epilog"], Takes::Value, OfLaunch("--task-epilog")),
    flag(&["prolog"], Takes::Value, Made("--prolog, unless it is none", prolog)),
    flag(&["epilog"], Takes::Value, Made("--epilog, unless it is none", epilog)),
];

/// Each variable that stands for a flag, with whose lines heed it.
#[cfg(test)]
pub(super) fn variables() -> Vec<(&'static str, &'static str, &'static str)> {
    let counted = [("SLURM_NTASKS", "ntasks"), ("SLURM_NPROCS", "ntasks")];
    counted.iter().chain(variables::all()).map(|&(name, flag)| (name, "srun", flag)).collect()
}

pub(super) fn translate(words: &[OsString]) -> Result<Answer, Refusal> {
    let mut line = Line::default();
    if let Some(answer) = read(words, &mut line)? {
        return Ok(answer);
    }
    variables::heed(&mut line, |name| std::env::var_os(name))?;
    if let Some(signal) = line.value("--signal").filter(|_| !line.has("--time")) {
        let reason =
            "type -t TIME as well: it comes ahead of the limit of this line, not of the allocation's".to_owned();
        return Err(Refusal::Value { flag: "--signal", value: signal.to_string_lossy().into_owned(), reason });
    }
    values::settle_hint(&mut line);
    add_nodes(&mut line);
    add_defaults(&mut line);
    if is_in_allocation(&line) {
        variables::heed_nodes(&mut line, |name| std::env::var_os(name));
    }
    Ok(Answer::Line(line.finish()))
}

/// Reads programs with their flags, one behind each `:`.
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

fn is_in_allocation(line: &Line) -> bool {
    line.has("--alloc") || std::env::var_os(ALLOCATION).is_some_and(|id| id != NO_ALLOCATION)
}

/// What srun does unless it is told otherwise.
fn add_defaults(line: &mut Line) {
    let placed = ["--nodes", "--tasks-per-node", "--hostfile", "--multi-prog", "--relative", "--pty"];
    let is_counted = line.is_counted() || placed.iter().any(|flag| line.has(flag));
    let in_allocation = is_in_allocation(line);
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
        line.note("--send-libs chooses nothing without --bcast".to_owned());
    }
    if !line.has("--output") && !line.has("--error") && line.remove("--append") {
        line.note("--open-mode chooses nothing without --output or --error".to_owned());
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
            line.note("the third word of --distribution chooses nothing: srun's tasks take the threads of a core before the next one's".to_owned());
        }
        line.add_to_launch("--distribution", Some(order_within_nodes(&order).as_ref()));
    }
    line.add_to_launch("--slurm-env", None);
}

/// An order of ranks among nodes and sockets: what is absent or `*` is cyclic among sockets (srun(1), --distribution). The third word, for
/// cores, is left out: it has no part in the masks of tasks (recorded from Slurm 22.05; its task/affinity reads it nowhere).
fn order_within_nodes(order: &str) -> String {
    let mut words = order.splitn(3, ':');
    let nodes = words.next().unwrap_or("*");
    let sockets = words.next().filter(|word| *word != "*").unwrap_or("cyclic");
    format!("{nodes}:{sockets}")
}

/// Reads `--name`, `--name=value` or `--name value`; a name may be cut as long as only one begins so.
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
        if idle.value == Value::Required && glued.is_none() {
            next_word(&typed, rest)?;
        }
        line.note(format!("{typed} chooses nothing here: {}", idle.reason));
        return Ok(None);
    }
    let flag = super::find(FLAGS, name).ok_or_else(|| unknown(FrontEnd::Srun, &typed))?;
    let value = match (flag.takes, glued) {
        (Takes::Nothing | Takes::Optional, None) => None,
        (Takes::Nothing, Some(_)) => return Err(Refusal::HasValue { flag: typed }),
        (_, Some(glued)) => Some(glued.to_owned()),
        (Takes::Value | Takes::Pair, None) => Some(next_word(&typed, rest)?),
    };
    flag.apply(line, &typed, value.as_deref())?;
    Ok(None)
}

/// The one known name that is, or begins with, `name`.
fn whole_name(name: &str) -> Result<&'static str, Refusal> {
    let of_table = FLAGS.iter().flat_map(|flag| flag.names).copied().filter(|name| name.len() > 1);
    let known: Vec<&'static str> = of_table.chain(IDLE.iter().map(|idle| idle.long)).collect();
    if let Some(exact) = known.iter().find(|known| **known == name) {
        return Ok(exact);
    }
    let begun: Vec<&'static str> = known.into_iter().filter(|known| known.starts_with(name)).collect();
    match begun.as_slice() {
        [] => Err(unknown(FrontEnd::Srun, &format!("--{name}"))),
        [one] => Ok(one),
        several => {
            let among = several.iter().map(|name| format!("--{name}")).collect();
            Err(Refusal::Ambiguous { flag: format!("--{name}"), among })
        }
    }
}

/// Reads letters behind one dash: flags without values, and last one that has its value behind it or in the next word.
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
            line.note(format!("{typed} chooses nothing here: {}", idle.reason));
            match idle.value {
                Value::No => continue,
                Value::Optional => return Ok(None),
                Value::Required => return value(rest).map(|_| None),
            }
        }
        let flag = super::find(FLAGS, &name).ok_or_else(|| unknown(FrontEnd::Srun, &typed))?;
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

/// Answer to `--version`; likwid-mpirun reads its first word, PRRTE the second.
const VERSION: &str = concat!("slurm 22.05.8 (Lattice ", env!("CARGO_PKG_VERSION"), ")\n");
/// Answers to `--cpu-bind=help` and `--mem-bind=help`.
const CPU_BINDINGS: &str = "--cpu-bind=[verbose,|quiet,]TYPE binds the CPUs of each task:\n\
    \tnone\n\trank\n\tthreads, cores, sockets, ldoms\n\tmap_cpu:LIST, mask_cpu:LIST\n\tmap_ldom:LIST, mask_ldom:LIST\n";
const MEM_BINDINGS: &str = "--mem-bind=[verbose,|quiet,]TYPE[,prefer] binds the memory of each task:\n\
    \tnone\n\tlocal\n\trank\n\tmap_mem:LIST, mask_mem:LIST\n";
/// Answer to `--mpi=list`, as Slurm 22.05 gives it.
const MPI_LIST: &str = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n";
