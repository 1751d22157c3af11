//! `--bind-to` and `--map-by`, which together say where ranks go within a node: the object of `--bind-to`, dealt out over that of
//! `--map-by`, so many of them for each rank as `PE=` or a number behind the object says.

use std::ffi::OsStr;

use super::super::Refusal;
use super::super::line::{Line, Places};

/// What objects are called here.
fn object(word: &str) -> Option<&'static str> {
    match word {
        "hwthread" | "hwthreads" => Some("threads"),
        "core" | "cores" => Some("cores"),
        "l3cache" | "l3" => Some("l3caches"),
        "numa" | "numanode" => Some("numa"),
        "socket" | "sockets" | "package" | "packages" => Some("sockets"),
        _ => None,
    }
}

/// `none`, an object, Hydra's `OBJECT:N`, `user:CPU+CPU,...` for each rank, and Open MPI's words behind a colon.
pub(super) fn bind_to(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let mut words = text.split(':');
    let word = words.next().unwrap_or_default();
    if line.places.object.is_some() {
        line.note(format!("--bind-to {text}: it is for all programs, in place of what stood before it"));
    }
    line.places.object = Some(match (word, object(word)) {
        ("none" | "board" | "machine", _) => "none".to_owned(),
        ("rr", _) => "threads".to_owned(),
        ("user", _) => format!("map:{}", words.next().unwrap_or_default()),
        (_, Some(object)) => object.to_owned(),
        (_, None) => {
            let reason =
                "ranks are bound to a core, hwthread, l3cache, numa, socket, none, or user:CPU+CPU,...".to_owned();
            return Err(Refusal::Value { flag: "--bind-to", value: text.into_owned(), reason });
        }
    });
    for word in words {
        match word {
            "if-supported" => {}
            "overload-allowed" => line.places.overcommit = true,
            number if number.parse::<u32>().is_ok() => line.places.cores = Some(number.to_owned()),
            other => line.note(format!("--bind-to {text}: {other} chooses nothing here")),
        }
    }
    Ok(())
}

/// `ppr:K:node`, or an object and words behind a colon.
pub(super) fn map_by(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    let lower = text.to_ascii_lowercase();
    let mut words = lower.split([':', ',']);
    let word = words.next().unwrap_or_default();
    match (word, object(word)) {
        ("ppr", _) => match (words.next(), words.next()) {
            (Some(ranks), Some("node")) => line.add_to_launch("--tasks-per-node", Some(ranks.as_ref())),
            _ => return Err(not_mapped(&text, "so many ranks are put on each node, as in ppr:4:node")),
        },
        ("node", _) => line.add_to_launch("--distribution", Some("cyclic".as_ref())),
        ("slot" | "board" | "", _) => {}
        // The next one is its neighbour without being told.
        (_, Some("cores" | "threads")) => {}
        (_, Some(object)) => line.places.over = Some(object),
        ("oversubscribe", None) => line.places.overcommit = true,
        (_, None) => {
            return Err(not_mapped(&text, "ranks are mapped by slot, core, l3cache, numa, socket, node or ppr:K:node"));
        }
    }
    for word in words {
        match word.split_once('=') {
            Some(("pe", number)) => line.places.cores = Some(number.to_owned()),
            None if word == "oversubscribe" => line.places.overcommit = true,
            None if word == "nooversubscribe" => {}
            _ => line.note(format!("--map-by {text}: {word} chooses nothing here")),
        }
    }
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

/// Ranks that have no room for themselves share CPUs.
pub(super) fn oversubscribe(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    line.places.overcommit = true;
    Ok(())
}

/// Puts the words about binding together. Ranks with a number of cores are bound to cores unless it is said otherwise.
pub(super) fn settle(line: &mut Line) {
    let Places { object, cores, over, overcommit } = std::mem::take(&mut line.places);
    let object = object.or_else(|| cores.as_ref().map(|_| "cores".to_owned()));
    let Some(mut bind) = object else {
        if let Some(over) = over {
            line.note(format!(
                "--map-by: ranks are not bound, so that {over} choose nothing; --bind-to core binds them"
            ));
        }
        return;
    };
    if bind != "none" && !bind.starts_with("map:") {
        bind.extend(cores.map(|number| format!(":cores={number}")));
        bind.extend(over.map(|over| format!(":over={over}")));
        bind.push_str(if overcommit { ":overcommit" } else { "" });
    }
    line.add_to_launch("--cpu-bind", Some(bind.as_ref()));
}
