//! The map of a launch: which rank runs where, as `--show-map` and `--dry-run` print it.

use rank_spawner::{CpuBind, CpuSet};

use crate::placed::{PlacedLaunch, Seat};
use crate::table::{Align, Table};

/// A table with one line for each rank.
pub(crate) fn table(launch: &PlacedLaunch) -> String {
    let mut table = Table::new([
        ("RANK", Align::Right),
        ("NODE", Align::Left),
        ("LOCAL", Align::Right),
        ("CPUS", Align::Left),
        ("PROGRAM", Align::Left),
    ]);
    for seat in &launch.seats {
        table.push([
            seat.rank.to_string(),
            launch.spec.hosts[seat.node.index()].clone(),
            seat.local_rank.to_string(),
            cpus(seat, &launch.spec.cpu_bind),
            seat.program.display().to_string(),
        ]);
    }
    table.to_string()
}

/// The CPUs of a rank; where only its node can tell them, what it is asked for.
fn cpus(seat: &Seat, bind: &CpuBind) -> String {
    match (&seat.cpus, bind) {
        (Some(cpus), _) => CpuSet::to_string(cpus),
        (None, CpuBind::None) => "any".to_owned(),
        (None, bind) => bind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_line() {
        let launch = crate::placed::tests::placed("-n 10 true : -n 1 false").unwrap();
        let table = table(&launch);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "RANK  NODE   LOCAL  CPUS  PROGRAM");
        assert_eq!(lines[1], "   0  node3      0  any   /usr/bin/true");
        assert_eq!(lines[11], "  10  node3     10  any   /usr/bin/false");
        assert_eq!(lines.len(), 12);
    }
}
