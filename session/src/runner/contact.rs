//! Files by which PMIx tools find the launch's server on this node ("rendezvous files" of libpmix). They are in the session's directory below
//! the directory for temporary files, which libpmix searches. They contain the server's port.
//!
//! Most launches are short, and no tool contacts them. So the files are written when a launch has run for a second.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use nix::unistd::{getegid, geteuid, gethostname};
use pmix_core::env::server_uri;
use rank_spawner::Records;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Runner;
use crate::blocking;
use crate::unix_time;

/// Time after which the files of a launch are written.
const AFTER: Duration = Duration::from_secs(1);

/// Name of the directory of these files in the session's directory.
const DIRECTORY: &str = "contact";

/// Version of libpmix that the server reports to tools. Tools of this version are served.
const VERSION: &str = "v4.2.2";

/// Contact files of one session.
pub(super) struct Contact {
    /// Time at which the files are written; `None` after that.
    due: Option<Instant>,
    pub(super) writing: JoinSet<()>,
}

impl Contact {
    pub(super) fn new() -> Self {
        Self { due: Some(Instant::now() + AFTER), writing: JoinSet::new() }
    }

    /// Returns the time at which the files are due, or `otherwise` if it is earlier.
    pub(super) fn wake(&self, otherwise: Instant) -> Instant {
        self.due.map_or(otherwise, |due| due.min(otherwise))
    }

    /// Returns true once, when the files are due.
    fn is_due(&mut self) -> bool {
        self.due.take_if(|due| *due <= Instant::now()).is_some()
    }

    /// Begins to write the files for the server at this address.
    fn write(&mut self, directory: PathBuf, launch: String, server: SocketAddr) {
        blocking::begin_in(&mut self.writing, move || {
            if let Err(error) = write(&directory, &launch, server) {
                tracing::warn!("tools find no PMIx contact file in {}: {error}", directory.display());
            }
        });
    }

    /// Returns true if no write is in progress.
    pub(super) fn is_closed(&self) -> bool {
        self.writing.is_empty()
    }

    /// Waits until no write is in progress.
    pub(super) async fn close(&mut self) {
        while self.writing.join_next().await.is_some() {}
    }
}

impl Runner {
    /// Writes the files by which tools find the launch's PMIx server, if there is a server and the files are due.
    pub(super) fn let_tools_find(&mut self) {
        if !self.contact.is_due() {
            return;
        }
        if self.directories.has_records() {
            blocking::begin_in(&mut self.removals, Records::remove_those_of_killed_processes);
        }
        let Some((server, own)) = self.servers.pmix_address().zip(self.directories.own.as_ref()) else { return };
        self.contact.write(own.path().join(DIRECTORY), self.spec.launch_id.clone(), server);
    }
}

/// Writes two files in a new directory: one is named by the id of this process, and one by the launch's id.
fn write(directory: &Path, launch: &str, server: SocketAddr) -> io::Result<()> {
    let host = gethostname()?.to_string_lossy().into_owned();
    // A tool uses its node's name without the domain.
    let host = host.split('.').next().unwrap_or_default();
    let (pid, user, group, now) = (process::id(), geteuid(), getegid(), unix_time::seconds());
    DirBuilder::new().mode(0o700).create(directory)?;
    let text = format!("{}\n{VERSION}\n{pid}\n{user}:{group}\n{now}\n", server_uri(server));
    for name in [pid.to_string().as_str(), launch] {
        let path = directory.join(format!("pmix.{host}.tool.{name}"));
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_the_user_can_read_where_the_server_is() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("launch");
        write(&directory, "ab12", "127.0.0.1:4000".parse().unwrap()).unwrap();
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            let begin = format!("lattice.0;tcp4://127.0.0.1:4000\nv4.2.2\n{}\n{}:", process::id(), geteuid());
            assert!(text.starts_with(&begin) && text.lines().count() == 5, "{text}");
            names.push(path.file_name().unwrap().to_string_lossy().rsplit_once(".tool.").unwrap().1.to_owned());
        }
        names.sort();
        assert_eq!(names, [process::id().to_string(), "ab12".to_owned()]);
        let again = write(&directory, "ab12", "127.0.0.1:4000".parse().unwrap());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "nobody's file is overwritten");
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_due_once_and_not_before_their_time() {
        let mut contact = Contact::new();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(!contact.is_due() && contact.wake(later) < later);
        tokio::time::advance(AFTER).await;
        assert!(contact.is_due() && !contact.is_due() && contact.wake(later) == later);
        assert!(contact.is_closed());
    }
}
