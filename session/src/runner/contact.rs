//! Files by which PMIx tools find the launch's server on this node ("rendezvous files" of libpmix): below the directory for temporary
//! files, which libpmix searches. They name the server's port, and lie where only the user may look: not beside files of ranks, whose
//! directory a rank of Open MPI 5 opens to everybody.
//!
//! Most launches are short and are asked by no tool, so the files are written when a launch has run for a second.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use nix::unistd::{getegid, geteuid, gethostname};
use pmix_core::env::server_uri;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Runner;
use super::temporary::{OF_TOOLS, TemporaryDirectory, remove_those_of_the_dead};
use crate::blocking;
use crate::unix_time;

/// Time after which the files of a launch are written.
const AFTER: Duration = Duration::from_secs(1);

/// Version of libpmix whose tools are served, and which they take the server for.
const VERSION: &str = "v4.2.2";

/// Contact files of one session.
pub(super) struct Contact {
    /// Time at which they are written; `None` once they are.
    due: Option<Instant>,
    /// Returns their directory.
    pub(super) writing: JoinSet<Option<TemporaryDirectory>>,
}

impl Contact {
    pub(super) fn new() -> Self {
        Self { due: Some(Instant::now() + AFTER), writing: JoinSet::new() }
    }

    /// Returns the time at which the files are due, or `otherwise` where that is earlier.
    pub(super) fn wake(&self, otherwise: Instant) -> Instant {
        self.due.map_or(otherwise, |due| due.min(otherwise))
    }

    /// Returns true once, when the files are to be written.
    fn is_due(&mut self) -> bool {
        self.due.take_if(|due| *due <= Instant::now()).is_some()
    }

    /// Begins to write the files for the server at this address.
    fn write(&mut self, directory: PathBuf, launch: String, server: SocketAddr) {
        blocking::begin_in(&mut self.writing, move || {
            let told = |error: io::Error| {
                tracing::warn!("tools find no PMIx contact file in {}: {error}", directory.display());
            };
            directory.parent().into_iter().for_each(remove_those_of_the_dead);
            let made = TemporaryDirectory::make(directory.clone()).map_err(told).ok()?;
            if let Err(error) = write(&directory, &launch, server) {
                told(error);
            }
            Some(made)
        });
    }

    /// Waits until nothing is written any more; returns the directory that is to be removed, if there is one.
    pub(super) async fn close(&mut self) -> Option<TemporaryDirectory> {
        self.writing.join_next().await?.ok()?
    }
}

impl Runner {
    /// Lets tools find the launch's PMIx server, if there is one and it is time.
    pub(super) fn let_tools_find(&mut self) {
        if !self.contact.is_due() {
            return;
        }
        let Some(server) = self.servers.pmix_address() else { return };
        let mut directory = self.spec.rank_files().into_os_string();
        directory.push(OF_TOOLS);
        let directory = PathBuf::from(directory);
        if let Some(processes) = &self.processes {
            processes.guard_directory(&directory);
            processes.guard_directory(&self.spec.rank_files());
        }
        self.contact.write(directory, self.spec.launch_id.clone(), server);
    }
}

/// Writes one file for those who know the number of this process, and one for those who know the launch's id.
fn write(directory: &Path, launch: &str, server: SocketAddr) -> io::Result<()> {
    let host = gethostname()?.to_string_lossy().into_owned();
    // A tool takes its node's name without the domain.
    let host = host.split('.').next().unwrap_or_default();
    let (pid, user, group, now) = (process::id(), geteuid(), getegid(), unix_time::seconds());
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
        fs::create_dir(&directory).unwrap();
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
        assert!(contact.close().await.is_none());
    }
}
