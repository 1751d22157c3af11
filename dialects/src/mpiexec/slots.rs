//! Hosts of a line with their slots, counted as the launcher of its dialect does.
//!
//! A host without a number has a slot for each of its cores in hostfiles of Open MPI and in all lists of Intel MPI. It takes one rank in each
//! turn in lists of Hydra and in `--host` of Open MPI (recorded from MPICH 5.0.2, Intel MPI 2021.18.1, Open MPI 4.1.8 and 5.0.11). The number of
//! cores is unknown here, so a host with a slot for each core has no number in the line of `lattice launch`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use hostlist::HostLine;
use lattice_session::request::HostSlots;

use super::super::flag::{Refusal, distinct};
use super::super::line::Line;
use super::dialect::Dialect;
use crate::hostfile::{self, Hosts};

/// Nodes that the environment of the line provides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// True in an allocation.
    pub(super) is_allocated: bool,
    /// True if the environment names hosts with their slots.
    pub(super) names_hosts: bool,
}

/// Determines the nodes of the ranks, as far as the line sets them, and the number of their slots.
pub(super) fn settle(line: &mut Line, dialect: Dialect, around: Surroundings) -> Result<(), Refusal> {
    settle_hosts(line, dialect);
    if line.places.is_in_sequence {
        put_in_sequence(line)?;
    }
    match line.rank_map.take() {
        Some(map) => put_by_map(line, &map)?,
        None if dialect == Dialect::Intel => fill_cores(line)?,
        None => {}
    }
    count_names(line, dialect);
    match line.places.overcommit {
        true => share_slots(line)?,
        false => go_round(line, dialect),
    }
    if around.is_allocated {
        span(line);
    }
    if dialect == Dialect::OpenMpi {
        fill_slots(line, around.names_hosts);
        tell_universe(line);
    }
    Ok(())
}

/// Makes the hosts of programs the hosts of the launch if they are the same for all programs. Otherwise each program has its own hosts, and a
/// program without hosts has the first named ones. A single host takes all ranks of its program.
fn settle_hosts(line: &mut Line, dialect: Dialect) {
    let Some(first) = line.programs().iter().find_map(|program| program.hosts.clone()) else { return };
    if line.programs().iter().all(|program| program.hosts.as_ref().is_none_or(|hosts| *hosts == first)) {
        line.add_to_launch("--host", Some(first.as_ref()));
        return;
    }
    let overcommit = line.places.overcommit;
    for program in line.programs_mut() {
        let named = program.hosts.as_ref().unwrap_or(&first);
        let ranks = program.ranks.as_deref().map_or(Some(1), count);
        // The launch reports invalid hosts.
        let by_name = hostfile::parse_hosts(named).map(|hosts| hosts.one_by_name()).unwrap_or_default();
        let room = hostfile::slots_of(&by_name);
        let hosts = match (by_name.as_slice(), ranks) {
            ([host], Some(ranks)) => format!("{}:{ranks}", host.node),
            ([_, ..], Some(ranks)) if overcommit => with_slots(by_name, ranks),
            ([_, ..], Some(ranks)) if dialect != Dialect::Intel && ranks <= room => in_words(&by_name),
            _ => named.clone(),
        };
        program.put_on(&hosts);
    }
}

fn count(ranks: &OsStr) -> Option<u64> {
    ranks.to_str()?.parse().ok()
}

/// Number of ranks of all programs, if each program sets its own.
pub(super) fn ranks_of(line: &Line) -> Option<u64> {
    line.programs().iter().map(|program| count(program.ranks.as_deref()?)).sum()
}

/// Open MPI's mapping in sequence: one rank on each host, regardless of its slots.
fn put_in_sequence(line: &mut Line) -> Result<(), Refusal> {
    let Some(hosts) = named_hosts(line)? else {
        let reason = "it needs the hosts of the ranks: type --hostfile FILE or --host HOSTS beside it".to_owned();
        return Err(Refusal::Value { flag: "--map-by", value: "seq".to_owned(), reason });
    };
    // A host takes one rank for each of its occurrences.
    let slots = |node: String| HostSlots { node, slots: std::num::NonZeroU32::MIN };
    name_hosts(line, &in_words(&hosts.names().into_iter().map(slots).collect::<Vec<_>>()));
    Ok(())
}

/// Hydra's `-rankmap`: one rank on the host of each index in the map, regardless of slots.
fn put_by_map(line: &mut Line, map: &[usize]) -> Result<(), Refusal> {
    let refused = |reason: String| {
        let value = map.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        Err(Refusal::Value { flag: "-rankmap", value, reason })
    };
    let listed = line.value("--nodelist").and_then(|list| hostlist::expand(&list.to_string_lossy()).ok());
    let hosts = match (listed, named_hosts(line)?) {
        (Some(names), _) => names,
        (None, Some(hosts)) => hosts.names(),
        (None, None) => return refused("it needs the hosts that it counts: type -hosts a,b beside it".to_owned()),
    };
    let named = map.iter().map(|&host| hosts.get(host).map(|host| format!("{host}:1"))).collect::<Option<Vec<_>>>();
    let Some(named) = named else {
        return refused(format!("the line names {} hosts, which are counted from 0", hosts.len()));
    };
    line.take("--nodelist");
    line.is_dealt_out = false;
    name_hosts(line, &named.join(","));
    Ok(())
}

/// The hosts of the hostfile, else of the line. `None` if there are none, or if the list of the line is invalid, which its flag reports later.
fn named_hosts(line: &Line) -> Result<Option<Hosts>, Refusal> {
    if let Some(path) = line.value("--hostfile") {
        let hosts = hostfile::read(path.as_ref());
        return hosts.map(Some).map_err(|error| Refusal::File { path: path.into(), reason: error.to_string() });
    }
    Ok(line.value("--host").and_then(|hosts| hostfile::parse_hosts(&hosts.to_string_lossy()).ok()))
}

/// Replaces the hostfile and the hosts of the line by these hosts.
fn name_hosts(line: &mut Line, hosts: &str) {
    line.take("--hostfile");
    line.take("--host");
    line.add_to_launch("--host", Some(hosts.as_ref()));
}

/// Hosts with their slots, in the form of `--host`.
fn in_words(hosts: &[HostSlots]) -> String {
    hosts.iter().map(|host| format!("{}:{}", host.node, host.slots)).collect::<Vec<_>>().join(",")
}

/// Hosts with enough slots for all ranks, in the form of `--host`.
fn with_slots(mut hosts: Vec<HostSlots>, ranks: u64) -> String {
    hostfile::add_slots(&mut hosts, ranks);
    in_words(&hosts)
}

/// Gives each name without a number one rank, if the launcher of the line does so: Hydra in each turn, Open MPI for `--host`. In a hostfile of
/// Open MPI, a repeated name has one slot for each occurrence, and other names have a slot for each core.
fn count_names(line: &mut Line, dialect: Dialect) {
    // The launch reports invalid hosts.
    let hosts = named_hosts(line).ok().flatten();
    if dialect == Dialect::OpenMpi && line.has("--hostfile") {
        if let Some(hosts) = hosts.filter(Hosts::is_list_of_slots) {
            let times = hosts.times();
            let host = |host: &HostLine| match host.slots {
                Some(slots) => format!("{}:{slots}", host.name),
                None if times[host.name.as_str()] > 1 => format!("{}:1", host.name),
                None => host.name.clone(),
            };
            name_hosts(line, &hosts.0.iter().map(host).collect::<Vec<_>>().join(","));
        }
        return;
    }
    if let Some(hosts) = hosts.filter(|hosts| !hosts.is_counted()) {
        name_hosts(line, &in_words(&hosts.one_by_name()));
    }
}

/// Adds slots for the ranks without one. Hosts of single programs already have them.
fn share_slots(line: &mut Line) -> Result<(), Refusal> {
    let Some(ranks) = ranks_of(line) else { return Ok(()) };
    let Some(hosts) = named_hosts(line)? else { return Ok(()) };
    let Ok(slots) = hosts.counted(|_| Err(())) else {
        line.add_to_launch("--overcommit", None);
        return Ok(());
    };
    if hostfile::slots_of(&slots) < ranks {
        name_hosts(line, &with_slots(slots, ranks));
    }
    Ok(())
}

/// Intel MPI fills the cores of each host, and starts again with the first host, regardless of the slots in its lists. `-ppn` overrides this,
/// and `-machinefile` has slots (recorded from 2021.18.1).
fn fill_cores(line: &mut Line) -> Result<(), Refusal> {
    let is_placed = line.goes_round || line.has("--tasks-per-node") || line.has("--tasks-per");
    let is_single = line.programs().len() == 1 || ranks_of(line).is_some();
    if is_placed || !is_single || line.has_typed("machinefile") || line.programs().iter().any(|one| one.has("--host")) {
        return Ok(());
    }
    if let Some(hosts) = named_hosts(line)? {
        line.take("--hostfile");
        line.take("--host");
        line.add_to_launch("--nodelist", Some(distinct(hosts.names()).join(",").as_ref()));
    }
    line.fill(line.of_each_host.unwrap_or("1:core:again"));
    Ok(())
}

/// Maximum number of hosts in all turns together, which become one flag.
const TURNS_MAX: usize = 1 << 16;

/// Hydra starts again with the first host when each host has its number of ranks (recorded from 5.0.2).
fn go_round(line: &mut Line, dialect: Dialect) {
    let Some(ranks) = ranks_of(line).filter(|_| !line.goes_round && dialect != Dialect::OpenMpi) else { return };
    // The launch reports invalid hosts.
    let Ok(Some(hosts)) = named_hosts(line) else { return };
    let hosts = hosts.one_by_name();
    let slots = hostfile::slots_of(&hosts);
    if slots >= ranks {
        return;
    }
    let turns = usize::try_from(ranks.div_ceil(slots)).unwrap_or(usize::MAX).saturating_mul(hosts.len());
    if turns <= TURNS_MAX {
        name_hosts(line, &in_words(&hosts.iter().cycle().take(turns).cloned().collect::<Vec<_>>()));
    }
}

/// Flags that set the number of ranks on the nodes.
const SLOTS: [&str; 6] = ["--host", "--hostfile", "--nodelist", "--rankfile", "--tasks-per-node", "--tasks-per"];

/// Adds all nodes, or all nodes that the line names, to a launch of one rank in an allocation. Jobs that the rank spawns use them: daemons of
/// mpirun run on all these nodes.
fn span(line: &mut Line) {
    const PLACED: [&str; 4] = ["--rankfile", "--tasks-per-node", "--tasks-per", "--tasks-per-socket"];
    let is_placed = |flag: &&str| line.value(flag).is_some_and(|value| !value.as_bytes().ends_with(b":again"));
    if ranks_of(line) == Some(1) && !PLACED.iter().any(is_placed) {
        line.add_to_launch("--nodes", Some("all".as_ref()));
    }
}

/// Sets the size of the universe to the number of slots, as Open MPI does. Programs spawn one rank less than that (recorded from 4.1.8 and
/// 5.0.11). Hydra leaves the size of the universe unset.
fn tell_universe(line: &mut Line) {
    if ranks_of(line).is_some() && !line.has("--universe-size") {
        line.add_to_launch("--universe-size", Some("slots".as_ref()));
    }
}

/// Open MPI has a slot for each core of the nodes, unless the line or its hostfile sets slots. It refuses more ranks than slots. Without a
/// number of ranks, it fills all slots (recorded from 4.1.8 and 5.0.11). `--oversubscribe` allows any number of ranks.
fn fill_slots(line: &mut Line, names_hosts: bool) {
    let is_counted = line.programs().iter().all(|program| program.ranks.is_some());
    let is_alone = line.programs().len() == 1;
    let is_free = is_counted && line.places.overcommit || !is_counted && !is_alone;
    if is_free || line.programs().iter().any(|program| program.has("--host")) {
        return;
    }
    let bare = line.value("--hostfile").and_then(|path| hostfile::read(path.as_ref()).ok()?.bare_names());
    let says_slots = |flag: &str| line.has(flag) && !(flag == "--hostfile" && bare.is_some());
    let is_placed =
        line.places.cores.is_some() || line.places.core_list.is_some() || SLOTS.iter().any(|flag| says_slots(flag));
    let takes_named = bare.is_none() && names_hosts;
    if (is_placed || takes_named && is_counted) && bare.is_none() {
        return;
    }
    if let Some(bare) = bare {
        line.take("--hostfile");
        line.add_to_launch("--nodelist", Some(bare.join(",").as_ref()));
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

    /// Translation of `mpiexec FLAGS ./a` in this dialect, as far as it depends on hosts and slots.
    fn settled(dialect: Dialect, flags: &str) -> String {
        let mut line = Line::default();
        let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
        assert!(super::super::read(&words, dialect, &mut line).unwrap().is_none());
        settle(&mut line, dialect, Surroundings { is_allocated: false, names_hosts: false }).unwrap();
        super::super::values::settle_ranks_per_host(&mut line);
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Recorded from the launchers on nodes of two cores.
    #[test]
    fn hosts_without_a_number_have_the_slots_that_the_launcher_gives_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (bare, mixed) = (file("bare", "a\nb\n"), file("mixed", "a\na\nb\n"));
        let check = |dialect, flags: &str, expected: &str| {
            assert_eq!(settled(dialect, flags), expected, "{dialect:?} {flags}");
        };
        for flags in ["-hosts a,b", "-hosts a:1,b", "-host a,b", &format!("-f {bare}"), "-hosts a,b -ppn allcores"] {
            check(Dialect::Intel, &format!("{flags} -n 5"), "--nodelist=a,b --tasks-per=1:core:again --ntasks=5 ./a");
        }
        check(Dialect::Intel, "-hosts a,b", "--nodelist=a,b --tasks-per=1:core:again ./a");
        check(Dialect::Intel, "", "--tasks-per=1:core:again ./a");
        check(Dialect::Intel, "-perhost all -n 2", "--tasks-per=1:hwthread:again --ntasks=2 ./a");
        check(Dialect::Intel, "-hosts a,b -ppn 1 -n 4", "--nodelist=a,b --distribution=plane=1 --ntasks=4 ./a");
        check(Dialect::Intel, &format!("-machinefile {bare} -n 3"), "--host=a:1,b:1,a:1,b:1 --ntasks=3 ./a");
        check(Dialect::Hydra, "-hosts a,b -n 5", "--nodelist=a,b --distribution=cyclic --ntasks=5 ./a");
        check(Dialect::Hydra, &format!("-f {bare}"), "--host=a:1,b:1 ./a");
        check(Dialect::Hydra, "-host a -n 2", "--host=a:1,a:1 --ntasks=2 ./a");
        check(Dialect::Hydra, &format!("-f {mixed} -n 4"), "--host=a:1,a:1,b:1,a:1,a:1,b:1 --ntasks=4 ./a");
        let slots = "--universe-size=slots --ntasks=3 ./a";
        check(Dialect::OpenMpi, "-host a,b -n 3", &format!("--host=a:1,b:1 {slots}"));
        check(
            Dialect::OpenMpi,
            &format!("--hostfile {bare} -n 3"),
            &format!("--nodelist=a,b --tasks-per=1:core {slots}"),
        );
        check(Dialect::OpenMpi, &format!("--hostfile {mixed} -n 3"), &format!("--host=a:1,a:1,b {slots}"));
        check(
            Dialect::OpenMpi,
            &format!("--hostfile {bare} --oversubscribe -n 3"),
            &format!("--hostfile={bare} --overcommit {slots}"),
        );
    }
}
