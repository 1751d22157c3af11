//! Threads of a process, read from `/proc`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use nix::unistd::Pid;

/// Limit on the threads that are shown for a process.
const THREADS_MAX: usize = 64;
/// Limit on the frames of a kernel stack.
const KERNEL_FRAMES: usize = 16;

/// State of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Thread {
    pub(super) id: i32,
    name: String,
    /// State letter of `proc_pid_stat(5)`.
    state: char,
    /// Kernel function in which it sleeps, if `/proc` shows it.
    function: Option<String>,
    /// Number of its present system call, if `/proc` shows it.
    call: Option<u32>,
    /// Kernel stack, which only root can read.
    kernel: Vec<String>,
}

/// Frames from a debugger, by thread number.
pub(super) type Frames = BTreeMap<i32, Vec<String>>;

impl Thread {
    /// Threads of a process, the first one first; empty if there is no such process.
    pub(super) fn all(pid: Pid) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut ids: Vec<i32> = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
        ids.sort_unstable_by_key(|&id| (id != pid.as_raw(), id));
        ids.truncate(THREADS_MAX);
        ids.into_iter().filter_map(|id| Self::read(pid, id)).collect()
    }

    fn read(pid: Pid, id: i32) -> Option<Self> {
        let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{id}/{name}"));
        // The name of a thread need not be UTF-8.
        let line = fs::read(format!("/proc/{pid}/task/{id}/stat")).ok()?;
        let line = String::from_utf8_lossy(&line);
        let (name, rest) = line.rsplit_once(')')?;
        let function = file("wchan").ok().filter(|function| !function.is_empty() && function != "0");
        let call = file("syscall").ok().and_then(|call| call.split_ascii_whitespace().next()?.parse().ok());
        let frame = |line: &str| {
            // [<0>] hrtimer_nanosleep+0x74/0xf0
            let name = line.split_once("] ").map_or(line, |(_, name)| name);
            name.split('+').next().unwrap_or_default().to_owned()
        };
        let kernel = file("stack").unwrap_or_default().lines().take(KERNEL_FRAMES).map(frame).collect();
        Some(Self {
            id,
            name: name.split_once('(').map_or("", |(_, name)| name).to_owned(),
            state: rest.trim_start().chars().next()?,
            function,
            call,
            kernel,
        })
    }

    /// Description that is equal for threads in the same state.
    fn describe(&self, frames: Option<&Vec<String>>) -> String {
        let state = match self.state {
            'R' => "runs",
            'S' => "sleeps",
            'D' => "sleeps, not to be interrupted",
            'T' | 't' => "is stopped",
            'Z' | 'X' => "has ended",
            _ => "waits",
        };
        let mut text = format!("({}) {state}", self.name);
        // Writing to a string cannot fail.
        if let Some(function) = &self.function {
            let _ = write!(text, " in the kernel's {function}");
        }
        if let Some(call) = self.call {
            let _ = write!(text, ", system call {call}");
        }
        text.push('\n');
        if !self.kernel.is_empty() {
            let _ = writeln!(text, "  kernel: {}", self.kernel.join(" < "));
        }
        for frame in frames.into_iter().flatten() {
            let _ = writeln!(text, "  {frame}");
        }
        text
    }
}

/// Writes the state of threads, each text once with the numbers of its threads, which count from 1.
pub(super) fn describe(threads: &[Thread], frames: &Frames, text: &mut String) {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, thread) in threads.iter().enumerate() {
        let described = thread.describe(frames.get(&thread.id));
        match groups.iter_mut().find(|(known, _)| *known == described) {
            Some((_, numbers)) => numbers.push(index + 1),
            None => groups.push((described, vec![index + 1])),
        }
    }
    for (described, numbers) in groups {
        let threads = if numbers.len() == 1 { "thread" } else { "threads" };
        let _ = write!(text, "{threads} {} {described}", ranges(&numbers));
    }
}

/// Ranges such as `1-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let chunks = numbers.chunk_by(|one, next| one + 1 == *next);
    let range = |chunk: &[usize]| match chunk {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    chunks.map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: i32, state: char, function: Option<&str>) -> Thread {
        let function = function.map(str::to_owned);
        Thread { id, name: "app".to_owned(), state, function, call: Some(7), kernel: Vec::new() }
    }

    #[test]
    fn threads_that_do_the_same_are_shown_once() {
        let threads = [
            thread(40, 'R', None),
            thread(41, 'S', Some("futex_wait")),
            thread(42, 'S', Some("futex_wait")),
            thread(43, 'S', Some("futex_wait")),
            thread(44, 'S', Some("futex_wait")),
        ];
        let frames = Frames::from([
            (40, vec!["#0 solve ()".to_owned(), "#1 main ()".to_owned()]),
            (41, vec!["#0 wait ()".to_owned()]),
            (42, vec!["#0 wait ()".to_owned()]),
            (44, vec!["#0 wait ()".to_owned()]),
        ]);
        let mut text = String::new();
        describe(&threads, &frames, &mut text);
        let sleeps = "(app) sleeps in the kernel's futex_wait, system call 7\n";
        let expected = format!(
            "thread 1 (app) runs, system call 7\n  #0 solve ()\n  #1 main ()\nthreads 2-3,5 {sleeps}  #0 wait ()\nthread 4 {sleeps}"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_thread_that_sleeps_is_seen_to() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let sleeps = |threads: &[Thread]| matches!(threads, [Thread { name, state: 'S', .. }] if name == "sleep");
        while !sleeps(&Thread::all(pid)) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Thread::all(pid), []);
    }
}
