//! The session spec: everything that one node must know to run its part of a launch, as plain data.
//!
//! Last of the stages that [`crate::request`] draws. Descriptors, channels and the way to other nodes are in
//! `SessionIo`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Job;
use rank_spawner::CpuBind;
use serde::{Deserialize, Serialize};

use crate::random;
use crate::template::Template;

/// One launch on one node.
#[derive(Clone, Debug)]
pub struct SessionSpec {
    /// The launch's id, unique on this machine: `LATTICE_LAUNCH_ID` in every rank.
    pub launch_id: String,
    /// The allocation that the launch runs in; `None` for a launch without one.
    pub allocation_id: Option<String>,
    /// The ranks of the whole job, and where they sit.
    pub job: Job,
    /// Which of the job's nodes this is.
    pub node: NodeIndex,
    /// The names of the job's nodes, by node index.
    pub hosts: Vec<String>,
    /// The address by which other nodes reach this one; `None` where there are no others.
    pub address: Option<String>,
    /// Secret of the launch, the same on all nodes.
    pub secret: LaunchSecret,
    /// The programs, in the order of `job.apps`.
    pub apps: Vec<AppSpec>,
    /// The environment that every rank starts from; an outer launcher's variables are scrubbed from it.
    pub environment: Vec<(OsString, OsString)>,
    /// Which PMI the ranks are served, and how they reach it.
    pub pmi: PmiSpec,
    /// Also set `SLURM_PROCID`, `SLURM_NPROCS`, `SLURM_LOCALID` and `SLURM_NODELIST`.
    pub slurm_environment: bool,
    /// Which CPUs each rank may use.
    pub cpu_bind: CpuBind,
    /// Which ranks read the launch's standard input.
    pub stdin: StdinTarget,
    /// How long the session waits for what.
    pub timeouts: Timeouts,
}

impl SessionSpec {
    /// The name of a node of the launch.
    pub fn host(&self, node: NodeIndex) -> &str {
        self.hosts.get(node.index()).map_or("localhost", String::as_str)
    }

    /// The directory that ranks are told for files of theirs. They make it if they need it; the session removes it.
    pub fn rank_files(&self) -> PathBuf {
        let variable =
            self.environment.iter().find(|(name, _)| name == "TMPDIR").map(|(_, value)| PathBuf::from(value));
        let directory = variable.filter(|directory| directory.is_absolute()).unwrap_or_else(|| "/tmp".into());
        directory.join(format!("lattice-{}.{}", self.launch_id, self.node))
    }
}

/// 128 random bits: who knows them may claim a rank of the job.
#[derive(Clone, PartialEq, Eq)]
pub struct LaunchSecret([u8; Self::LEN]);

impl LaunchSecret {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// A new secret.
    ///
    /// # Errors
    /// Fails if the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        random::bytes().map(Self)
    }

    /// The secret of these bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for messages to nodes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// The secret itself, in hexadecimal, as names of its servers hold it.
impl fmt::Display for LaunchSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Nothing of the secret, so that it reaches no log.
impl fmt::Debug for LaunchSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaunchSecret")
    }
}

/// One program of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSpec {
    /// The program: a path, or a name that is looked up in `PATH`.
    pub program: OsString,
    /// The arguments after the program name.
    pub args: Vec<OsString>,
    /// The directory that its ranks start in.
    pub directory: PathBuf,
    /// Variables to set in its ranks, on top of the session's environment.
    pub set: Vec<(OsString, OsString)>,
    /// Names of variables to take out of the session's environment; `*` at the end stands for any rest.
    pub remove: Vec<String>,
}

/// How the ranks are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PmiSpec {
    /// Which protocols are spoken.
    pub family: PmiFamily,
    /// How a rank reaches its server.
    pub entrance: Entrance,
    /// Offer PMI-1.2 and its group barriers to clients that ask for 1.1.
    pub group_barriers: bool,
}

/// The protocols that a launch serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PmiFamily {
    /// Whatever each rank speaks.
    #[default]
    Auto,
    /// PMI-1 only.
    Pmi1,
    /// PMI-2 only.
    Pmi2,
    /// PMIx only.
    Pmix,
    /// No PMI at all: the ranks are independent programs.
    None,
}

impl PmiFamily {
    /// Whether PMI-1 or PMI-2 is served.
    pub fn has_pmi(self) -> bool {
        matches!(self, Self::Auto | Self::Pmi1 | Self::Pmi2)
    }

    /// Whether PMIx is served.
    pub fn has_pmix(self) -> bool {
        matches!(self, Self::Auto | Self::Pmix)
    }
}

/// The way from a rank to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entrance {
    /// An inherited socket (`PMI_FD`): the rank's identity is the socket itself.
    #[default]
    Socket,
    /// A loopback TCP port (`PMI_PORT`, `PMI_ID`), for container runtimes that close inherited descriptors.
    Port,
}

/// Which ranks read the launch's standard input; all others read an empty file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StdinTarget {
    /// No rank.
    None,
    /// One rank.
    Rank(Rank),
    /// Every rank reads a copy.
    All,
    /// Every rank opens the file of this name by itself.
    File(Template),
}

/// How long the session waits before it speaks up or acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A rank of a job of several ranks that ran this long without a word to its server is reported.
    pub silent: Duration,
    /// A start-up that is not complete after this time is reported, with the ranks that are missing.
    pub stuck: Duration,
    /// From SIGTERM to SIGKILL after a rank failed or aborted.
    pub grace_after_failure: Duration,
    /// From SIGTERM to SIGKILL when the user ends the launch.
    pub grace_after_interrupt: Duration,
    /// The beginning of a line that a rank paused in for this long is passed on: somebody may be waiting for a prompt. `None` waits
    /// for the line end, so that no line is ever cut.
    pub prompt: Option<Duration>,
    /// The launch ends when ranks have waited in a fence for this long; `None` lets them wait.
    pub fence: Option<Duration>,
    /// The launch ends when it has run this long; `None` lets it run.
    pub time_limit: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            silent: Duration::from_secs(5),
            stuck: Duration::from_secs(30),
            grace_after_failure: Duration::from_millis(400),
            grace_after_interrupt: Duration::from_secs(5),
            prompt: None,
            fence: None,
            time_limit: None,
        }
    }
}
