//! Output and ends of ranks on this machine, as forwarded by the real `lattice`: whole lines, files, JSON, input, exit codes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// End of a command.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// `lattice launch` with these flags, in a separate directory.
struct Launch {
    directory: TempDir,
    flags: Vec<String>,
}

fn launch(flags: &str) -> Launch {
    let flags = flags.split_whitespace().map(str::to_owned).collect();
    Launch { directory: tempfile::tempdir().unwrap(), flags }
}

impl Launch {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
        command.args(["launch", "--pmi=none", "--slurm-env"]).args(&self.flags).args(words);
        for name in ["LATTICE_ALLOC_ID", "LATTICE_API_URL", "LATTICE_LOG"] {
            command.env_remove(name);
        }
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn words(&self, words: &[&str]) -> Ended {
        ended(self.command(words).output().unwrap())
    }

    /// Runs a script in each rank.
    fn sh(&self, script: &str) -> Ended {
        self.words(&["sh", "-c", script])
    }

    /// Runs a script in each rank, with this input for `lattice`.
    fn fed(&self, input: &str, script: &str) -> Ended {
        let mut child = self.command(&["sh", "-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        // A rank that does not read may already have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        ended(child.wait_with_output().unwrap())
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn ended(Output { status, stdout, stderr }: Output) -> Ended {
    Ended {
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

#[test]
fn labels_are_as_wide_as_that_of_the_last_rank() {
    let Ended { stdout, .. } = launch("-l -n 11").sh("echo $SLURM_PROCID");
    let expected: Vec<String> = (0..11).map(|rank| format!("[{rank:>2}] {rank}")).collect();
    assert_eq!(sorted(&stdout), expected);
    assert_eq!(launch("-l -n 1").sh("printf 'a\\n\\nb'").stdout, "[0] a\n[0] \n[0] b");
}

#[test]
fn lines_of_many_ranks_stay_whole_on_one_stream() {
    let script =
        "for i in 1 2 3 4 5 6 7 8 9; do printf \"$SLURM_PROCID $SLURM_PROCID\"; printf \" $SLURM_PROCID\\n\"; done";
    let Ended { code, stdout, .. } = launch("-n 6").sh(script);
    let expected: Vec<String> = (0..6).flat_map(|rank| vec![format!("{rank} {rank} {rank}"); 9]).collect();
    assert_eq!((code, sorted(&stdout)), (Some(0), expected.iter().map(String::as_str).collect()));
}

#[test]
fn an_unfinished_last_line_is_passed_on_as_it_is_and_not_glued_to_anothers() {
    assert_eq!(launch("-n 1").sh("printf abc").stdout, "abc");
    let both = launch("-n 2").sh("printf r$SLURM_PROCID").stdout;
    assert!(["r0\nr1", "r1\nr0"].contains(&both.as_str()), "{both:?}");
}

#[test]
fn standard_error_keeps_its_stream() {
    let Ended { stdout, stderr, .. } = launch("-l -n 1").sh("echo out; echo err >&2");
    assert_eq!((stdout.as_str(), stderr.as_str()), ("[0] out\n", "[0] err\n"));
}

#[test]
fn every_escape_of_a_file_name_is_filled_in() {
    let short = host().split('.').next().unwrap().to_owned();
    for (template, name) in [
        ("o.%t", "o.0".to_owned()),
        ("o.%r", "o.0".to_owned()),
        ("o.%l", "o.0".to_owned()),
        ("o.%n", "o.0".to_owned()),
        ("o.%N", format!("o.{short}")),
        ("o%%", "o%".to_owned()),
    ] {
        let launch = launch(&format!("-n 1 --output {template}"));
        assert_eq!(launch.sh("echo x"), Ended { code: Some(0), stdout: String::new(), stderr: String::new() });
        assert_eq!(launch.file(&name), "x\n", "{template}");
    }
    let launch = launch("-n 1 --json --output %j");
    let opening: Value = serde_json::from_str(launch.sh("echo x").stdout.lines().next().unwrap()).unwrap();
    assert_eq!(launch.file(opening["launch_id"].as_str().unwrap()), "x\n");
}

#[test]
fn each_rank_has_its_file_and_both_streams_may_share_one() {
    let launch = launch("-n 3 --output %t/all --error %t/all");
    for rank in 0..3 {
        fs::create_dir(launch.path().join(rank.to_string())).unwrap();
    }
    assert_eq!(launch.sh("echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2").code, Some(0));
    for rank in 0..3 {
        assert_eq!(
            sorted(&launch.file(&format!("{rank}/all"))),
            [format!("err {rank}"), format!("out {rank}")],
            "rank {rank}"
        );
    }
}

#[test]
fn a_file_is_emptied_unless_it_is_appended_to() {
    let old = "a former launch wrote more than this one\n";
    for (flag, expected) in [("", "new\n".to_owned()), ("--append", format!("{old}new\n"))] {
        let launch = launch(&format!("-n 1 --output log {flag}"));
        fs::write(launch.path().join("log"), old).unwrap();
        assert_eq!(launch.sh("echo new").code, Some(0));
        assert_eq!(launch.file("log"), expected, "{flag:?}");
    }
}

#[test]
fn what_goes_to_files_is_shown_as_well_if_that_is_asked_for() {
    let launch = launch("-n 2 -l --output out.%t --tee");
    let Ended { code, stdout, stderr } = launch.sh("echo from $SLURM_PROCID; echo wrong >&2");
    assert_eq!((code, sorted(&stdout)), (Some(0), vec!["[0] from 0", "[1] from 1"]));
    assert_eq!(sorted(&stderr), ["[0] wrong", "[1] wrong"]);
    assert_eq!((launch.file("out.0"), launch.file("out.1")), ("[0] from 0\n".to_owned(), "[1] from 1\n".to_owned()));
}

/// The numbers in a list such as `0-2,4`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// Ranks write equal lines at different times. The first line waits for the other ranks.
#[test]
fn equal_lines_of_many_ranks_are_shown_once_with_the_ranks() {
    let script = "echo ready; [ $SLURM_PROCID = 3 ] && echo odd >&2; printf 'no end of line'";
    let Ended { code, stdout, stderr } = launch("-n 16 --collapse").sh(script);
    assert_eq!(code, Some(0), "{stderr}");
    let named = |text: &str, line: &str| {
        let lines = text.lines().filter_map(|shown| shown.strip_suffix(line)?.strip_suffix("] ")?.strip_prefix('['));
        let mut ranks: Vec<u32> = lines.flat_map(numbers).collect();
        ranks.sort_unstable();
        ranks
    };
    let all: Vec<u32> = (0..16).collect();
    assert_eq!((named(&stdout, "ready"), named(&stdout, "no end of line")), (all.clone(), all));
    assert_eq!(stderr, "[3] odd\n");
    assert!(stdout.lines().count() <= 8, "hardly anything was collapsed: {stdout}");
}

#[test]
fn a_label_stands_in_files_as_well() {
    let launch = launch("-n 1 -l --output log");
    launch.sh("echo a; echo b");
    assert_eq!(launch.file("log"), "[0] a\n[0] b\n");
}

#[test]
fn a_file_that_cannot_be_opened_starts_nothing() {
    let launch = launch("-n 1 --output nowhere/log");
    let Ended { code, stdout, stderr } = launch.sh("touch started");
    assert_eq!((code, stdout.as_str()), (Some(125), ""));
    let told = "lattice: cannot write the output of rank 0 to nowhere/log: No such file or directory (os error 2)\n\
        lattice: try: mkdir -p nowhere\n";
    assert_eq!(stderr, told);
    assert!(!launch.path().join("started").exists());
}

#[test]
fn a_full_disk_is_told_once_and_is_no_success() {
    let Ended { code, stderr, .. } = launch("-n 1 --output /dev/full").sh("echo a; echo b; echo c");
    let told =
        "lattice: cannot write to /dev/full: No space left on device (os error 28); what follows for it is lost\n";
    assert_eq!((code, stderr.as_str()), (Some(125), told));
}

#[test]
fn ranks_end_without_a_word_when_nobody_reads_their_output() {
    let launch = launch("-n 2");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let Ended { code, stderr, .. } = ended(launch.command(&["yes"]).stdout(writer).output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(141), ""));
}

#[test]
fn the_end_of_a_launch_is_its_exit_code_and_one_sentence() {
    let host = host();
    for (flags, script, code, sentence) in [
        ("-n 2", "true", 0, ""),
        ("-n 1", "exit 3", 3, "rank 0 on HOST exited with status 3"),
        ("-n 1", "exit 255", 255, "rank 0 on HOST exited with status 255"),
        ("-n 1", "kill -9 $$", 137, "rank 0 on HOST was killed by signal 9 (SIGKILL)"),
        ("-n 1", "kill -TERM $$", 143, "rank 0 on HOST was killed by signal 15 (SIGTERM)"),
        // Without -q, a report about the state of the ranks precedes it.
        ("-q -n 2 --timeout 100ms", "exec sleep 1000", 124, "the time limit of 100ms is over"),
    ] {
        let seen = launch(flags).sh(script);
        let stderr = if sentence.is_empty() { String::new() } else { format!("lattice: {sentence}\n") };
        let expected = Ended { code: Some(code), stdout: String::new(), stderr: stderr.replace("HOST", &host) };
        assert_eq!(seen, expected, "{flags} {script}");
    }
}

#[test]
fn a_program_that_cannot_be_started_has_the_code_of_a_shell() {
    let launch = launch("-n 2");
    fs::write(launch.path().join("text"), "not a program").unwrap();
    for (program, code, beginning) in [
        ("no-such-program-anywhere", 127, "lattice: cannot find program no-such-program-anywhere in "),
        ("./nothing", 127, "lattice: cannot find program ./nothing"),
        ("./text", 126, "lattice: "),
        ("/", 126, "lattice: "),
    ] {
        let seen = launch.words(&[program]);
        assert_eq!((seen.code, seen.stdout.as_str()), (Some(code), ""), "{program}");
        assert!(seen.stderr.starts_with(beginning), "{program}: {}", seen.stderr);
    }
}

#[test]
fn the_failing_program_of_several_is_named_by_its_rank() {
    let Ended { code, stderr, .. } = launch("-n 2").words(&["true", ":", "-n", "1", "sh", "-c", "exit 9"]);
    assert_eq!((code, stderr), (Some(9), format!("lattice: rank 2 on {} exited with status 9\n", host())));
}

#[test]
fn quiet_says_what_failed_and_verbose_says_how_it_went() {
    let said = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
        command.args([flag, "launch", "--pmi=none", "-n", "1", "sh", "-c", "exit 4"]).env_remove("LATTICE_ALLOC_ID");
        ended(command.output().unwrap()).stderr
    };
    let failed = format!("lattice: rank 0 on {} exited with status 4\n", host());
    assert_eq!(said("-q"), failed);
    let verbose = said("-v");
    for part in ["lattice: launch ", "  1 x sh in /", "lattice: rank 0 runs as process ", "lattice: rank 0 exited"] {
        assert!(verbose.contains(part), "{part} is not in {verbose}");
    }
    assert!(verbose.ends_with(&failed), "the reason is the last word: {verbose}");
}

/// Events of a launch with `--json`, and its exit code.
fn events(flags: &str, script: &str) -> (Vec<Value>, Option<i32>) {
    let Ended { code, stdout, .. } = launch(&format!("--json {flags}")).sh(script);
    (stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), code)
}

fn kind(event: &Value) -> &str {
    event["event"].as_str().unwrap()
}

#[test]
fn events_as_json_are_in_the_order_of_each_ranks_life() {
    let (events, code) = events("-n 3", "echo $SLURM_PROCID");
    let last = events.last().unwrap();
    assert_eq!((code, kind(&events[0]), kind(last)), (Some(0), "launch", "complete"));
    for rank in 0..3_usize {
        let life: Vec<&Value> = events.iter().filter(|event| event["rank"] == rank).collect();
        assert_eq!(life.iter().map(|event| kind(event)).collect::<Vec<_>>(), ["started", "output", "exited"]);
        assert_eq!((&life[1]["text"], &life[1]["stream"]), (&format!("{rank}\n").into(), &"stdout".into()));
        assert_eq!((&life[2]["code"], &last["ranks"][rank]["code"]), (&0.into(), &0.into()));
    }
}

#[test]
fn the_last_event_as_json_has_the_exit_code_and_its_cause() {
    let (events, code) = events("-n 1", "exit 3");
    let last = events.last().unwrap();
    assert_eq!((code, kind(last), &last["exit_code"]), (Some(3), "complete", &3.into()));
    assert_eq!((&last["cause"]["kind"], &last["cause"]["rank"]), (&"failed".into(), &0.into()));
    let message = format!("rank 0 on {} exited with status 3", host());
    assert_eq!(last["cause"]["message"], message);
}

#[test]
fn standard_input_goes_to_the_ranks_that_are_named() {
    for (flags, expected) in [
        ("-n 2", "0:x 1:"),
        ("-n 2 --stdin 1", "0: 1:x"),
        ("-n 2 --stdin all", "0:x 1:x"),
        ("-n 2 --stdin none", "0: 1:"),
    ] {
        let Ended { code, stdout, stderr } = launch(flags).fed("x", "echo $SLURM_PROCID:$(cat)");
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{flags}");
        assert_eq!(sorted(&stdout).join(" "), expected, "{flags}");
    }
}

#[test]
fn each_rank_reads_the_file_that_is_named_for_it() {
    let launch = launch("-n 2 --stdin in.%t");
    for rank in ["0", "1"] {
        fs::write(launch.path().join(format!("in.{rank}")), format!("file {rank}")).unwrap();
    }
    assert_eq!(sorted(&launch.sh("echo $SLURM_PROCID: $(cat)").stdout), ["0: file 0", "1: file 1"]);
}

#[test]
fn input_that_a_rank_leaves_is_there_for_the_next_command() {
    let launch = launch("-n 1");
    fs::write(launch.path().join("input"), "one\ntwo\n").unwrap();
    let input = fs::File::open(launch.path().join("input")).unwrap();
    let first = launch.command(&["head", "-c", "4"]).stdin(input.try_clone().unwrap()).output().unwrap();
    assert_eq!(ended(first).stdout, "one\n");
    assert_eq!(ended(launch.command(&["cat"]).stdin(input).output().unwrap()).stdout, "two\n");
}

#[test]
fn each_program_has_its_own_environment_and_directory() {
    let show = "echo \"$A|$B|$(pwd)\"";
    let launch = launch("-n 1 --env A=1 --env B=");
    let words = ["sh", "-c", show, ":", "-n", "1", "--chdir", "/", "--env-remove", "A*", "sh", "-c", show];
    let mut command = launch.command(&words);
    let Ended { stdout, .. } = ended(command.env("A", "outer").env("B", "kept").output().unwrap());
    let here = launch.path().canonicalize().unwrap();
    assert_eq!(sorted(&stdout), [format!("1||{}", here.display()).as_str(), "|kept|/"]);
}
