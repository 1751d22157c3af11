//! Launches on this machine, as reported by commands about launches. There is no API server.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Runtime directory of a user.
struct User(TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn lattice(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
        self.prepare(command.args(words));
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.env("XDG_RUNTIME_DIR", self.0.path());
        for name in ["LATTICE_ALLOC_ID", "LATTICE_API_URL", "LATTICE_LOG"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Returns the text of a line on a terminal of 40 columns, which `script` of util-linux creates.
    fn on_a_terminal(&self, words: &str) -> String {
        let line = format!("stty rows 24 cols 40; {} {words}", env!("CARGO_BIN_EXE_lattice"));
        let mut script = Command::new("script");
        self.prepare(script.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1"));
        let output = script.output().expect("script is a part of util-linux");
        String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n")
    }

    fn says(&self, words: &[&str]) -> Output {
        self.lattice(words).output().unwrap()
    }

    fn text(&self, words: &[&str]) -> String {
        let output = self.says(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(words)).unwrap()
    }

    /// Starts a launch, and waits until it is active. Returns the process and the id.
    fn launched(&self, ranks: u32, script: &str) -> (Child, String) {
        self.launched_with(&[], ranks, script)
    }

    fn launched_with(&self, flags: &[&str], ranks: u32, script: &str) -> (Child, String) {
        let ranks = ranks.to_string();
        let words = [&["launch", "--pmi=none", "-n", &ranks], flags, &["sh", "-c", script]].concat();
        let child = self.lattice(&words).spawn().unwrap();
        let id = loop {
            let launches = self.json(&["launches", "--json"]);
            let active = launches.as_array().unwrap().iter().find(|launch| launch["state"] == "active");
            if let Some(launch) = active {
                break launch["launch_id"].as_str().unwrap().to_owned();
            }
            sleep(Duration::from_millis(10));
        };
        (child, id)
    }

    fn directory(&self) -> std::path::PathBuf {
        self.0.path().join("lattice/launches")
    }
}

fn is_empty(directory: &Path) -> bool {
    directory.read_dir().unwrap().next().is_none()
}

#[test]
fn a_launch_is_listed_shown_signalled_and_ended_by_its_id() {
    let user = User::new();
    let script = "trap 'echo told; kill $!; exit 0' USR1; sleep 1000 & wait";
    let (launch, id) = user.launched(3, script);
    let listed = user.text(&["launches"]);
    assert!(listed.lines().nth(1).unwrap().starts_with(&format!("{id}  local ")), "{listed}");
    assert!(listed.contains("sh -c trap"), "{listed}");
    let status = user.json(&["status", &id, "--json"]);
    assert_eq!(
        (&status["state"], &status["allocation_id"], &status["ranks"][2]["rank"]),
        (&"active".into(), &Value::Null, &2.into())
    );
    let shell = status["ranks"][0]["program"].as_str().unwrap();
    assert!(shell.starts_with('/') && shell.ends_with("sh"), "{shell}");
    let text = user.text(&["status", &id]);
    assert!(text.starts_with(&format!("launch {id} on this machine is active; 3 ranks on ")), "{text}");
    let processes = user.json(&["proctable", &id, "--json"]);
    for (rank, process) in processes.as_array().unwrap().iter().enumerate() {
        assert_eq!(process["rank"], rank);
        assert!(Path::new(&format!("/proc/{}", process["pid"])).exists());
    }
    user.text(&["signal", &id, "USR1", "--ranks", "1"]);
    // Only rank 1 has received the signal and ended. The other ranks still run.
    while user.json(&["status", &id, "--json"])["ranks"][1]["exit"] == Value::Null {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(user.json(&["status", &id, "--json"])["ranks"][0]["exit"], Value::Null);
    user.text(&["cancel", &id, "--reason", "wrong input"]);
    let ended = launch.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stdout).as_ref()), (Some(143), "told\n"));
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(told.contains("ended by user ") && told.ends_with(": wrong input\n"), "{told}");
    assert!(is_empty(&user.directory()), "its socket is gone with it");
    let unknown = user.says(&["status", &id]);
    assert_eq!(unknown.status.code(), Some(125));
}

#[test]
fn requests_are_confirmed_on_a_terminal_only_and_lists_are_cut_to_its_width() {
    let user = User::new();
    let (launch, id) = user.launched(2, "trap : USR1; while :; do sleep 0.05; done");
    let sent = format!("lattice: SIGUSR1 is sent to all ranks of launch {id}\n");
    assert_eq!(user.on_a_terminal(&format!("signal {id} USR1")), sent);
    assert_eq!(user.on_a_terminal(&format!("signal {id} USR1 --quiet")), "");
    let piped = user.says(&["signal", &id, "USR1"]);
    assert!(piped.status.success() && piped.stdout.is_empty() && piped.stderr.is_empty(), "{piped:?}");
    let listed = user.on_a_terminal("launches");
    assert!(listed.contains(&id) && listed.lines().all(|line| line.chars().count() <= 40), "{listed}");
    assert!(user.text(&["launches"]).lines().all(|line| line.len() > 40));
    assert_eq!(user.on_a_terminal(&format!("cancel {id}")), format!("lattice: cancelled: {id}\n"));
    assert_eq!(launch.wait_with_output().unwrap().status.code(), Some(143));
}

#[test]
fn a_launch_is_followed_by_others_to_its_end_and_beyond_their_leaving() {
    let user = User::new();
    let script = "until [ -e $XDG_RUNTIME_DIR/go ]; do sleep 0.05; done; echo $LATTICE_RANK goes; exit $LATTICE_RANK";
    let (launch, id) = user.launched(3, script);
    let (stays, leaves) =
        (user.lattice(&["attach", "-l", &id]).spawn().unwrap(), user.lattice(&["attach", &id]).spawn().unwrap());
    let events = user.lattice(&["attach", "--json", &id]).spawn().unwrap();
    // A reading viewer has no visible sign. The launch waits for this test in any case.
    sleep(Duration::from_secs(1));
    kill(Pid::from_raw(leaves.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(leaves.wait_with_output().unwrap().status.code(), Some(143));
    std::fs::write(user.0.path().join("go"), "").unwrap();
    let (own, seen, events) =
        (launch.wait_with_output().unwrap(), stays.wait_with_output().unwrap(), events.wait_with_output().unwrap());
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(own.status.code(), seen.status.code(), "{}", String::from_utf8_lossy(&seen.stderr));
    assert!(text(&own).contains(" goes\n"), "{}", text(&own));
    let mut lines: Vec<String> = text(&seen).lines().map(|line| line[4..].to_owned()).collect();
    let mut expected: Vec<String> = text(&own).lines().map(str::to_owned).collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected, "what it wrote, with labels: {}", text(&seen));
    let last: Value = serde_json::from_str(text(&events).lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["exit_code"]),
        (&"complete".into(), &own.status.code().unwrap().into()),
        "{last}"
    );
}

/// Needs gdb, which `cargo xtask setup` installs.
#[test]
fn the_functions_that_ranks_are_in_are_shown_as_a_tree() {
    let user = User::new();
    let (mut launch, id) = user.launched(3, "[ $LATTICE_RANK = 1 ] && exec tail -f /dev/null; exec sleep 1000");
    let stacks = user.json(&["stacks", &id, "--json"]);
    assert_eq!((&stacks["launch_id"], &stacks["silent_nodes"]), (&id.as_str().into(), &serde_json::json!([])));
    assert_eq!(stacks["tree"][0]["ranks"], serde_json::json!([0, 1, 2]), "{stacks:#}");
    let text = user.text(&["stacks", &id]);
    assert!(text.starts_with(&format!("launch {id}: active; 3 ranks on ")) && text.contains("\n0-2  "), "{text}");
    assert!(text.contains("nanosleep"), "{text}");
    let full = user.text(&["stacks", &id, "--full"]);
    assert!(full.contains("1 thread of sleep\n") && full.contains("1 thread of tail\n"), "{full}");
    user.text(&["cancel", &id]);
    launch.wait().unwrap();
    assert_eq!(user.says(&["stacks", &id]).status.code(), Some(125));
}

/// The program of a rank may be below a script that waits for it.
/// The planned binding is shown next to the binding in the kernel.
#[test]
fn ranks_are_drawn_in_their_cores_and_one_that_was_moved_is_named() {
    let user = User::new();
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
    let first = allowed.split(['-', ',']).next().unwrap().to_owned();
    let (mut launch, id) = user.launched_with(&["--cpu-bind", &format!("map:{first}")], 1, "echo; sleep 1000");
    let drawn = |form: &str| user.text(&["nodes", "--topology", &id, "--format", form]);
    let text = drawn("text");
    assert!(text.starts_with(&format!("launch {id}: 1 rank on ")) && text.contains("[0"), "{text}");
    assert!(!text.contains("not as planned"), "{text}");
    let pid = user.json(&["proctable", &id, "--json"])[0]["pid"].to_string();
    let moved = Command::new("taskset").args(["-pc", &allowed, &pid]).output().unwrap();
    assert!(moved.status.success(), "{moved:?}");
    let (text, json) = (drawn("text"), drawn("json"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["ranks"][0], serde_json::json!({ "rank": 0, "planned": first, "allowed": allowed }));
    if first != allowed {
        let words = format!("not as planned: rank 0 was bound to CPUs {first}, and may run on {allowed}");
        assert!(text.contains(&words), "{text}");
    }
    assert!(drawn("svg").contains("</svg>") && drawn("xml").contains("</topology>"));
    user.text(&["cancel", &id]);
    assert_eq!(launch.wait().unwrap().code(), Some(143));
}

#[test]
fn what_a_rank_uses_is_shown_with_all_that_is_below_it() {
    let user = User::new();
    let script = "[ $LATTICE_RANK = 1 ] || exec sleep 1000; sh -c 'while :; do :; done' & wait";
    let (launch, id) = user.launched(2, script);
    let busiest = loop {
        let ranks = user.json(&["top", &id, "--once", "--json", "--sort", "cpu"]);
        if ranks[0]["usage"]["cpu_s"].as_f64().is_some_and(|seconds| seconds >= 0.05) {
            break ranks[0].clone();
        }
        sleep(Duration::from_millis(10));
    };
    assert_eq!(busiest["rank"], 1);
    assert!(busiest["usage"]["memory_bytes"].as_u64().unwrap() > 1 << 16, "{busiest}");
    let text = user.text(&["top"]);
    assert!(text.starts_with(&format!("launch {id}: active; 2 ranks on ")), "{text}");
    assert!(text.contains("CPU TIME") && text.lines().count() == 4, "{text}");
    user.text(&["cancel", &id]);
    launch.wait_with_output().unwrap();
    let output = user.says(&["top"]);
    assert_eq!(output.status.code(), Some(125));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("no launch of yours runs on this machine"), "{told}");
}

#[test]
fn launches_are_listed_in_the_order_of_their_starts() {
    let user = User::new();
    let listed = || -> Vec<String> {
        let listed = user.json(&["launches", "--json"]);
        listed.as_array().unwrap().iter().map(|launch| launch["launch_id"].as_str().unwrap().to_owned()).collect()
    };
    let (mut children, mut ids) = (Vec::new(), Vec::new());
    // Several launches in one second.
    for _ in 0..5 {
        children.push(user.lattice(&["launch", "--pmi=none", "sleep", "1000"]).spawn().unwrap());
        let new = loop {
            if let Some(id) = listed().into_iter().find(|id| !ids.contains(id)) {
                break id;
            }
        };
        ids.push(new);
    }
    assert_eq!(listed(), ids);
    for child in &mut children {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn without_any_launch_the_list_is_empty_and_says_whose_it_is() {
    let user = User::new();
    let output = user.says(&["launches", "--json"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"[]\n".as_slice()));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.starts_with("lattice: no launch of yours runs on this machine, and no API server of a cluster is here"),
        "{told}"
    );
}

/// The keeper removes the socket. If the keeper was killed too, the next command that finds the socket removes it.
#[test]
fn the_socket_of_a_launch_that_was_killed_is_removed() {
    let user = User::new();
    let (mut launch, _) = user.launched(1, "exec sleep 1000");
    kill(Pid::from_raw(launch.id() as i32), Signal::SIGKILL).unwrap();
    launch.wait().unwrap();
    for _ in (0..3000).take_while(|_| !is_empty(&user.directory())) {
        sleep(Duration::from_millis(10));
    }
    assert!(is_empty(&user.directory()));

    let (mut launch, id) = user.launched(1, "exec sleep 1000");
    let parent = launch.id().to_string();
    let keeper = Command::new("pgrep").args(["-x", "lattice-keeper", "-P", &parent]).output().unwrap();
    let keeper: i32 = String::from_utf8(keeper.stdout).unwrap().trim().parse().unwrap();
    for process in [keeper, launch.id() as i32] {
        kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    }
    launch.wait().unwrap();
    assert!(user.directory().join(&id).exists());
    assert_eq!(user.json(&["launches", "--json"]), Value::Array(Vec::new()));
    assert!(is_empty(&user.directory()));
}

/// A client that does not read the output of a launch delays its events, but not requests about the launch.
#[test]
fn a_launch_whose_output_nobody_reads_answers_with_what_is_known() {
    let user = User::new();
    // Start events wait after unread output. So the ranks write only after all ranks have started.
    let (mut launch, id) = user.launched(2, "sleep 0.5; exec yes");
    sleep(Duration::from_secs(1));
    let status = user.json(&["status", &id, "--json"]);
    assert_eq!(status["ranks"].as_array().unwrap().len(), 2);
    user.text(&["cancel", &id]);
    drop((launch.stdout.take(), launch.stderr.take()));
    assert!(!launch.wait().unwrap().success());
}

/// Such a directory may be a trap of another user: the launch runs, but cannot be found.
#[test]
fn a_runtime_directory_that_others_can_enter_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let user = User::new();
    std::fs::create_dir(user.0.path().join("lattice")).unwrap();
    std::fs::set_permissions(user.0.path().join("lattice"), PermissionsExt::from_mode(0o777)).unwrap();
    let output = user.says(&["-v", "launch", "sleep", "0.5"]);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("it must be a directory of user"), "{told}");
}
