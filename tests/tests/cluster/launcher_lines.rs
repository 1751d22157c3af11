//! Compares lines of `mpiexec` and `mpirun` with the recorded results of the launchers themselves (`testdata/launcher-lines.txt`). The programs
//! are those of an MPI library, of Python and of a shell. They run on one machine, in `lattice dev-cluster` and under `lattice start`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, built, executable, turn};

const RECORDS: &str = include_str!("../../testdata/launcher-lines.txt");

/// The launchers in the order of the records: dialect, name of the command, and library of the compiled program.
const LAUNCHERS: [(&str, &str, Flavour); 4] = [
    ("hydra", "mpiexec", Flavour::WheelMpich),
    ("intel", "mpiexec", Flavour::IntelMpi),
    ("ompi4", "mpirun", Flavour::WheelOpenMpi4),
    ("ompi5", "mpirun", Flavour::WheelOpenMpi),
];
/// Time limit for some hundred launches.
const LONG: Duration = Duration::from_secs(300);
const KINDS: [&str; 3] = ["compiled", "python", "script"];

/// Two cores of the machine, as on the recorded machines.
const TWO_CORES: &str = r#"cpus=$(lscpu -p=CPU,CORE | awk -F, '!/#/ && !seen[$2]++ { print $1 }' | head -n 2 | paste -sd,); export PATH=$PROGRAMS:$PATH; exec taskset -c "$cpus" "$@""#;

/// Runs each line with each kind of program and as each launcher. Prints the result: the node and program number of each rank, or a refusal.
const RUN_ALL: &str = r#"
    cd "$DIRECTORY"; one=$1 both=$2 counted=$3; shift 3
    tr , '\n' <<<"$one" >ONE; tr , '\n' <<<"$both" >BOTH
    if [ "$both" = node0,node1 ]; then names='node0 node0 node0 node1'; else names='localhost localhost localhost'; fi
    printf '%s\n' $names >TIMES; tr , '\n' <<<"$counted" >COUNTED.colon; sed 's/:/ slots=/' COUNTED.colon >COUNTED.slots
    for launcher in hydra intel ompi4 ompi5; do
        unset LATTICE_MPIEXEC; name=mpiexec form=colon
        case $launcher in intel) export LATTICE_MPIEXEC=intel;; ompi*) name=mpirun form=slots;; esac
        cp COUNTED.$form COUNTED
        while IFS= read -r line; do
            for kind in compiled python script; do
                case $kind in compiled) P=./where-$launcher;; python) P='python3 where.py';; script) P=./where.sh;; esac
                words=$(sed "s|\bP\b|$P|g; s|\bone\b|$one|; s|\bboth\b|$both|; s|\bcounted\b|$counted|" <<<"$line")
                ranks=$(timeout 60 lattice $name $words 2>errors </dev/null); status=$?
                case $status in 0) echo "$launcher;$line;$kind;"$ranks;; 125) echo "$launcher;$line;$kind;refused";; *) cat errors; exit 90;; esac
            done
        done <lines
    done"#;

/// A record: the line, and the results of the launchers on one machine and on two nodes.
struct Record {
    line: String,
    machine: Vec<String>,
    nodes: Vec<String>,
}

fn records() -> Vec<Record> {
    let rows = RECORDS.lines().filter(|line| !line.starts_with('#'));
    let read = |row: &str| {
        let fields: Vec<String> = row.split('|').map(|field| field.trim().to_owned()).collect();
        Record { line: fields[0].clone(), machine: fields[1..5].to_vec(), nodes: fields[5..9].to_vec() }
    };
    rows.map(read).collect()
}

/// Formats ranks in the form of a record: by program, on each node.
fn counted(ranks: &str, nodes: &[&str]) -> String {
    let mut programs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for rank in ranks.split_whitespace() {
        let (node, program) = rank.rsplit_once(':').unwrap_or_else(|| panic!("{ranks}"));
        let counts = programs.entry(program.parse().unwrap()).or_insert_with(|| vec![0; nodes.len().max(1)]);
        counts[nodes.iter().position(|known| *known == node).unwrap_or_default()] += 1;
    }
    let sums = |counts: &Vec<u32>| counts.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
    programs.values().map(sums).collect::<Vec<_>>().join(",")
}

/// Returns a separate directory with the programs and lines.
fn programs(records: &[Record]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    for (launcher, _, library) in LAUNCHERS {
        std::os::unix::fs::symlink(library.program("where"), directory.path().join(format!("where-{launcher}")))
            .unwrap();
    }
    write("where.py", "import os, socket\nprint(socket.gethostname() + ':' + os.environ['LATTICE_APPNUM'])\n");
    executable(directory.path(), "where.sh", "#!/bin/sh\necho $(hostname):$LATTICE_APPNUM\n");
    let lines: String = records.iter().map(|record| format!("{}\n", record.line)).collect();
    write("lines", &lines);
    directory
}

/// Compares the output with the records of a place.
#[track_caller]
fn check(printed: &str, of: fn(&Record) -> &Vec<String>, nodes: &[&str]) {
    let records = records();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (launcher, line, kind, ranks) in printed.lines().filter_map(|line| {
        let mut fields = line.splitn(4, ';');
        Some((fields.next()?, fields.next()?, fields.next()?, fields.next()?))
    }) {
        seen += 1;
        let index = LAUNCHERS.iter().position(|(name, ..)| *name == launcher).unwrap();
        let results = of(records.iter().find(|record| record.line == line).unwrap());
        let expected = match results[index].as_str() {
            "bind" => &results[index - 1],
            "form" => continue,
            expected => expected,
        };
        let got = if ranks == "refused" { ranks.to_owned() } else { counted(ranks, nodes) };
        if got != expected {
            wrong.push(format!("{launcher} {kind} {line}: {got}, recorded is {expected}\n"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.concat());
    assert_eq!(seen, records.len() * LAUNCHERS.len() * KINDS.len(), "{printed}");
}

/// Returns a bash script on two cores of this machine.
fn on_two_cores(directory: &Path) -> Command {
    let programs = built::lattice().parent().map(Path::to_owned).unwrap_or_default();
    Command::new("bash").words("-c").arg(TWO_CORES).arg("bash").env("DIRECTORY", directory).env("PROGRAMS", programs)
}

#[test]
fn lines_mean_on_one_machine_what_their_launchers_make_of_them() {
    let _machine = turn::heavy();
    let directory = programs(&records());
    let outcome = on_two_cores(directory.path())
        .bash(RUN_ALL)
        .words("localhost localhost,localhost localhost:3")
        .within(LONG)
        .run();
    check(outcome.exits(0).text(), |record| &record.machine, &[]);
}

#[test]
#[ignore = "second tier"]
fn lines_mean_in_a_dev_cluster_what_their_launchers_make_of_them() {
    let _machine = turn::heavy();
    let directory = programs(&records());
    let command = on_two_cores(directory.path()).arg(built::lattice()).words("dev-cluster --nodes 2 --").bash(RUN_ALL);
    let outcome = command.words("node1 node0,node1 node0:2,node1:1").within(LONG).run();
    check(outcome.exits(0).text(), |record| &record.nodes, &["node0", "node1"]);
}

/// The list of nodes has no numbers of slots.
#[test]
#[ignore = "second tier"]
fn lines_mean_under_start_what_their_launchers_make_of_them() {
    let _machine = turn::heavy();
    let directory = programs(&records());
    let script = r#"unset LATTICE_ALLOC_ID LATTICE_API_URL; enter=$DIRECTORY/enter
        printf '#!/bin/sh\npid=$(cat %s/$1.pid); shift; exec nsenter --target $pid --net --uts --mount -- "$@"\n' "$LATTICE_DEV_CLUSTER" >$enter
        chmod +x $enter; exec lattice start --start-with $enter "$@""#;
    let command = on_two_cores(directory.path()).arg(built::lattice()).words("dev-cluster --nodes 2 --").bash(script);
    let outcome =
        command.words("-w node0,node1 --").bash(RUN_ALL).words("node1 node0,node1 node0:2,node1:1").within(LONG).run();
    check(outcome.exits(0).text(), |record| &record.nodes, &["node0", "node1"]);
}
