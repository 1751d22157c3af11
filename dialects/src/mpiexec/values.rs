//! Values of `mpiexec`'s flags, translated to flags of `lattice launch`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use lattice_session::rank_values;

use super::super::flag::Refusal;
use super::super::line::Line;
use super::variables;
use crate::idle::{self, Notice};
use crate::per_object;

/// Prefixes of parameters for Open MPI's own launcher. Parameters of its library become variables of the ranks.
const OF_LAUNCHER: [&str; 12] =
    ["plm", "ras", "routed", "rmaps", "odls", "oob", "orte", "prte", "ess", "grpcomm", "hwloc_base_binding", "state"];

pub(super) fn ranks(line: &mut Line, number: &OsStr) -> Result<(), Refusal> {
    line.program().ranks = Some(number.to_owned());
    Ok(())
}

/// Hosts of a program. A second flag adds hosts (measured with Open MPI 4.1.4).
pub(super) fn host(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    let list = list.to_string_lossy().into_owned();
    let hosts = &mut line.program().hosts;
    *hosts = Some(hosts.take().map_or(list.clone(), |before| format!("{before},{list}")));
    Ok(())
}

/// Hydra's pattern for names of output files: `%r` rank, `%h` host, `%p` proxy, `%g` process group.
pub(super) fn output_pattern(line: &mut Line, pattern: &OsStr) -> Result<(), Refusal> {
    file_pattern(line, "--output", "-outfile-pattern", pattern)
}

pub(super) fn error_pattern(line: &mut Line, pattern: &OsStr) -> Result<(), Refusal> {
    file_pattern(line, "--error", "-errfile-pattern", pattern)
}

fn file_pattern(line: &mut Line, ours: &str, flag: &'static str, pattern: &OsStr) -> Result<(), Refusal> {
    let pattern = pattern.to_string_lossy();
    if pattern.contains("%t") {
        let reason = "the time of a line is no part of a name; --timestamp puts it before lines".to_owned();
        return Err(Refusal::Value { flag, value: pattern.into_owned(), reason });
    }
    let pattern = pattern.replace("%h", "%N").replace("%p", "%n").replace("%g", "0");
    line.add_to_launch(ours, Some(pattern.as_ref()));
    Ok(())
}

/// Hydra's `-hosts`. Hosts with slots are filled; hosts without slots take one rank each in turn.
pub(super) fn hosts(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    if list.as_bytes().contains(&b':') {
        line.add_to_launch("--host", Some(list));
    } else {
        line.add_to_launch("--nodelist", Some(list));
        line.deal_out();
    }
    Ok(())
}

/// Hydra's `-ppn`, Intel MPI's `-perhost`: this number of ranks on each node in turn, starting again with the first node after the last one
/// (measured with Hydra 5.0.2). Open MPI's `-npernode` is the maximum for a node.
pub(super) fn ranks_per_host(line: &mut Line, number: &OsStr) -> Result<(), Refusal> {
    // Words of Intel MPI (I_MPI_PERHOST).
    match number.to_str() {
        Some("allcores") => line.of_each_host = Some("1:core:again"),
        Some("all") => line.of_each_host = Some("1:hwthread:again"),
        _ => {
            line.add_to_launch("--tasks-per-node", Some(number));
            line.goes_round = true;
        }
    }
    Ok(())
}

/// Open MPI's `-npernode`.
pub(super) fn ranks_of_each_host(line: &mut Line, number: &OsStr) -> Result<(), Refusal> {
    line.add_to_launch("--tasks-per-node", Some(number));
    Ok(())
}

/// Fills the nodes one after the other. Hydra starts again when all nodes have their number; Open MPI's nodes take no more ranks (measured with
/// 4.1.4). If a program has no number of ranks, each node has the number of the line.
pub(super) fn settle_ranks_per_host(line: &mut Line) {
    let is_counted = line.programs().iter().all(|program| program.ranks.is_some());
    if !is_counted || line.has("--distribution") {
        return;
    }
    if let Some(number) = line.take("--tasks-per-node") {
        let mut plane = OsString::from("plane=");
        plane.push(&number);
        if !line.goes_round {
            line.add_to_launch("--tasks-per-node", Some(&number));
        }
        line.add_to_launch("--distribution", Some(&plane));
    }
}

pub(super) fn path(line: &mut Line, directories: &OsStr) -> Result<(), Refusal> {
    line.program().path = Some(directories.to_owned());
    Ok(())
}

pub(super) fn environment(line: &mut Line, pair: &OsStr) -> Result<(), Refusal> {
    environment_of_one(line, pair, "-env")
}

/// Sets a variable of one program.
fn environment_of_one(line: &mut Line, pair: &OsStr, flag: &'static str) -> Result<(), Refusal> {
    if rank_values::has_names(pair) {
        let reason = "--env of lattice launch fills in what is in braces; type -genv for a value that stays as it is";
        let value = pair.to_string_lossy().into_owned();
        return Err(Refusal::Value { flag, value, reason: reason.to_owned() });
    }
    line.add_to_program("--env", Some(pair));
    Ok(())
}

pub(super) fn environment_of_all(line: &mut Line, pair: &OsStr) -> Result<(), Refusal> {
    set_for_all(line, pair);
    Ok(())
}

/// Open MPI's `-x NAME` and `-x NAME=VALUE`. A name without a value is passed on anyway, and need not be set. The flag of the first program
/// applies to all programs, as in Open MPI 5. A flag after a `:` applies to the program there (measured with 4.1.8 and 5.0.11).
pub(super) fn export_one(line: &mut Line, setting: &OsStr) -> Result<(), Refusal> {
    if setting.as_bytes().ends_with(b"*") {
        line.note(format!("-x {}: all variables are passed on anyway", setting.display()));
        return Ok(());
    }
    if !line.programs().is_empty() {
        return environment_of_one(line, setting, "-x");
    }
    match std::env::var_os(setting) {
        _ if setting.as_bytes().contains(&b'=') => set_for_all(line, setting),
        Some(value) if rank_values::has_names(&value) => line.add_to_launch("--env-literal", Some(setting)),
        Some(_) => line.add_to_every_program("--env", setting),
        None => line.warn(format!("-x {}: there is no such variable to pass on", setting.display())),
    }
    Ok(())
}

/// prterun's `--set-env NAME=VALUE`.
pub(super) fn set_one(line: &mut Line, setting: &OsStr) -> Result<(), Refusal> {
    if !setting.as_bytes().contains(&b'=') {
        let (value, reason) = (setting.to_string_lossy().into_owned(), "NAME=VALUE is".to_owned());
        return Err(Refusal::Value { flag: "--set-env", value, reason });
    }
    set_for_all(line, setting);
    Ok(())
}

/// prterun's `--unset-env NAME`. A NAME with a `*` at its end is a prefix of variables that are set.
pub(super) fn unset_one(line: &mut Line, name: &OsStr) -> Result<(), Refusal> {
    let Some(start) = name.as_bytes().strip_suffix(b"*") else {
        line.add_to_every_program("--env-remove", name);
        return Ok(());
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(start)) {
        line.add_to_every_program("--env-remove", &name);
    }
    Ok(())
}

/// Words of prterun's `--runtime-options`. Each may be abbreviated if unambiguous.
const RUNTIME_OPTIONS: [&str; 18] = [
    "error-nonzero-status",
    "abort-nonzero-status",
    "donotlaunch",
    "show-progress",
    "notifyerrors",
    "recoverable",
    "autorestart",
    "continuous",
    "max-restarts",
    "exec-agent",
    "default-exec-agent",
    "output-proctable",
    "aggregate-help-messages",
    "fwd-environment",
    "report-state-on-timeout",
    "get-stack-traces",
    "timeout",
    "spawn-timeout",
];

pub(super) fn runtime_options(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    for word in value.to_string_lossy().split(',') {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        let name = name.to_ascii_lowercase();
        let mut begun = RUNTIME_OPTIONS.into_iter().filter(|known| !name.is_empty() && known.starts_with(&name));
        let (Some(known), None) = (begun.next(), begun.next()) else {
            let reason = format!("the words are {}", RUNTIME_OPTIONS.join(", "));
            return Err(Refusal::Value { flag: "--runtime-options", value: word.to_owned(), reason });
        };
        let is_on = !["0", "f", "false", "no"].iter().any(|off| value.eq_ignore_ascii_case(off));
        match known {
            "donotlaunch" => line.add_to_launch("--dry-run", None),
            "timeout" => line.add_to_launch("--timeout", Some(value.as_ref())),
            "recoverable" | "continuous" if is_on => line.add_to_launch("--kill-on-bad-exit", Some("0".as_ref())),
            "error-nonzero-status" | "abort-nonzero-status" if !is_on => {
                line.add_to_launch("--kill-on-bad-exit", Some("0".as_ref()));
            }
            "exec-agent" | "default-exec-agent" => {
                let reason = format!("start it as the program: mpirun -np 4 {value} ./a.out");
                return Err(Refusal::Value { flag: "--runtime-options", value: word.to_owned(), reason });
            }
            "output-proctable" if is_on => {
                let reason = "type lattice proctable ID in another shell while it runs".to_owned();
                return Err(Refusal::Value { flag: "--runtime-options", value: word.to_owned(), reason });
            }
            "max-restarts" => max_restarts(line, value.as_ref())?,
            "spawn-timeout" => spawn_timeout(line, value.as_ref())?,
            "autorestart" if is_on => max_restarts(line, value.as_ref())?,
            _ => line.note(format!("--runtime-options {word} is ignored here")),
        }
    }
    Ok(())
}

/// Number of restarts of a rank after a failure.
pub(super) fn max_restarts(_: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    none_but(
        value,
        "--max-restarts",
        "a rank that fails is not started again; type a loop: until mpirun ./a.out; do :; done",
    )
}

/// Time limit for the start of all ranks.
pub(super) fn spawn_timeout(_: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let instead = "the start has no time limit of its own: type --timeout SECONDS for the whole launch, or leave it out, for a start \
                   that takes longer than 30 s is reported with the ranks that are missing";
    none_but(value, "--spawn-timeout", instead)
}

/// Returns an error for a value other than 0, the value without effect.
fn none_but(value: &OsStr, flag: &'static str, reason: &str) -> Result<(), Refusal> {
    match value == "0" {
        true => Ok(()),
        false => Err(Refusal::Value { flag, value: value.to_string_lossy().into_owned(), reason: reason.to_owned() }),
    }
}

/// Sets a variable for every program. Its value has no placeholders for `--env` to replace.
fn set_for_all(line: &mut Line, setting: &OsStr) {
    match rank_values::has_names(setting) {
        true => line.add_to_launch("--env-literal", Some(setting)),
        false => line.add_to_every_program("--env", setting),
    }
}

/// Hydra's list of the variables to pass on. Variables that are not set are omitted.
pub(super) fn export_list(line: &mut Line, names: &OsStr) -> Result<(), Refusal> {
    let names = names.to_string_lossy();
    let (set, gone): (Vec<&str>, Vec<&str>) = names.split(',').partition(|name| std::env::var_os(name).is_some());
    line.add_to_launch(
        "--export",
        Some(if set.is_empty() { "NONE".into() } else { OsString::from(set.join(",")) }.as_os_str()),
    );
    for name in gone {
        line.note(format!("{name}: there is no such variable to pass on"));
    }
    Ok(())
}

/// Open MPI's parameters, `NAME=VALUE`. The library in the ranks reads its own parameters from the environment.
pub(super) fn mca(line: &mut Line, pair: &OsStr) -> Result<(), Refusal> {
    let name = pair.to_string_lossy();
    if OF_LAUNCHER.iter().any(|own| name.starts_with(own)) || variables::parameter(&name).is_some() {
        return launch_mca(line, pair);
    }
    let mut setting = OsString::from("OMPI_MCA_");
    setting.push(pair);
    set_for_all(line, &setting);
    Ok(())
}

pub(super) fn pmix_mca(line: &mut Line, pair: &OsStr) -> Result<(), Refusal> {
    let mut setting = OsString::from("PMIX_MCA_");
    setting.push(pair);
    set_for_all(line, &setting);
    Ok(())
}

/// Parameters of Open MPI's launcher. Some have an equivalent flag.
pub(super) fn launch_mca(line: &mut Line, pair: &OsStr) -> Result<(), Refusal> {
    match variables::parameter(&pair.to_string_lossy()) {
        Some((name, value)) => line.parameters.push((name.to_owned(), value.into())),
        None => {
            // Users may miss parameters about mapping, binding and failures, but not parameters about the connection to nodes.
            let is_missed = ["rmaps", "orte", "prte", "hwloc_base_binding"]
                .iter()
                .any(|own| pair.as_bytes().starts_with(own.as_bytes()));
            let notice = if is_missed { Notice::Always } else { Notice::Verbose };
            line.ignore(notice, None, idle::note(&pair.to_string_lossy(), "it is for Open MPI's own launcher"));
        }
    }
    Ok(())
}

/// Maximum number of ranks in a map, which becomes one flag.
const MAPPED_MAX: usize = 1 << 16;

/// Hydra's `-rankmap`: the index of the host of each rank, or `(FIRST,HOSTS,RANKS)` for RANKS ranks on each of HOSTS hosts (from its `-rankmap
/// -help`).
pub(super) fn rank_map(line: &mut Line, map: &OsStr) -> Result<(), Refusal> {
    let text = map.to_string_lossy();
    match read_rank_map(&text) {
        Some(hosts) => line.rank_map = Some(hosts),
        None => {
            let reason =
                "it is the number of the host of each rank, 1,1,2,2, or (FIRST,HOSTS,RANKS) for several".to_owned();
            return Err(Refusal::Value { flag: "-rankmap", value: text.into_owned(), reason });
        }
    }
    Ok(())
}

fn read_rank_map(text: &str) -> Option<Vec<usize>> {
    let mut hosts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (first, number, ranks): (usize, usize, usize);
        if let Some(block) = rest.strip_prefix('(') {
            let (block, behind) = block.split_once(')')?;
            let mut words =
                block.split(',').map(str::trim).filter(|word| *word != "vector").map(|word| word.parse().ok());
            (first, number, ranks) = (words.next()??, words.next()??, words.next()??);
            rest = behind;
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            (first, number, ranks) = (rest[..end].trim().parse().ok()?, 1, 1);
            rest = &rest[end..];
        }
        rest = rest.trim_start().strip_prefix(',').unwrap_or(rest).trim_start();
        if number.checked_mul(ranks)? > MAPPED_MAX - hosts.len() {
            return None;
        }
        hosts.extend((first..first.checked_add(number)?).flat_map(|host| std::iter::repeat_n(host, ranks)));
    }
    Some(hosts).filter(|hosts| !hosts.is_empty())
}

pub(super) fn rank_by(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    // Open MPI accepts qualifiers after a colon. None of them affects the order of ranks.
    let text = how.to_string_lossy();
    let word = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    match per_object::rank_by(&word) {
        Ok(_) => line.add_to_launch("--rank-by", Some(word.as_ref())),
        Err(refused) => {
            return Err(Refusal::Value { flag: "--rank-by", value: word, reason: refused.to_string() });
        }
    }
    Ok(())
}

/// Alternative to flags that show the topology of nodes.
pub(super) const TOPOLOGY: &str = "type lattice nodes --topology, or --show-map for the CPUs of each rank";

/// prterun's `--display`: a list of directives, which may be abbreviated. Qualifiers for all of them follow a colon.
pub(super) fn display(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let value = value.to_string_lossy();
    let refused = |word: &str, reason: &str| {
        Err(Refusal::Value { flag: "--display", value: word.to_owned(), reason: reason.to_owned() })
    };
    let (directives, qualifiers) = value.split_once(':').unwrap_or((&value, ""));
    if !qualifiers.is_empty() {
        return refused(qualifiers, "type --json, for a map that programs read");
    }
    for word in directives.split(',') {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        let begins = |full: &str| !name.is_empty() && full.starts_with(name);
        if begins("topo") || begins("cpus") {
            return refused(word, TOPOLOGY);
        }
        if !(["map-devel", "bindings"].contains(&name) || ["map", "bind", "allocation"].into_iter().any(begins)) {
            return refused(word, "map, bind and allocation can be displayed");
        }
    }
    if !line.has("--show-map") {
        line.add_to_launch("--show-map", None);
    }
    Ok(())
}

/// Hydra's `-usize`: a number, or a word for the number of slots or for no size.
pub(super) fn universe_size(line: &mut Line, size: &OsStr) -> Result<(), Refusal> {
    match size.to_str() {
        Some("SYSTEM") => line.add_to_launch("--universe-size", Some("slots".as_ref())),
        Some("INFINITE" | "infinite") => line.note("-usize: no size of the universe is set".to_owned()),
        _ => line.add_to_launch("--universe-size", Some(size)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prterun_displays_is_the_map_or_refused() {
        let shown = |value: &str| {
            let mut line = Line::default();
            display(&mut line, value.as_ref()).map_err(|refusal| refusal.to_string())?;
            Ok::<_, String>(line.finish().words)
        };
        for value in ["map", "bind", "alloc", "allocation", "map-devel", "map,bind"] {
            assert_eq!(shown(value), Ok(vec!["--show-map".into()]), "{value}");
        }
        for (value, expected) in [
            ("topo", "lattice nodes --topology"),
            ("topo=0", "lattice nodes --topology"),
            ("map,topo", "lattice nodes --topology"),
            ("cpus", "lattice nodes --topology"),
            ("map:parseable", "--json"),
            ("bogus", "map, bind and allocation"),
            ("", "map, bind and allocation"),
        ] {
            assert!(shown(value).unwrap_err().contains(expected), "{value}: {:?}", shown(value));
        }
    }

    #[test]
    fn a_map_of_ranks_names_the_host_of_each() {
        for (text, expected) in [
            ("1,1,2,2", Some(vec![1, 1, 2, 2])),
            ("(1,2,2)", Some(vec![1, 1, 2, 2])),
            ("(1,2,2),0, 3", Some(vec![1, 1, 2, 2, 0, 3])),
            ("(vector,(0,2,1))", None),
            ("(0,2)", None),
            ("", None),
            ("a", None),
            ("(0,4294967295,4294967295)", None),
            ("(18446744073709551615,2,1)", None),
        ] {
            assert_eq!(read_rank_map(text), expected, "{text}");
        }
    }
}
