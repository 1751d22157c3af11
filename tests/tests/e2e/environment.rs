//! The initial environment variables of ranks.

use std::collections::BTreeMap;

use lattice_tests::{Command, executable, launch};
use nix::sys::signal::Signal;

/// Returns the environment of the only rank that prints it.
fn environment_of(command: Command) -> BTreeMap<String, String> {
    let outcome = command.words("env -0").run();
    outcome.exits(0);
    let variables = outcome.text().split_terminator('\0').filter_map(|variable| variable.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[track_caller]
fn has(environment: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for &(name, value) in expected {
        assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name}");
    }
}

fn begin_with<'a>(environment: &'a BTreeMap<String, String>, prefix: &str) -> Vec<&'a str> {
    environment.keys().map(String::as_str).filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn every_rank_knows_its_place() {
    // The only rank of the second program prints its environment.
    let environment = environment_of(launch("-n 2 true : -n 1"));
    has(
        &environment,
        &[
            ("LATTICE_RANK", "2"),
            ("LATTICE_NPROCS", "3"),
            ("LATTICE_LOCAL_RANK", "2"),
            ("LATTICE_LOCAL_SIZE", "3"),
            ("LATTICE_NNODES", "1"),
            ("LATTICE_NODE", "0"),
            ("LATTICE_APPNUM", "1"),
            ("LATTICE_ALLOC_ID", "local"),
            ("PMI_RANK", "2"),
            ("PMI_SIZE", "3"),
            ("PMI_SPAWNED", "0"),
            ("MPI_LOCALRANKID", "2"),
            ("MPI_LOCALNRANKS", "3"),
        ],
    );
    assert!(environment["PMI_FD"].parse::<u32>().is_ok_and(|number| number > 2));
    assert_eq!(environment["LATTICE_NODELIST"], environment["PMI_HOSTNAME"]);
    assert!(!environment["LATTICE_LAUNCH_ID"].is_empty());
    // Each of these breaks a client (see the wire reference).
    for name in ["PMI_PORT", "PMI_ID", "PMI_VERSION", "PMI_SUBVERSION", "PMI_TOTALVIEW", "PMI_DEBUG"] {
        assert!(!environment.contains_key(name), "{name} is set");
    }
    assert_eq!(begin_with(&environment, "SLURM_"), Vec::<&str>::new());
}

#[test]
fn a_port_replaces_descriptor_rank_and_size() {
    let environment = environment_of(launch("--pmi-port"));
    let id: u32 = environment["PMI_ID"].parse().unwrap();
    assert!((1 << 24..1 << 31).contains(&id), "{id} is not a key that a C int holds");
    assert!(environment["PMI_PORT"].starts_with("127.0.0.1:"));
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE"] {
        assert!(!environment.contains_key(name), "{name} is set");
    }
}

#[test]
fn slurms_variables_are_set_on_demand() {
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NPROCS", "1"), ("SLURM_LOCALID", "0")];
    let environment = environment_of(launch("--slurm-env"));
    has(&environment, &slurm);
    assert_eq!(environment["SLURM_NODELIST"], environment["LATTICE_NODELIST"]);
    has(&environment_of(launch("").env("LATTICE_SLURM_ENV", "1")), &slurm);
}

#[test]
fn without_pmi_there_are_no_pmi_variables() {
    let environment = environment_of(launch("--pmi none"));
    assert_eq!(begin_with(&environment, "PMI"), Vec::<&str>::new());
    has(&environment, &[("LATTICE_RANK", "0"), ("LATTICE_NPROCS", "1")]);
}

#[test]
fn variables_of_an_outer_launcher_do_not_reach_a_rank() {
    let outer = [
        "PMI_VERSION",
        "PMI_ID",
        "PMI_TOTALVIEW",
        "PMI2_DEBUG",
        "PMIX_NAMESPACE",
        "PMIX_RANK",
        "PRTE_LAUNCHED",
        "HYDI_CONTROL_FD",
        "HYDRA_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_MCA_ess",
        "PALS_RANKID",
        "LATTICE_STALE",
    ];
    let mut command = launch("").env("OMPI_MCA_btl", "self").env("PLAIN", "stays").env("SLINGSHOT_VNIS", "8");
    for name in outer {
        command = command.env(name, "7");
    }
    let environment = environment_of(command);
    for name in outer {
        // Lattice sets some of them itself.
        assert_ne!(environment.get(name).map(String::as_str), Some("7"), "{name} came through");
    }
    // If the ranks are on this machine, they may use the fabric of their launcher.
    has(&environment, &[("OMPI_MCA_btl", "self"), ("PLAIN", "stays"), ("SLINGSHOT_VNIS", "8")]);
}

#[test]
fn env_sets_any_value() {
    let odd = " two words\nand a line; = ' \" $HOME \t é ";
    let long = "0123456789".repeat(10_240);
    let command = launch("--env EMPTY= --env TAKEN --env PMIX_KEPT --env")
        .arg(format!("ODD={odd}"))
        .arg("--env")
        .arg(format!("LONG={long}"))
        .env("TAKEN", "from outside")
        .env("PMIX_KEPT", "by name");
    let expected = [("ODD", odd), ("LONG", &long), ("EMPTY", ""), ("TAKEN", "from outside"), ("PMIX_KEPT", "by name")];
    has(&environment_of(command), &expected);
}

#[test]
fn env_remove_takes_variables_out() {
    let command = launch("--env-remove SINGLE --env-remove GROUP_* --env GROUP_B=set");
    let environment = environment_of(command.env("SINGLE", "1").env("GROUP_A", "1").env("GROUPED", "stays"));
    assert!(!environment.contains_key("SINGLE") && !environment.contains_key("GROUP_A"));
    has(&environment, &[("GROUP_B", "set"), ("GROUPED", "stays")]);
}

#[test]
fn each_program_has_its_own_environment_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let first = launch("--pmi none -n 1 --env WHO=first --chdir").arg(&path).bash("echo $WHO $PWD");
    let outcome = first.words(": -n 2 --env WHO=second --chdir /").bash("echo $WHO $PWD").run();
    let lines = [format!("first {}", path.display()), "second /".to_owned(), "second /".to_owned()];
    outcome.exits(0).says_nothing().prints_lines(lines);
}

#[test]
fn programs_are_found_where_the_ranks_would_find_them() {
    let directory = tempfile::tempdir().unwrap();
    executable(directory.path(), "our_tool", "#!/bin/sh\necho found\n");
    let path = format!("PATH={}:/usr/bin:/bin", directory.path().display());
    launch("--pmi none --env").arg(path).arg("our_tool").run().exits(0).prints_lines(["found"]);
    let command = launch("--pmi none --chdir").arg(directory.path()).arg("./our_tool");
    command.run().exits(0).prints_lines(["found"]);
}

#[test]
fn ranks_start_with_signals_as_if_typed_at_a_prompt() {
    let outcome = launch("-n 2 --pmi none").words("grep -E Sig(Blk|Ign) /proc/self/status").run();
    outcome.exits(0).says_nothing();
    outcome.prints_lines(["SigBlk:", "SigIgn:"].iter().cycle().take(4).map(|name| format!("{name}\t0000000000000000")));
}

/// Also if only the keeper is left to remove it.
#[test]
fn a_directory_for_temporary_files_is_the_launchs_own() {
    let parent = tempfile::tempdir().unwrap();
    let made = || std::fs::read_dir(parent.path()).unwrap().count();
    let below = format!("--tmpdir={}", parent.path().display());
    let script = r#"touch "$TMPDIR/$LATTICE_RANK"; ls "$TMPDIR" >/dev/null && echo "${TMPDIR%/*}""#;
    let outcome = launch(&format!("-n 2 {below}")).bash(script).run();
    outcome.exits(0).prints_lines([parent.path().to_str().unwrap(); 2]);
    assert_eq!(made(), 0, "it is gone with the launch");
    let environment = environment_of(launch(&format!("{below} --env TMPDIR=/elsewhere")));
    has(&environment, &[("TMPDIR", "/elsewhere")]);
    let mut launch = launch(&below).bash(r#"touch "$TMPDIR/file"; echo ready; sleep 60"#).start();
    launch.wait_for_stdout("ready");
    assert_eq!(made(), 1);
    launch.signal(Signal::SIGKILL);
    launch.wait_until("the keeper has removed the directory", || made() == 0);
}
