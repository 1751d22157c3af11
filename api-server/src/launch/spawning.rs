//! New jobs in a launch: what `MPI_Comm_spawn` asks for is placed on the nodes whose session still runs, every one of them is
//! told, and the rank that asked is answered when all have said that their part runs, or that it does not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use lattice_session::timeouts;
use lattice_session::wire;
use pmi_core::ids::{JobId, Rank};
use pmi_core::job::Placement;
use pmi_core::services::{SpawnApp, SpawnError, SpawnRequest};
use pmi_transport::proto::v1::{App, AppSpec, Job, Pair, SpawnCall, SpawnOrder, Spawned, Variable, node_command};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::task::{Launch, Phase};
use crate::order::blocks;
use crate::placement::RANKS_MAX;
use crate::store::SpawnedJob;

/// The most spawned jobs of one launch.
const JOBS_MAX: usize = 16 * 1024;

/// The spawned jobs of a launch.
#[derive(Debug, Default)]
pub(super) struct Spawns {
    /// All of them, in order, those included that did not start.
    known: Vec<SpawnedJob>,
    open: Vec<Spawning>,
    /// What was asked for before all nodes had accepted the launch.
    early: Vec<Wanted>,
}

/// A job that a rank asks for.
#[derive(Debug)]
struct Wanted {
    /// The node of that rank.
    node: u32,
    call: SpawnCall,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<JobId, SpawnError>>;

/// A job whose nodes have not all said that their part runs.
#[derive(Debug)]
struct Spawning {
    job: JobId,
    /// The number of its first rank.
    first: u32,
    /// How many of its ranks each node starts.
    ranks: Vec<u32>,
    awaited: Vec<u32>,
    failures: Vec<(u32, String)>,
    deadline: Instant,
    reply: Reply,
}

impl Spawns {
    /// Whether no spawn is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.early.is_empty()
    }

    /// All jobs that were spawned.
    pub(super) fn known(&self) -> &[SpawnedJob] {
        &self.known
    }
}

/// A node that ranks can be spawned on.
#[derive(Clone, Copy, Debug)]
struct Host {
    node: u32,
    load: u32,
    cores: u32,
}

impl Launch {
    /// A rank of `node` wants a new job.
    pub(super) async fn on_spawn(&mut self, node: u32, call: SpawnCall, reply: Reply) {
        let wanted = Wanted { node, call, reply };
        if !matches!(self.phase, Phase::Starting(_)) {
            self.spawn(wanted).await;
        } else if self.spawns.early.len() < JOBS_MAX {
            // Ranks of a node that accepted early may be fast.
            self.spawns.early.push(wanted);
        } else {
            wanted.refuse("the launch is starting".to_owned());
        }
    }

    /// All nodes have accepted the launch.
    pub(super) async fn spawn_early(&mut self) {
        for wanted in std::mem::take(&mut self.spawns.early) {
            self.spawn(wanted).await;
        }
    }

    async fn spawn(&mut self, wanted: Wanted) {
        let (id, placement, order) = match self.spawn_order(wanted.node, &wanted.call) {
            Ok(ordered) => ordered,
            Err(reason) => return wanted.refuse(reason),
        };
        let first = self.judge.add(&placement);
        let blocks = blocks(&placement);
        self.spawns.known.push(SpawnedJob { id: id.as_str().to_owned(), blocks, runs: false });
        // A server that takes the launch up must know which ranks there are, and which job to end.
        if !self.write_course().await {
            self.judge.void(first, placement.size());
            return wanted.refuse("the API server cannot write down that there is a new job".to_owned());
        }
        self.note_state();
        // Nodes without ranks of it, too, serve ranks that talk of it. One that does not report yet hears of it when it does.
        let awaited: Vec<u32> = self.judge.live().collect();
        self.tell_all(&node_command::What::Spawn(order));
        let mut ranks = vec![0; self.nodes.len()];
        for block in placement.blocks() {
            ranks[block.first_node.index()..][..block.nodes as usize].fill(block.ranks_per_node);
        }
        let (deadline, reply) = (Instant::now() + timeouts::SPAWN, wanted.reply);
        self.spawns.open.push(Spawning { job: id, first, ranks, awaited, failures: Vec::new(), deadline, reply });
    }

    fn spawn_order(&self, node: u32, call: &SpawnCall) -> Result<(JobId, Placement, SpawnOrder), String> {
        if self.ending.is_some() || !matches!(self.phase, Phase::Active { .. }) {
            return Err("the launch is ending".to_owned());
        }
        if !self.judge.standing(node).is_live() {
            return Err("the node that asks has ended its part of the launch".to_owned());
        }
        let (parent, rank, request) = wire::call::decode_spawn(call.clone()).map_err(|error| error.to_string())?;
        let size = request.apps.iter().fold(0_u32, |size, app| size.saturating_add(app.ranks));
        if size == 0 || self.judge.size().saturating_add(size) > RANKS_MAX {
            return Err(format!("{size} more ranks were asked for; a launch has 1 to {RANKS_MAX}"));
        }
        if self.spawns.known.len() >= JOBS_MAX {
            return Err(format!("the launch has spawned {JOBS_MAX} jobs already"));
        }
        let placement = share_out(size, &self.hosts(), self.nodes.len());
        let id = format!("kvs_{}_0.s{}", self.spec.launch_id, self.spawns.known.len() + 1);
        let id = JobId::new(&id).map_err(|error| error.to_string())?;
        let order = self.order_of(&id, &parent, rank, &request, &placement)?;
        Ok((id, placement, order))
    }

    /// What all nodes are told of a spawned job.
    fn order_of(
        &self,
        id: &JobId,
        parent: &JobId,
        rank: Rank,
        request: &SpawnRequest,
        placement: &Placement,
    ) -> Result<SpawnOrder, String> {
        let text =
            |bytes: &Bytes| String::from_utf8(bytes.to_vec()).map_err(|_| "a preput pair is not text".to_owned());
        let pair = |(key, value): &(Bytes, Bytes)| Ok(Pair { key: text(key)?, value: text(value)? });
        let job = Job {
            id: id.as_str().to_owned(),
            blocks: blocks(placement),
            apps: (0..).zip(&request.apps).map(|(appnum, app)| App { ranks: app.ranks, appnum }).collect(),
            universe_size: self.spec.job.as_ref().and_then(|job| job.universe_size),
            spawner: Some(parent.as_str().to_owned()),
            preput: request.preput.iter().map(pair).collect::<Result<_, String>>()?,
        };
        let directory = self.spec.apps.first().map(|app| app.directory.clone()).unwrap_or_default();
        let apps = request.apps.iter().map(|app| app_spec(app, &directory)).collect();
        Ok(SpawnOrder { job: Some(job), apps, parent_rank: rank.0, first_shown: self.judge.size() })
    }

    fn hosts(&self) -> Vec<Host> {
        let load = self.judge.load();
        let registry = self.server.nodes.lock();
        let host = |node: u32| {
            let cores = registry.up(self.judge.host(node)).map_or(1, |told| told.cores.max(1));
            Host { node, load: load[node as usize], cores }
        };
        self.judge.live().map(host).collect()
    }

    /// A node has started its part of a spawned job, or has not.
    pub(super) fn on_spawned(&mut self, node: u32, spawned: Spawned) {
        let Some(spawning) = self.spawns.open.iter_mut().find(|spawning| spawning.job.as_str() == spawned.job_id)
        else {
            return;
        };
        if !spawning.awaited.contains(&node) {
            return;
        }
        spawning.awaited.retain(|&awaited| awaited != node);
        if !spawned.failure.is_empty() {
            spawning.failures.push((node, spawned.failure));
        }
        self.close_spawns();
    }

    /// A node that is gone starts nothing.
    pub(super) fn spawn_lost(&mut self, node: u32) {
        for spawning in self.spawns.open.iter_mut().filter(|spawning| spawning.awaited.contains(&node)) {
            spawning.awaited.retain(|&awaited| awaited != node);
            // One that had nothing to start is not missed.
            if spawning.ranks[node as usize] > 0 {
                spawning.failures.push((node, "the node has ended its part of the launch".to_owned()));
            }
        }
        self.close_spawns();
    }

    /// Gives up on nodes that take too long.
    pub(super) fn check_spawns(&mut self, now: Instant) {
        for spawning in self.spawns.open.iter_mut().filter(|spawning| now >= spawning.deadline) {
            let late = std::mem::take(&mut spawning.awaited);
            let failure =
                |node| (node, format!("the node did not say within {:?} that its ranks run", timeouts::SPAWN));
            spawning.failures.extend(late.into_iter().map(failure));
        }
        self.close_spawns();
    }

    fn close_spawns(&mut self) {
        let closed: Vec<Spawning> = self.spawns.open.extract_if(.., |spawning| spawning.awaited.is_empty()).collect();
        for spawning in closed {
            let outcome = match spawning.failures.first() {
                None => {
                    let known = self.spawns.known.iter_mut().find(|known| known.id == spawning.job.as_str());
                    known.into_iter().for_each(|known| known.runs = true);
                    self.unwritten.note();
                    Ok(spawning.job)
                }
                Some((node, failure)) => {
                    let reason = format!("{}: {failure}", self.judge.host(*node));
                    tracing::info!(job = spawning.job.as_str(), reason, "a spawned job did not start");
                    // Ranks that run already would wait for those that will never come.
                    self.disown(spawning.job.as_str(), spawning.first, spawning.ranks.iter().sum());
                    Err(SpawnError::Failed { reason })
                }
            };
            // A rank that is gone need not be told.
            let _ = spawning.reply.send(outcome);
        }
        self.release_when_idle();
    }

    /// Has what runs of a job ended everywhere. The launch goes on.
    fn disown(&mut self, job: &str, first: u32, size: u32) {
        self.judge.void(first, size);
        self.tell_all(&node_command::What::Disown(job.to_owned()));
    }

    /// Takes over the jobs that were spawned under another server. Of one that was about to start, the rank that asked was told
    /// that it did not.
    pub(super) fn resume_spawns(&mut self, known: &[SpawnedJob]) {
        for job in known {
            let Ok(placement) = wire::job::decode_blocks(&job.blocks, self.nodes.len()) else { continue };
            let first = self.judge.add(&placement);
            if !job.runs {
                self.disown(&job.id, first, placement.size());
            }
        }
        self.spawns.known = known.to_vec();
    }
}

impl Wanted {
    /// Tells the rank that asked; one that is gone need not be told.
    fn refuse(self, reason: String) {
        tracing::info!(reason, "a spawn is refused");
        let _ = self.reply.send(Err(SpawnError::Refused { reason }));
    }
}

/// Puts `size` ranks on hosts: each on the one that then has the fewest ranks for each core. Ranks of a host are neighbours.
fn share_out(size: u32, hosts: &[Host], nodes: usize) -> Placement {
    let crowd = |host: &Host| (u64::from(host.load + 1) << 20) / u64::from(host.cores);
    let mut counts = vec![0; nodes];
    let mut queue: BinaryHeap<_> =
        hosts.iter().map(|host| Reverse((crowd(host), host.node, host.load, host.cores))).collect();
    for _ in 0..size {
        let Some(Reverse((_, node, load, cores))) = queue.pop() else { break };
        counts[node as usize] += 1;
        let host = Host { node, load: load + 1, cores };
        queue.push(Reverse((crowd(&host), node, load + 1, cores)));
    }
    Placement::block(&counts)
}

/// A program of a spawn as nodes start it. It begins where the launch did, unless it was told otherwise.
fn app_spec(app: &SpawnApp, launch_directory: &[u8]) -> AppSpec {
    let hint = app.info.iter().find(|(key, _)| key == "wdir").map(|(_, value)| value);
    let directory = match app.directory.as_ref().or(hint) {
        Some(own) if own.starts_with(b"/") => own.clone(),
        Some(own) => [launch_directory, own].join(&b'/').into(),
        None => Bytes::copy_from_slice(launch_directory),
    };
    let variable = |(name, value): &(Bytes, Bytes)| Variable { name: name.clone(), value: value.clone() };
    AppSpec {
        program: app.program.clone(),
        args: app.args.clone(),
        directory,
        set: app.variables.iter().map(variable).collect(),
        remove: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::NodeIndex;

    use super::*;

    #[test]
    fn spawned_ranks_go_where_there_is_most_room() {
        let check = |size, hosts: &[(u32, u32, u32)], expected: &[usize]| {
            let host = |&(node, load, cores): &(u32, u32, u32)| Host { node, load, cores };
            let placement = share_out(size, &hosts.iter().map(host).collect::<Vec<_>>(), expected.len());
            let counts: Vec<usize> =
                (0..expected.len()).map(|node| placement.ranks_on(NodeIndex(node as u32)).len()).collect();
            assert_eq!(counts, expected);
        };
        check(4, &[(0, 1, 1), (1, 1, 1)], &[2, 2]);
        check(3, &[(0, 4, 4), (1, 0, 4)], &[0, 3]);
        check(6, &[(0, 0, 2), (2, 0, 4)], &[2, 0, 4]);
    }

    #[test]
    fn directories_are_as_the_caller_meant_them() {
        let check = |directory: Option<&'static str>, wdir: Option<&'static str>, expected: &str| {
            let app = SpawnApp {
                directory: directory.map(Bytes::from),
                info: wdir.map(|path| ("wdir".into(), path.into())).into_iter().collect(),
                ..Default::default()
            };
            assert_eq!(app_spec(&app, b"/home/me").directory, expected);
        };
        check(None, None, "/home/me");
        check(None, Some("sub"), "/home/me/sub");
        check(Some("/tmp"), Some("sub"), "/tmp");
    }
}
