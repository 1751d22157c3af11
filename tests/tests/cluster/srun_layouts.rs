//! Lines of srun on simulated nodes, in comparison with the results of the real srun.

use lattice_tests::Command;
use lattice_tests::built;

/// Results of srun of Slurm 22.05; the file describes their recording.
const RECORDED: &str = include_str!("../../testdata/srun-22.05.txt");

/// Plans each line for the nodes of the record, which an API server has in a list. `-v` prints the line of `lattice launch` for a line of srun
/// in an allocation. This line is planned without an allocation.
const PLAN: &str = r#"
    lstopo -i 'package:2 [numa] core:2 pu:2' --of xml >eight.xml || exit 90
    printf '[[topology]]\nname = "eight"\nfile = "eight.xml"\n[[nodes]]\nlist = "node[0-2]"\ntopology = "eight"\n' >inventory.toml
    printf '%s = "%s"\n' socket "$PWD/api.sock" state "$PWD/api.redb" inventory "$PWD/inventory.toml" >api.toml
    printf 'listen = ["127.0.0.1:0"]\ninsecure = true\n' >>api.toml
    lattice api --config api.toml 2>api.log & api=$!
    trap 'kill $api' EXIT
    until [ -S api.sock ]; do kill -0 $api || exit 91; sleep 0.05; done
    while IFS= read -r flags; do
        means=$(LATTICE_API_URL=unix:/nowhere lattice -v srun --jobid=none $flags --test-only true 2>&1 </dev/null |
            sed -n 's/^lattice: this means: lattice launch --alloc=none //p')
        plan=$([ "$means" ] && eval "lattice launch --api unix:$PWD/api.sock $means" 2>/dev/null </dev/null |
            awk '$1 ~ /^[0-9]+$/ && NF >= 5 { sub("node", "", $2); print $2, $4 }')
        echo "$flags => $(echo "$plan" | cut -d' ' -f1 | tr -d '\n') =>" $(echo "$plan" | cut -d' ' -f2)
    done"#;

/// Returns a list of CPUs in the form of Slurm's masks.
fn mask(cpus: &str) -> String {
    match cpus.parse::<rank_spawner::CpuSet>() {
        Ok(set) => format!("{:#x}", set.iter().fold(0_u64, |mask, cpu| mask | 1 << cpu)),
        Err(_) => "0x0".to_owned(),
    }
}

#[test]
fn lines_of_srun_place_and_bind_as_they_were_recorded() {
    let rows: Vec<(&str, &str)> =
        RECORDED.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" => ")).collect();
    let is_of_masks = |recorded: &str| recorded.contains("0x");
    let typed = |&(flags, recorded): &(&str, &str)| match is_of_masks(recorded) {
        true => format!("-N 1 {flags}\n"),
        false => format!("{flags}\n"),
    };
    let directory = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", built::lattice().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let command = Command::new("bash").arg("-c").arg(PLAN).directory(directory.path()).env("PATH", path);
    let outcome = command.input(rows.iter().map(typed).collect::<String>()).run();
    outcome.exits(0);
    let plans: Vec<&str> = outcome.text().lines().collect();
    assert!(rows.len() > 80 && plans.len() == rows.len(), "{} of {}", plans.len(), rows.len());
    for ((flags, recorded), plan) in rows.into_iter().zip(plans) {
        let (_, plan) = plan.split_once(" => ").unwrap();
        let (nodes, cpus) = plan.split_once(" =>").unwrap();
        let planned = match is_of_masks(recorded) {
            _ if nodes.is_empty() => "refused".to_owned(),
            true => cpus.split_whitespace().map(mask).collect::<Vec<_>>().join(" "),
            false => nodes.to_owned(),
        };
        let expected = match recorded.split_once(" ; ") {
            Some((_, ours)) => ours.split_once(": ").expect("why it is something else").0,
            None => recorded,
        };
        assert_eq!(planned, expected, "srun {flags}");
    }
}
