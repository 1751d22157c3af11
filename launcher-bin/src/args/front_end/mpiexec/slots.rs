//! Hosts of a line with their slots, and Open MPI's rule that no launch has more ranks than slots.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use lattice_session::request::HostSlots;

use super::super::line::Line;
use super::super::{Refusal, distinct};
use super::dialect::Dialect;
use crate::hostfile::{self, Hosts};

/// Hosts of programs become hosts of the launch if those of all programs are the same; else each program has its own, and one without
/// the first that are named. A lone host takes all ranks of its program.
pub(super) fn settle_hosts(line: &mut Line) -> Result<(), Refusal> {
    let Some(first) = line.programs().iter().find_map(|program| program.hosts.clone()) else { return Ok(()) };
    if line.programs().iter().all(|program| program.hosts.as_ref().is_none_or(|hosts| *hosts == first)) {
        line.add_to_launch("--host", Some(first.as_ref()));
        return Ok(());
    }
    let overcommit = line.places.overcommit;
    for program in line.programs_mut() {
        let named = program.hosts.as_ref().unwrap_or(&first);
        let ranks = program.ranks.as_deref().map_or(Some(1), count);
        // What cannot be read is refused by the launch.
        let parsed = hostfile::parse_hosts(named).map(|Hosts(hosts)| hosts).unwrap_or_default();
        let hosts = match (parsed.as_slice(), ranks) {
            ([host], Some(ranks)) => format!("{}:{ranks}", host.node),
            ([_, ..], Some(ranks)) if overcommit => with_slots(parsed, ranks).join(","),
            _ => named.clone(),
        };
        program.put_on(&hosts);
    }
    Ok(())
}

fn count(ranks: &OsStr) -> Option<u64> {
    ranks.to_str()?.parse().ok()
}

/// Number of ranks of all programs, if each says its own.
pub(super) fn ranks_of(line: &Line) -> Option<u64> {
    line.programs().iter().map(|program| count(program.ranks.as_deref()?)).sum()
}

/// Open MPI's mapping in sequence: a rank on each host, whatever its slots are.
pub(super) fn put_in_sequence(line: &mut Line) -> Result<(), Refusal> {
    let Some(hosts) = named_hosts(line)? else {
        let reason = "it needs the hosts of the ranks: type --hostfile FILE or --host HOSTS beside it".to_owned();
        return Err(Refusal::Value { flag: "--map-by", value: "seq".to_owned(), reason });
    };
    let hosts: Vec<String> = hosts.into_iter().map(|host| host.node).collect();
    name_hosts(line, &hosts);
    Ok(())
}

/// Hydra's map of ranks: a rank on each host that it names by its number, whatever the slots are.
pub(super) fn put_by_map(line: &mut Line, map: &[usize]) -> Result<(), Refusal> {
    let refused = |reason: String| {
        let value = map.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        Err(Refusal::Value { flag: "-rankmap", value, reason })
    };
    let listed = line.value("--nodelist").and_then(|list| hostlist::expand(&list.to_string_lossy()).ok());
    let hosts = match (listed, named_hosts(line)?) {
        (Some(names), _) => names,
        (None, Some(hosts)) => hosts.into_iter().map(|host| host.node).collect(),
        (None, None) => return refused("it needs the hosts that it counts: type -hosts a,b beside it".to_owned()),
    };
    let Some(named) = map.iter().map(|&host| hosts.get(host).cloned()).collect::<Option<Vec<_>>>() else {
        return refused(format!("the line names {} hosts, which are counted from 0", hosts.len()));
    };
    line.take("--nodelist");
    line.is_dealt_out = false;
    name_hosts(line, &named);
    Ok(())
}

/// The hosts of the hostfile, else those of the line; `None` if none are named, or they cannot be read, which the flag that they stand
/// for refuses.
fn named_hosts(line: &Line) -> Result<Option<Vec<HostSlots>>, Refusal> {
    if let Some(path) = line.value("--hostfile") {
        let hosts = hostfile::read(path.as_ref());
        return hosts.map(Some).map_err(|error| Refusal::File { path: path.into(), reason: error.to_string() });
    }
    let hosts = line.value("--host").and_then(|hosts| hostfile::parse_hosts(&hosts.to_string_lossy()).ok());
    Ok(hosts.map(|Hosts(hosts)| hosts))
}

/// Names hosts in place of those of the hostfile or of the line.
fn name_hosts(line: &mut Line, hosts: &[String]) {
    line.take("--hostfile");
    line.take("--host");
    line.add_to_launch("--host", Some(hosts.join(",").as_ref()));
}

/// Ranks for which there is no slot get one, unless hosts are those of single programs, which have got theirs.
pub(super) fn add_slots(line: &mut Line) -> Result<(), Refusal> {
    let Some(ranks) = ranks_of(line) else { return Ok(()) };
    let Some(hosts) = named_hosts(line)? else { return Ok(()) };
    if hostfile::slots_of(&hosts) < ranks {
        name_hosts(line, &with_slots(hosts, ranks));
    }
    Ok(())
}

/// Hosts with slots for all ranks, in words.
fn with_slots(mut hosts: Vec<HostSlots>, ranks: u64) -> Vec<String> {
    hostfile::add_slots(&mut hosts, ranks);
    hosts.iter().map(|host| format!("{}:{}", host.node, host.slots)).collect()
}

/// Intel MPI fills the cores of each host that `-hosts` or `-f` names, and begins again with the first one, whatever their slots are; `-ppn`
/// goes before it, and `-machinefile` has slots (measured with 2021.18.1).
pub(super) fn fill_cores(line: &mut Line, dialect: impl FnOnce() -> Option<Dialect>) -> Result<(), Refusal> {
    let is_counted = line.goes_round || line.has("--tasks-per-node") || line.has("--tasks-per");
    let is_named = line.has_typed("hosts") || line.has_typed("f");
    if is_counted || !is_named && line.of_each_host.is_none() || dialect() != Some(Dialect::Intel) {
        return Ok(());
    }
    if let Some(hosts) = named_hosts(line)? {
        line.take("--hostfile");
        line.take("--host");
        let names = distinct(hosts.into_iter().map(|host| host.node));
        line.add_to_launch("--nodelist", Some(names.join(",").as_ref()));
    }
    line.fill(line.of_each_host.unwrap_or("1:core:again"));
    Ok(())
}

/// Most turns of hosts, which become one flag.
const TURNS_MAX: usize = 1 << 16;

/// Hydra goes through its hosts again when each has its number of ranks (measured with 5.0.2).
pub(super) fn go_round(line: &mut Line, dialect: impl FnOnce() -> Option<Dialect>) {
    let Some(ranks) = ranks_of(line).filter(|_| !line.goes_round) else { return };
    // What cannot be read is refused by the launch.
    let Ok(Some(hosts)) = named_hosts(line) else { return };
    let slots = hostfile::slots_of(&hosts);
    if slots >= ranks || !matches!(dialect(), Some(Dialect::Hydra | Dialect::Intel)) {
        return;
    }
    let round = hosts.iter().map(|host| format!("{}:{}", host.node, host.slots));
    let turns = usize::try_from(ranks.div_ceil(slots)).unwrap_or(usize::MAX).saturating_mul(hosts.len());
    if turns <= TURNS_MAX {
        name_hosts(line, &round.cycle().take(turns).collect::<Vec<_>>());
    }
}

/// Flags by which a line says how many ranks its nodes take.
const SLOTS: [&str; 6] = ["--host", "--hostfile", "--nodelist", "--rankfile", "--tasks-per-node", "--tasks-per"];

/// The only rank of a launch in an allocation has the other nodes for what it spawns, those that the line names if it does: daemons of mpirun
/// run on all of them.
pub(super) fn span(line: &mut Line) {
    const PLACED: [&str; 4] = ["--rankfile", "--tasks-per-node", "--tasks-per", "--tasks-per-socket"];
    let is_placed = |flag: &&str| line.value(flag).is_some_and(|value| !value.as_bytes().ends_with(b":again"));
    if ranks_of(line) == Some(1) && !PLACED.iter().any(is_placed) {
        line.add_to_launch("--nodes", Some("all".as_ref()));
    }
}

/// Open MPI tells a rank that is alone for how many there are slots, and programs spawn as many less one.
pub(super) fn tell_universe(line: &mut Line, dialect: impl FnOnce() -> Option<Dialect>) {
    if ranks_of(line) == Some(1) && !line.has("--universe-size") && dialect() == Some(Dialect::OpenMpi) {
        line.add_to_launch("--universe-size", Some("slots".as_ref()));
    }
}

/// Open MPI has a slot for each core of the nodes unless the line or its hostfile says otherwise: more ranks are refused, and without a
/// number of ranks all are filled (measured with 4.1.4 and 5.0.11). With `--oversubscribe` there may be any number.
pub(super) fn settle(line: &mut Line, dialect: impl FnOnce() -> Option<Dialect>, names_hosts: bool) {
    let is_counted = line.programs().iter().all(|program| program.ranks.is_some());
    let is_alone = line.programs().len() == 1;
    let is_free = is_counted && line.places.overcommit || !is_counted && !is_alone;
    if is_free || line.programs().iter().any(|program| program.hosts.is_some()) {
        return;
    }
    let hosts = line.value("--hostfile").and_then(|path| hostfile::without_slots(path.as_ref()));
    let says_slots = |flag: &str| line.has(flag) && !(flag == "--hostfile" && hosts.is_some());
    let is_placed =
        line.places.cores.is_some() || line.places.core_list.is_some() || SLOTS.iter().any(|flag| says_slots(flag));
    let takes_named = hosts.is_none() && names_hosts;
    if (is_placed || takes_named && is_counted) && hosts.is_none() || dialect() != Some(Dialect::OpenMpi) {
        return;
    }
    if let Some(hosts) = hosts {
        line.take("--hostfile");
        line.add_to_launch("--nodelist", Some(hosts.join(",").as_ref()));
    }
    if !is_placed && takes_named {
        line.add_to_launch("--fill", None);
    } else if !is_placed {
        let slot = if line.places.counts_threads { "1:hwthread" } else { "1:core" };
        line.add_to_launch("--tasks-per", Some(slot.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// Words of `mpiexec FLAGS ./a` as far as hosts and slots settle them, in a line of this dialect.
    fn settled(dialect: Dialect, flags: &str) -> String {
        let mut line = Line::default();
        let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
        assert!(super::super::read(&words, &mut line).unwrap().is_none());
        settle_hosts(&mut line).unwrap();
        fill_cores(&mut line, || Some(dialect)).unwrap();
        go_round(&mut line, || Some(dialect));
        super::super::values::settle_ranks_per_host(&mut line);
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lines_of_intel_fill_the_cores_of_the_hosts_that_they_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "a\nb:1\n").unwrap();
        let path = file.path().display();
        let check = |dialect, flags: &str, expected: &str| {
            assert_eq!(settled(dialect, flags), expected, "{dialect:?} {flags}");
        };
        for flags in ["-hosts a,b", "-hosts a:1,b", &format!("-f {path}"), "-hosts a,b -ppn allcores"] {
            check(Dialect::Intel, &format!("{flags} -n 5"), "--nodelist=a,b --tasks-per=1:core:again --ntasks=5 ./a");
        }
        check(Dialect::Intel, "-hosts a,b", "--nodelist=a,b --tasks-per=1:core:again ./a");
        check(Dialect::Intel, "-perhost all -n 2", "--tasks-per=1:hwthread:again --ntasks=2 ./a");
        check(Dialect::Intel, "-hosts a,b -ppn 1 -n 4", "--nodelist=a,b --distribution=plane=1 --ntasks=4 ./a");
        check(Dialect::Intel, &format!("-machinefile {path} -n 3"), "--host=a:1,b:1,a:1,b:1 --ntasks=3 ./a");
        check(Dialect::Hydra, "-hosts a,b -n 5", "--nodelist=a,b --distribution=cyclic --ntasks=5 ./a");
    }
}
