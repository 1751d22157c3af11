//! `lattice pmi connect`: connects with the PMI server through a socket in the file system, claims the rank that this process is, and becomes
//! the program, which finds the connection as any rank does its own: under the number in `PMI_FD`.

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

/// Variable with the key of a rank that is to come through the socket.
const KEY: &str = "PMI_ID";
/// Variables that are wrong for the program.
const GONE: [&str; 3] = [PMI_SOCKET, KEY, "PMI_PORT"];
/// Time for the server to answer, and the most bytes of its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 1024;

/// A program that is not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This is no rank that comes this way.
    #[error(
        "{0} is not set, so this is no rank of a launch whose ranks come through a file (--pmi-port, or a profile of --container)"
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
    /// The server does not know this rank.
    #[error("the PMI server at {} does not take this rank: {answer:?}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Its answer.
        answer: String,
    },
    /// The program cannot be run.
    #[error("cannot run {}: {error}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// The connection of this rank with its server.
pub(super) fn claimed() -> Result<UnixStream, ConnectError> {
    claim_own().map(|(socket, ..)| socket)
}

/// The connection of this rank, with the size of the job and the rank.
fn claim_own() -> Result<(UnixStream, String, String), ConnectError> {
    let path = PathBuf::from(env::var_os(PMI_SOCKET).ok_or(ConnectError::Unset(PMI_SOCKET))?);
    let key = env::var(KEY).map_err(|_| ConnectError::Unset(KEY))?;
    claim(path, &key)
}

/// Becomes the program; returns only if that cannot be.
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

/// Claims the rank of this key; returns the connection, the size of the job and the rank, in the words of the server.
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

/// The lines by which a claim is answered, and nothing behind the last of them: that is the program's.
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
