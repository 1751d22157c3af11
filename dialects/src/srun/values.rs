//! Values of `srun`'s flags, translated to flags of `lattice launch`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nix::unistd::{Group, User, getgid, getuid};

use super::super::flag::{Refusal, distinct, text_of};
use super::super::line::Line;
use super::array_letters;

/// `N`, or `MIN-MAX`.
pub(super) fn nodes(line: &mut Line, count: &OsStr) -> Result<(), Refusal> {
    let count = count.to_string_lossy().split('-').map(in_full).collect::<Vec<_>>().join("-");
    line.add_to_nodes("--nodes", Some(count.as_ref()));
    Ok(())
}

/// Adds further nodes of the allocation if `-N` requests more nodes than `-w` names.
pub(super) fn add_nodes(line: &mut Line) {
    let (Some(count), Some(list)) = (line.value("--nodes"), line.value("--nodelist")) else { return };
    let most = count.to_string_lossy().rsplit('-').next().and_then(|most| most.parse().ok()).unwrap_or(0);
    let named = hostlist::expand(&list.to_string_lossy()).map_or(usize::MAX, |names| distinct(names).len());
    if most > named {
        line.remove("--nodelist");
        line.add_to_launch("--include", Some(&list));
    }
}

/// Expands a number with the suffix `k` or `m`, which mean 1024 and its square (srun(1), --nodes).
fn in_full(text: &str) -> String {
    let times = |suffix: [char; 2], unit: u64| text.strip_suffix(suffix)?.parse::<u64>().ok()?.checked_mul(unit);
    let number = times(['k', 'K'], 1024).or_else(|| times(['m', 'M'], 1024 * 1024));
    number.map_or_else(|| text.to_owned(), |number| number.to_string())
}

/// Omits single names of variables that are not set, as srun does, with a warning.
pub(super) fn export(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    let is_gone = |word: &&str| {
        let is_name = !word.is_empty() && !word.contains(['=', '/', '.']) && !["ALL", "NONE", "NIL"].contains(word);
        is_name && std::env::var_os(word).is_none()
    };
    let text = list.to_string_lossy();
    if text.contains(['"', '\'']) {
        line.add_to_launch("--export", Some(list));
        return Ok(());
    }
    let (gone, kept): (Vec<&str>, Vec<&str>) = text.split(',').partition(is_gone);
    for name in &gone {
        line.warn(format!("--export {name}: there is no such variable to pass on"));
    }
    let kept = if kept.is_empty() { "NONE".to_owned() } else { kept.join(",") };
    line.add_to_launch("--export", Some(if gone.is_empty() { list } else { kept.as_ref() }));
    Ok(())
}

/// A list of nodes. A value with a slash is a file of names.
pub(super) fn node_list(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    line.add_to_nodes("--nodelist", Some(&names(list)?));
    Ok(())
}

pub(super) fn node_file(line: &mut Line, file: &OsStr) -> Result<(), Refusal> {
    line.add_to_nodes("--nodelist", Some(&names_in(file)?));
    Ok(())
}

pub(super) fn exclude(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    line.add_to_launch("--exclude", Some(&names(list)?));
    Ok(())
}

fn names(list: &OsStr) -> Result<OsString, Refusal> {
    if list.as_bytes().contains(&b'/') { names_in(list) } else { Ok(list.to_owned()) }
}

/// The names in a file, without repetitions.
fn names_in(file: &OsStr) -> Result<OsString, Refusal> {
    let text = text_of(file)?;
    let names = text.split([',', '\n', ' ']).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(distinct(names).join(",").into())
}

/// The distribution among nodes, among the sockets of a node, and among their cores. After a comma: whether nodes are filled.
pub(super) fn distribution(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let refused = |reason: String| Err(Refusal::Value { flag: "--distribution", value: text.to_string(), reason });
    let mut levels = Vec::new();
    for word in text.split([':', ',']) {
        match word.to_ascii_lowercase().as_str() {
            "nopack" => line.note(format!("{word}: ranks are dealt out evenly anyway")),
            "pack" => {
                return refused("type --host NODE:SLOTS,... to lattice launch for nodes that are filled".to_owned());
            }
            _ => levels.push(word),
        }
    }
    let mut levels = levels.into_iter();
    let planes = std::env::var("SLURM_DIST_PLANESIZE").ok().filter(|size| !size.is_empty());
    let planes = planes.map(|size| format!("plane={size}"));
    let mut words = match levels.next().unwrap_or("*") {
        word @ ("block" | "cyclic" | "*") => word,
        word if word.starts_with("plane=") => word,
        "plane" if planes.is_some() => planes.as_deref().unwrap_or_default(),
        "arbitrary" => {
            order_of_hostfile(line)?;
            "*"
        }
        word => return refused(format!("{word:?} is none of block, cyclic, plane=N and arbitrary")),
    }
    .to_owned();
    for word in levels {
        words = format!("{words}:{word}");
    }
    line.add_to_launch("--distribution", Some(words.as_ref()));
    Ok(())
}

/// Places tasks on the hosts of a file, in its order. Slurm takes the name of the file from the environment.
fn order_of_hostfile(line: &mut Line) -> Result<(), Refusal> {
    match std::env::var_os("SLURM_HOSTFILE").filter(|file| !file.is_empty()) {
        Some(file) => {
            line.add_to_launch("--hostfile", Some(&file));
            Ok(())
        }
        None => {
            let reason = "SLURM_HOSTFILE names no file; type --hostfile FILE to lattice launch".to_owned();
            Err(Refusal::Value { flag: "--distribution", value: "arbitrary".to_owned(), reason })
        }
    }
}

/// `[verbose,|quiet,]TYPE`: the binding, and whether it is printed.
pub(super) fn cpu_bind(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let (first, rest) = text.split_once(',').unwrap_or((&*text, ""));
    let bind = match first {
        "v" | "verbose" => {
            line.add_to_launch("--show-map", None);
            rest
        }
        "q" | "quiet" => rest,
        _ => &*text,
    };
    if !bind.is_empty() {
        line.add_to_launch("--cpu-bind", Some(bind.as_ref()));
    }
    Ok(())
}

/// The name of a server does not restrict the protocol: Slurm's servers of PMI-2 also serve PMI-1.
pub(super) fn mpi(line: &mut Line, server: &OsStr) -> Result<(), Refusal> {
    match server.to_str() {
        Some("none") => line.add_to_launch("--pmi", Some(server)),
        _ => line.note(format!("--mpi={}: ranks are served whatever they speak", server.display())),
    }
    Ok(())
}

pub(super) fn output(line: &mut Line, file: &OsStr) -> Result<(), Refusal> {
    to_file(line, "--output", file)
}

pub(super) fn error(line: &mut Line, file: &OsStr) -> Result<(), Refusal> {
    to_file(line, "--error", file)
}

/// Output to a file. `all` is the default.
fn to_file(line: &mut Line, flag: &'static str, file: &OsStr) -> Result<(), Refusal> {
    match file.to_str() {
        Some("all") => {}
        Some("none") => line.add_to_launch(flag, Some("/dev/null".as_ref())),
        Some(task) if !task.is_empty() && task.bytes().all(|byte| byte.is_ascii_digit()) => {
            let reason = "output of one task alone is not shown; type out.%t for a file of each task, or -l for lines \
                          that name their task";
            return Err(Refusal::Value { flag, value: task.to_owned(), reason: reason.to_owned() });
        }
        _ => line.add_to_launch(flag, Some(&array_letters::filled(file))),
    }
    Ok(())
}

/// A user by name or number.
pub(super) fn user(line: &mut Line, user: &OsStr) -> Result<(), Refusal> {
    let me = getuid();
    let name = User::from_uid(me).ok().flatten().map(|me| me.name);
    of_caller(line, "--uid", user, (me.as_raw(), name))
}

/// A group by name or number.
pub(super) fn group(line: &mut Line, group: &OsStr) -> Result<(), Refusal> {
    let mine = getgid();
    let name = Group::from_gid(mine).ok().flatten().map(|mine| mine.name);
    of_caller(line, "--gid", group, (mine.as_raw(), name))
}

/// Returns an error for any user or group other than that of the caller.
fn of_caller(
    line: &mut Line,
    flag: &'static str,
    asked: &OsStr,
    (number, name): (u32, Option<String>),
) -> Result<(), Refusal> {
    let asked = asked.to_string_lossy();
    if asked == number.to_string() || name.as_deref() == Some(&*asked) {
        line.note(format!("{flag} {asked}: ranks are yours anyway"));
        return Ok(());
    }
    let reason = "ranks belong to the user that starts them; type sudo -u USER before the line".to_owned();
    Err(Refusal::Value { flag, value: asked.into_owned(), reason })
}

pub(super) fn prolog(line: &mut Line, program: &OsStr) -> Result<(), Refusal> {
    script(line, "--prolog", program)
}

pub(super) fn epilog(line: &mut Line, program: &OsStr) -> Result<(), Refusal> {
    script(line, "--epilog", program)
}

fn script(line: &mut Line, flag: &str, program: &OsStr) -> Result<(), Refusal> {
    if program != "none" {
        line.add_to_launch(flag, Some(program));
    }
    Ok(())
}

/// The value, a descriptor of Slurm, is ignored: the terminal is that of standard input.
pub(super) fn pty(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    line.add_to_launch("--pty", None);
    Ok(())
}

pub(super) fn open_mode(line: &mut Line, mode: &OsStr) -> Result<(), Refusal> {
    match mode.to_str() {
        Some("a" | "append") => line.add_to_launch("--append", None),
        Some("t" | "truncate") => {}
        _ => {
            let value = mode.to_string_lossy().into_owned();
            return Err(Refusal::Value { flag: "--open-mode", value, reason: "append and truncate are".to_owned() });
        }
    }
    Ok(())
}

/// `[R:]SIGNAL[@SECONDS]`. `R:` is about reservations, which Lattice does not have.
pub(super) fn signal(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    if text.starts_with("B:") {
        let reason = "B: is of batch scripts; this line has none".to_owned();
        return Err(Refusal::Value { flag: "--signal", value: text.into_owned(), reason });
    }
    line.add_to_launch("--signal", Some(text.strip_prefix("R:").unwrap_or(&text).as_ref()));
    Ok(())
}

/// `off` overrides the variable.
pub(super) fn no_kill(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    if !["off", "no"].iter().any(|off| value.eq_ignore_ascii_case(off)) {
        line.add_to_launch("--no-kill", None);
    }
    Ok(())
}

/// `lz4` of Slurm is replaced by gzip: nodes may not have it.
pub(super) fn compress(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    match how.to_str() {
        Some("none") => {}
        Some("" | "gzip") => line.add_to_launch("--compress", None),
        _ => {
            line.note(format!("--compress={}: copies are compressed by gzip", how.display()));
            line.add_to_launch("--compress", None);
        }
    }
    Ok(())
}

pub(super) fn send_libs(line: &mut Line, answer: &OsStr) -> Result<(), Refusal> {
    line.add_to_launch("--send-libs", Some(if answer.is_empty() { "yes".as_ref() } else { answer }));
    Ok(())
}

/// X11 connections of ranks reach a display of this machine only from this machine.
pub(super) fn x11(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    line.note("--x11: DISPLAY is passed on to ranks".to_owned());
    Ok(())
}

/// Returns an error for `--x11` if ranks of other nodes cannot connect to the display.
pub(super) fn check_display(line: &Line, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Refusal> {
    let display = variable("DISPLAY").unwrap_or_default().to_string_lossy().into_owned();
    let host = display.rsplit_once(':').map_or("", |(host, _)| host);
    let is_of_here = ["", "unix", "localhost", "127.0.0.1", "::1"].contains(&host);
    if !(line.has_typed("x11") && line.is_in_allocation() && is_of_here) {
        return Ok(());
    }
    let instead = format!(
        "no connection is forwarded from the nodes to DISPLAY={display:?}: set DISPLAY to HOST:NUMBER that they reach, \
         or type --jobid=local to run on this machine"
    );
    Err(Refusal::Refused { flag: "--x11".to_owned(), instead })
}

/// True for a binding to objects. For these, a hint takes one thread of each core. Other bindings name CPUs, or none.
fn is_of_objects(bind: &str) -> bool {
    let word = bind.split(':').next().unwrap_or_default();
    rank_spawner::Object::called(word).is_some() || word == "ldoms"
}

/// Resolves a hint in combination with other flags about binding, which `lattice launch` refuses. As in srun of Slurm 22.05, the other flags
/// override the hint. A hint against multithreading still limits them to one thread of each core.
pub(super) fn settle_hint(line: &mut Line) {
    let Some(hint) = line.value("--hint") else { return };
    let others = ["--cpu-bind", "--threads-per-core"];
    if !others.iter().any(|flag| line.has(flag)) {
        return;
    }
    line.remove("--hint");
    let bind = line.value("--cpu-bind").map(|bind| bind.to_string_lossy().into_owned());
    let is_single = ["nomultithread", "compute_bound", "memory_bound"].iter().any(|single| hint == *single);
    let has_part = line.has("--threads-per-core") || bind.as_deref().is_some_and(|bind| !is_of_objects(bind));
    if is_single && !has_part {
        line.add_to_launch("--threads-per-core", Some("1".as_ref()));
    }
    if hint == "compute_bound" && bind.is_none() {
        line.add_to_launch("--cpu-bind", Some("cores".as_ref()));
    }
    line.note(format!("--hint={}: the other words about binding go before it", hint.display()));
}
