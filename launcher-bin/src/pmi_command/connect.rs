//! `lattice pmi connect`: connects to the PMI server through a socket in the file system, claims the rank of this process, and becomes the
//! program by `exec`. The program finds its connection as in any rank: the number of the descriptor is in `PMI_FD`.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lattice_session::plan::PMI_SOCKET;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Variable with the key of a rank that connects through the socket.
const KEY: &str = "PMI_ID";
/// Variables with wrong values for the program.
const GONE: [&str; 3] = [PMI_SOCKET, KEY, "PMI_PORT"];
/// Time limit for the answer of the server, and maximum size of the answer in bytes.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 1024;

/// A program cannot be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This process is not a rank that connects through a socket.
    #[error(
        "{0} is not set, so this is no rank of a launch that serves its ranks through a file (--pmi-port, or a profile of --container)"
    )]
    Unset(&'static str),
    /// The socket cannot be reached.
    #[error("cannot reach the PMI server at {}: {error}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The server refuses this rank.
    #[error("the PMI server at {} does not take this rank: {answer:?}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Its answer.
        answer: String,
    },
    /// The program cannot be executed.
    #[error("cannot run {}: {error}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Connection of this rank to its server.
pub(super) fn claimed() -> Result<UnixStream, ConnectError> {
    claim_own().map(|(socket, ..)| socket)
}

/// Connection of this rank, with the size of the job and the number of the rank.
fn claim_own() -> Result<(UnixStream, String, String), ConnectError> {
    let path = PathBuf::from(env::var_os(PMI_SOCKET).ok_or(ConnectError::Unset(PMI_SOCKET))?);
    let key = env::var(KEY).map_err(|_| ConnectError::Unset(KEY))?;
    claim(path, &key)
}

/// Becomes the program by `exec`. Returns only if that fails.
pub(super) fn become_rank(command: &[OsString]) -> ConnectError {
    let (socket, size, rank) = match claim_own() {
        Ok(claimed) => claimed,
        Err(error) => return error,
    };
    let (program, arguments) = command.split_first().expect("the command line asks for one");
    let mut command = Command::new(program);
    command.args(arguments).env("PMI_FD", socket.as_raw_fd().to_string()).env("PMI_RANK", rank).env("PMI_SIZE", size);
    for name in GONE {
        command.env_remove(name);
    }
    let error = match fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty())) {
        Ok(_) => command.exec(),
        Err(errno) => errno.into(),
    };
    ConnectError::Program { program: program.into(), error }
}

/// Claims the rank with this key. Returns the connection, the size of the job and the rank, as sent by the server.
fn claim(path: PathBuf, key: &str) -> Result<(UnixStream, String, String), ConnectError> {
    let asked = || {
        let mut socket = UnixStream::connect(&path)?;
        socket.set_read_timeout(Some(ANSWER_WITHIN))?;
        writeln!(socket, "cmd=initack pmiid={key}")?;
        let answer = answer(&mut socket)?;
        socket.set_read_timeout(None)?;
        Ok((socket, answer))
    };
    let (socket, answer) = asked().map_err(|error| ConnectError::Socket { path: path.clone(), error })?;
    let field = |name: &str| answer.split_whitespace().find_map(|word| word.strip_prefix(name)).map(str::to_owned);
    match (field("rc=").as_deref(), field("size="), field("rank=")) {
        (Some("0"), Some(size), Some(rank)) => Ok((socket, size, rank)),
        _ => Err(ConnectError::Refused { path, answer }),
    }
}

/// Reads the lines of the answer to a claim, and no byte after the last line: later bytes are for the program.
fn answer(socket: &mut UnixStream) -> io::Result<String> {
    let mut answer = Vec::new();
    let mut byte = [0];
    let is_whole = |answer: &[u8]| {
        let last = answer.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        answer.ends_with(b"\n")
            && !(last.starts_with(b"cmd=initack rc=0")
                || last.starts_with(b"cmd=set") && !last.starts_with(b"cmd=set debug="))
    };
    while !is_whole(&answer) && answer.len() < ANSWER_MAX && socket.read(&mut byte)? == 1 {
        answer.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end_and_no_further() {
        for sent in [
            "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0\nmore",
            "cmd=initack rc=-1 msg=no_such_rank\nmore",
            "cut",
        ] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(sent.as_bytes()).unwrap();
            drop(theirs);
            assert_eq!(answer(&mut ours).unwrap(), sent.trim_end_matches("more"));
        }
    }

    #[test]
    fn a_socket_that_is_not_there_is_named() {
        let error = claim("/nonexistent/pmi.sock".into(), "7").unwrap_err().to_string();
        assert!(error.starts_with("cannot reach the PMI server at /nonexistent/pmi.sock: No such file"), "{error}");
    }
}
