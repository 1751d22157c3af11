//! `--bcast` and `--preload-files`: files that are copied to each node before the launch starts, and removed after it has ended.
//!
//! ```text
//! a file ──frames──> lattice launch -w NODES --stdin all ──> sh of broadcast.sh on each node ──> the copy
//!                 node and checksums of its copies <──┘
//! ```
//! A separate launch makes the copies, so that identity, limits, bounds and clean-up need no second mechanism. For a launch on this
//! machine, the shell alone makes them. The shell removes them when its standard input ends. That is a pipe of this process, so any end of
//! this process ends it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lattice_console::formatting::duration;
use lattice_console::report;
use lattice_session::count::counted;
use lattice_session::random;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ring::digest::{Context, SHA256};

use crate::args::{Compression, LaunchArgs};
use crate::request::{Before, Copies, FileCopy, Thing};

/// Script that each node runs.
const SCRIPT: &str = include_str!("broadcast.sh");
/// Time limit for the removal of the copies after their launch. It is longer than the wait for a node that is gone.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of a frame, except the last one of a file.
const FRAME: usize = 4 << 20;

/// Files are not copied, and nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// An operation on this machine failed.
    #[error("cannot copy files to the nodes: cannot {step}: {source}")]
    System {
        /// The failed operation, as it follows the word "cannot".
        step: String,
        /// System error.
        source: io::Error,
    },
    /// Nodes have no copies. They have reported the reason.
    #[error(
        "{} did not reach {missing} of {}; nothing was started\n\
         try: --bcast without a value, for a directory of the launch's own; for files --preload-dest-dir=DIR, with one that each node has",
        names(files),
        counted(*nodes, "node")
    )]
    Missing {
        /// The files.
        files: Vec<PathBuf>,
        /// Number of nodes without copies.
        missing: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A copy differs from the file that was sent.
    #[error("the copy of {} on {node} is not what was sent; nothing was started", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The node.
        node: String,
    },
}

/// The first of these files, and the number of further files.
fn names(files: &[PathBuf]) -> String {
    let first = files.first().map(|first| first.display().to_string()).unwrap_or_default();
    match files.len() {
        0 | 1 => first,
        number => format!("{first} and {}", counted(number - 1, "other file")),
    }
}

/// Copies of files, which exist while this value exists.
pub(super) struct Broadcast {
    /// Launch that keeps the copies; on this machine, the shell.
    copier: Child,
    /// Ends after the copies are removed.
    answers: BufReader<ChildStdout>,
}

impl Broadcast {
    /// Copies files to these nodes of an allocation.
    ///
    /// # Errors
    /// See the variants of [`BroadcastError`].
    pub(super) fn to_nodes(
        copies: &Copies,
        args: &LaunchArgs,
        allocation: &str,
        hosts: &[String],
    ) -> Result<Self, BroadcastError> {
        let mut copier = Command::new(std::env::current_exe().map_err(failed("find this program"))?);
        copier.args(["launch", "-q", "--pmi=none", "--stdin=all", "--label=node", "--no-kill", "--propagate=NONE"]);
        copier.args(args.cluster.api.api.iter().map(|url| format!("--api={url}")));
        copier.arg(format!("--alloc={allocation}")).arg(format!("--ntasks={}", hosts.len())).arg("--tasks-per-node=1");
        copier.arg(format!("--nodelist={}", hostlist::fold(hosts))).args(["--chdir=/", "--"]);
        Self::begin(copier.arg("sh"), copies, hosts.len())
    }

    /// Copies files to their places on this machine.
    ///
    /// # Errors
    /// See the variants of [`BroadcastError`].
    pub(super) fn here(copies: &Copies) -> Result<Self, BroadcastError> {
        Self::begin(Command::new("sh").env("LATTICE_NODE", "0").env("LATTICE_SAYS", "lattice: "), copies, 1)
    }

    /// Starts `copier`, which runs a shell on this number of nodes, and makes the copies.
    fn begin(copier: &mut Command, copies: &Copies, nodes: usize) -> Result<Self, BroadcastError> {
        for library in &copies.missing {
            report(&format!("note: --send-libs: {library} is not found here, and is not copied"));
        }
        let unpack = match copies.compression {
            Compression::Gzip => "gzip -dc",
            Compression::None => "",
        };
        copier.args(["-c", SCRIPT, "sh", unpack]);
        let words = words(copies)?;
        // Terminal input is for the launch.
        copier.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut copier = copier.spawn().map_err(failed("start what copies"))?;
        let answers = copier.stdout.take().ok_or_else(|| io::ErrorKind::BrokenPipe.into());
        let answers = BufReader::new(answers.map_err(failed("read what copies"))?);
        let mut begun = Self { copier, answers };
        if let Some(pipe) = &mut begun.copier.stdin {
            // If the copier does not read, it has reported the reason. Checksums are missing then.
            let _ = writeln!(pipe, "{}", words.len()).and_then(|()| pipe.write_all(&words));
        }
        let mut sent = Vec::new();
        for file in copies.files() {
            match begun.copier.stdin.as_mut().map(|pipe| send(file, copies.compression, pipe)) {
                Some(Ok(sum)) => sent.push(sum),
                // If the copier stops reading, it has reported the reason. Checksums are missing then.
                Some(Err(SendError::Refused)) | None => break,
                Some(Err(SendError::Source(source))) => {
                    return Err(BroadcastError::System { step: format!("read {}", file.source.display()), source });
                }
            }
        }
        begun.check(copies, &sent, nodes)?;
        Ok(begun)
    }

    /// Discards the remaining output; returns false if the copier has not ended in time.
    fn ends_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut said = [0; 4096];
        loop {
            let rest = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(60));
            let mut watched = [PollFd::new(self.answers.get_ref().as_fd(), PollFlags::POLLIN)];
            match poll(&mut watched, PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX)) {
                Ok(0) => return false,
                Err(Errno::EINTR) => {}
                // If the pipe cannot be polled, there is no wait.
                Err(_) => return false,
                Ok(_) => match self.answers.get_mut().read(&mut said) {
                    Ok(0) | Err(_) => return true,
                    Ok(_) => {}
                },
            }
        }
    }

    /// Checks that this number of nodes has the files with these checksums.
    fn check(&mut self, copies: &Copies, sent: &[String], nodes: usize) -> Result<(), BroadcastError> {
        let answers = self.sums(nodes);
        if answers.len() < nodes {
            let files = copies.files().map(|file| file.source.clone()).collect();
            return Err(BroadcastError::Missing { files, missing: nodes - answers.len(), nodes });
        }
        for (node, sums) in answers {
            let mut sums = sums.iter();
            if let Some((file, _)) = copies.files().zip(sent).find(|&(_, sent)| sums.next() != Some(sent)) {
                return Err(BroadcastError::Damaged { file: file.source.clone(), node });
            }
        }
        Ok(())
    }

    /// Nodes that have the copies, each with its checksums. Reads until this number of nodes has answered, or the copier has ended.
    fn sums(&mut self, nodes: usize) -> HashMap<String, Vec<String>> {
        let answer = |line: String| {
            let (node, sums) = line.split_once("sums ")?;
            let node = node.strip_suffix(": ").unwrap_or("this machine");
            Some((node.to_owned(), sums.split(' ').map(str::to_owned).collect()))
        };
        self.answers.by_ref().lines().map_while(Result::ok).filter_map(answer).take(nodes).collect()
    }
}

impl Drop for Broadcast {
    fn drop(&mut self) {
        // The copiers wait for the end of their input, and report their own failures.
        drop(self.copier.stdin.take());
        if !self.ends_within(REMOVED_WITHIN) {
            report(&format!(
                "warning: the copies on the nodes are not removed within {}; they may stay there\n\
                 try: lattice exec NODES -- rm, with their paths, once the nodes answer",
                duration(REMOVED_WITHIN)
            ));
            let _ = self.copier.kill();
        }
        let _ = self.copier.wait();
    }
}

fn failed(step: &str) -> impl FnOnce(io::Error) -> BroadcastError {
    let step = step.to_owned();
    |source| BroadcastError::System { step, source }
}

/// Words for the script: a random word for its own names, and three words for each thing.
fn words(copies: &Copies) -> Result<Vec<u8>, BroadcastError> {
    let random = random::id().map_err(failed("draw a name"))?;
    let mut words = random.into_bytes();
    for thing in &copies.things {
        let (kind, path, mode) = match thing {
            Thing::Directory(path, before) => (word(*before, "directory"), path, "-"),
            Thing::File(file) => (word(file.before, "file"), &file.target, mode(file)?),
        };
        for word in [kind.as_bytes(), path.as_os_str().as_bytes(), mode.as_bytes()] {
            words.extend([&b" "[..], &quoted(word)].concat());
        }
    }
    Ok(words)
}

/// The word, quoted for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let inner = word.split(|&byte| byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
    [b"'", &inner[..], b"'"].concat()
}

/// Keyword of the script for a thing.
fn word(before: Before, thing: &str) -> String {
    let prefix = match before {
        Before::Ours => "",
        Before::Nothing => "new-",
        Before::Same => "same-",
    };
    format!("{prefix}{thing}")
}

/// Mode of a copy: for the user only, and executable if the file is.
fn mode(file: &FileCopy) -> Result<&'static str, BroadcastError> {
    let metadata = file.source.metadata();
    let metadata = metadata.map_err(failed(&format!("read {}", file.source.display())))?;
    Ok(if metadata.permissions().mode() & 0o111 == 0 { "600" } else { "700" })
}

/// A file was not sent completely.
enum SendError {
    /// The file cannot be read or compressed.
    Source(io::Error),
    /// The copier does not accept it.
    Refused,
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        Self::Source(error)
    }
}

/// Sends a file as frames; returns the checksum of its content.
fn send(file: &FileCopy, compression: Compression, pipe: &mut ChildStdin) -> Result<String, SendError> {
    let file = File::open(&file.source)?;
    match compression {
        Compression::None => {
            let mut digest = Context::new(&SHA256);
            send_frames(file, pipe, |bytes| digest.update(bytes))?;
            Ok(text(digest))
        }
        Compression::Gzip => send_packed(file, pipe),
    }
}

/// As `send`, compressed by `gzip`. `gzip` gets the bytes that are counted in the checksum, and not the file, which may change meanwhile.
fn send_packed(mut file: File, pipe: &mut ChildStdin) -> Result<String, SendError> {
    let mut packer = Command::new("gzip").args(["-1", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (input, output) = (packer.stdin.take(), packer.stdout.take());
    let sum = std::thread::scope(|scope| {
        let digest = scope.spawn(move || -> io::Result<String> {
            let (mut digest, mut chunk, mut input) = (Context::new(&SHA256), vec![0; 64 << 10], input);
            loop {
                match file.read(&mut chunk)? {
                    0 => return Ok(text(digest)),
                    bytes => {
                        digest.update(&chunk[..bytes]);
                        input.as_mut().map_or(Ok(()), |input| input.write_all(&chunk[..bytes]))?;
                    }
                }
            }
        });
        let sent = output.map_or(Ok(()), |output| send_frames(output, pipe, |_| {}));
        let sum = digest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.and_then(|()| Ok(sum?))
    });
    match packer.wait()?.success() {
        true => sum,
        // If the copier does not accept the compressed data, that is the cause.
        false => Err(sum.err().unwrap_or_else(|| SendError::Source(io::Error::other("gzip fails")))),
    }
}

/// Sends everything that the reader returns, and an empty frame as the end.
fn send_frames(mut from: impl Read, pipe: &mut ChildStdin, mut see: impl FnMut(&[u8])) -> Result<(), SendError> {
    let mut frame = Vec::new();
    loop {
        frame.clear();
        from.by_ref().take(FRAME as u64).read_to_end(&mut frame)?;
        see(&frame);
        let sent = writeln!(pipe, "{}", frame.len()).and_then(|()| pipe.write_all(&frame));
        sent.map_err(|_| SendError::Refused)?;
        if frame.is_empty() {
            return Ok(());
        }
    }
}

/// Checksum in the form of sha256sum(1).
fn text(digest: Context) -> String {
    digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{chown, lchown, symlink};
    use std::path::Path;

    use super::*;

    /// The launch may end on another node while a copy is renamed to its final name.
    #[test]
    fn a_copy_that_was_moved_and_not_counted_yet_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (place, copy) = (directory.path().display(), directory.path().join("app"));
        // The shell gets the signal while it waits for `mv`. `mv` itself gets it after its work.
        for signalled in ["$PPID", "$$"] {
            let moving = directory.path().join("mv");
            fs::write(&moving, format!("#!/bin/sh\n/bin/mv \"$@\"; touch {place}/moved; kill -TERM {signalled}\n"))
                .unwrap();
            fs::set_permissions(&moving, Permissions::from_mode(0o700)).unwrap();
            let mut copier = Command::new("sh");
            copier.args(["-c", SCRIPT, "sh", ""]);
            copier.env("LATTICE_NODE", "0").env("PATH", format!("{place}:{}", std::env::var("PATH").unwrap()));
            let mut copier = copier.stdin(Stdio::piped()).spawn().unwrap();
            let mut input = copier.stdin.take().unwrap();
            let words = format!("random file '{}' 700", copy.display());
            write!(input, "{}\n{words}3\nabc0\n", words.len()).unwrap();
            assert_eq!(copier.wait().unwrap().code(), Some(1), "{signalled}");
            assert!(!copy.exists() && directory.path().join("moved").exists(), "{signalled}");
            fs::remove_file(directory.path().join("moved")).unwrap();
        }
    }

    /// Runs the script to make one thing in `directory`: its kind is `kind`, its name `name`. Returns the exit code and the error output.
    fn made(kind: &str, directory: &Path, name: &str) -> (i32, String) {
        let mut copier = Command::new("sh");
        copier.args(["-c", SCRIPT, "sh", ""]).env("LATTICE_NODE", "0").env("LATTICE_SAYS", "");
        let piped = copier.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut copier = piped.spawn().unwrap();
        let words = format!(
            "random {kind} {} 700",
            String::from_utf8(quoted(directory.join(name).as_os_str().as_bytes())).unwrap()
        );
        // The script may refuse before it reads everything.
        let _ = write!(copier.stdin.take().unwrap(), "{}\n{words}3\nabc0\n", words.len());
        let output = copier.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// Files that another user can put in the place of a copy, and directories in which another user could replace the copy later.
    #[test]
    fn a_copy_goes_only_where_no_other_user_can_exchange_it() {
        assert!(nix::unistd::geteuid().is_root(), "this test must run as root");
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str, mode: u32, owner: u32| {
            let path = root.path().join(name);
            fs::create_dir_all(path.join("below")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(owner), Some(owner)).unwrap();
            path
        };
        let check = |kind: &str, directory: &Path, expected: &str| {
            let (code, said) = made(kind, directory, "it's\nan app");
            assert!(
                if expected.is_empty() { code == 0 && said.is_empty() } else { said.contains(expected) },
                "{kind} in {}: {code} {said}",
                directory.display()
            );
            assert_eq!(
                fs::read_dir(directory).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != "below").count(),
                0
            );
        };
        let exchange = "could exchange";
        check("file", &at("own", 0o755, 0), "");
        check("new-file", &at("sticky", 0o1777, 0), "");
        check("directory", &at("sticky", 0o1777, 0), "");
        check("same-file", &at("of-a-project", 0o2775, 7), "");
        check("file", &at("of-a-project", 0o2775, 7), exchange);
        check("file", &at("of-a-group", 0o775, 0), "");
        chown(at("of-a-group", 0o775, 0), None, Some(7)).unwrap();
        check("file", &root.path().join("of-a-group"), exchange);
        for kind in ["file", "same-file", "new-directory"] {
            check(kind, &at("everybodys", 0o777, 0), exchange);
            check(kind, &at("everybodys", 0o777, 0).join("below"), exchange);
        }
        check("file", &at("others", 0o755, 65534), exchange);
        let link = at("sticky", 0o1777, 0).join("link");
        symlink(at("own", 0o755, 0), &link).unwrap();
        check("file", &link, "");
        lchown(&link, Some(65534), None).unwrap();
        check("file", &link, exchange);
    }

    #[test]
    fn nothing_of_another_user_is_opened_or_moved_into() {
        let directory = tempfile::tempdir().unwrap();
        let (there, target) = (directory.path().join("app"), directory.path().join("target"));
        fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
        let check = |kind: &str, expected: &str| {
            let (code, said) = made(kind, directory.path(), "app");
            assert!(code == 1 && said.contains(expected), "{kind}: {code} {said}");
        };
        nix::unistd::mkfifo(&there, nix::sys::stat::Mode::S_IRWXU).unwrap();
        check("new-file", "is there already");
        check("same-file", "is no file of yours");
        fs::remove_file(&there).unwrap();
        fs::create_dir(&there).unwrap();
        check("file", "");
        fs::remove_dir(&there).unwrap();
        symlink(&target, &there).unwrap();
        check("new-file", "is there already");
        assert_eq!(made("file", directory.path(), "app"), (0, String::new()));
        assert!(!target.exists() && !there.is_symlink(), "the link was replaced, and the copy is removed");
    }
}
