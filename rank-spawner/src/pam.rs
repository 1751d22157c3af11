//! PAM sessions: the account check, limits and variables of a user, before a process becomes that user.
//!
//! ```text
//! PAM process (root)                                   session process (root, then the user)
//! start, account, credentials, open ───── answer ────> sets limits, stores variables, becomes the user
//! waits until all copies of the other end are closed
//! close, delete credentials, end
//! ```
//! Modules run in a process of their own: a module may hang, exit, or leave threads and descriptors. Changes that a module makes to its
//! process affect no other process, except limits and variables.

mod answer;
mod libpam;

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::socket::{MsgFlags, send};

use self::answer::Answer;
use self::libpam::{LibPam, Transaction};
use crate::account::Account;
use crate::capabilities::{Capabilities, raise_capabilities};

/// Limit on the length of an answer, in bytes.
const ANSWER_MAX: u32 = 1 << 20;

/// Resources with limits that are copied from the PAM process: all resources, in a fixed order.
const RESOURCES: [Resource; 16] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_STACK,
];

/// Data of an open PAM session for a process that becomes its user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PamSession {
    /// Limits set by modules: index in [`RESOURCES`], soft and hard limit.
    limits: Vec<(usize, rlim_t, rlim_t)>,
    /// Variables set by modules.
    pub environment: Vec<(OsString, OsString)>,
}

/// Answer of a service that opens no session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// Failed step, such as "account management".
    step: String,
    /// PAM's text for the error.
    text: String,
    /// Messages of modules to the user, without control characters.
    said: Vec<String>,
}

/// Error if a user gets no PAM session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PamError {
    /// A module or PAM itself refused the session.
    #[error("{step}: {text}{}", with_words(.said))]
    Refused {
        /// Failed step, such as "account management".
        step: String,
        /// PAM's text for the error.
        text: String,
        /// Messages of modules to the user.
        said: Vec<String>,
    },
    /// A module hangs.
    #[error("no answer within {} s (pam_timeout): a module hangs", .0.as_secs())]
    TimedOut(Duration),
    /// The PAM process ended without an answer, or there was no PAM process.
    #[error("the process that runs its modules ended without an answer")]
    Ended,
    /// Receiving the answer failed.
    #[error("no answer can be received: {0}")]
    System(#[from] io::Error),
}

fn with_words(said: &[String]) -> String {
    if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) }
}

impl PamSession {
    /// Waits until a PAM process has opened the session. Blocks.
    ///
    /// # Errors
    /// Fails if the service refuses, or does not answer within that time.
    pub fn opened(mut process: UnixStream, within: Duration) -> Result<Self, PamError> {
        let deadline = Instant::now() + within;
        let ended = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => PamError::TimedOut(within),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => PamError::Ended,
            _ => PamError::System(error),
        };
        let mut len = [0; size_of::<u32>()];
        read_by(&mut process, &mut len, deadline).map_err(ended)?;
        let len = u32::from_be_bytes(len);
        if len > ANSWER_MAX {
            return Err(PamError::Ended);
        }
        let mut bytes = vec![0; len as usize];
        read_by(&mut process, &mut bytes, deadline).map_err(ended)?;
        match Answer::decode(&bytes).ok_or(PamError::Ended)? {
            Answer::Opened(session) => Ok(session),
            Answer::Refused(Refused { step, text, said }) => Err(PamError::Refused { step, text, said }),
        }
    }

    /// Sets the limits in this process. Limits above its present ones need root.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn set_limits(&self) -> nix::Result<()> {
        self.limits.iter().try_for_each(|&(index, soft, hard)| {
            RESOURCES.get(index).map_or(Ok(()), |&resource| setrlimit(resource, soft, hard))
        })
    }
}

fn read_by(from: &mut UnixStream, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !to.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        match from.read(to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => to = &mut to[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Body of a PAM process: opens a PAM session of `service` for the user, and answers. Closes the PAM session when all copies of the other
/// end of `session` are closed. `log` receives messages of modules, and errors at the end. Blocks as long as modules do.
pub fn serve_pam(service: &str, account: &Account, session: &UnixStream, log: &mut dyn FnMut(&str)) {
    // Modules run with the privileges of a login. A module that lacks a privilege reports the error itself.
    if let Err(errno) = raise_capabilities(Capabilities::ALL) {
        log(&format!("capabilities cannot be raised: {}", errno.desc()));
    }
    let before = limits();
    let library = LibPam::load();
    let opened = match &library {
        Ok(library) => open(library, service, &account.name),
        Err(text) => Err(Refused { step: "libpam".to_owned(), text: text.clone(), ..Refused::default() }),
    };
    let (answer, open) = match opened {
        Ok(open) => {
            open.said().iter().for_each(|text| log(text));
            let changed = before.iter().zip(limits()).enumerate().filter(|(_, (before, now))| *before != now);
            let limits = changed.filter_map(|(index, (_, now))| Some((index, now?.0, now?.1))).collect();
            (Answer::Opened(PamSession { limits, environment: open.environment() }), Some(open))
        }
        Err(refused) => {
            refused.said.iter().for_each(|text| log(text));
            (Answer::Refused(refused), None)
        }
    };
    // A session process that is gone needs no answer; the session is closed all the same.
    let _ = tell(session, &fitting(&answer, log));
    let Some(mut open) = open else { return };
    wait_for_end(session);
    if let Err(refused) = open.close() {
        log(&format!("{}: {}", refused.step, refused.text));
    }
    open.said().iter().for_each(|text| log(text));
}

/// Limits of this process; `None` for resources that the kernel does not support.
fn limits() -> [Option<(rlim_t, rlim_t)>; 16] {
    RESOURCES.map(|resource| getrlimit(resource).ok())
}

fn open<'library>(library: &'library LibPam, service: &str, user: &str) -> Result<Transaction<'library>, Refused> {
    let mut transaction = Transaction::start(library, service, user)?;
    transaction.check_account()?;
    transaction.establish_credentials()?;
    transaction.open_session()?;
    Ok(transaction)
}

/// Encodes the answer; replaces an answer that is too long by a refusal.
fn fitting(answer: &Answer, log: &mut dyn FnMut(&str)) -> Vec<u8> {
    let bytes = answer.encode();
    if bytes.len() <= ANSWER_MAX as usize {
        return bytes;
    }
    let text = format!("variables and words of modules have {} bytes, and {ANSWER_MAX} are possible", bytes.len());
    log(&text);
    Answer::Refused(Refused { step: "session".to_owned(), text, said: Vec::new() }).encode()
}

fn tell(session: &UnixStream, answer: &[u8]) -> nix::Result<()> {
    let len = u32::try_from(answer.len()).ok().filter(|len| *len <= ANSWER_MAX).ok_or(Errno::EMSGSIZE)?;
    for mut bytes in [&len.to_be_bytes()[..], answer] {
        while !bytes.is_empty() {
            match send(session.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Waits until all copies of the other end are closed; it sends no data.
fn wait_for_end(mut session: &UnixStream) {
    let mut byte = [0];
    loop {
        match session.read(&mut byte) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_reaches_the_session_process() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let session = PamSession {
            limits: vec![(RESOURCES.len() - 1, 5, 6)],
            environment: vec![("A".into(), "x=y".into()), ("B".into(), "".into())],
        };
        tell(&theirs, &Answer::Opened(session.clone()).encode()).unwrap();
        assert_eq!(PamSession::opened(ours, WITHIN).unwrap(), session);
    }

    #[test]
    fn an_answer_that_is_too_long_is_a_refusal() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let environment = vec![("A".into(), "x".repeat(ANSWER_MAX as usize).into())];
        let (answer, mut logged) = (Answer::Opened(PamSession { limits: Vec::new(), environment }), Vec::new());
        tell(&theirs, &fitting(&answer, &mut |text| logged.push(text.to_owned()))).unwrap();
        let expected = "session: variables and words of modules have 1048587 bytes, and 1048576 are possible";
        assert_eq!(PamSession::opened(ours, WITHIN).unwrap_err().to_string(), expected);
        assert_eq!(logged.len(), 1);
    }

    #[test]
    fn a_process_that_hangs_or_ends_is_told_from_one_that_refuses() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let refused =
            Refused { step: "account management".into(), text: "no".into(), said: vec!["a".into(), "b".into()] };
        tell(&theirs, &Answer::Refused(refused).encode()).unwrap();
        assert_eq!(PamSession::opened(ours, WITHIN).unwrap_err().to_string(), "account management: no (a; b)");
        let (ours, _silent) = UnixStream::pair().unwrap();
        assert!(matches!(PamSession::opened(ours, Duration::ZERO), Err(PamError::TimedOut(_))));
        for begun in [&b""[..], b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x01x"] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send(theirs.as_raw_fd(), begun, MsgFlags::empty()).unwrap();
            drop(theirs);
            assert!(matches!(PamSession::opened(ours, WITHIN), Err(PamError::Ended)), "{begun:?}");
        }
    }
}
