//! CPU binding, read back from the kernel, and the map that shows it.

use lattice_tests::{launch, processes};

/// The CPUs that this process may use.
fn allowed() -> Vec<u32> {
    let list = processes::status(std::process::id(), "Cpus_allowed_list").unwrap();
    let ranges = list.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.flat_map(|(first, last)| first.parse().unwrap()..=last.parse::<u32>().unwrap()).collect()
}

const PRINT_CPUS: &str = r#"while read -r name value; do
    if [ "$name" = Cpus_allowed_list: ]; then echo "$LATTICE_RANK $value"; fi
done < /proc/self/status"#;

#[test]
fn cpu_bind_is_what_the_kernel_says() {
    let cpus = allowed();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let map = format!("--cpu-bind map:{last},{first}");
    let outcome = launch("-n 2 --pmi none").words(&map).bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing().prints_lines([format!("0 {last}"), format!("1 {first}")]);
    let outcome = launch("-n 1 --pmi none --cpu-bind threads").bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing().prints_lines([format!("0 {first}")]);
}

#[test]
fn cores_are_shared_out_among_the_ranks() {
    let cpus = allowed();
    if cpus.len() < 2 {
        let outcome = launch("-n 1 --pmi none --cpu-bind cores").bash(PRINT_CPUS).run();
        outcome.exits(0).prints_lines([format!("0 {}", cpus[0])]);
        return;
    }
    let outcome = launch("-n 2 --pmi none --cpu-bind cores").bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing();
    let lines = outcome.sorted_lines();
    let lists: Vec<&str> = lines.iter().map(|line| &line[2..]).collect();
    outcome.check(lists.len() == 2, || "should have printed the CPUs of both ranks".into());
    outcome.check(lists[0] != lists[1], || "both ranks have the same cores".into());
}

#[test]
fn without_binding_ranks_may_run_anywhere() {
    let here = processes::status(std::process::id(), "Cpus_allowed_list").unwrap();
    let outcome = launch("-n 2 --pmi none").bash(PRINT_CPUS).run();
    outcome.exits(0).prints_lines([format!("0 {here}"), format!("1 {here}")]);
}

#[test]
fn a_cpu_that_is_not_there_is_refused() {
    launch("-n 1 --cpu-bind map:99999").arg("true").run().exits(125).says("--cpu-bind").says("99999");
}

#[test]
fn dry_run_prints_the_map_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let command = launch("-n 3 --dry-run").words("touch started : -n 1 true").directory(directory.path());
    let outcome = command.run();
    outcome.exits(0).says_nothing().prints("touch").prints("true");
    for rank in 0..4 {
        let known = outcome.text().lines().any(|line| line.split_whitespace().any(|word| word == rank.to_string()));
        outcome.check(known, || format!("rank {rank} is not in the map"));
    }
    assert!(!directory.path().join("started").exists());
}

#[test]
fn show_map_prints_it_and_starts_the_ranks() {
    launch("-n 2 --pmi none --show-map").words("echo hello").run().exits(0).prints_lines(["hello"; 2]).says("echo");
}
