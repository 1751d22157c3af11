//! Debuggers that show the functions of a process: gdb, or eu-stack of elfutils.

use std::io::{self, PipeWriter, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::threads::Frames;
use crate::process_table::is_stopped;

/// Limit on the debugger's output, in bytes.
const OUTPUT_MAX: u64 = 1 << 20;
/// Limit on the frames of a thread.
const FRAMES_MAX: usize = 64;
/// Limit on a frame, in bytes; names of C++ templates can be longer.
const FRAME_MAX: usize = 400;

/// A debugger of this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Debugger {
    program: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Gdb,
    EuStack,
}

impl Debugger {
    /// The first debugger in the search path.
    pub(super) fn find() -> Option<Self> {
        let path = env::var_os("PATH")?;
        let find = |(name, kind)| {
            let mut programs = env::split_paths(&path).filter(|directory| directory.is_absolute());
            let program = programs.find_map(|directory| Some(directory.join(name)).filter(|file| file.is_file()))?;
            Some(Self { program, kind })
        };
        [("gdb", Kind::Gdb), ("eu-stack", Kind::EuStack)].into_iter().find_map(find)
    }

    /// Frames of the threads of a process, or the reason why there are none. The debugger stops the process; it continues after `limit`
    /// at the latest.
    pub(super) fn look_at(&self, pid: Pid, limit: Duration) -> Result<Frames, String> {
        let was_stopped = is_stopped(pid);
        let result = self.ask(pid, limit);
        // A debugger that is killed while it stops the process leaves it stopped, even if the debugger has printed enough.
        if !was_stopped && is_stopped(pid) {
            // The process may have ended meanwhile.
            let _ = kill(pid, Signal::SIGCONT);
        }
        let text = result?;
        let frames = frames(&text);
        if frames.is_empty() { Err(self.complaint(&text)) } else { Ok(frames) }
    }

    fn ask(&self, pid: Pid, limit: Duration) -> Result<String, String> {
        let name = self.program.display();
        let deadline = Instant::now() + limit;
        let failed = |error| format!("{name}: {error}");
        let (mut output, input) = io::pipe().map_err(failed)?;
        let (printed, print) = mpsc::channel();
        let read = move || {
            let mut bytes = Vec::new();
            // After a read error the bytes before it are used.
            let _ = output.by_ref().take(OUTPUT_MAX).read_to_end(&mut bytes);
            // Drains the rest: the debugger continues the process after it has printed all.
            let _ = io::copy(&mut output, &mut io::sink());
            // The receiver may have stopped waiting.
            let _ = printed.send(bytes);
        };
        thread::Builder::new().name("debugger".to_owned()).spawn(read).map_err(failed)?;
        // The pipe closes when the command is dropped and the process ends.
        let mut child = self.command(pid, input).and_then(|mut command| command.spawn()).map_err(failed)?;
        let printed = print.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        end(&mut child);
        match printed {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(RecvTimeoutError::Timeout) => Err(format!("{name} took longer than {limit:.0?}")),
            Err(RecvTimeoutError::Disconnected) => Err(format!("{name} printed nothing")),
        }
    }

    fn command(&self, pid: Pid, output: PipeWriter) -> io::Result<Command> {
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Gdb => {
                // The debugger must not run a command from a file of the user or the program, and must not use the network.
                command.args(["-nx", "-nw", "-batch"]);
                let first = ["set auto-load off", "set debuginfod enabled off", "set width 0", "set height 0"];
                // Ranks in the same functions must give equal texts.
                let same = ["set print address off", "set print frame-arguments none", "set backtrace limit 64"];
                for setting in first.into_iter().chain(same) {
                    command.args(["-iex", setting]);
                }
                command.args(["-p", &pid.to_string(), "-ex", "thread apply all bt"]);
            }
            Kind::EuStack => {
                command.args(["-n", "64", "-p", &pid.to_string()]);
            }
        }
        command.env_clear().env("LC_ALL", "C").current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        Ok(command)
    }

    /// Error line of a debugger that printed no frames: the line with the system's refusal, otherwise the last line.
    fn complaint(&self, text: &str) -> String {
        let lines = || text.lines().filter(|line| !line.trim().is_empty());
        let refusal = lines().find(|line| line.contains("not permitted"));
        let said = refusal
            .or_else(|| lines().next_back())
            .map_or("it showed none; it may not be allowed to look (kernel.yama.ptrace_scope)", str::trim);
        format!("{}: {}", self.program.display(), shortened(said))
    }
}

/// Kills a debugger that has printed all, or that is too slow.
fn end(child: &mut Child) {
    // The debugger may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Parses the output of a debugger: a line for each thread, followed by its frames.
fn frames(text: &str) -> Frames {
    let mut frames = Frames::new();
    let mut thread = None;
    for line in text.lines() {
        if let Some(id) = thread_of(line) {
            thread = Some(id);
        } else if let (Some(id), true) = (thread, line.starts_with('#')) {
            let known = frames.entry(id).or_default();
            if known.len() < FRAMES_MAX {
                known.push(frame(line));
            }
        }
    }
    frames
}

/// Thread number, from the line before its frames: `Thread 2 (Thread 0x7f (LWP 41) "app"):` of gdb, `TID 41:` of eu-stack.
fn thread_of(line: &str) -> Option<i32> {
    let number = match line.strip_prefix("TID ") {
        Some(rest) => rest,
        None => line.strip_prefix("Thread ")?.split_once("LWP ")?.1,
    };
    number.split(|other: char| !other.is_ascii_digit()).next()?.parse().ok()
}

/// A frame without addresses: they differ between processes in the same function.
fn frame(line: &str) -> String {
    // #1  0x00007fdeb59f in solve () from libsolve.so
    let words = line.split_ascii_whitespace().filter(|word| !word.starts_with("0x") && *word != "in");
    shortened(&words.collect::<Vec<_>>().join(" "))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(FRAME_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GDB: &str = "[New LWP 20455]\n0x00 in old_format ()\n\n\
        Thread 2 (Thread 0x7fa9cfeda6c0 (LWP 20455) \"fn\"):\n#0  __nanosleep (req=..., rem=...) at nanosleep.c:25\n#1  side ()\n\n\
        Thread 1 (LWP 20452 \"fn\"):\n#0  0x00007f00 in solve () from libsolve.so\n#1  main ()\n[Inferior 1 (process 20452) detached]\n";
    const EU_STACK: &str = "PID 7 - process\nTID 7:\n#0  0x00007fdeb59f clock_nanosleep@@GLIBC_2.17\n#1  0x000055d3 main\nTID 9:\n#0  0x00007f side\n";

    fn check(text: &str, expected: &[(i32, &[&str])]) {
        let owned = |&(id, frames): &(i32, &[&str])| (id, frames.iter().map(|&frame| frame.to_owned()).collect());
        assert_eq!(frames(text), expected.iter().map(owned).collect());
    }

    #[test]
    fn frames_are_read_without_addresses() {
        check(
            GDB,
            &[
                (20452, &["#0 solve () from libsolve.so", "#1 main ()"]),
                (20455, &["#0 __nanosleep (req=..., rem=...) at nanosleep.c:25", "#1 side ()"]),
            ],
        );
        check(EU_STACK, &[(7, &["#0 clock_nanosleep@@GLIBC_2.17", "#1 main"]), (9, &["#0 side"])]);
        check("ptrace: Operation not permitted.\n", &[]);
        check("#0 of no thread ()\nThread x (LWP y):\n#1 main ()\n", &[]);
    }

    #[test]
    fn endless_output_is_held_within_bounds() {
        let deep = format!("TID 1:\n{}", format!("#1  {}\n", "x".repeat(1000)).repeat(1000));
        let frames = frames(&deep);
        assert_eq!(frames[&1].len(), FRAMES_MAX);
        assert!(frames[&1].iter().all(|frame| frame.len() < 2 * FRAME_MAX));
    }

    fn script(text: &str) -> (tempfile::TempDir, Debugger) {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("gdb");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        (directory, Debugger { program, kind: Kind::Gdb })
    }

    #[test]
    fn a_debugger_that_hangs_or_fails_is_named() {
        let own = Pid::this();
        let (_directory, hangs) = script("exec /bin/sleep 1000");
        let reason = hangs.look_at(own, Duration::from_millis(50)).unwrap_err();
        assert!(reason.contains("gdb took longer than"), "{reason}");
        let (_directory, fails) = script("echo 'ptrace: Operation not permitted.' >&2; echo No stack.; exit 1");
        let reason = fails.look_at(own, Duration::from_secs(60)).unwrap_err();
        assert!(reason.ends_with("gdb: ptrace: Operation not permitted."), "{reason}");
    }

    /// The process continues in each case: the debugger continues it, ends first, or is killed.
    #[test]
    fn a_process_with_long_stacks_runs_on() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let thread = format!("Thread 1 (LWP {pid}):");
        let goes_on = format!("kill -CONT {pid}");
        for (end, limit) in [(goes_on.as_str(), 60_000), ("exit", 60_000), ("exec sleep 1000", 500)] {
            let (_directory, prints_much) =
                script(&format!("kill -STOP {pid}; echo '{thread}'; yes '#0 main ()' | head -c 3000000; {end}"));
            let seen = prints_much.look_at(pid, Duration::from_millis(limit));
            assert!(!is_stopped(pid), "{end}");
            let is_whole = limit > 500;
            assert_eq!(seen.is_ok_and(|seen| seen[&pid.as_raw()].len() == FRAMES_MAX), is_whole, "{end}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Without a debugger the test fails with the command that installs one.
    #[test]
    fn a_real_debugger_shows_where_a_process_sleeps_and_lets_it_go_on() {
        let mut debugger = Debugger::find().expect("gdb is installed: cargo xtask setup");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let seen = debugger.look_at(pid, Duration::from_secs(60)).unwrap();
        assert!(seen[&pid.as_raw()].iter().any(|frame| frame.contains("nanosleep")), "{seen:?}");
        assert!(!is_stopped(pid));
        debugger.program = "/no/such/debugger".into();
        assert!(
            debugger.look_at(pid, Duration::from_secs(1)).unwrap_err().starts_with("/no/such/debugger: No such file")
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
