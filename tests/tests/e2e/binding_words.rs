//! Random combinations of binding options of three command lines. The kernel must place each rank on the CPUs in the map of the plan, even if
//! the launcher may not use all CPUs.

use lattice_tests::{Command, Outcome, built, processes};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rank_spawner::CpuSet;

/// Prints the rank and its CPUs.
const CPUS: &str = r#"while read -r name value; do
    if [ "$name" = Cpus_allowed_list: ]; then echo "$LATTICE_RANK $value"; fi
done </proc/self/status"#;

/// The CPUs that this process may use.
fn allowed() -> Vec<u16> {
    let list = processes::status(std::process::id(), "Cpus_allowed_list").unwrap();
    list.parse::<CpuSet>().unwrap().iter().collect()
}

/// Returns one of these words; its `#` become numbers below `most`.
fn word(words: &'static [&'static str], most: u16) -> impl Strategy<Value = String> {
    (select(words), 0..most, 0..most).prop_map(|(word, first, second)| {
        word.replacen('#', &first.to_string(), 1).replacen('#', &second.to_string(), 1)
    })
}

/// Returns one of these words, or none.
fn maybe(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![2 => Just(String::new()), 1 => word(words, 2)]
}

/// Words of `lattice launch` and of srun, which have most of them in common.
fn of_srun() -> impl Strategy<Value = String> {
    let bind = word(
        &[
            "none",
            "cores",
            "threads",
            "sockets",
            "ldoms",
            "rank",
            "rank_ldom",
            "map_cpu:#",
            "map_cpu:#,#",
            "mask_cpu:0x1,0x2",
            "mask_cpu:0x3",
            "map_ldom:0",
            "mask_ldom:0x1",
            "map_ldom:#",
        ],
        3,
    );
    let order = maybe(&[
        "-m block:block",
        "-m block:cyclic",
        "-m cyclic:fcyclic",
        "-m plane=2:cyclic:block",
        "-m *:block:cyclic",
        "-m block:cyclic:fcyclic",
    ]);
    let share =
        maybe(&["-c 1", "-c 2", "-c 3", "--threads-per-core=1", "--ntasks-per-core=1", "-c 2 --threads-per-core=1"]);
    (bind, order, share, maybe(&["-O"]))
        .prop_map(|(bind, order, share, rest)| format!("--cpu-bind=v,{bind} {order} {share} {rest}"))
}

/// Words of Open MPI's mpirun.
fn of_mpirun() -> impl Strategy<Value = String> {
    let map = maybe(&[
        "--map-by slot",
        "--map-by core",
        "--map-by hwthread",
        "--map-by numa",
        "--map-by socket",
        "--map-by node",
        "--map-by l3cache",
        "--map-by ppr:1:core",
        "--map-by ppr:2:socket",
        "--map-by ppr:4:node",
        "--map-by core:PE=1",
        "--map-by socket:PE=2",
        "--map-by slot:PE=2",
    ]);
    let bind = maybe(&[
        "--bind-to none",
        "--bind-to core",
        "--bind-to hwthread",
        "--bind-to socket",
        "--bind-to numa",
        "--bind-to l3cache",
    ]);
    let rank = maybe(&["--rank-by slot", "--rank-by core", "--rank-by socket", "--rank-by node"]);
    (map, bind, rank, maybe(&["--oversubscribe"]))
        .prop_map(|(map, bind, rank, rest)| format!("{map} {bind} {rank} {rest}"))
}

/// Returns a line of one of the three commands that shows its map, without its program.
fn lines() -> impl Strategy<Value = String> {
    prop_oneof![
        (of_srun(), 1..6_u16).prop_map(|(words, ranks)| format!("launch --show-map --pmi none -n {ranks} {words}")),
        (of_srun(), 1..6_u16).prop_map(|(words, ranks)| format!("srun --mpi=none -n {ranks} {words}")),
        (of_mpirun(), 1..6_u16).prop_map(|(words, ranks)| format!("mpirun --display-map -np {ranks} {words}")),
    ]
}

fn run(cpus: &[u16], line: &str) -> Outcome {
    let list: CpuSet = cpus.iter().copied().collect();
    let command = Command::new("taskset").arg("-c").arg(list.to_string()).arg(built::lattice());
    command.env("LATTICE_MPIEXEC", "ompi").words(line).bash(CPUS).run()
}

/// Returns the CPUs of each rank from the rows of a map.
fn planned(outcome: &Outcome) -> Vec<(u32, String)> {
    let row = |row: &str| {
        let mut words = row.split_whitespace();
        Some((words.next()?.parse().ok()?, words.nth(2)?.to_owned()))
    };
    outcome.errors().lines().filter_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_has_ranks_where_the_plan_has_them(cpus in subsequence(allowed(), 1..=allowed().len()), line in lines()) {
        let outcome = run(&cpus, &line);
        if outcome.stdout().is_empty() {
            // A request for absent hardware is refused before any rank starts.
            outcome.exits(125);
            return Ok(());
        }
        outcome.exits(0);
        let planned = planned(&outcome);
        let kernels = outcome.sorted_lines();
        prop_assert_eq!(planned.len(), kernels.len(), "{}: {}", line, outcome.errors());
        for ((rank, plan), kernel) in planned.iter().zip(kernels) {
            let all: CpuSet = cpus.iter().copied().collect();
            let plan = if plan == "any" { all } else { plan.parse().unwrap() };
            prop_assert_eq!(kernel, format!("{rank} {plan}"), "taskset -c {:?} {}", cpus, line);
        }
        outcome.does_not_say("warning");
    }
}
