//! `lattice pmi adopt`: connects a program that was started without a launcher to the PMI server of this rank. Before it spawns, such a program
//! of MPICH listens on a port and runs `mpiexec -pmi_args PORT ...`. The launch has this rank alone, which represents the program as long as the
//! program is connected.
//!
//! ```text
//! program  <──TCP──>  this rank  <──socket──>  PMI server of the launch, which starts spawned programs
//! ```

use std::env;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use super::connect::{self, ConnectError};

/// First message to the program. The program then answers, and gets a reply with `stdio=no`, because it keeps its own streams.
const ADOPTION: &[u8] = b"cmd=singinit authtype=none\n";
/// Variable with the id of the launch. The name of the job contains the id.
const LAUNCH: &str = "LATTICE_LAUNCH_ID";
/// Time limit for the answer of the program, and maximum size of the answer in bytes.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 1024;

/// Failure to adopt a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// This rank has no PMI server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The program cannot be reached.
    #[error(
        "cannot reach the program that listens on port {port} of this machine: {error}\ntry: leave -pmi_args to programs of MPICH, which run mpiexec with it by themselves"
    )]
    Program {
        /// Port of the program.
        port: u16,
        /// Error of the system.
        error: io::Error,
    },
    /// The program uses another protocol.
    #[error(
        "the program that listens on port {port} answers {answer:?}, not cmd=singinit\ntry: leave -pmi_args to programs of MPICH"
    )]
    Answer {
        /// Port of the program.
        port: u16,
        /// Its answer.
        answer: String,
    },
}

/// Forwards messages between the program and the server, until the program closes the connection.
pub(super) fn adopt(port: u16) -> Result<u8, AdoptError> {
    let server = connect::claimed()?;
    let failed = |error| AdoptError::Program { port, error };
    let mut program = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    let answer = introduce(&mut program).map_err(failed)?;
    if !answer.starts_with("cmd=singinit") {
        return Err(AdoptError::Answer { port, answer });
    }
    relay(&program, &server).map_err(failed)?;
    Ok(0)
}

/// Introduces this process to the program as its server. Returns the answer of the program.
fn introduce(program: &mut TcpStream) -> io::Result<String> {
    program.set_nodelay(true)?;
    program.set_read_timeout(Some(ANSWER_WITHIN))?;
    program.write_all(ADOPTION)?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\n") && answer.len() < ANSWER_MAX && program.read(&mut byte)? == 1 {
        answer.push(byte[0]);
    }
    let launch = env::var(LAUNCH).unwrap_or_default();
    program.write_all(format!("cmd=singinit_info versionok=yes stdio=no kvsname=kvs_{launch}_0\n").as_bytes())?;
    program.set_read_timeout(None)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn relay(program: &TcpStream, server: &UnixStream) -> io::Result<()> {
    thread::scope(|scope| {
        scope.spawn(|| {
            // The server closes the connection after the end of the rank.
            let _ = io::copy(&mut &*server, &mut &*program);
            let _ = program.shutdown(Shutdown::Both);
        });
        let asked = io::copy(&mut &*program, &mut &*server);
        let _ = server.shutdown(Shutdown::Both);
        // A killed program resets its connection.
        asked
            .map(drop)
            .or_else(|error| if error.kind() == io::ErrorKind::ConnectionReset { Ok(()) } else { Err(error) })
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// Messages as between MPICH 5.0.2 and its own mpiexec (`pmi1-singinit-mpich-5.0.2.txt`).
    #[test]
    fn a_program_is_introduced_and_then_speaks_with_the_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let program = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(socket.try_clone().unwrap()).lines().map(Result::unwrap);
            let first = lines.next().unwrap();
            socket.write_all(b"cmd=singinit pmi_version=1 pmi_subversion=2 stdio=yes authtype=none\n").unwrap();
            let info = lines.next().unwrap();
            socket.write_all(b"cmd=get_maxes\n").unwrap();
            (first, info, lines.next().unwrap())
        });
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(introduce(&mut socket).unwrap().starts_with("cmd=singinit pmi_version=1"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(&theirs).read_line(&mut line).unwrap();
            (&theirs).write_all(b"cmd=maxes rc=0\n").unwrap();
            line
        });
        relay(&socket, &ours).unwrap();
        let (first, info, answer) = program.join().unwrap();
        assert_eq!((first.as_str(), answer.as_str()), ("cmd=singinit authtype=none", "cmd=maxes rc=0"));
        assert!(info.starts_with("cmd=singinit_info versionok=yes stdio=no kvsname=kvs_"), "{info}");
        assert_eq!(server.join().unwrap(), "cmd=get_maxes\n");
    }
}
