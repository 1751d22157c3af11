//! The sessions of one launch on several nodes, in one process, with in-memory connections. The ranks are real processes, all on this
//! machine.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lattice_overlay::directory::SetFacts;
use lattice_session::event::{Event, Report, Stream};
use lattice_session::session_io::{AskError, Control, HostProcess, Nodes, SessionIo, StdinSource};
use lattice_session::set::{CommunicatorSource, OwnSet};
use lattice_session::settings::LaunchSettings;
use lattice_session::spawn::{SpawnOrder, SpawnParent, spawned_job};
use lattice_session::spec::{AppSpec, LaunchSecret, SessionSpec};
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, Merged};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::services::{NameError, NameRequest, Services, SpawnError, SpawnRequest};
use rank_spawner::LaunchTag;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time limit of each wait, in case of a hang.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running launch.
pub(crate) struct Cluster {
    between: Arc<Between>,
    sessions: Vec<JoinHandle<Report>>,
    happened: mpsc::UnboundedReceiver<(u32, Event)>,
    seen: Vec<(u32, Event)>,
}

/// Result of a launch: reports and events of all nodes.
pub(crate) struct Outcome {
    pub(crate) reports: Vec<Report>,
    pub(crate) events: Vec<(u32, Event)>,
}

/// Fences, names and spawns between the nodes.
struct Between {
    controls: Vec<mpsc::Sender<Control>>,
    rounds: Mutex<HashMap<(JobId, FenceId), Round>>,
    names: OwnSet,
    /// Directory with the files of the names.
    _home: TempDir,
    spawning: Mutex<HashMap<JobId, Spawning>>,
    jobs: Mutex<usize>,
    ranks: Mutex<u32>,
    launched: Job,
}

/// A spawned job that is being started.
struct Spawning {
    /// Number of nodes that have not answered.
    left: usize,
    /// The spawn call, which waits for all nodes or for the first failure.
    waiting: Option<oneshot::Sender<Option<String>>>,
}

#[derive(Default)]
struct Round {
    brought: BTreeMap<NodeIndex, Contribution>,
    waiting: Vec<oneshot::Sender<Merged>>,
}

impl Cluster {
    /// Runs `words` with `counts[i]` ranks on node `i`.
    pub(crate) fn launch(counts: &[u32], words: &[&str], adapt: impl Fn(&mut SessionSpec)) -> Self {
        let number = std::process::id() as usize * 1000 + NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let size = counts.iter().sum();
        let id = JobId::new(&format!("kvs_{number}_0")).unwrap();
        let job = Job { placement: Placement::block(counts), ..Job::on_one_node(id, size) };
        let (told, happened) = mpsc::unbounded_channel();
        let (controls, receivers): (Vec<_>, Vec<_>) = counts.iter().map(|_| mpsc::channel(16)).unzip();
        let home = tempfile::tempdir().unwrap();
        let between = Arc::new(Between {
            controls,
            rounds: Mutex::default(),
            names: OwnSet::new(Some(home.path().join("sets")), SetFacts::default()),
            _home: home,
            spawning: Mutex::default(),
            jobs: Mutex::new(0),
            ranks: Mutex::new(size),
            launched: job.clone(),
        });
        let sessions = (0..).map(NodeIndex).zip(receivers).map(|(node, control)| {
            let mut spec = spec(number, node, &job, counts.len(), words);
            adapt(&mut spec);
            let (events, mut taken) = mpsc::channel(64);
            let io = SessionIo {
                set: None,
                communicators: CommunicatorSource::default(),
                nodes: Arc::new(Way { node, between: Arc::clone(&between) }),
                services: Arc::new(Host { between: Arc::clone(&between) }),
                events,
                alarm: None,
                control,
                stdin: StdinSource::Empty,
                trace: None,
                tag: LaunchTag::new(JobId::new(&spec.launch_id).unwrap()),
                fabric: None,
                topology_in_environment: false,
                keeper: None,
                process: HostProcess::Shared,
                cgroup: None,
                spawner: None,
            };
            let (told, host) = (told.clone(), Arc::clone(&between));
            tokio::spawn(async move {
                while let Some(event) = taken.recv().await {
                    if let Event::Spawned { job, failure } = &event {
                        host.count_part(job, failure.clone());
                    }
                    // Fails after a failed test.
                    let _ = told.send((node.0, event));
                }
            });
            tokio::spawn(lattice_session::run(spec, io))
        });
        Self { sessions: sessions.collect(), between, happened, seen: Vec::new() }
    }

    /// Sends a request to one node's session.
    pub(crate) async fn ask(&self, node: usize, control: Control) {
        self.between.controls[node].send(control).await.expect("the session has ended");
    }

    /// Waits for an event that `wanted` accepts, and returns the result of `wanted`.
    pub(crate) async fn wait_for<T>(&mut self, mut wanted: impl FnMut(u32, &Event) -> Option<T>) -> T {
        loop {
            let next = tokio::time::timeout(DEADLINE, self.happened.recv()).await;
            let (node, event) =
                next.unwrap_or_else(|_| panic!("never came; seen: {:#?}", self.seen)).expect("all have ended");
            let found = wanted(node, &event);
            self.seen.push((node, event));
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Waits until every session has ended.
    pub(crate) async fn finish(mut self) -> Outcome {
        let mut reports = Vec::new();
        let end = Instant::now() + DEADLINE;
        self.between.release_after(&self.seen);
        for session in &mut self.sessions {
            let report = loop {
                tokio::select! {
                    report = &mut *session => break report.unwrap(),
                    Some(happened) = self.happened.recv() => {
                        self.seen.push(happened);
                        self.between.release_after(&self.seen);
                    }
                    () = tokio::time::sleep_until(end) => panic!("a session does not end: {:#?}", self.seen),
                }
            };
            reports.push(report);
        }
        drop(self.between);
        while let Some(happened) = self.happened.recv().await {
            self.seen.push(happened);
        }
        Outcome { reports, events: self.seen }
    }
}

static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl Outcome {
    /// Returns the standard output of all ranks as sorted lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut outputs: BTreeMap<Rank, Vec<u8>> = BTreeMap::new();
        for (_, event) in &self.events {
            if let Event::Output(output) = event
                && output.stream == Stream::Stdout
            {
                outputs.entry(output.rank).or_default().extend_from_slice(&output.bytes);
            }
        }
        let texts = outputs.into_values().map(|bytes| String::from_utf8(bytes).unwrap());
        let mut lines: Vec<String> =
            texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.sort_unstable();
        lines
    }

    /// Checks that no failure occurred and that the ranks printed these lines.
    #[track_caller]
    pub(crate) fn printed(&self, lines: impl IntoIterator<Item = String>) {
        for report in &self.reports {
            assert_eq!(report.cause, None, "{:#?}", self.events);
            assert!(report.exits.iter().all(|(_, exit)| exit.is_success()), "{:#?}", self.events);
        }
        let mut lines: Vec<String> = lines.into_iter().collect();
        lines.sort_unstable();
        assert_eq!(self.lines(), lines, "{:#?}", self.events);
    }
}

fn spec(number: usize, node: NodeIndex, job: &Job, nodes: usize, words: &[&str]) -> SessionSpec {
    let environment = std::env::vars_os().chain([
        // The other nodes are on this machine, and ranks must not use shared memory to reach them.
        ("OMPI_MCA_btl".into(), "self,tcp".into()),
        ("OMPI_MCA_pml".into(), "ob1".into()),
        ("OMPI_MCA_btl_tcp_if_include".into(), "lo".into()),
        ("OMPI_MCA_rmaps_base_oversubscribe".into(), "1".into()),
        ("FI_PROVIDER".into(), "tcp".into()),
        ("FI_TCP_IFACE".into(), "lo".into()),
    ]);
    let app = AppSpec {
        program: words[0].into(),
        args: words[1..].iter().map(OsString::from).collect(),
        directory: Path::new("/tmp").to_owned(),
        set: Vec::new(),
        remove: Vec::new(),
        process_set: None,
    };
    SessionSpec {
        // Each node searches all processes of this machine for its own, so each launch id is different.
        launch_id: format!("{number}.{node}"),
        allocation_id: Some("a1".to_owned()),
        job: job.clone(),
        node,
        hosts: (0..nodes).map(|node| format!("n{node}")).collect(),
        addresses: (0..nodes).map(|_| "127.0.0.1:1".to_owned()).collect(),
        secret: LaunchSecret::from_bytes([0x42; LaunchSecret::LEN]),
        apps: vec![app],
        settings: LaunchSettings { environment: environment.collect(), ..LaunchSettings::default() },
    }
}

/// Connection of one node to the other nodes.
struct Way {
    node: NodeIndex,
    between: Arc<Between>,
}

#[async_trait::async_trait]
impl Nodes for Way {
    fn fence(&self, job: &Job) -> Arc<dyn Fence> {
        let nodes = (0..job.placement.nodes()).map(NodeIndex);
        let members = nodes.filter(|&node| !job.placement.ranks_on(node).is_empty()).collect();
        Arc::new(JobFence { node: self.node, job: job.id.clone(), members, between: Arc::clone(&self.between) })
    }

    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        let (reply, answer) = oneshot::channel();
        let unanswered = |reason: &str| AskError { node, reason: reason.to_owned() };
        let asked = self.between.controls[node.index()].send(Control::Question { question, reply }).await;
        asked.map_err(|_| unanswered("it has ended"))?;
        answer.await.map_err(|_| unanswered("it has ended"))?.map_err(|reason| unanswered(&reason))
    }
}

struct JobFence {
    node: NodeIndex,
    job: JobId,
    members: Vec<NodeIndex>,
    between: Arc<Between>,
}

#[async_trait::async_trait]
impl Fence for JobFence {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let members = id.scope.members(&self.members);
        let (leave, left) = oneshot::channel();
        {
            let mut rounds = self.between.rounds.lock().unwrap();
            let key = (self.job.clone(), id.clone());
            let round = rounds.entry(key.clone()).or_default();
            assert!(members.contains(&self.node), "{} takes no part in {id:?}", self.node);
            assert!(round.brought.insert(self.node, contribution).is_none(), "{} comes twice to {id:?}", self.node);
            round.waiting.push(leave);
            if round.brought.len() == members.len() {
                let Round { brought, waiting } = rounds.remove(&key).unwrap();
                let merged: Merged =
                    brought.into_values().flat_map(|brought| brought.segments).collect::<Vec<_>>().into();
                // Fails for a node that has ended.
                waiting.into_iter().for_each(|waiting| drop(waiting.send(merged.clone())));
            }
        }
        let lost =
            || FenceError::NodeLost { node: NodeIndex(1), epoch: id.epoch, reason: "its cable was cut".to_owned() };
        left.await.map_err(|_| lost())
    }
}

impl Cluster {
    /// Fails all open fences, like the loss of node 1.
    pub(crate) fn cut_off_node_1(&self) {
        self.between.rounds.lock().unwrap().clear();
    }
}

/// Services of the API server, for all nodes.
struct Host {
    between: Arc<Between>,
}

#[async_trait::async_trait]
impl Services for Host {
    async fn name(&self, request: NameRequest) -> Result<Bytes, NameError> {
        self.between.names.name(request).await
    }

    fn starts_jobs(&self) -> bool {
        true
    }

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        let between = &self.between;
        let order = between.order(rank, &request);
        let (answer, answered) = oneshot::channel();
        let id = order.job.id.clone();
        between
            .spawning
            .lock()
            .unwrap()
            .insert(id.clone(), Spawning { left: between.controls.len(), waiting: Some(answer) });
        for control in &between.controls {
            let refused = |_| SpawnError::Refused { reason: "a node has ended".to_owned() };
            control.send(Control::Spawn(order.clone())).await.map_err(refused)?;
        }
        let Some(reason) = answered.await.expect("a part was not answered") else { return Ok(id) };
        for control in &between.controls {
            // A session that has ended has no job to disown.
            let _ = control.send(Control::Disown(id.clone())).await;
        }
        Err(SpawnError::Failed { reason })
    }
}

impl Between {
    /// Places one rank per node in turn, starting with the last node.
    fn order(&self, parent_rank: Rank, request: &SpawnRequest) -> SpawnOrder {
        let number = {
            let mut jobs = self.jobs.lock().unwrap();
            *jobs += 1;
            *jobs
        };
        let size: u32 = request.apps.iter().map(|app| app.ranks).sum();
        let nodes = self.controls.len() as u32;
        let mut placement = Placement::default();
        for rank in 0..size {
            let first_node = NodeIndex((nodes - 1 + rank) % nodes);
            placement.push(pmi_core::job::Block { first_node, nodes: 1, ranks_per_node: 1 });
        }
        let mut ranks = self.ranks.lock().unwrap();
        let job = request.parent.as_ref().expect("the session tells the parent's job");
        let launched = &self.launched.id;
        let directory = Path::new("/tmp");
        let parent = SpawnParent { launched, ranks: *ranks, universe_size: None, job, rank: parent_rank, directory };
        *ranks += size;
        spawned_job(&parent, number, request).unwrap().on(&[], |_| placement).unwrap()
    }

    /// Releases all nodes when every started rank has exited, like an API server.
    fn release_after(&self, seen: &[(u32, Event)]) {
        let started = seen.iter().filter(|(_, event)| matches!(event, Event::Started { .. })).count();
        let exited = seen.iter().filter(|(_, event)| matches!(event, Event::Exited { .. })).count();
        if started >= self.launched.size() as usize && exited == started {
            for control in &self.controls {
                // Fails for a node that was not needed and has ended by itself.
                let _ = control.try_send(Control::Release);
            }
        }
    }

    fn count_part(&self, job: &JobId, failure: Option<String>) {
        let mut spawning = self.spawning.lock().unwrap();
        let Some(Spawning { left, waiting }) = spawning.get_mut(job) else { return };
        *left -= 1;
        if (failure.is_some() || *left == 0)
            && let Some(waiting) = waiting.take()
        {
            let _ = waiting.send(failure);
        }
    }
}
