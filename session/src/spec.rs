//! The session spec: all information that one node needs to run its part of a launch, as plain data.
//!
//! Last of the stages in [`crate::request`]. Descriptors, channels and the connection to other nodes are in `SessionIo`.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::Job;
use ring::hmac;

use crate::process_set::ProcessSetName;
use crate::random;
use crate::settings::{LaunchSettings, TemporaryFiles};

/// One launch on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSpec {
    /// The launch's id, unique on this machine: `LATTICE_LAUNCH_ID` in every rank.
    pub launch_id: String,
    /// The allocation that the launch runs in; `None` for a launch without one.
    pub allocation_id: Option<String>,
    /// The ranks of the whole job, and their places.
    pub job: Job,
    /// Index of this node among the job's nodes.
    pub node: NodeIndex,
    /// The names of the job's nodes, by node index.
    pub hosts: Vec<String>,
    /// The addresses of the launch's nodes as `host:port`, by node index; empty if there is only one node.
    pub addresses: Vec<String>,
    /// Secret of the launch, the same on all nodes.
    pub secret: LaunchSecret,
    /// The programs, in the order of `job.apps`.
    pub apps: Vec<AppSpec>,
    /// Settings for every rank.
    pub settings: LaunchSettings,
}

/// Suffix of the directory for temporary files of a session's ranks, after the name of the session's directory.
pub(crate) const TEMPORARY_END: &str = ".tmp";

impl SessionSpec {
    /// A launch on this node alone: `ranks` ranks of one program, in the environment and the directory of this process. Every field can be
    /// changed.
    ///
    /// # Errors
    /// Fails if the directory of this process is unknown, or the system has no random bytes.
    pub fn on_one_node(ranks: u32, program: OsString, args: Vec<OsString>) -> io::Result<Self> {
        let launch_id = random::id()?;
        let job = JobId::new(&format!("kvs_{launch_id}_0")).map_err(io::Error::other)?;
        let directory = env::current_dir()?;
        let app = AppSpec { program, args, directory, set: Vec::new(), remove: Vec::new(), process_set: None };
        Ok(Self {
            launch_id,
            allocation_id: None,
            job: Job::on_one_node(job, ranks),
            node: NodeIndex(0),
            hosts: vec!["localhost".to_owned()],
            addresses: Vec::new(),
            secret: LaunchSecret::random()?,
            apps: vec![app],
            settings: LaunchSettings { environment: env::vars_os().collect(), ..LaunchSettings::default() },
        })
    }

    /// Returns the name of a node of the launch.
    pub fn host(&self, node: NodeIndex) -> &str {
        self.hosts.get(node.index()).map_or("localhost", String::as_str)
    }

    /// Returns the program of a rank of the job; `None` for a rank outside of the job.
    pub(crate) fn app_of(&self, rank: Rank) -> Option<&AppSpec> {
        self.apps.get(self.job.app_index(rank)?)
    }

    /// Returns the host by which other nodes reach this one; `None` if there are no other nodes.
    pub fn address(&self) -> Option<&str> {
        self.address_of(self.node)
    }

    /// Returns the host by which nodes reach a node of the launch; `None` if there is only one node.
    pub fn address_of(&self, node: NodeIndex) -> Option<&str> {
        let address = self.addresses.get(node.index())?;
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        Some(host.trim_start_matches('[').trim_end_matches(']'))
    }

    /// Returns the directory for files of this node's part of the launch. The session makes it before the first rank, and removes it.
    pub(crate) fn session_directory(&self) -> PathBuf {
        self.usual_temporary().join(self.directory_name())
    }

    /// Returns the directory for files of ranks, in the directory of the session. Ranks make it if they need it.
    pub fn rank_files(&self) -> PathBuf {
        self.session_directory().join("ranks")
    }

    /// Returns the directory for temporary files of all ranks, which the session makes and removes; `None` if none was requested.
    pub fn temporary_directory(&self) -> Option<PathBuf> {
        match &self.settings.temporary {
            TemporaryFiles::AsUsual => None,
            TemporaryFiles::OfLaunch { below } => {
                let below = below.clone().unwrap_or_else(|| self.usual_temporary());
                Some(below.join(self.directory_name() + TEMPORARY_END))
            }
        }
    }

    /// Returns the name of a directory of this node's part of the launch. Its end is derived from the secret, so that users with only the
    /// launch's id cannot guess it.
    pub(crate) fn directory_name(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        let tag = hmac::sign(&key, b"directories");
        let random: String = tag.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("lattice-{}.{}-{random}", self.launch_id, self.node)
    }

    fn usual_temporary(&self) -> PathBuf {
        let variable = self.settings.environment.iter().find(|(name, _)| name == "TMPDIR");
        let directory = variable.map(|(_, value)| PathBuf::from(value)).filter(|directory| directory.is_absolute());
        directory.unwrap_or_else(|| "/tmp".into())
    }
}

/// 128 random bits. A process that has them may claim a rank of the job.
#[derive(Clone, PartialEq, Eq)]
pub struct LaunchSecret([u8; Self::LEN]);

impl LaunchSecret {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Returns a new secret.
    ///
    /// # Errors
    /// Fails if the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        random::bytes().map(Self)
    }

    /// Returns the secret with these bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes, for messages to nodes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// The secret itself, in hexadecimal, as in the names of its servers.
impl fmt::Display for LaunchSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// No part of the secret, so that it reaches no log.
impl fmt::Debug for LaunchSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaunchSecret")
    }
}

/// One program of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSpec {
    /// The program: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// The arguments after the program name.
    pub args: Vec<OsString>,
    /// The directory in which its ranks start.
    pub directory: PathBuf,
    /// Variables to set in its ranks, in addition to the session's environment. Their values may contain names of [`crate::rank_values`].
    pub set: Vec<(OsString, OsString)>,
    /// Names of variables to remove from the session's environment; `*` at the end matches any rest.
    pub remove: Vec<String>,
    /// Process set name of its ranks.
    pub process_set: Option<ProcessSetName>,
}

impl AppSpec {
    /// Returns this program as a rank of `parent` spawns it. It inherits the variables of the parent and its own variables override them, as
    /// with `-genv` under Hydra. Variables that were removed from the parent are removed from it as well.
    pub(crate) fn inheriting(self, parent: &Self) -> Self {
        let set = parent.set.iter().cloned().chain(self.set).collect();
        let remove = parent.remove.iter().cloned().chain(self.remove).collect();
        Self { set, remove, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// The id of a launch is in names of sockets, which every user can list.
    #[test]
    fn names_of_directories_cannot_be_guessed_from_the_id_of_a_launch() {
        let one = sample::spec(1);
        assert_eq!(one.directory_name(), sample::spec(1).directory_name(), "parts of a session agree on it");
        let other = SessionSpec { secret: LaunchSecret::from_bytes([8; LaunchSecret::LEN]), ..(*one).clone() };
        assert_ne!(one.directory_name(), other.directory_name());
        let begin = format!("lattice-{}.0-", one.launch_id);
        assert_eq!(one.directory_name().strip_prefix(&begin).map(str::len), Some(12));
    }
}
