//! PMIx tools at launches: programs on libpmix's `PMIx_tool_init`.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, launch};
use nix::sys::signal::Signal;

/// The directory of a launch's files below this one, and the launch's id, once there are files by which tools find it.
fn contact(below: &Path) -> Option<(PathBuf, String)> {
    let directory = fs::read_dir(below).ok()?.next()?.ok()?.path();
    let id = directory.file_name()?.to_str()?.strip_prefix("lattice-")?.split_once('.')?.0.to_owned();
    let of_launch = |path: PathBuf| path.to_string_lossy().ends_with(&format!(".tool.{id}"));
    let found = fs::read_dir(&directory).ok()?.flatten().any(|entry| of_launch(entry.path()));
    found.then_some((directory, id))
}

/// By the number of the launcher's process, by the launch's id, by a file; at once with some that are mad and one that stays.
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

/// No rank says a word to its server but as a tool, and nobody is accused of that.
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
