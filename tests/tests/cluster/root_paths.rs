//! Paths that root looks up while users launch programs. No path leads through a place that a user can change. strace traces all processes of
//! root.

use std::collections::BTreeMap;

use lattice_tests::mpi::Flavour;
use lattice_tests::traced_paths::{CALLS, is_controlled, look_ups};
use lattice_tests::{Command, built, script_on, turn};
use nix::unistd::geteuid;

use crate::unprivileged::GIVE_UP_ROOT;

/// The user that launches.
const NOBODY: u32 = 65534;

/// Launches of a user with all files in the user's own directory: programs and copies of them, input, output, temporary files, libraries. One
/// launch ends in good order. Other launches end by a killed rank, by a killed session, by an abort, or before they begin. `$1` is the directory
/// for traces, `$2` the user's directory.
const SCRIPT: &str = include_str!("../../scripts/root_paths.sh");

#[track_caller]
fn check(before: &str, flavour: Flavour) {
    assert!(geteuid().is_root(), "this test must run as root");
    let _machine = turn::heavy();
    let directory = tempfile::tempdir().unwrap();
    let (traces, home) = (directory.path().join("traces"), directory.path().join("home"));
    for (path, owner, mode) in [(directory.path(), 0, 0o755), (&traces, 0, 0o700), (&home, NOBODY, 0o755)] {
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    }
    let script = script_on(2, &format!("{before}\n{SCRIPT}")).env("CALLS", CALLS);
    let outcome = script.arg(&traces).arg(&home).arg(flavour.program("hello")).run();
    outcome.exits(0);
    let codes: Vec<&str> = outcome.errors().lines().filter(|line| line.starts_with("code ")).collect();
    assert_eq!(
        codes,
        ["code 0", "code 0", "code 137", "code 125", "code 124", "code 127", "code 3"],
        "{}",
        outcome.errors()
    );
    let words = outcome.text().lines().filter_map(|line| line.split_once(' '));
    let numbers = words.clone().filter_map(|(thread, uid)| Some((thread.parse().ok()?, uid.parse().ok()?)));
    let uids: BTreeMap<u32, u32> = numbers.collect();
    let (_, cluster) = words.clone().next_back().expect("the script names its cluster");
    let found = look_ups(&traces, &uids);
    // The cluster's directory belongs to root, and contains nothing that belongs to a user.
    let of_cluster: Vec<_> = outcome.text().lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(of_cluster, Vec::<&str>::new(), "files of a user in the cluster's directory");
    let wrong =
        |uid: u32, path: &std::path::Path| uid != NOBODY && !path.starts_with(cluster) && is_controlled(path, NOBODY);
    let wrong: Vec<_> = found.iter().filter(|found| wrong(found.uid, &found.path)).collect();
    assert!(wrong.is_empty(), "not as the user: {wrong:#?}");
    // The trace has the same calls by the user.
    for (call, least) in [("execve", 12), ("mkdir", 12), ("chdir", 12)] {
        let count = found.iter().filter(|found| found.uid == NOBODY && found.call == call).count();
        assert!(count >= least, "the user's {call} was seen {count} times");
    }
    assert!(found.iter().any(|found| found.uid == 0 && found.path.ends_with("cgroup.procs")), "root was not seen");
}

#[test]
fn root_follows_no_path_of_a_user() {
    check("", Flavour::WheelOpenMpi);
}

#[test]
#[ignore = "second tier"]
fn root_and_an_agent_that_has_given_it_up_follow_no_path_of_a_user() {
    check(GIVE_UP_ROOT, Flavour::WheelMpich);
}

/// Launches and commands of root, in directories to which other users write. Each of them is traced, and so are the commands that search for
/// them.
const OWN_SCRIPT: &str = r#"
    traces=$2 lattice=$3; unset XDG_RUNTIME_DIR TMPDIR LATTICE_ALLOC_ID; cd /
    traced() { strace -ff -y -s 4096 -o $traces/trace -e "$CALLS" "$@"; echo "code $?" >&2; }
    traced "$lattice" launch -n 2 --tmpdir --pmi-port bash -c 'until "$0" launches | grep -q bash; do sleep 0.1; done; touch "$TMPDIR/file"' "$lattice"
    traced "$lattice" launch -n 1 bash -c 'exit 3'
    traced "$lattice" launches >/dev/null
    traced "$lattice" dev-cluster --nodes 1 -- true"#;

#[test]
#[ignore = "second tier"]
fn root_follows_no_name_of_a_public_place_in_its_own_launches() {
    assert!(geteuid().is_root(), "this test must run as root");
    let _machine = turn::heavy();
    let directory = tempfile::tempdir().unwrap();
    let traces = directory.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    let command = Command::new("bash").arg("-c").arg(OWN_SCRIPT).arg("bash").arg(directory.path()).arg(&traces);
    let outcome = command.arg(built::lattice()).env("CALLS", CALLS).run();
    let codes: Vec<&str> = outcome.errors().lines().filter(|line| line.starts_with("code ")).collect();
    assert_eq!(codes, ["code 0", "code 3", "code 0", "code 0"], "{}", outcome.errors());
    let found = look_ups(&traces, &BTreeMap::new());
    let made: Vec<_> = found.iter().filter(|found| found.makes_directory()).map(|found| &found.path).collect();
    let is_public = |path: &std::path::Path| {
        !path.starts_with(directory.path())
            && is_controlled(path, NOBODY)
            && !made.iter().any(|made| path.starts_with(made))
    };
    let wrong: Vec<_> =
        found.iter().filter(|found| found.follows && found.path.is_absolute() && is_public(&found.path)).collect();
    assert!(wrong.is_empty(), "followed: {wrong:#?}");
    let place = std::path::Path::new("/tmp/lattice-0/launches");
    assert!(found.iter().any(|found| found.path.starts_with(place)), "{} was not seen", place.display());
    assert!(made.len() >= 6, "directories of sessions and of a cluster were not seen: {made:?}");
}
