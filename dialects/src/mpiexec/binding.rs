//! `--bind-to` and `--map-by`, which together place ranks within a node. Ranks are bound to objects of `--bind-to`, which are distributed over
//! objects of `--map-by`. `PE=`, or a number after the object, sets the number of objects for each rank.

use std::ffi::OsStr;

use rank_spawner::{CpuBind, Object};

use super::super::flag::Refusal;
use super::super::line::{Line, Places};
use super::dialect::Dialect;
use super::slots::ranks_of;

/// `none`, an object, Hydra's `OBJECT:N`, `user:CPU+CPU,...` for each rank, and Open MPI's qualifiers after a colon.
pub(super) fn bind_to(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy().to_ascii_lowercase();
    let mut words = text.split(':');
    let word = words.next().unwrap_or_default();
    if line.places.object.is_some() {
        line.note(format!("--bind-to {text}: it is for all programs, in place of what stood before it"));
    }
    if word == "cpu-list" {
        line.places.is_listed = true;
        line.places.is_ordered = words.next() == Some("ordered");
        return Ok(());
    }
    line.places.object = Some(match (word, Object::called(word)) {
        ("none" | "board" | "machine", _) => "none".to_owned(),
        ("rr", _) => Object::Thread.to_string(),
        ("user", _) => format!("map:{}", words.next().unwrap_or_default()),
        (_, Some(object)) => object.to_string(),
        (_, None) => {
            let reason =
                "ranks are bound to a core, hwthread, l3cache, numa, socket, gpu, nic, none, or user:CPU+CPU,..."
                    .to_owned();
            return Err(Refusal::Value { flag: "--bind-to", value: text, reason });
        }
    });
    for detail in words {
        match detail {
            "if-supported" => {}
            "overload-allowed" => line.places.overcommit = true,
            number
                if number.parse::<u32>().is_ok_and(|number| number > 1)
                    && Object::called(word).is_some_and(|object| object > Object::Core) =>
            {
                let reason =
                    "a rank is bound to one of them; type -bind-to core:N for as many cores as they have".to_owned();
                return Err(Refusal::Value { flag: "--bind-to", value: text, reason });
            }
            number if number.parse::<u32>().is_ok() => line.places.cores = Some(number.to_owned()),
            other => line.note(format!("--bind-to {text}: {other} is ignored here")),
        }
    }
    Ok(())
}

/// `ppr:K:node`, or an object and qualifiers after a colon.
pub(super) fn map_by(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let lower = text.to_ascii_lowercase();
    let mut words = lower.split([':', ',']);
    let word = words.next().unwrap_or_default();
    // Qualifiers alone set no mapping.
    line.places.is_mapped |= !["", "oversubscribe"].contains(&word);
    match (word, Object::called(word)) {
        ("ppr", _) => match (words.next(), words.next()) {
            (Some(ranks), Some("node")) => line.add_to_launch("--tasks-per-node", Some(ranks.as_ref())),
            (Some(ranks), Some(word)) if Object::called(word).is_some() => {
                line.places.is_by_objects = true;
                line.add_to_launch("--tasks-per", Some(format!("{ranks}:{word}").as_ref()));
            }
            _ => {
                let possible = "so many ranks are put on each node, socket, numa, l3cache, core, hwthread, gpu or nic, as in ppr:4:node";
                return Err(not_mapped(&text, possible));
            }
        },
        ("seq", _) => {
            line.places.is_in_sequence = true;
            return of_file(line, &text, "--hostfile");
        }
        ("rankfile", _) => return of_file(line, &text, "--rankfile"),
        (list, _) if list.starts_with("pe-list=") => {
            let how = text.split_once('=').map_or("", |(_, how)| how);
            let (list, how) = how.split_once(':').unwrap_or((how, ""));
            line.places.is_ordered |= how.eq_ignore_ascii_case("ordered");
            line.places.core_list = Some(list.to_owned());
            return Ok(());
        }
        ("node", _) => line.add_to_launch("--distribution", Some("cyclic".as_ref())),
        ("slot" | "board" | "", _) => {}
        // Cores and threads are assigned in order by default, without `over`.
        (_, Some(object @ (Object::Core | Object::Thread))) => line.places.mapped = Some(object),
        (_, Some(object)) => (line.places.mapped, line.places.over) = (Some(object), Some(object)),
        ("oversubscribe", None) => line.places.overcommit = true,
        (_, None) => {
            let possible = "ranks are mapped by slot, core, l3cache, numa, socket, gpu, nic, node, ppr:K:OBJECT, seq, \
                            rankfile:file=FILE or pe-list=CORES";
            return Err(not_mapped(&text, possible));
        }
    }
    for word in words {
        match word.split_once('=') {
            Some(("pe", number)) => line.places.cores = Some(number.to_owned()),
            None if word == "oversubscribe" => line.places.overcommit = true,
            None if word == "nooversubscribe" => {}
            _ => line.note(format!("--map-by {text}: {word} is ignored here")),
        }
    }
    Ok(())
}

/// A file after the word of a mapping (`:file=FILE`). Without it, the line may name the file by `flag`.
fn of_file(line: &mut Line, text: &str, flag: &str) -> Result<(), Refusal> {
    let word = text.split_once(':').map(|(_, word)| word);
    match word.map(|word| word.split_once('=')) {
        None => Ok(()),
        Some(Some((name, file))) if name.eq_ignore_ascii_case("file") => {
            line.add_to_launch(flag, Some(file.as_ref()));
            Ok(())
        }
        Some(_) => Err(not_mapped(text, "file=FILE is possible after the colon")),
    }
}

/// Open MPI's list of cores.
pub(super) fn cpu_list(line: &mut Line, list: &OsStr) -> Result<(), Refusal> {
    line.places.core_list = Some(list.to_string_lossy().into_owned());
    Ok(())
}

fn not_mapped(value: &str, possible: &str) -> Refusal {
    Refusal::Value { flag: "--map-by", value: value.to_owned(), reason: possible.to_owned() }
}

/// Open MPI's `--cpus-per-rank`, in cores.
pub(super) fn cpus_per_rank(line: &mut Line, number: &OsStr) -> Result<(), Refusal> {
    line.places.cores = Some(number.to_string_lossy().into_owned());
    Ok(())
}

/// Hydra's memory policies. `bind:OBJECT` means the memory next to the CPUs of the rank.
pub(super) fn membind(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let bind = match text.split(':').next().unwrap_or_default() {
        "none" | "firsttouch" => "none",
        "bind" => "local",
        _ => {
            let reason = "none, firsttouch and bind:OBJECT are; start numactl as the program for others: \
                          mpiexec -n 4 numactl --interleave=all ./a.out"
                .to_owned();
            return Err(Refusal::Value { flag: "-membind", value: text.into_owned(), reason });
        }
    };
    line.add_to_launch("--mem-bind", Some(bind.as_ref()));
    Ok(())
}

/// Allows ranks to share CPUs if there are not enough.
pub(super) fn oversubscribe(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    line.places.overcommit = true;
    Ok(())
}

/// Default binding of a line. Open MPI binds up to two ranks to cores, and more ranks to NUMA domains in turn. It binds no ranks if there are
/// more ranks than cores, or may be (recorded from 4.1.4). Intel MPI divides the cores of a node among its ranks (measured with 2021.18.1).
/// MPICH binds no ranks.
fn usual(line: &Line, places: &Places, dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::Hydra => None,
        Dialect::Intel => Some("cores:even:overcommit"),
        Dialect::OpenMpi => usual_of_open_mpi(line, places),
    }
}

fn usual_of_open_mpi(line: &Line, places: &Places) -> Option<&'static str> {
    match (places.overcommit, are_few(line), places.counts_threads) {
        (true, ..) => None,
        (false, true, false) => Some("cores:or-none"),
        (false, true, true) => Some("threads:or-none"),
        // The ranks of an object are in the NUMA domain of its first cores.
        (false, false, _) if places.is_by_objects => Some("numa:cores=1:or-none"),
        (false, false, _) => Some("numa:over=numa:or-none"),
    }
}

/// True if the line sets a number of ranks, and it is at most two.
fn are_few(line: &Line) -> bool {
    let of_each = line.value("--tasks-per-node").and_then(|ranks| ranks.to_str()?.parse::<u64>().ok());
    ranks_of(line).or(of_each).is_some_and(|ranks| ranks <= 2)
}

/// Returns an error for a binding to a missing list of cores, as prterun of Open MPI 5 does.
pub(super) fn check(line: &Line) -> Result<(), Refusal> {
    if line.places.is_listed && line.places.core_list.is_none() {
        let reason = "it needs the list: type --cpu-list CORES beside it, or --map-by pe-list=CORES:ordered".to_owned();
        return Err(Refusal::Value { flag: "--bind-to", value: "cpu-list".to_owned(), reason });
    }
    Ok(())
}

/// Combines the words about binding. Without an explicit binding, ranks with a number of cores are bound to cores. Ranks that Open MPI maps by
/// an object are bound to this object. All other ranks have the [default](usual).
pub(super) fn settle(line: &mut Line, dialect: Dialect) {
    let mut places = std::mem::take(&mut line.places);
    if let Some(list) = &places.core_list {
        let cores = if places.is_ordered { list.clone() } else { list.replace(',', "+") };
        line.add_to_launch("--cpu-bind", Some(format!("core-map:{cores}").as_ref()));
        return;
    }
    if line.has("--rankfile") {
        return;
    }
    let bind = match object(&places, dialect) {
        Some(object) => {
            arrange(line, &mut places, &object, dialect);
            with_details(object, &places, dialect)
        }
        None => match (usual(line, &places, dialect), places.over) {
            (Some(usual), _) => usual.to_owned(),
            (None, Some(over)) => {
                let reason = format!("ranks are not bound, so that {over} are ignored; --bind-to core binds them");
                return line.note(format!("--map-by: {reason}"));
            }
            (None, None) => return,
        },
    };
    line.add_to_launch("--cpu-bind", Some(bind.as_ref()));
}

/// Object that the line binds ranks to.
fn object(places: &Places, dialect: Dialect) -> Option<String> {
    let is_bound = |_: &Object| dialect == Dialect::OpenMpi;
    let of_cores = || places.cores.as_ref().map(|_| Object::Core.to_string());
    let mapped = || places.mapped.filter(is_bound).map(|object| object.to_string());
    places.object.clone().or_else(of_cores).or_else(mapped)
}

/// Adds the default placement of the launcher of the line. Open MPI maps up to two ranks by core, and more ranks by NUMA domain in turn. A rank
/// that is mapped by a smaller object than its binding takes the share of one core in the larger object (recorded from 4.1.4, and from Hydra
/// 5.0.2).
fn arrange(line: &Line, places: &mut Places, bind: &str, dialect: Dialect) {
    let object = bind.parse::<CpuBind>().ok().and_then(|bind| match bind {
        CpuBind::To(bind) => Some(bind.object),
        _ => None,
    });
    let Some(object) = object else { return };
    let is_larger = object > Object::Core;
    let is_placed = line.has("--tasks-per-node");
    match places.mapped {
        Some(Object::Core) if object == Object::Thread => places.over = Some(Object::Core),
        Some(Object::Core) if is_larger => places.share = Some("cores=1"),
        Some(Object::Thread) if is_larger => places.share = Some("cores=1"),
        Some(_) => {}
        None if places.is_mapped || is_placed || dialect != Dialect::OpenMpi => {}
        None if places.cores.is_some() => places.over = Some(Object::Numa),
        None if are_few(line) && is_larger => places.share = Some("cores=1"),
        None if are_few(line) => {}
        None if object < Object::Numa => places.over = Some(Object::Numa),
        None => {}
    }
    // If slots are counted by cores, ranks on threads are not distributed over the cores.
    if object == Object::Thread && places.over.is_none() && line.has("--tasks-per") {
        places.over = Some(Object::Thread);
    }
}

/// The object, with all details of the line.
fn with_details(mut bind: String, places: &Places, dialect: Dialect) -> String {
    if bind == "none" || bind.starts_with("map:") {
        return bind;
    }
    let is_thread = bind == Object::Thread.word();
    let unit = if is_thread { "cpus" } else { "cores" };
    bind.extend(places.cores.iter().map(|number| format!(":{unit}={number}")));
    bind.extend(places.share.filter(|_| places.cores.is_none()).map(|share| format!(":{share}")));
    // Objects that are assigned one after the other need no `over`.
    bind.extend(places.over.filter(|over| over.word() != bind || is_thread).map(|over| format!(":over={over}")));
    let is_own = places.object.is_none() && places.mapped.is_some();
    bind.push_str(match (places.overcommit, is_own, dialect) {
        (true, true, Dialect::OpenMpi) => ":or-none",
        (true, ..) => ":overcommit",
        // In Hydra, ranks beyond the last object start again with the first object.
        (false, _, Dialect::Hydra | Dialect::Intel) if places.cores.is_some() || places.share.is_some() => {
            ":overcommit"
        }
        (false, ..) => "",
    });
    bind
}
