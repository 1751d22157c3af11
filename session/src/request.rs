//! A requested launch: programs, requirements for nodes, and settings. No rank has a place yet.
//!
//! First of the three stages of a launch. Each stage has its own type:
//!
//! ```text
//! flags ──────────────┐
//!                     ├──> LaunchRequest ──place──> PlacedLaunch ──session──> SessionSpec
//! LaunchTasksRequest ─┘     as requested             every rank has a node     one node's part
//! ```
//!
//! A request is checked once, when it is made from flags or from a message. The set of nodes, and the nodes of a launch, depend on its
//! placement: by the launcher on this machine, or by the API server on a cluster.

use std::collections::HashMap;
use std::num::NonZeroU32;

use pmi_core::ids::{JobId, JobIdError, Rank};
use pmi_core::job::{App, Job, Placement};

use crate::count::counted;
use crate::placed::PlacedLaunch;
use crate::settings::{LaunchSettings, StdinTarget};
use crate::spec::AppSpec;

/// Maximum number of nodes that a request may name.
pub const NODES_MAX: usize = 1 << 16;

/// A valid launch. Its ranks have no places yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    /// The programs, in the order of their ranks.
    pub programs: Programs,
    /// The requested nodes.
    pub placement: PlacementRequest,
    /// `MPI_UNIVERSE_SIZE`, if it is not the number of ranks.
    pub universe_size: Option<UniverseSize>,
    /// Settings for every rank.
    pub settings: LaunchSettings,
    /// Ownership of the launch.
    pub ownership: Ownership,
}

/// The requested `MPI_UNIVERSE_SIZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniverseSize {
    /// A number that the user specifies.
    Number(u32),
    /// The number of slots of the launch's nodes, but at least its number of ranks, as in Open MPI's mpirun.
    Slots,
}

/// Ownership of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Owned by a client: its output waits for the client, and it ends when the client disappears permanently.
    Client,
    /// Owned by no client: its output is stored in the spool as far as there is room, and it ends by itself.
    Detached,
}

/// One program of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRequest {
    /// The program; its directory is absolute.
    pub app: AppSpec,
    /// Its number of ranks. `None` leaves the number to the placement, for a single program.
    pub ranks: Option<NonZeroU32>,
    /// Its `MPI_APPNUM`. Several runs of ranks with the same number are one program, whatever their arguments are.
    pub number: u32,
}

impl ProgramRequest {
    /// Returns the program with `ranks` ranks.
    fn of_ranks(&self, ranks: u32) -> App {
        App { ranks, appnum: i32::try_from(self.number).unwrap_or(i32::MAX) }
    }
}

/// The programs of a launch: at least one. If there are several, each one has a number of ranks. MPI can count the sum of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs(Vec<ProgramRequest>);

/// Refusal of programs for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramsError {
    /// There is no program.
    #[error("the launch has no program")]
    None,
    /// There are too many programs.
    #[error("the launch has {given} programs; at most {} are possible", Programs::MAX)]
    TooMany {
        /// Number of programs.
        given: usize,
    },
    /// Their ranks add up to more than MPI can count.
    #[error("the programs have {ranks} ranks together; MPI counts up to {max}", max = i32::MAX)]
    TooManyRanks {
        /// Sum of their ranks.
        ranks: u64,
    },
}

impl Programs {
    /// Maximum number of programs of a launch.
    pub const MAX: usize = 4096;

    /// Checks programs. If there are several, a program without a number of ranks gets one rank.
    ///
    /// # Errors
    /// Refuses an empty list, more programs than [`Programs::MAX`], and more ranks than MPI can count.
    pub fn new(mut programs: Vec<ProgramRequest>) -> Result<Self, ProgramsError> {
        match programs.len() {
            0 => return Err(ProgramsError::None),
            1 => {}
            given if given > Self::MAX => return Err(ProgramsError::TooMany { given }),
            _ => programs.iter_mut().for_each(|program| program.ranks = program.ranks.or(Some(NonZeroU32::MIN))),
        }
        let ranks = programs.iter().filter_map(|program| program.ranks).map(|ranks| u64::from(ranks.get())).sum();
        if ranks > i32::MAX as u64 { Err(ProgramsError::TooManyRanks { ranks }) } else { Ok(Self(programs)) }
    }

    /// Returns the programs in the order of their ranks.
    pub fn iter(&self) -> std::slice::Iter<'_, ProgramRequest> {
        self.0.iter()
    }

    /// Returns the number of ranks; `None` if it depends on the nodes.
    pub fn size(&self) -> Option<u32> {
        self.0.iter().map(|program| program.ranks.map(NonZeroU32::get)).sum()
    }

    /// Returns the number of ranks of each program. A single program without a number gets `only`.
    pub fn rank_counts(&self, only: NonZeroU32) -> Vec<u32> {
        self.0.iter().map(|program| program.ranks.unwrap_or(only).get()).collect()
    }
}

/// Requested nodes of a launch, and the distribution of its ranks among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Number of participating nodes, with or without ranks; `None` for as many as needed.
    pub nodes: Option<NonZeroU32>,
    /// Maximum number of ranks of a node; `None` for no limit.
    pub tasks_per_node: Option<NonZeroU32>,
    /// Nodes to select from.
    pub candidates: Candidates,
    /// Number of nodes that are skipped before the first selected node.
    pub relative: u32,
    /// Nodes that must not be used.
    pub except: Vec<String>,
    /// Distribution of ranks; `None` for block, or slot after slot of a hostfile.
    pub distribution: Option<Distribution>,
    /// Numbering of the ranks, once the number of ranks of each node is known; `None` for the numbering of the distribution.
    pub numbering: Option<Numbering>,
    /// CPUs that a node must have for each of its ranks, or the launch is refused; `None` if ranks may share CPUs.
    pub cpus_per_rank: Option<NonZeroU32>,
}

/// Refusal of ranks that would share CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{node} has {} for {}, each with {cpus_per_rank}; start fewer on a node, use more nodes, or let them share with \
     --overcommit (-O)",
    counted(u64::from(*cpus), "CPU"), counted(u64::from(*ranks), "rank")
)]
pub struct Overcommit {
    /// Name of the node.
    pub node: String,
    /// Number of its ranks.
    pub ranks: u32,
    /// CPUs that each of them must have.
    pub cpus_per_rank: NonZeroU32,
    /// CPUs of the node.
    pub cpus: u32,
}

impl PlacementRequest {
    /// Refuses these ranks on a node with `cpus` CPUs, if ranks must not share CPUs.
    ///
    /// # Errors
    /// Returns the refusal.
    pub fn check_cpus(&self, node: &str, ranks: u32, cpus: u32) -> Result<(), Overcommit> {
        match self.cpus_per_rank {
            Some(cpus_per_rank) if u64::from(ranks) * u64::from(cpus_per_rank.get()) > u64::from(cpus) => {
                Err(Overcommit { node: node.to_owned(), ranks, cpus_per_rank, cpus })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of slots on `hosts`, which have these ranks. The slots of a node are its slots in the hostfile, the maximum
    /// number of ranks of a node, or one for each of its `cpus`. A node without data has slots only for its ranks.
    pub fn slots<'a>(
        &self,
        hosts: impl IntoIterator<Item = (&'a str, u32)>,
        cpus: impl Fn(&str) -> Option<u32>,
    ) -> u32 {
        let mut lines: HashMap<&str, u32> = HashMap::new();
        if let Candidates::Hostfile(hosts) = &self.candidates {
            for line in hosts {
                let slots = lines.entry(&line.node).or_default();
                *slots = slots.saturating_add(line.slots.get());
            }
        }
        let listed = |node: &str| match &self.candidates {
            Candidates::Hostfile(_) => lines.get(node).copied(),
            Candidates::All | Candidates::Listed(_) => self.tasks_per_node.map(NonZeroU32::get),
        };
        let slots = |(node, ranks): (&str, u32)| listed(node).or_else(|| cpus(node)).unwrap_or_default().max(ranks);
        hosts.into_iter().map(slots).fold(0, u32::saturating_add)
    }

    /// Restricts a placed request to `hosts`. A second placement in the same allocation then gives the same places. It is refused if one of
    /// these nodes is no longer ready.
    pub fn pin(&mut self, hosts: Vec<String>) {
        // A hostfile selects the same nodes again: a node that it does not name never replaces one of its nodes.
        if !matches!(self.candidates, Candidates::Hostfile(_)) {
            (self.candidates, self.relative) = (Candidates::Listed(hosts), 0);
        }
    }
}

/// Nodes that a launch may be placed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// All nodes of the allocation.
    #[default]
    All,
    /// These nodes, in this order.
    Listed(Vec<String>),
    /// The nodes of a hostfile, in this order, each with a number of slots. A node may occur several times.
    Hostfile(Vec<HostSlots>),
}

/// Returns the shares of `size` ranks on `nodes` nodes. They differ by at most one, the greater ones first: 10 on 3 are 4 + 3 + 3.
pub fn even_shares(size: u32, nodes: usize) -> Vec<u32> {
    let nodes = nodes as u32;
    (0..nodes).map(|node| size / nodes + u32::from(node < size % nodes)).collect()
}

/// One line of a hostfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlots {
    /// The node.
    pub node: String,
    /// Maximum number of its ranks from this line.
    pub slots: NonZeroU32,
}

/// Distribution of ranks among nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Consecutive ranks share a node.
    Block,
    /// Consecutive ranks are on different nodes.
    Cyclic,
    /// This many consecutive ranks share a node, and the next ranks are on the next node. After the last node, the first node is next.
    Plane(NonZeroU32),
}

/// Numbering of ranks among nodes with given numbers of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Consecutive ranks share a node.
    NodeByNode,
    /// Consecutive ranks are on different nodes, as long as these have ranks left.
    InTurn,
}

/// Nodes and ranks that a placement has selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The participating nodes, in node order.
    pub hosts: Vec<String>,
    /// Number of ranks of each program.
    pub ranks: Vec<u32>,
    /// Node of each rank.
    pub placement: Placement,
}

/// Reason why a request does not fit an assignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Standard input is for a rank that the launch does not have.
    #[error(
        "there is no rank {rank} to read standard input; the job has {}",
        if last.0 == 0 { "rank 0 alone".to_owned() } else { format!("ranks 0 to {last}") }
    )]
    NoSuchRank {
        /// The requested rank.
        rank: Rank,
        /// The last rank of the launch.
        last: Rank,
    },
    /// The launch's id is invalid in a job id.
    #[error(transparent)]
    JobId(#[from] JobIdError),
}

impl LaunchRequest {
    /// Checks that the rank that reads standard input, if any, is among `size` ranks.
    ///
    /// # Errors
    /// Fails with [`PlaceError::NoSuchRank`].
    pub fn check_reader(&self, size: u32) -> Result<(), PlaceError> {
        match self.settings.stdin {
            StdinTarget::Rank(rank) if rank.0 >= size => {
                Err(PlaceError::NoSuchRank { rank, last: Rank(size.saturating_sub(1)) })
            }
            _ => Ok(()),
        }
    }

    /// Assigns a place to every rank. The assignment has a number of ranks for each program. `slots` counts the slots of its nodes, if they
    /// are needed.
    ///
    /// # Errors
    /// Refuses a reader of standard input that is not among the ranks, and an id that is invalid in a job id.
    pub fn place(
        self,
        launch_id: String,
        allocation_id: Option<String>,
        assignment: Assignment,
        slots: impl FnOnce(&PlacementRequest, &Assignment) -> u32,
    ) -> Result<PlacedLaunch, PlaceError> {
        self.check_reader(assignment.placement.size())?;
        let universe_size = self.universe_size.map(|size| match size {
            UniverseSize::Number(size) => size,
            UniverseSize::Slots => slots(&self.placement, &assignment),
        });
        let Assignment { hosts, ranks, placement } = assignment;
        let job = Job {
            id: JobId::new(&format!("kvs_{launch_id}_0"))?,
            placement,
            apps: self.programs.iter().zip(ranks).map(|(program, ranks)| program.of_ranks(ranks)).collect(),
            universe_size,
            spawner: None,
            preput: Vec::new(),
        };
        let apps = self.programs.0.into_iter().map(|program| program.app).collect();
        Ok(PlacedLaunch { launch_id, allocation_id, job, hosts, apps, settings: self.settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(ranks: u32) -> ProgramRequest {
        let app = AppSpec {
            program: "app".into(),
            args: Vec::new(),
            directory: "/".into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        };
        ProgramRequest { app, ranks: NonZeroU32::new(ranks), number: 0 }
    }

    fn programs(ranks: &[u32]) -> Result<Programs, ProgramsError> {
        let numbered = |(number, &ranks)| ProgramRequest { number, ..program(ranks) };
        Programs::new((0..).zip(ranks).map(numbered).collect())
    }

    fn request(stdin: StdinTarget) -> LaunchRequest {
        LaunchRequest {
            programs: programs(&[2, 1]).unwrap(),
            placement: PlacementRequest::default(),
            universe_size: Some(UniverseSize::Number(9)),
            settings: LaunchSettings { stdin, ..LaunchSettings::default() },
            ownership: Ownership::Client,
        }
    }

    fn assignment() -> Assignment {
        let hosts = ["node0", "node1"].map(str::to_owned).to_vec();
        Assignment { hosts, ranks: vec![2, 1], placement: Placement::block(&[2, 1]) }
    }

    #[test]
    fn one_of_several_programs_has_a_rank_if_nobody_says_how_many() {
        let check = |ranks: &[u32], size, counts: &[u32]| {
            let programs = programs(ranks).unwrap();
            assert_eq!(programs.size(), size, "{ranks:?}");
            assert_eq!(programs.rank_counts(NonZeroU32::new(7).unwrap()), counts, "{ranks:?}");
        };
        check(&[0], None, &[7]);
        check(&[3], Some(3), &[3]);
        check(&[0, 3, 0], Some(5), &[1, 3, 1]);
    }

    #[test]
    fn programs_that_make_no_launch_are_refused() {
        assert_eq!(programs(&[]), Err(ProgramsError::None));
        assert_eq!(programs(&[1; Programs::MAX + 1]), Err(ProgramsError::TooMany { given: Programs::MAX + 1 }));
        let most = i32::MAX as u32;
        assert!(programs(&[most]).is_ok());
        assert_eq!(programs(&[most, 0]), Err(ProgramsError::TooManyRanks { ranks: u64::from(most) + 1 }));
    }

    #[test]
    fn a_placed_launch_has_one_job_with_all_ranks() {
        let placed =
            request(StdinTarget::Rank(Rank(2))).place("abc".to_owned(), None, assignment(), |_, _| 16).unwrap();
        assert_eq!((placed.job.id.as_str(), placed.job.size()), ("kvs_abc_0", 3));
        assert_eq!(placed.job.apps, [App { ranks: 2, appnum: 0 }, App { ranks: 1, appnum: 1 }]);
        assert_eq!((placed.job.universe_size, placed.apps.len(), placed.hosts.len()), (Some(9), 2, 2));
    }

    #[test]
    fn slots_are_those_of_lines_or_bounds_or_cpus() {
        let check = |candidates: Candidates, tasks_per_node: Option<u32>, slots: u32| {
            let tasks_per_node = tasks_per_node.and_then(NonZeroU32::new);
            let request = PlacementRequest { candidates, tasks_per_node, ..PlacementRequest::default() };
            let cpus = |node: &str| (node == "a").then_some(8);
            assert_eq!(request.slots([("a", 1), ("b", 2)], cpus), slots, "{request:?}");
        };
        let line = |node: &str, slots| HostSlots { node: node.to_owned(), slots: NonZeroU32::new(slots).unwrap() };
        check(Candidates::Hostfile(vec![line("a", 3), line("b", 1), line("a", 2), line("c", 9)]), None, 7);
        check(Candidates::All, Some(4), 8);
        // Only the ranks of b are known.
        check(Candidates::All, None, 10);
    }

    #[test]
    fn the_universe_is_of_slots_where_that_was_asked_for() {
        let request = LaunchRequest { universe_size: Some(UniverseSize::Slots), ..request(StdinTarget::All) };
        let placed = request.place("abc".to_owned(), None, assignment(), |_, _| 16).unwrap();
        assert_eq!(placed.job.universe_size, Some(16));
    }

    #[test]
    fn input_for_a_rank_that_there_is_not_is_refused() {
        let error =
            request(StdinTarget::Rank(Rank(3))).place("abc".to_owned(), None, assignment(), |_, _| 16).unwrap_err();
        assert_eq!(error, PlaceError::NoSuchRank { rank: Rank(3), last: Rank(2) });
        let error = request(StdinTarget::All).place("a b".to_owned(), None, assignment(), |_, _| 16).unwrap_err();
        assert!(matches!(error, PlaceError::JobId(_)), "{error}");
    }
}
