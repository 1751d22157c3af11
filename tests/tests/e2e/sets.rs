//! Launches on one machine as sets of their user. They find each other, connect, and are visible, without any daemon.

use std::path::Path;
use std::time::Duration;

use lattice_tests::browser::{self, attribute, text_attribute};
use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, Running, lattice, launch};
use nix::sys::signal::Signal;

/// Time after which a launch becomes a set if a process needs it.
const SEEN_AFTER: Duration = Duration::from_millis(250);

/// Returns a command with this directory of sets.
fn among(command: Command, home: &Path) -> Command {
    command.env("LATTICE_SETS", home.join("sets"))
}

/// Starts a launch of two ranks that prints `up` and waits for the end of its input, and waits until it is a set.
fn waiting_launch(home: &Path) -> Running {
    let command = launch("-n 2 --stdin all").bash("echo up; read -r line");
    let mut running = among(command, home).typed_to().start();
    running.wait_for_stdout_times("up", 2);
    running
}

/// Waits until `lattice set list` shows this number of launches. Returns its JSON output, without this command.
fn sets(home: &Path, launches: usize) -> Vec<serde_json::Value> {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let outcome = among(lattice("set list --json"), home).run();
        let mut sets: Vec<serde_json::Value> = serde_json::from_slice(outcome.stdout()).unwrap();
        let own = sets.pop().unwrap();
        assert_eq!((&own["command"], &own["state"]), (&"lattice set list".into(), &"up".into()));
        if sets.len() == launches {
            return sets;
        }
        assert!(std::time::Instant::now() < until, "{sets:?}");
    }
}

/// Two independent launches: one publishes its port, the other one looks it up, and they connect.
#[test]
fn two_launches_meet_by_a_name_without_any_daemon() {
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let home = tempfile::tempdir().unwrap();
        // Over UCX, the address of MPICH 5.0.2 does not fit into a port's name. Open MPI ignores the variable.
        let start = |ranks: &str, role: &str| {
            let command = launch(ranks).arg(mpi.program("meeting")).arg(role).env("MPIR_CVAR_CH4_NETMOD", "ofi");
            among(command, home.path()).start()
        };
        let (host, guest) = (start("-n 2", "host"), start("-n 3", "guest"));
        let hosts = (0..2).map(|rank| format!("host {rank}: 3 on the other side, 5 together"));
        let guests = (0..3).map(|rank| format!("guest {rank}: 2 on the other side, 5 together"));
        host.finish().exits(0).warns_of_nothing().prints_lines(hosts);
        guest.finish().exits(0).warns_of_nothing().prints_lines(guests);
        let left: Vec<_> = std::fs::read_dir(home.path().join("sets/names")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_launch_that_ends_at_once_leaves_no_trace() {
    let home = tempfile::tempdir().unwrap();
    let outcome = among(launch("-n 2 true"), home.path()).run();
    // On a busy machine it may last until the launch becomes visible.
    let lasted = outcome.exits(0).says_nothing().wall() >= SEEN_AFTER;
    assert!(lasted || !home.path().join("sets").exists());
}

/// Checks that a browser shows a box for each member, and at least one line between this command and each launch.
fn check_drawing(drawing: &str, members: usize) {
    let picture = browser::screenshot(drawing);
    let drawn = |element: &str| drawing.lines().filter(|line| line.starts_with(element)).collect::<Vec<_>>();
    let (boxes, lines) = (drawn("<rect x="), drawn("<line "));
    assert_eq!((boxes.len(), lines.len()), (members, members - 1), "{drawing}");
    for drawn in boxes {
        let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| attribute(drawn, name));
        assert_eq!(picture.colour(x + width - 6, y + height - 4), text_attribute(drawn, "fill"), "{drawn}");
        let is_dark = |x: usize, y: usize| picture.colour(x, y).as_str() < "#777777";
        assert!((x + 9..x + width - 9).any(|x| (y + 4..y + height - 4).any(|y| is_dark(x, y))), "{drawn} has no title");
    }
    for line in lines {
        let [x1, y1, x2, y2] = ["x1", "y1", "x2", "y2"].map(|name| attribute(line, name));
        // Its edges are blended with the background.
        let (x, y) = ((3 * x1 + 2 * x2) / 5, (3 * y1 + 2 * y2) / 5);
        assert_ne!(picture.colour(x, y), "#ffffff", "{line}");
    }
}

#[test]
fn launches_are_shown_and_called_while_they_run() {
    let home = tempfile::tempdir().unwrap();
    let running = [waiting_launch(home.path()), waiting_launch(home.path())];
    let shown = sets(home.path(), 2);
    for set in &shown {
        assert_eq!((&set["num_ranks"], &set["num_nodes"], &set["state"]), (&2.into(), &1.into(), &"up".into()));
        assert!(set["command"].as_str().unwrap().starts_with("bash -c"));
        let uid = |process: &str| format!("lattice://{}/{process}", set["set_id"]);
        for process in ["0", "1", "node/0"] {
            let outcome = among(lattice("set ping --count 2").arg(uid(process)), home.path()).run();
            outcome.exits(0).prints("2 of 2 calls were answered");
        }
        let outcome = among(lattice("set ping --count 1").arg(uid("2")), home.path()).run();
        outcome.exits(1).prints("the set has no such process");
        let outcome = among(lattice("set call").arg(uid("1")).arg("set-info"), home.path()).run();
        let info: serde_json::Value = serde_json::from_slice(outcome.stdout()).unwrap();
        assert_eq!((&info["set"], &info["launch"], &info["ranks"]), (&set["set_id"], &set["launch_id"], &2.into()));
    }
    let outcome = among(lattice("set graph --json"), home.path()).run();
    let graph: serde_json::Value = serde_json::from_slice(outcome.stdout()).unwrap();
    assert_eq!((graph["members"].as_array().unwrap().len(), graph["links"].as_array().unwrap().len()), (3, 2));
    let drawing = among(lattice("set graph"), home.path()).run();
    drawing.exits(0).says_nothing();
    check_drawing(drawing.text(), 3);
    for mut launch in running {
        launch.type_in("\n");
        launch.finish().exits(0);
    }
    assert_eq!(sets(home.path(), 0), [] as [serde_json::Value; 0]);
}

/// Ranks create a group over PMIx. A rank returns its members on request. Groups that are created after the launch became a set have names that
/// start with the set's id.
#[test]
fn communicators_of_a_launch_are_told_to_who_asks() {
    let home = tempfile::tempdir().unwrap();
    // The second program starts when the launch is a set.
    let later = "until [ -e $0 ]; do sleep 0.02; done; exec $1 ocean";
    let (go, group) = (home.path().join("go"), Flavour::Pmix.program("pmix_group"));
    let command = launch("-n 3 --stdin all --pmi pmix").arg("bash").arg("-c").arg(later).arg(&go).arg(&group);
    let mut running = among(command, home.path()).typed_to().start();
    let set = sets(home.path(), 1)[0]["set_id"].as_u64().unwrap();
    std::fs::write(&go, "").unwrap();
    running.wait_for_stdout_times("context", 3);
    let ask = |body: &str| {
        let call = lattice("set call").arg(format!("lattice://{set}/1")).arg("communicator").arg(body);
        let outcome = among(call, home.path()).run();
        outcome.exits(0);
        serde_json::from_slice::<serde_json::Value>(outcome.stdout()).unwrap()
    };
    let all = ask("");
    let names: Vec<_> = all["communicators"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["MPI_COMM_WORLD", "ocean"]);
    let one = &ask("ocean")["communicators"][0];
    let members = serde_json::json!([{ "of": format!("lattice://{set}"), "ranks": "0-2" }]);
    assert_eq!((&one["id"], &one["size"], &one["members"]), (&format!("{set}/1").into(), &3.into(), &members));
    assert_eq!(&ask(&format!("{set}/1"))["communicators"][0], one);
    let call = lattice("set call").arg(format!("lattice://{set}/1")).words("communicator tide");
    among(call, home.path()).run().exits(125).says("no rank here is in a communicator \"tide\"");
    running.type_in("\n");
    let outcome = running.finish();
    outcome.exits(0);
    assert_eq!(outcome.text().matches(&format!("context {}", set << 32 | 1)).count(), 3, "{}", outcome.text());
}

/// Ranks of two launches, and a process of a plain shell, call each other's methods with the program of the documentation.
#[test]
fn ranks_of_two_launches_and_a_guest_call_each_other() {
    let home = tempfile::tempdir().unwrap();
    let program = lattice_tests::built::example("across_launches");
    let serve = || {
        let mut running = among(launch("-n 2").arg(&program).arg("serve"), home.path()).start();
        running.wait_for_stdout_times("serves", 2);
        running
    };
    let running = [serve(), serve()];
    let shown = sets(home.path(), 2);
    let uid = |set: usize, rank: usize| format!("lattice://{}/{rank}", shown[set]["set_id"]);
    for rank in 0..2 {
        let outcome = among(Command::new(&program).words("call").arg(uid(0, rank)).arg("21"), home.path()).run();
        outcome.exits(0).prints("42");
    }
    // `lattice set call` does the same.
    let outcome = among(lattice("set call").arg(uid(1, 1)).words("300 50"), home.path()).run();
    outcome.exits(0).prints("100");
    let outcome = among(lattice("set call").arg(uid(1, 1)).words("301 x"), home.path()).run();
    outcome.exits(125).says("no process serves this method there");
    for (set, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        among(lattice("set call").arg(uid(set, rank)).words("302 end"), home.path()).run().exits(0);
    }
    for launch in running {
        launch.finish().exits(0);
    }
}

/// The session serves calls until the launch ends: after PMI's end, and without its socket.
#[test]
fn ranks_call_each_other_after_they_have_finalized_pmi_and_closed_its_socket() {
    let home = tempfile::tempdir().unwrap();
    let program = lattice_tests::built::example("call_back");
    let script = "\"$1\" pmi exchange >&2 && eval \"exec $PMI_FD>&-\" && exec \"$2\"";
    let command = launch("-n 4").bash(script).arg(lattice_tests::built::lattice()).arg(&program);
    let mut running = among(command, home.path()).start();
    running.wait_for_stdout_times("serves", 4);
    let set = sets(home.path(), 1)[0]["set_id"].to_string();
    for rank in 0..4 {
        let [from, to] = [rank, (rank + 1) % 4].map(|rank| format!("lattice://{set}/{rank}"));
        let words = format!("{from} {to} 10");
        among(lattice("set call").arg(from).arg("303").arg(words), home.path()).run().exits(0).prints("10 hops");
    }
    running.signal(Signal::SIGTERM);
    running.finish();
}

/// A rank of the first launch sends the number to a rank of the second one, which sends it back, and so on.
#[test]
fn methods_of_two_launches_call_each_other_back() {
    let home = tempfile::tempdir().unwrap();
    let program = lattice_tests::built::example("call_back");
    let mut running: Vec<_> = (0..2)
        .map(|_| {
            let mut running = among(launch("-n 2").arg(&program), home.path()).start();
            running.wait_for_stdout_times("serves", 2);
            running
        })
        .collect();
    let shown = sets(home.path(), 2);
    let uid = |set: usize, rank: usize| format!("lattice://{}/{rank}", shown[set]["set_id"]);
    for hops in ["0", "1", "100"] {
        let words = format!("{} {} {hops}", uid(0, 1), uid(1, 0));
        let outcome = among(lattice("set call").arg(uid(0, 1)).arg("303").arg(words), home.path()).run();
        outcome.exits(0).prints(&format!("{hops} hops"));
    }
    let call = |uid: String, words: &[&str]| {
        among(words.iter().fold(lattice("set call").arg(uid), Command::arg), home.path()).run()
    };
    let outcome = call(uid(0, 1), &["304", &uid(1, 0)]);
    outcome.exits(0).prints(&format!("{} sails to {} with goods", uid(0, 1), uid(1, 0)));
    call(uid(1, 1), &["connect", "bay more goods"]).exits(0).says_nothing();
    call(uid(1, 1), &["connect", "sea"])
        .exits(125)
        .says("the handler failed: no process accepts connections to \"sea\" here");
    call(uid(1, 1), &["connect", ""]).exits(125).says("this method is called with a name of 1 to 255 bytes");
    call(uid(1, 1), &["connect", &format!("bay {}", "x".repeat(4097))])
        .exits(125)
        .says("no process accepts connections");
    call(uid(1, 0).replace("/0", "/node/0"), &["connect", "bay"])
        .exits(125)
        .says("no process serves this method there");
    for launch in &mut running {
        launch.signal(Signal::SIGTERM);
    }
    for launch in running {
        launch.finish();
    }
}

/// The same in C: a rank that serves, a guest that calls, and refused calls.
#[test]
fn programs_in_c_call_each_other() {
    let home = tempfile::tempdir().unwrap();
    let program = lattice_tests::mpi::across_launches(home.path());
    let mut running = among(launch("-n 2").arg(&program).arg("serve"), home.path()).start();
    running.wait_for_stdout_times("serves", 2);
    let set = sets(home.path(), 1)[0]["set_id"].to_string();
    let call = |uid: &str| {
        let uid = uid.replace("SET", &set);
        among(Command::new(&program).words("call").arg(uid).arg("21"), home.path()).run()
    };
    call("lattice://SET/0").exits(0).prints("42");
    call("lattice://SET/1").exits(0).prints("42");
    call("lattice://SET/2").exits(1).says("the call failed: -6");
    call("lattice://SET/node/0").exits(1).says("the call failed: -5");
    call("lattice://1/0").exits(1).says("the call failed: -9");
    for rank in 0..2 {
        let uid = format!("lattice://{set}/{rank}");
        among(lattice("set call").arg(uid).words("302 end"), home.path()).run().exits(0);
    }
    running.finish().exits(0).prints("1 calls");
    among(Command::new(&program).words("serve"), home.path()).run().exits(1).says("cannot take part: -9");
}

#[test]
fn a_launch_that_was_killed_is_not_shown_any_more() {
    let home = tempfile::tempdir().unwrap();
    let mut running = waiting_launch(home.path());
    assert_eq!(sets(home.path(), 1)[0]["pid"], running.pid());
    running.signal(Signal::SIGKILL);
    running.finish();
    assert_eq!(sets(home.path(), 0), [] as [serde_json::Value; 0]);
}

#[test]
fn a_directory_of_somebody_else_is_refused_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/tmp", home.path().join("sets")).unwrap();
    let outcome = among(lattice("set list"), home.path()).run();
    outcome.exits(125).says("is no directory").says("try: LATTICE_SETS=DIRECTORY");
    // A launch continues without a directory.
    let command = launch("-n 1").bash("sleep 0.4; \"$1\" sets 2>/dev/null; true").arg(lattice_tests::built::lattice());
    among(command, home.path()).run().exits(0).says_nothing();
}

/// Commands on other machines only see files. If the directory cannot have such files, a launch writes nothing without a request.
#[test]
fn a_launch_is_seen_by_other_machines_only_where_they_may_share_its_directory() {
    let home = tempfile::tempdir().unwrap();
    // Lattice does not detect that ramfs is local to one machine.
    for (file_system, program, said) in [
        ("ramfs", "until [ -e sets/[0-9]* ]; do sleep 0.05; done; echo seen", "seen"),
        ("tmpfs", "sleep 3; [ -e sets ] || echo nothing", "nothing"),
    ] {
        let script = r#"mount -t $1 none . && cd "$PWD" && exec $0 launch -n 1 bash -c "$2""#;
        // Commands of other tests send requests to all launches of the network namespace.
        let command = Command::new("unshare").words("--map-root-user --mount --net bash -c").arg(script);
        let command = command.arg(lattice_tests::built::lattice()).arg(file_system).arg(program);
        among(command.directory(home.path()), home.path()).run().exits(0).prints_lines([said]);
    }
}

/// No file can be created: commands report an error, launches run.
#[test]
fn a_directory_on_a_full_file_system_is_told_and_ends_no_launch() {
    let home = tempfile::tempdir().unwrap();
    // The second command requests that the launch become a set, which is not possible.
    let script = "mount -t tmpfs -o nr_inodes=1 none . && $0 set list; echo $?; \
        $0 launch -n 1 bash -c \"sleep 0.4; $0 set list; true\"; echo $?";
    let command = Command::new("unshare")
        .words("--map-root-user --mount bash -c")
        .arg(script)
        .arg(lattice_tests::built::lattice());
    let outcome = among(command.directory(home.path()), home.path()).run();
    outcome.exits(0).prints_lines(["125", "0"]).says("No space left on device");
}
