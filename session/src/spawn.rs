//! Spawned jobs (`MPI_Comm_spawn`): one function converts a rank's request to a job, its programs and its name.
//!
//! A launch on one machine is a cluster of one node, so both cases use this function. The API server places a [`SpawnedJob`] on several nodes. A
//! session without an API server places it on its own node. Both send the [`SpawnOrder`] to the sessions. Placement and the start of ranks are
//! not decided here.
//!
//! ```text
//! SpawnRequest ──spawned_job──> SpawnedJob ──on(nodes)──> SpawnOrder ──> each session of the launch
//! ```

mod hints;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pmi_core::ids::{JobId, JobIdError, NodeIndex, Rank};
use pmi_core::job::{App, Block, Job, Placement};
use pmi_core::services::{SpawnApp, SpawnError, SpawnRequest};
use pmi_core::wire::{PairError, check_preput};
use rank_spawner::CpuBind;

use self::hints::WishedHost;
pub(crate) use self::hints::{hosts_of_files, names_files};
use crate::limits::{JOBS_MAX, NODE_RANKS_MAX, RANKS_MAX};
use crate::spec::AppSpec;

/// Host name by which ranks can request their own node.
pub const LOCALHOST: &str = "localhost";

/// The rank that requests a new job, and its launch.
#[derive(Clone, Copy, Debug)]
pub struct SpawnParent<'a> {
    /// Id of the job that the launch began with. Ids of spawned jobs are derived from it.
    pub launched: &'a JobId,
    /// Number of ranks that the launch has had so far. The displayed numbers of the new ranks continue from there.
    pub ranks: u32,
    /// `MPI_UNIVERSE_SIZE` of the launch; spawned jobs get the same value.
    pub universe_size: Option<u32>,
    /// Id of the requesting rank's job.
    pub job: &'a JobId,
    /// The requesting rank, by its number in that job.
    pub rank: Rank,
    /// Directory in which programs start by default, and base of relative names.
    pub directory: &'a Path,
}

/// Reason why a spawn is refused. The requesting rank's job continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnRefusal {
    /// The request has no program, or no rank of any program.
    #[error("no rank was asked for")]
    NoRanks,
    /// The launch would have too many ranks.
    #[error("{asked} more ranks were asked for; a launch has up to {RANKS_MAX}, and {there} already")]
    LaunchRanks {
        /// Number of requested ranks.
        asked: u64,
        /// Number of ranks of the launch.
        there: u32,
    },
    /// The node would have too many ranks of the launch.
    #[error("{asked} more ranks were asked for; a node has up to {NODE_RANKS_MAX} of a launch, and {there} already")]
    NodeRanks {
        /// Number of requested ranks on this node.
        asked: usize,
        /// Number of ranks of the launch on this node.
        there: usize,
    },
    /// The launch has had the maximum number of jobs.
    #[error("a launch has up to {JOBS_MAX} jobs")]
    Jobs,
    /// The text is no list of hosts.
    #[error("the hosts are {text:?}; HOST, HOST:RANKS and lists of them such as node[0-3]:2 are possible")]
    Hosts {
        /// The text.
        text: String,
    },
    /// None of the listed numbers of ranks is possible.
    #[error(
        "soft is {text:?}, which has no number from 1 to the {asked} ranks that are asked for; N, FIRST:LAST and FIRST:LAST:STEP are possible"
    )]
    Soft {
        /// The text.
        text: String,
        /// Number of requested ranks.
        asked: u32,
    },
    /// A hostfile cannot be used.
    #[error("the hostfile {path}: {reason}")]
    Hostfile {
        /// Its path, as passed by the rank.
        path: String,
        /// Description of the reason.
        reason: String,
    },
    /// A host does not belong to the launch.
    #[error("host {name} is none of the launch, which runs on {there}")]
    NoSuchHost {
        /// The host.
        name: String,
        /// Hosts of the launch.
        there: String,
    },
    /// A preput pair is not UTF-8.
    #[error("a preput pair is not text")]
    Preput,
    /// A preput pair cannot be passed to ranks.
    #[error("a preput pair has {0}")]
    PreputLength(#[from] PairError),
    /// The new job's name is invalid.
    #[error(transparent)]
    Name(#[from] JobIdError),
    /// The session already has a job with that id.
    #[error("job {job} is here already")]
    Known {
        /// The job.
        job: JobId,
    },
    /// The session does not have the parent job.
    #[error("the parent of job {job} is not known here")]
    NoParent {
        /// The new job.
        job: JobId,
    },
    /// A session of several nodes has no API server to place ranks.
    #[error("new processes are started by launches on one machine only")]
    SeveralNodes,
    /// The launch is ending.
    #[error("the launch is ending")]
    Ending,
}

impl From<SpawnRefusal> for SpawnError {
    fn from(refusal: SpawnRefusal) -> Self {
        Self::Refused { reason: refusal.to_string() }
    }
}

/// A spawned job without places.
#[derive(Clone, Debug)]
pub struct SpawnedJob {
    job: Job,
    apps: Vec<AppSpec>,
    /// Requested places of each program.
    wishes: Vec<Wish>,
    cpu_bind: CpuBind,
    parent_rank: Rank,
    first_shown: Rank,
}

/// Requested places of a program of a spawned job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    /// The launch selects the places.
    None,
    /// These hosts, in this order and repeatedly.
    Hosts(Vec<WishedHost>),
    /// This many ranks on each node, in the order of the nodes and repeatedly.
    PerNode(u32),
}

impl Wish {
    fn of(app: &SpawnApp) -> Result<Self, SpawnRefusal> {
        let hosts = hints::hosts(app)?;
        Ok(match hints::per_node(app) {
            Some(ranks) if hosts.is_empty() => Self::PerNode(ranks),
            None if hosts.is_empty() => Self::None,
            _ => Self::Hosts(hosts),
        })
    }
}

/// A spawned job on its nodes: the order from which each session of the launch starts its part.
#[derive(Clone, Debug, PartialEq)]
pub struct SpawnOrder {
    /// The job; its `spawner` is the requesting rank's job.
    pub job: Job,
    /// The programs, in the order of `job.apps`.
    pub apps: Vec<AppSpec>,
    /// CPUs that its ranks may use. No earlier job of the launch is bound to them, as long as there are enough such CPUs.
    pub cpu_bind: CpuBind,
    /// The requesting rank, by its number in the spawner.
    pub parent_rank: Rank,
    /// Displayed number of the new job's rank 0. The displayed numbers of the other ranks follow it.
    pub first_shown: Rank,
}

/// Makes the job for `request`. `index` is its number among the jobs of the launch; the launched job has 0. The job's id is the launched job's
/// id, followed by `.sINDEX`.
///
/// # Errors
/// Refuses a request without ranks, one that exceeds [`RANKS_MAX`], and invalid hosts. Refuses preput pairs that are not UTF-8, or have more
/// bytes than [`Job::preput`] may have.
pub fn spawned_job(parent: &SpawnParent<'_>, index: usize, request: &SpawnRequest) -> Result<SpawnedJob, SpawnRefusal> {
    let ranks: Vec<u32> = request.apps.iter().map(hints::ranks).collect::<Result<_, _>>()?;
    let asked: u64 = ranks.iter().copied().map(u64::from).sum();
    if asked == 0 {
        return Err(SpawnRefusal::NoRanks);
    }
    let there = parent.ranks;
    let size = u32::try_from(asked).ok().filter(|&size| there.saturating_add(size) <= RANKS_MAX);
    let size = size.ok_or(SpawnRefusal::LaunchRanks { asked, there })?;
    check_preput(request)?;
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).map_err(|_| SpawnRefusal::Preput);
    let preput = request.preput.iter().map(|(key, value)| Ok((text(key)?, text(value)?)));
    let id = JobId::new(&format!("{}.s{index}", parent.launched))?;
    let job = Job {
        apps: (0..).zip(ranks).map(|(appnum, ranks)| App { ranks, appnum }).collect(),
        universe_size: parent.universe_size,
        spawner: Some(parent.job.clone()),
        preput: preput.collect::<Result<_, SpawnRefusal>>()?,
        ..Job::on_one_node(id, size)
    };
    Ok(SpawnedJob {
        job,
        apps: request.apps.iter().map(|app| app_spec(app, parent.directory)).collect(),
        wishes: request.apps.iter().map(Wish::of).collect::<Result<_, _>>()?,
        cpu_bind: request.apps.iter().find_map(hints::binding).unwrap_or_default(),
        parent_rank: parent.rank,
        first_shown: Rank(there),
    })
}

impl SpawnedJob {
    /// Returns the id of the new job.
    pub fn id(&self) -> &JobId {
        &self.job.id
    }

    /// Returns the number of its ranks; at least 1.
    pub fn size(&self) -> u32 {
        self.job.size()
    }

    /// Returns the order for the job on `nodes`, the names of the possible nodes. If a program names hosts, its ranks are on these hosts, in
    /// their order. If it sets a number of ranks per node, its ranks are distributed by this number. `share_out` places a given number of the
    /// remaining ranks.
    ///
    /// # Errors
    /// Refuses a host that is not among the nodes.
    pub fn on(
        self,
        nodes: &[(NodeIndex, &str)],
        share_out: impl FnOnce(u32) -> Placement,
    ) -> Result<SpawnOrder, SpawnRefusal> {
        let placement = self.placement(nodes, share_out)?;
        let Self { job, apps, cpu_bind, parent_rank, first_shown, .. } = self;
        Ok(SpawnOrder { job: Job { placement, ..job }, apps, cpu_bind, parent_rank, first_shown })
    }

    fn placement(
        &self,
        nodes: &[(NodeIndex, &str)],
        share_out: impl FnOnce(u32) -> Placement,
    ) -> Result<Placement, SpawnRefusal> {
        if self.wishes.iter().all(|wish| *wish == Wish::None) {
            return Ok(share_out(self.size()));
        }
        let programs = || self.job.apps.iter().zip(&self.wishes);
        let left = share_out(programs().filter(|(_, wish)| **wish == Wish::None).map(|(app, _)| app.ranks).sum());
        let (mut placement, mut next_left) = (Placement::default(), 0);
        let mut put = |node| placement.push(Block { first_node: node, nodes: 1, ranks_per_node: 1 });
        for (app, wish) in programs() {
            let slots = match wish {
                Wish::None => {
                    (next_left..next_left + app.ranks).filter_map(|rank| left.node_of(Rank(rank))).for_each(&mut put);
                    next_left += app.ranks;
                    continue;
                }
                Wish::Hosts(hosts) => {
                    let slots = hosts.iter().map(|host| Ok((node_called(&host.name, nodes)?, host.slots as usize)));
                    slots.collect::<Result<Vec<_>, SpawnRefusal>>()?
                }
                Wish::PerNode(ranks) => {
                    let named = nodes.iter().filter(|(_, host)| *host != LOCALHOST);
                    named.map(|&(node, _)| (node, *ranks as usize)).collect()
                }
            };
            let in_turn = slots.iter().flat_map(|&(node, slots)| std::iter::repeat_n(node, slots)).cycle();
            in_turn.take(app.ranks as usize).for_each(&mut put);
        }
        Ok(placement)
    }
}

/// Returns the node with this name, with or without its domain.
fn node_called(name: &str, nodes: &[(NodeIndex, &str)]) -> Result<NodeIndex, SpawnRefusal> {
    let exact = nodes.iter().find(|(_, host)| *host == name);
    let found = exact.or_else(|| nodes.iter().find(|(_, host)| hostlist::is_same_host(name, host)));
    found.map(|&(node, _)| node).ok_or_else(|| {
        let there: Vec<&str> = nodes.iter().map(|(_, host)| *host).filter(|host| *host != LOCALHOST).collect();
        SpawnRefusal::NoSuchHost { name: name.to_owned(), there: hostlist::fold(&there) }
    })
}

/// Returns the program of a spawn in the form for nodes. The program's own directory overrides the hint `wdir`.
fn app_spec(app: &SpawnApp, directory: &Path) -> AppSpec {
    let own = |bytes: &Bytes| -> OsString { OsStr::from_bytes(bytes).to_owned() };
    let chosen = app.directory.as_ref().or_else(|| hints::hint(app, "wdir"));
    let set = app.variables.iter().map(|(name, value)| (own(name), own(value)));
    AppSpec {
        program: hints::program(app),
        args: app.args.iter().map(own).collect(),
        directory: chosen.map_or_else(|| directory.to_owned(), |path| directory.join(PathBuf::from(own(path)))),
        set: hints::variables(app).into_iter().chain(set).collect(),
        remove: Vec::new(),
        process_set: hints::process_set(app),
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::NodeIndex;

    use super::*;

    fn app(ranks: u32) -> SpawnApp {
        SpawnApp { program: "worker".into(), ranks, ..SpawnApp::default() }
    }

    fn request(apps: Vec<SpawnApp>) -> SpawnRequest {
        SpawnRequest { apps, ..SpawnRequest::default() }
    }

    fn spawn(ranks: u32, index: usize, request: &SpawnRequest) -> Result<SpawnedJob, SpawnRefusal> {
        let (launched, job) = (JobId::new("kvs_7_0").unwrap(), JobId::new("kvs_7_0.s3").unwrap());
        let directory = Path::new("/home/me");
        let (launched, job, universe_size) = (&launched, &job, Some(9));
        spawned_job(&SpawnParent { launched, ranks, universe_size, job, rank: Rank(5), directory }, index, request)
    }

    /// Returns the order for a job with this placement.
    fn order(job: SpawnedJob, placement: Placement) -> SpawnOrder {
        job.on(&[], |_| placement).unwrap()
    }

    #[test]
    fn ranks_of_a_program_that_names_hosts_are_on_those() {
        const NODES: [(NodeIndex, &str); 4] =
            [(NodeIndex(0), "node0"), (NodeIndex(1), "node1.site"), (NodeIndex(2), "node2"), (NodeIndex(2), LOCALHOST)];
        let on = |ranks: u32, hosts: &'static str| {
            let info = if hosts.is_empty() { Vec::new() } else { vec![("host".into(), hosts.into())] };
            SpawnApp { info, ..app(ranks) }
        };
        let place = |apps: Vec<SpawnApp>| {
            let job = spawn(1, 1, &request(apps)).unwrap();
            let placement = job.on(&NODES, |left| Placement::block(&[left, 0, 0]))?.job.placement;
            Ok((0..placement.size()).filter_map(|rank| Some(placement.node_of(Rank(rank))?.0)).collect::<Vec<_>>())
        };
        assert_eq!(place(vec![on(3, "")]), Ok(vec![0, 0, 0]));
        assert_eq!(place(vec![on(3, "node2,node1")]), Ok(vec![2, 1, 2]));
        assert_eq!(place(vec![on(4, "node1:2,node0")]), Ok(vec![1, 1, 0, 1]));
        assert_eq!(place(vec![on(2, ""), on(2, "node[1-2]"), on(1, "")]), Ok(vec![0, 0, 1, 2, 0]));
        assert_eq!(place(vec![on(2, "localhost")]), Ok(vec![2, 2]));
        let mapped = |ranks: u32, key: &'static str, value: &'static str| SpawnApp {
            info: vec![(key.into(), value.into())],
            ..app(ranks)
        };
        assert_eq!(place(vec![mapped(5, "npernode", "1")]), Ok(vec![0, 1, 2, 0, 1]));
        assert_eq!(place(vec![mapped(5, "map_by", "ppr:2:node"), on(1, "")]), Ok(vec![0, 0, 1, 1, 2, 0]));
        assert_eq!(place(vec![mapped(2, "map_by", "slot")]), Ok(vec![0, 0]));
        let refusal = SpawnRefusal::NoSuchHost { name: "node7".to_owned(), there: "node0,node1.site,node2".to_owned() };
        assert_eq!(place(vec![on(2, "node0,node7")]), Err(refusal));
    }

    #[test]
    fn a_job_is_named_after_the_launched_one_whoever_spawns_it() {
        let order = order(spawn(4, 12, &request(vec![app(2), app(1)])).unwrap(), Placement::block(&[0, 3]));
        assert_eq!(order.job.id.as_str(), "kvs_7_0.s12");
        assert_eq!(order.job.spawner.as_ref().unwrap().as_str(), "kvs_7_0.s3");
        assert_eq!((order.parent_rank, order.first_shown, order.job.universe_size), (Rank(5), Rank(4), Some(9)));
        assert_eq!(order.job.apps, [App { ranks: 2, appnum: 0 }, App { ranks: 1, appnum: 1 }]);
        assert_eq!(order.job.placement.ranks_on(NodeIndex(1)), [Rank(0), Rank(1), Rank(2)]);
    }

    #[test]
    fn limits_are_the_same_for_every_way_to_spawn() {
        let check = |ranks, index, apps, expected| {
            let seen = spawn(ranks, index, &request(apps)).map(|job| job.size());
            assert_eq!(seen, expected, "{ranks} ranks, job {index}");
        };
        check(1, 1, vec![app(2)], Ok(2));
        check(1, 1, vec![], Err(SpawnRefusal::NoRanks));
        check(1, 1, vec![app(0), app(0)], Err(SpawnRefusal::NoRanks));
        check(RANKS_MAX - 2, 1, vec![app(2)], Ok(2));
        check(RANKS_MAX - 1, 1, vec![app(2)], Err(SpawnRefusal::LaunchRanks { asked: 2, there: RANKS_MAX - 1 }));
        let most = u64::from(u32::MAX) * 2;
        check(1, 1, vec![app(u32::MAX), app(u32::MAX)], Err(SpawnRefusal::LaunchRanks { asked: most, there: 1 }));
    }

    #[test]
    fn directories_are_as_the_caller_meant_them() {
        let check = |directory: Option<&'static str>, wdir: Option<&'static str>, expected: &str| {
            let info = wdir.map(|path| ("wdir".into(), path.into())).into_iter().collect();
            let app = SpawnApp { directory: directory.map(Bytes::from), info, ..app(1) };
            let order = order(spawn(1, 1, &request(vec![app])).unwrap(), Placement::one_node(1));
            assert_eq!(order.apps[0].directory, Path::new(expected));
        };
        check(None, None, "/home/me");
        check(None, Some("sub"), "/home/me/sub");
        check(Some("/tmp"), Some("sub"), "/tmp");
        check(Some("own"), Some("/tmp"), "/home/me/own");
    }

    #[test]
    fn preput_pairs_are_text_or_the_spawn_is_refused() {
        let pair = |value: &'static [u8]| vec![("key".into(), Bytes::from_static(value))];
        let job = spawn(1, 1, &SpawnRequest { preput: pair(b"value"), ..request(vec![app(1)]) }).unwrap();
        assert_eq!(order(job, Placement::one_node(1)).job.preput, [("key".to_owned(), "value".to_owned())]);
        let refused = spawn(1, 1, &SpawnRequest { preput: pair(b"\xff"), ..request(vec![app(1)]) });
        assert_eq!(refused.unwrap_err(), SpawnRefusal::Preput);
        let long = vec![("key".into(), Bytes::from(vec![b'v'; pmi_core::wire::VALUE_MAX + 1]))];
        let refused = spawn(1, 1, &SpawnRequest { preput: long, ..request(vec![app(1)]) });
        assert_eq!(refused.unwrap_err().to_string(), "a preput pair has a value of 65537 bytes; the limit is 65536");
    }

    #[test]
    fn a_refusal_says_what_was_seen_and_what_is_possible() {
        let check = |refusal: SpawnRefusal, expected: &str| {
            assert_eq!(
                SpawnError::from(refusal).to_string(),
                format!("this launch cannot start new processes: {expected}")
            );
        };
        let asked = 3;
        check(
            SpawnRefusal::NodeRanks { asked, there: 16383 },
            "3 more ranks were asked for; a node has up to 16384 of a launch, and 16383 already",
        );
        check(
            SpawnRefusal::LaunchRanks { asked: 3, there: 1 << 20 },
            "3 more ranks were asked for; a launch has up to 1048576, and 1048576 already",
        );
        check(SpawnRefusal::Jobs, "a launch has up to 4096 jobs");
    }
}
