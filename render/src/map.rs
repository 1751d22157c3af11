//! Map of a launch: node, CPUs and program of each rank, as `--show-map` and `--dry-run` print them.

use lattice_console::table::{Align, Table};
use rank_spawner::CpuBind;

use super::prepared::{PreparedLaunch, RankRow};

/// Table with one line for each rank, and pictures of the first nodes with bound ranks.
pub fn table(launch: &PreparedLaunch) -> String {
    let mut table = Table::new([
        ("RANK", Align::Right),
        ("NODE", Align::Left),
        ("LOCAL", Align::Right),
        ("CPUS", Align::Left),
        ("PROGRAM", Align::Left),
    ]);
    for row in &launch.ranks {
        let place = &row.place;
        table.push([
            place.rank.to_string(),
            launch.placed.host(place.node).to_owned(),
            place.local_rank.to_string(),
            cpus(row, &launch.placed.settings.cpu_bind),
            row.program.display().to_string(),
        ]);
    }
    let pictures = launch.pictures.iter().map(|line| format!("{line}\n"));
    table.to_string() + &pictures.collect::<String>()
}

/// CPUs of a rank. If only its node can determine them, because its template is unknown, the requested binding.
fn cpus(row: &RankRow, bind: &CpuBind) -> String {
    match &row.cpus {
        Some(cpus) => cpus.to_string(),
        None if row.is_free => "any".to_owned(),
        None => bind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_line() {
        let launch = crate::prepared::tests::prepared(&[(10, "/usr/bin/true", &[]), (1, "/usr/bin/false", &[])]);
        let table = table(&launch);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "RANK  NODE   LOCAL  CPUS  PROGRAM");
        assert_eq!(lines[1], "   0  node3      0  any   /usr/bin/true");
        assert_eq!(lines[11], "  10  node3     10  any   /usr/bin/false");
        assert_eq!(lines.len(), 12);
    }
}
