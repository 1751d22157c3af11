//! Names that ranks publish: two copies of one program at the same time, two scripts with a server and a client each, ranges.

use std::path::Path;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, Running, built, launch};

/// Programs that couple a server and a client, over each protocol.
const COUPLED: [(Flavour, &str); 5] = [
    (Flavour::WheelMpich, "coupled"),
    (Flavour::DebianOpenMpi, "coupled"),
    (Flavour::WheelOpenMpi, "coupled"),
    (Flavour::SlurmPmi2, "pmi2_coupled"),
    (Flavour::Pmix, "pmix_coupled"),
];

/// Files with which a test and the copies of a program wait for each other.
fn copy(home: &Path, copy: &str, gates: &[&str]) -> Command {
    let file = |name: &str| home.join(format!("{name}_of_{copy}"));
    let command = launch("-n 2").env("LATTICE_SETS", home.join("sets")).env("COPY", copy);
    // Over UCX, the address of MPICH 5.0.2 does not fit into a port's name. Open MPI ignores the variable.
    let command = command.env("MPIR_CVAR_CH4_NETMOD", "ofi");
    gates.iter().fold(command, |command, gate| command.env(gate, file(gate)))
}

fn open(home: &Path, gate: &str, copy: &str) {
    std::fs::write(home.join(format!("{gate}_of_{copy}")), "").unwrap();
}

fn wait_for(home: &Path, file: &str, copy: &str, running: &mut Running) {
    let file = format!("{file}_of_{copy}");
    running.wait_until(&file, || home.join(&file).exists());
}

/// The client of the second copy looks up its server after the first copy has published the name, and before the second one
/// has.
#[test]
fn two_copies_of_a_coupled_program_never_meet_each_other() {
    for (mpi, program) in COUPLED {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let program = mpi.program(program);
        let mut first = copy(home, "one", &["CLIENT_GATE", "PUBLISHED"]).arg(&program).start();
        wait_for(home, "PUBLISHED", "one", &mut first);
        let mut second = copy(home, "two", &["SERVER_GATE", "LOOKED"]).arg(&program).start();
        wait_for(home, "LOOKED", "two", &mut second);
        open(home, "CLIENT_GATE", "one");
        open(home, "SERVER_GATE", "two");
        for (running, copy) in [(first, "one"), (second, "two")] {
            let outcome = running.finish();
            outcome.exits(0).warns_of_nothing();
            outcome.prints_lines([format!("the server of {copy} has the client of {copy}")]);
        }
    }
}

/// Two scripts that start a server and a client each, as separate launches: with 1 rank each, and with 2 ranks each.
#[test]
fn the_client_of_a_script_meets_the_server_of_the_same_script() {
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let home = tempfile::tempdir().unwrap();
        let outcome = Command::new("bash")
            .arg("-c")
            .arg(SCRIPTS)
            .arg("bash")
            .arg(mpi.program("meeting"))
            .env("LATTICE", built::lattice())
            .env("LATTICE_SETS", home.path().join("sets"))
            .env("MPIR_CVAR_CH4_NETMOD", "ofi")
            .run();
        let lines = [1, 2].into_iter().flat_map(|ranks| {
            let line = move |role, rank| format!("{role} {rank}: {ranks} on the other side, {} together", 2 * ranks);
            (0..ranks).flat_map(move |rank| [line("host", rank), line("guest", rank)])
        });
        outcome.exits(0).warns_of_nothing().prints_lines(lines);
    }
}

const SCRIPTS: &str = r#"
    script() { bash -c '$LATTICE launch -n $0 "$1" host & $LATTICE launch -n $0 "$1" guest && wait $!' "$@"; }
    script 1 "$1" & one=$!
    script 2 "$1" && wait $one"#;
