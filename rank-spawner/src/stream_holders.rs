//! Processes that hold a rank's standard output or error open, from `/proc/PID/fd`.
//!
//! Only a stream that stays open after its rank needs this search; end of file on a pipe already shows that no process holds it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getpid};

use crate::process_table::{Process, ProcessTable};
use crate::syscalls;

/// Output stream of a rank, by its name in `/proc/PID/fd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputStream(PathBuf);

impl OutputStream {
    /// Stream with this end as the launcher's end: the read end of a pipe, or the driving end of a terminal.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn of_end(end: impl AsFd) -> io::Result<Self> {
        let name_of = |end: BorrowedFd<'_>| fs::read_link(format!("/proc/self/fd/{}", end.as_raw_fd()));
        // Both ends of a pipe have the same name. A driving end has the name of the device that makes terminals.
        let named = match syscalls::terminal_of(end.as_fd()) {
            Ok(terminal) => name_of(terminal.as_fd()),
            Err(_) => name_of(end.as_fd()),
        };
        named.map(Self)
    }

    /// Processes that hold the stream, except this one. Processes of other users are missing: their descriptors are not readable.
    ///
    /// # Errors
    /// Fails if `/proc` is not readable.
    pub fn holders(&self) -> io::Result<Vec<StreamHolder>> {
        let table = ProcessTable::read()?;
        let others = table.iter().filter(|process| process.pid != getpid() && !process.zombie);
        let holders = others.filter(|process| self.is_held_by(process.pid));
        Ok(holders.map(|process| StreamHolder { process: *process, name: name_of(process.pid) }).collect())
    }

    fn is_held_by(&self, pid: Pid) -> bool {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == self.0))
    }
}

/// Process that holds a rank's output stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHolder {
    process: Process,
    /// Process name, as in `ps`; empty if it is not readable.
    pub name: String,
}

impl StreamHolder {
    /// Process number.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// True once the process has ended.
    pub fn has_ended(&self) -> bool {
        !Process::read(self.process.pid).is_some_and(|now| now.start == self.process.start && !now.zombie)
    }
}

/// Process name, as in `ps`; empty if it is not readable.
pub(crate) fn name_of(pid: Pid) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Pipe that a process reads as its standard input; `None` for any other input, or if the process may not be inspected.
pub(crate) fn input_pipe(pid: Pid) -> Option<PathBuf> {
    let input = fs::read_link(format!("/proc/{pid}/fd/0")).ok()?;
    is_pipe(&input).then_some(input)
}

/// Pipe that a process writes its standard output to; `None` as in [`input_pipe`].
pub(crate) fn output_pipe(pid: Pid) -> Option<PathBuf> {
    let output = fs::read_link(format!("/proc/{pid}/fd/1")).ok()?;
    is_pipe(&output).then_some(output)
}

/// Pipes that a process holds open for reading, under any number.
pub(crate) fn pipes_read(pid: Pid) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // The kernel gives links in `/proc/PID/fd` the access modes of their descriptors.
    let readable = descriptors.filter(|entry| entry.metadata().is_ok_and(|link| link.mode() & 0o400 != 0));
    readable.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|target| is_pipe(target)).collect()
}

fn is_pipe(target: &Path) -> bool {
    target.to_str().is_some_and(|target| target.starts_with("pipe:["))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_holds_a_pipe_is_named_until_it_ends() {
        let (reader, writer) = io::pipe().unwrap();
        let stream = OutputStream::of_end(&reader).unwrap();
        assert_eq!(stream.holders().unwrap(), []);
        let mut holder = Command::new("sleep").arg("1000").stdout(writer).spawn().unwrap();
        let mut other = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
        let found = loop {
            // Another test may be between fork and exec of its child.
            let found = stream.holders().unwrap();
            if found.iter().all(|holder| holder.name == "sleep") && !found.is_empty() {
                break found;
            }
        };
        assert_eq!(found.iter().map(|holder| holder.pid().as_raw()).collect::<Vec<_>>(), [holder.id() as i32]);
        assert!(!found[0].has_ended());
        holder.kill().unwrap();
        holder.wait().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(found[0].has_ended());
    }
}
