//! Nodes that join the cluster. Their agents are started, with a limit on concurrent starts, and monitored until all nodes have joined.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lattice_console::report;
use lattice_session::random;
use rank_spawner::{LaunchTag, OwnDirectory};
use tokio::time::Instant;

use super::ViaError;
use super::head::Head;
use super::means::{Means, MembershipTransport, Reach};
use super::nodes::Nodes;
use crate::ground::{DaemonError, Daemons, Ground, PrivateClusterError, Role, said};

/// Maximum number of concurrent programs that start one agent each.
const AT_ONCE: usize = 32;
/// Time after which missing nodes are reported.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of programs for which output is shown if nodes are missing.
const SHOWN: usize = 4;
/// Name of the file with the membership of all nodes.
const MEMBERSHIP: &str = "membership";
/// Time to collect further failures, after a program has ended or is late.
const GATHER: Duration = Duration::from_secs(1);

/// Nodes did not join.
#[derive(Debug, thiserror::Error)]
#[error("{} of {all} nodes did not join: {}\n{}{}", missing.len(), hostlist::fold(missing), said.join("\n"), instead(*.job_variable, starter, missing))]
pub struct JoiningError {
    /// Names of the missing nodes.
    missing: Vec<String>,
    /// Number of all nodes.
    all: usize,
    /// Output of the programs that should have started agents on the missing nodes.
    said: Vec<String>,
    /// Variable by which these programs find the manager's job; `None` without a manager.
    job_variable: Option<&'static str>,
    /// Name of these programs.
    starter: String,
}

/// Suggested command if the job is over and only its variables are left, or if a node is unreachable.
fn instead(job_variable: Option<&str>, starter: &str, missing: &[String]) -> String {
    match (job_variable, missing) {
        (Some(name), _) => {
            format!("\ntry: unset {name}, if the job that it names is over; or --via none, for this machine alone")
        }
        (None, [node, ..]) if starter == "ssh" => {
            format!(
                "\ntry: ssh {node} true, which must work without a question; or --host with nodes for which it does"
            )
        }
        (None, _) => format!("\ntry: {starter}, as --via has it, by hand; or --host with nodes that it reaches"),
    }
}

/// Agents of a cluster that are starting.
pub(super) struct Joining<'a> {
    means: &'a Means,
    all: &'a [String],
    agent: &'a Path,
    head: &'a Head,
    ground: &'a Ground,
    /// Groups of nodes for which no program is started yet. Each group takes one program.
    waiting: VecDeque<Vec<String>>,
    /// Deadline and name of the program that starts an agent on a node, by node.
    started: HashMap<String, (Instant, String)>,
    /// Time at which a program was found to have ended too early, or to be late.
    failing: Option<Instant>,
    /// Directory of the membership file, if the agents have no input.
    file: Option<OwnDirectory>,
    /// Time at which missing nodes are reported; `None` after the report.
    tell_at: Option<Instant>,
}

impl<'a> Joining<'a> {
    /// No agent is started yet.
    pub(super) fn new(means: &'a Means, nodes: &'a Nodes, agent: &'a Path, head: &'a Head, ground: &'a Ground) -> Self {
        let all = &nodes.names[..];
        let waiting = match means.reach {
            Reach::All => VecDeque::from([all.to_vec()]),
            Reach::Each => all.iter().map(|node| vec![node.clone()]).collect(),
        };
        Self {
            means,
            all,
            agent,
            head,
            ground,
            waiting,
            started: HashMap::new(),
            failing: None,
            file: None,
            tell_at: Some(Instant::now() + TELL_AFTER),
        }
    }

    /// Starts further agents. `up` has the names of the nodes that are up. Gives up if a node can no longer join.
    ///
    /// # Errors
    /// Fails with the names of missing nodes if a program has ended before its node joined, or if a node is late.
    pub(super) fn look(&mut self, up: &[String], daemons: &mut Daemons<'_>) -> Result<(), ViaError> {
        let up: HashSet<&String> = up.iter().collect();
        self.started.retain(|node, _| !up.contains(node));
        let on_their_way: HashSet<String> = self.started.values().map(|(_, program)| program.clone()).collect();
        let now = Instant::now();
        let is_late = || self.started.values().any(|(deadline, _)| now > *deadline);
        if self.failing.is_none() && (is_late() || on_their_way.iter().any(|program| daemons.end_of(program).is_some()))
        {
            self.failing = Some(now);
        }
        if self.failing.is_some_and(|since| now > since + GATHER) {
            return Err(self.failure(daemons).into());
        }
        daemons.check_heads().map_err(PrivateClusterError::from)?;
        if self.tell_at.is_some_and(|at| now > at) {
            self.tell_at = None;
            let missing: Vec<String> = self.all.iter().filter(|node| !up.contains(node)).cloned().collect();
            let heading =
                format!("waits for {} of {} nodes: {}", missing.len(), self.all.len(), hostlist::fold(&missing));
            report(&[vec![heading], self.said(&missing, daemons)].concat().join("\n"));
        }
        let port = self.head.port()?;
        if self.means.telling == MembershipTransport::File && self.file.is_none() {
            let Some(port) = port else { return Ok(()) };
            self.file = Some(self.write_for_all(port)?);
        }
        let room = AT_ONCE.saturating_sub(on_their_way.len());
        let next: Vec<_> = self.waiting.drain(..room.min(self.waiting.len())).collect();
        next.into_iter().try_for_each(|nodes| self.start(&nodes, daemons))
    }

    /// Starts the program that starts the agents of these nodes.
    fn start(&mut self, nodes: &[String], daemons: &mut Daemons<'_>) -> Result<(), ViaError> {
        // The keeper kills processes with the tag of the cluster. A killed agent could not end its ranks, and agents end without it.
        let mut agent = ["env", "-u", LaunchTag::VARIABLE].map(str::to_owned).to_vec();
        agent.extend([self.agent.to_string_lossy().into_owned(), "join".to_owned()]);
        let name = match (self.means.reach, nodes) {
            (Reach::Each, [node]) => {
                agent.extend(["--node".to_owned(), node.clone()]);
                format!("agent-{node}")
            }
            _ => "agents".to_owned(),
        };
        let started = match &self.file {
            Some(file) => {
                agent.extend(["--from".to_owned(), file.path().join(MEMBERSHIP).to_string_lossy().into_owned()]);
                let command = self.means.command(nodes, self.agent, &agent);
                daemons.start((&name, Role::Agent), command, &self.ground.directory, Command::spawn)
            }
            None => {
                let input = self.head.when_it_listens(self.head.invitation(nodes, self.means)?);
                daemons.start_fed(&name, self.means.command(nodes, self.agent, &agent), &self.ground.directory, input)
            }
        };
        started.map_err(|error| match error {
            DaemonError::Start { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                ViaError::NoProgram { program: self.means.program().to_owned() }
            }
            error => PrivateClusterError::from(error).into(),
        })?;
        let deadline = Instant::now() + self.means.patience;
        self.started.extend(nodes.iter().map(|node| (node.clone(), (deadline, name.clone()))));
        Ok(())
    }

    /// Writes the file for all nodes, in its own directory below the home directory.
    fn write_for_all(&self, port: u16) -> Result<OwnDirectory, ViaError> {
        let line = self.head.invitation(self.all, self.means)?.at(port);
        let failed = |error| PrivateClusterError::Files { directory: home(), error };
        let path = home().join(format!(".lattice-join-{}", random::id().map_err(failed)?));
        let directory = OwnDirectory::make(path, 0o700).map_err(failed)?;
        let guarded = self.ground.guard_directory(&directory);
        match guarded.and_then(|()| directory.create_file(MEMBERSHIP)?.write_all(line.as_bytes())) {
            Ok(()) => Ok(directory),
            Err(error) => {
                // The directory is empty, or has a part of that file.
                let _ = directory.remove();
                Err(failed(error).into())
            }
        }
    }

    /// Error with the nodes for which the program has ended or is late. The remaining nodes are still starting.
    fn failure(&self, daemons: &mut Daemons<'_>) -> JoiningError {
        let now = Instant::now();
        let mut fails = |node: &&String| {
            self.started
                .get(*node)
                .is_some_and(|(deadline, program)| now > *deadline || daemons.end_of(program).is_some())
        };
        let missing: Vec<String> = self.all.iter().filter(|node| fails(node)).cloned().collect();
        let said = self.said(&missing, daemons);
        let starter = self.means.program().to_owned();
        JoiningError { said, missing, all: self.all.len(), job_variable: self.means.job_variable, starter }
    }

    /// Last output of the programs that start agents on these nodes; of at most [`SHOWN`] programs.
    fn said(&self, missing: &[String], daemons: &mut Daemons<'_>) -> Vec<String> {
        let mut told = HashSet::new();
        let programs = missing.iter().filter_map(|node| Some((node, &self.started.get(node)?.1)));
        let programs = programs.filter(|(_, program)| told.insert(*program)).take(SHOWN);
        let said_by = |(node, program): (&String, &String)| {
            let place = match self.means.reach {
                Reach::Each => format!("{} for {node}", self.means.program()),
                Reach::All => self.means.program().to_owned(),
            };
            let log = daemons.last_lines_of(program);
            match daemons.end_of(program) {
                Some(status) => format!("{place} ended ({status}); {}", said(&log)),
                None => format!("{place} runs; {}", said(&log)),
            }
        };
        programs.map(said_by).collect()
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if let Some(directory) = self.file.take() {
            // If this fails, no other user can read the file.
            let _ = directory.remove();
        }
    }
}

/// The user's home directory, which all nodes share.
fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| "/".into())
}
