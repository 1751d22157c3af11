//! PMIx tools that connect to launches: programs that use libpmix's `PMIx_tool_init`.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, launch};
use nix::sys::signal::Signal;

/// Returns the directory of a launch's files below this one, and the launch's id, once the files for tools exist.
fn contact(below: &Path) -> Option<(PathBuf, String)> {
    let directory = fs::read_dir(below).ok()?.next()?.ok()?.path();
    let id = directory.file_name()?.to_str()?.strip_prefix("lattice-")?.split_once('.')?.0.to_owned();
    let of_launch = |path: PathBuf| path.to_string_lossy().ends_with(&format!(".tool.{id}"));
    let contact = directory.join("contact");
    let found = fs::read_dir(&contact).ok()?.flatten().any(|entry| of_launch(entry.path()));
    found.then_some((contact, id))
}

/// Tools connect by the pid of the launcher, by the launch's id, and by a file. At the same time some connections send nonsense, and one
/// tool stays connected.
#[test]
fn tools_find_a_launch_look_at_it_and_end_it() {
    let temporary = tempfile::tempdir().unwrap();
    let tool =
        |words: &str| Command::new(Flavour::Pmix.program("pmix_tool")).words(words).env("TMPDIR", temporary.path());
    let mut launch = launch("-n 2").env("TMPDIR", temporary.path()).bash("exec sleep 100").start();
    let pid = launch.pid();
    launch.wait_until("tools can find the launch", || contact(temporary.path()).is_some());
    let (directory, id) = contact(temporary.path()).unwrap();
    let own = "a job of its own as rank 0";
    let seen = [own, "rank 0: bash", "rank 1: bash", "size 2", "in a fence: refused"];
    tool(&format!("pid {pid} look")).run().exits(0).prints_lines(seen);
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let address = fs::read_to_string(&file).unwrap();
    let address = address.lines().next().unwrap().rsplit_once('/').unwrap().1.to_owned();
    let mad: Vec<TcpStream> = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], b""]
        .map(|words| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(words).unwrap();
            stream
        })
        .into();
    let mut staying = tool(&format!("uri file:{} hear stay", file.display())).start();
    staying.wait_for_stdout("listening");
    tool(&format!("launch {id} tell")).run().exits(0).prints_lines([own]);
    staying.wait_for_stdout("event: heard");
    let words = ["pmix.jctrl.pause: SUCCESS", "pmix.jctrl.resume: SUCCESS", "pmix.jctrl.kill: SUCCESS"];
    tool(&format!("launch {id} pause resume kill")).run().exits(0).prints_lines([&[own], &words[..]].concat());
    launch.finish().exits(137).says("was killed by signal 9");
    assert!(fs::read_dir(temporary.path()).unwrap().next().is_none(), "its files are gone");
    drop(mad);
    staying.signal(Signal::SIGKILL);
    staying.finish();
}

/// Debian's tools of libpmix. The other two crash before they send a request to a server.
#[test]
fn libpmix_s_own_tools_look_at_a_launch_and_tell_it_events() {
    let files = tempfile::tempdir().unwrap();
    let tool = |words: &str| {
        let (program, words) = words.split_once(' ').unwrap_or((words, ""));
        Command::new(program).words(words).env("TMPDIR", files.path())
    };
    let mut launch = launch("-n 2").env("TMPDIR", files.path()).bash("echo $PMIX_NAMESPACE; exec sleep 100").start();
    let pid = launch.pid();
    launch.wait_until("tools can find the launch", || contact(files.path()).is_some());
    let (directory, id) = contact(files.path()).unwrap();
    let file = directory.join(format!("pmix.{}.tool.{id}", nix::unistd::gethostname().unwrap().display()));
    for how in [
        "",
        "--nodes",
        &format!("--pid {pid}"),
        &format!("--namespace {id}"),
        &format!("--uri file:{}", file.display()),
    ] {
        tool(&format!("pps {how}")).run().exits(0).says(&format!("Active nspaces: kvs_{id}_0."));
    }
    let mut listener = Command::new(Flavour::Pmix.program("pmix_tool")).words(&format!("pid {pid} hear"));
    listener = listener.env("TMPDIR", files.path());
    let mut listener = listener.start();
    listener.wait_for_stdout("listening");
    // The event for which the listener waits, with a global range (PMIX_RANGE_GLOBAL).
    tool(&format!("pevent --pid {pid} --event -3007 --range 5")).run().exits(0);
    listener.finish().exits(0).prints_lines(["a job of its own as rank 0", "listening", "event: heard"]);
    launch.signal(Signal::SIGTERM);
    launch.finish();
}

/// One tool receives the output of all ranks. Another tool that has deregistered receives nothing more. The output is sent at once, and
/// the launch still prints it.
#[test]
fn tools_get_the_output_of_ranks_as_it_comes() {
    let temporary = tempfile::tempdir().unwrap();
    let go = temporary.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.1; done; echo out $PMI_RANK; echo err >&2", go.display());
    let files = temporary.path().join("files");
    fs::create_dir(&files).unwrap();
    let mut launch = launch("-n 2 -l").env("TMPDIR", &files).bash(&script).start();
    launch.wait_until("tools can find the launch", || contact(&files).is_some());
    let (_, id) = contact(&files).unwrap();
    let tool = |deeds: &str| {
        let words = format!("launch {id} {deeds}");
        Command::new(Flavour::Pmix.program("pmix_tool")).words(&words).env("TMPDIR", &files)
    };
    let own = "a job of its own as rank 0";
    let mut reader = tool("pull drain").start();
    reader.wait_for_stdout("pulling");
    let words = [own, "pulling", "unpull: SUCCESS", "push: not supported"];
    tool("pull-1 unpull push text").run().exits(0).prints_lines(words);
    fs::write(&go, "").unwrap();
    let ends = ["0 out: end", "0 err: end", "1 out: end", "1 err: end", "streams at their end: 4"];
    let written = ["0 out: out 0", "0 err: err", "1 out: out 1", "1 err: err"];
    reader.finish().exits(0).prints_lines([&[own, "pulling"], &written[..], &ends[..]].concat());
    launch.finish().exits(0).prints_lines(["[0] out 0", "[1] out 1"]);
}

/// Ranks that read the launcher's input also read the input of a tool. The launcher's input continues after it.
#[test]
fn a_tool_has_input_for_the_ranks_that_read() {
    let files = tempfile::tempdir().unwrap();
    let script = "for i in 1 2 3; do read word; echo read $word; done";
    let mut launch = launch("-n 2 --stdin all").env("TMPDIR", files.path()).typed_to().bash(script).start();
    launch.type_in("one\n");
    launch.wait_for_stdout_times("read one", 2);
    launch.wait_until("tools can find the launch", || contact(files.path()).is_some());
    let (_, id) = contact(files.path()).unwrap();
    let tool = Command::new(Flavour::Pmix.program("pmix_tool")).words(&format!("launch {id} push"));
    let told = tool.arg("two\n").env("TMPDIR", files.path()).run();
    told.exits(0).prints_lines(["a job of its own as rank 0", "push: SUCCESS"]);
    launch.wait_for_stdout_times("read two", 2);
    launch.type_in("three\n");
    launch.finish().exits(0).prints_lines(["read one", "read two", "read three"].repeat(2));
}

/// A tool that does not read delays no other process. At the end it receives the number of lost bytes.
#[test]
fn a_tool_that_does_not_read_misses_output_and_delays_nobody() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name).display().to_string();
    let (go, written, on) = (path("go"), path("written"), path("on"));
    let wait = |file: &str| format!("until [ -e {file} ]; do sleep 0.1; done");
    let bytes = 40_000_000;
    let script = format!("{}; yes | head -c {bytes}; touch {written}; {}", wait(&go), wait(&on));
    let files = temporary.path().join("files");
    fs::create_dir(&files).unwrap();
    let mut launch = launch("-n 1 -o /dev/null").env("TMPDIR", &files).bash(&script).start();
    launch.wait_until("tools can find the launch", || contact(&files).is_some());
    let (_, id) = contact(&files).unwrap();
    let words = format!("launch {id} stall {written} pull drain");
    let mut tool = Command::new(Flavour::Pmix.program("pmix_tool")).words(&words).env("TMPDIR", &files).start();
    tool.wait_for_stdout("pulling");
    fs::write(&go, "").unwrap();
    launch.wait_until("the rank has written all of it", || Path::new(&written).exists());
    tool.wait_for_stdout("read on");
    fs::write(&on, "").unwrap();
    let told = format!("received and lost {bytes}, some lost");
    tool.finish().exits(0).says_nothing().prints_lines([
        "a job of its own as rank 0",
        "pulling",
        "read on",
        "streams at their end: 2",
        &told,
    ]);
    launch.finish().exits(0);
}

/// The ranks only contact their server as tools, and no warning about this is printed.
#[test]
fn a_tool_that_is_a_rank_or_its_child_looks_at_its_job() {
    let tool = Flavour::Pmix.program("pmix_tool");
    let outcome = launch("-n 2 -l").arg(&tool).words("variables here look").run();
    let lines = |rank: u32| {
        let lines = [
            &format!("the job as rank {rank}"),
            "rank 0: pmix_tool",
            "rank 1: pmix_tool",
            "size 2",
            "in a fence: refused",
        ];
        lines.map(|line| format!("[{rank}] {line}"))
    };
    outcome.exits(0).says_nothing().prints_lines([lines(0), lines(1)].concat());
}
