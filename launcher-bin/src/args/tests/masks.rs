//! Bindings of lines of Hydra and Open MPI on a synthetic node, compared with the masks that these launchers set there.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;

use lattice_dialects::Called;
use lattice_inventory::{CacheKind, CacheType, Group, NumaNode, Template, UsableCores};
use rank_spawner::{CpuSet, plan};

use crate::prepared::tests::commanded;

/// The node of the recorded masks.
fn node() -> Template {
    let groups = |size: u16| {
        (0..16 / size)
            .map(move |index| Group { cpus: (index * size..(index + 1) * size).collect(), id: Some(index.into()) })
    };
    let l3 = CacheKind {
        level: 3,
        kind: CacheType::Unified,
        size: 1 << 25,
        line: 64,
        ways: 16,
        instances: groups(4).collect(),
    };
    let numa = |(id, group): (u16, Group)| NumaNode {
        id,
        cpus: group.cpus,
        near: CpuSet::default(),
        memory_gib: 1,
        distances: Vec::new(),
    };
    Template {
        cpus: (0..16).collect(),
        packages: groups(8).collect(),
        cores: groups(2).collect(),
        caches: vec![l3],
        numa: (0..).zip(groups(8)).map(numa).collect(),
        ..Template::default()
    }
}

/// CPUs of the ranks of a line, or `refused`.
fn planned(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let Ok(translation) = Called::of(&words).expect("a line of another launcher").translate() else {
        return "refused".to_owned();
    };
    let words = translation.words.join(OsStr::new(" ")).into_string().expect("words of the record");
    let Ok(command) = commanded(&words) else { return "refused".to_owned() };
    let (template, ranks) = (node(), command.request.programs.size().expect("a number of ranks"));
    let cores = UsableCores::of(&template, &template.cpus);
    let room = command.per_object.map(|per_object| per_object.room(&cores).map_or(0, NonZeroU32::get));
    let bind = command.request.settings.cpu_bind.of_ranks(0..ranks);
    match plan(&cores, &bind, ranks) {
        Ok(_) if room.is_some_and(|room| ranks > room) => "refused".to_owned(),
        Ok(sets) => {
            let word = |set: &Option<CpuSet>| set.as_ref().map_or("*".to_owned(), CpuSet::to_string);
            sets.iter().map(word).collect::<Vec<_>>().join(" ")
        }
        Err(_) => "refused".to_owned(),
    }
}

/// Compares the lines of a record. `launcher` has a flag that determines the dialect.
#[track_caller]
fn check(record: &str, launcher: &str) {
    let rows = record.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" => "));
    let (mut count, mut wrong) = (0, Vec::new());
    for (flags, recorded) in rows {
        let expected = match recorded.split_once(" ; ") {
            Some((_, ours)) => ours.split_once(": ").expect("why it is something else").0,
            None => recorded,
        };
        let seen = planned(&format!("{launcher} {flags} ./a"));
        count += 1;
        if seen != expected {
            wrong.push(format!("{flags} => {recorded}\n    is {seen}\n"));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} are something else:\n{}", wrong.len(), wrong.concat());
    assert!(count > 30, "{count} lines");
}

#[test]
fn lines_of_hydra_bind_as_it_was_recorded() {
    check(include_str!("../../../testdata/hydra-masks.txt"), "mpiexec -l");
}

#[test]
fn lines_of_open_mpi_bind_as_it_was_recorded() {
    check(include_str!("../../../testdata/openmpi-masks.txt"), "mpirun --mca btl self");
}
