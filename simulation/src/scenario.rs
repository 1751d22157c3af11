//! The launch of a seed: its nodes, its ranks with their programs, and its limits.

use std::ops::Range;
use std::time::Duration;

use lattice_session::session_process::simulation::FanOut;
use lattice_session::settings::{DataExchange, FailedRanks, LaunchSettings, PmiFamily, PmiSpec, StdinTarget, Timeouts};
use lattice_session::spec::{AppSpec, LaunchSecret, SessionSpec};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{App, Job, Placement};

use crate::input::InputPlan;
use crate::random::Random;

/// A launch and its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Number of ranks on each node.
    pub(crate) ranks: Vec<u32>,
    /// Number of fences.
    pub(crate) epochs: u32,
    pub(crate) fan_out: FanOut,
    /// By rank. The programs of a spawned job follow the programs of the launched job.
    pub(crate) programs: Vec<Program>,
    /// The job that a rank spawns.
    pub(crate) spawn: Option<SpawnPlan>,
    pub(crate) output_window: u64,
    /// Protocol of the ranks.
    pub(crate) protocol: Protocol,
    /// Input of the launch, if its client provides any.
    pub(crate) input: Option<InputPlan>,
    pub(crate) is_detached: bool,
    pub(crate) failed_ranks: FailedRanks,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) after_first_exit: Option<Duration>,
    /// Interval between ticks of the API server.
    pub(crate) tick: Duration,
    /// Microseconds that the clock of each host counts in a second: first the nodes, then the API server.
    pub(crate) paces: Vec<u64>,
}

/// Protocol of the ranks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Pmi1,
    /// PMIx. Its fences send data to all nodes, or ranks get it on demand.
    Pmix {
        collects: bool,
        exchange: DataExchange,
    },
}

impl Protocol {
    fn pmi(self) -> PmiSpec {
        match self {
            Self::Pmi1 => PmiSpec { family: PmiFamily::Pmi1, ..PmiSpec::default() },
            Self::Pmix { exchange, .. } => PmiSpec { family: PmiFamily::Pmix, exchange, ..PmiSpec::default() },
        }
    }
}

/// A job that a rank spawns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpawnPlan {
    /// The rank that spawns it, before its fence of this number.
    pub(crate) parent: Rank,
    pub(crate) before: u32,
    /// Number of new ranks.
    pub(crate) ranks: u32,
}

/// Number of fences of a spawned job.
pub(crate) const SPAWNED_EPOCHS: u32 = 2;

/// The program of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Time between two steps.
    pub(crate) pace: Duration,
    /// Length of each printed line, in bytes.
    pub(crate) line: usize,
    pub(crate) fault: Option<Misstep>,
    pub(crate) on_term: OnTerm,
    /// The process cannot be started.
    pub(crate) is_missing: bool,
}

/// An error of a rank before its fence of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misstep {
    pub(crate) before: u32,
    pub(crate) what: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Exit(i32),
    Abort(i32),
    Crash(i32),
    /// Exits with status 0, without finalizing.
    Leave,
    /// Finalizes and exits with status 0 while other ranks enter the next fence.
    Desert,
    /// Does nothing any more.
    Hang,
    /// Sends bytes that are not a message.
    Babble,
}

/// Reaction of a rank to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnTerm {
    Dies,
    Exits,
    Ignores,
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed, 1);
        let nodes = match random.below(10) {
            0 | 1 => 1,
            2..=4 => 2,
            5..=7 => 3,
            8 => random.between(4, 6),
            _ => random.between(7, 12),
        };
        let most = if nodes > 6 { 2 } else { 4 };
        let ranks: Vec<u32> = (0..nodes).map(|_| random.between(1, most) as u32).collect();
        let size: u32 = ranks.iter().sum();
        let epochs = random.between(0, 3) as u32;
        let programs: Vec<Program> = (0..size).map(|_| Program::of(epochs, random)).collect();
        let hangs = programs.iter().any(|program| program.fault.is_some_and(|fault| fault.what == Wrong::Hang));
        let seconds = |percent, random: &mut Random| {
            random.chance(percent).then(|| Duration::from_millis(random.between(200, 8000)))
        };
        let mut pace = || if random.chance(70) { 1_000_000 } else { random.between(900_000, 1_100_000) };
        let paces: Vec<u64> = (0..=nodes).map(|_| pace()).collect();
        Self {
            epochs,
            fan_out: FanOut { barrier: random.between(1, 8) as u32, data: random.between(1, 3) as u32 },
            programs,
            spawn: None,
            output_window: random.between(300, 10_000),
            protocol: Protocol::Pmi1,
            input: None,
            is_detached: random.chance(15),
            failed_ranks: if random.chance(15) { FailedRanks::AreBorne } else { FailedRanks::EndLaunch },
            time_limit: if hangs { Some(Duration::from_secs(random.between(1, 20))) } else { seconds(5, random) },
            after_first_exit: seconds(5, random),
            tick: Duration::from_millis(random.between(100, 300)),
            paces,
            ranks,
        }
    }

    /// Returns the same launch with further features that the seed selects.
    pub(crate) fn with_features(self, seed: u64) -> Self {
        let random = &mut Random::new(seed, 5);
        let has_input = random.chance(40) && !self.is_detached;
        let input = has_input.then(|| InputPlan::of(self.size(), self.epochs, random));
        let collects = random.chance(50);
        let exchange = [DataExchange::Auto, DataExchange::Full, DataExchange::Lazy][random.below(3) as usize];
        let protocol = if random.chance(40) { Protocol::Pmix { collects, exchange } } else { Protocol::Pmi1 };
        Self { protocol, input, ..self }.with_spawn(seed)
    }

    /// Makes a rank of PMI-1 spawn a job, for some seeds.
    fn with_spawn(mut self, seed: u64) -> Self {
        let random = &mut Random::new(seed, 6);
        if self.protocol != Protocol::Pmi1 || !random.chance(40) {
            return self;
        }
        let parent = Rank(random.below(u64::from(self.size())) as u32);
        let (before, ranks) = (random.between(0, u64::from(self.epochs)) as u32, random.between(1, 4) as u32);
        self.spawn = Some(SpawnPlan { parent, before, ranks });
        let programs: Vec<Program> = (0..ranks).map(|_| Program::of(SPAWNED_EPOCHS, random)).collect();
        self.programs.extend(programs);
        if self.programs.iter().any(|program| program.fault.is_some_and(|fault| fault.what == Wrong::Hang)) {
            self.time_limit.get_or_insert(Duration::from_secs(random.between(1, 20)));
        }
        self
    }

    /// The program of a rank. A session repeats its request for a job each second until an answer arrives. An API server that restarts, or
    /// whose disk is full, plans another job of the same programs each time, with further rank numbers.
    pub(crate) fn program(&self, rank: Rank) -> &Program {
        let size = self.size();
        let index = match self.spawn {
            Some(SpawnPlan { ranks, .. }) if rank.0 >= size => size + (rank.0 - size) % ranks,
            _ => rank.0,
        };
        &self.programs[index as usize]
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub(crate) fn size(&self) -> u32 {
        self.ranks.iter().sum()
    }

    /// Returns the ranks in the job of a rank.
    pub(crate) fn family_of(&self, rank: Rank) -> Range<u32> {
        let size = self.size();
        match self.spawn {
            Some(SpawnPlan { ranks, .. }) if rank.0 >= size => {
                let first = rank.0 - (rank.0 - size) % ranks;
                first..first + ranks
            }
            _ => 0..size,
        }
    }

    /// Returns true if no rank has an error, and the launch has no time limit.
    pub(crate) fn is_good(&self) -> bool {
        let is_good = |program: &Program| program.fault.is_none() && !program.is_missing;
        self.programs.iter().all(is_good) && self.time_limit.is_none() && self.after_first_exit.is_none()
    }

    /// Returns the launch specification for a node.
    pub(crate) fn spec(&self, node: u32) -> SessionSpec {
        let id = JobId::new("kvs_1_0").expect("letters and digits");
        let job = Job {
            placement: Placement::block(&self.ranks),
            apps: vec![App { ranks: self.size(), appnum: 0 }],
            ..Job::on_one_node(id, self.size())
        };
        let timeouts =
            Timeouts { time_limit: self.time_limit, after_first_exit: self.after_first_exit, ..Timeouts::default() };
        SessionSpec {
            launch_id: "1".to_owned(),
            allocation_id: Some("a".to_owned()),
            job,
            node: NodeIndex(node),
            hosts: (0..self.nodes()).map(|node| format!("n{node}")).collect(),
            addresses: Vec::new(),
            secret: LaunchSecret::from_bytes([7; LaunchSecret::LEN]),
            apps: vec![AppSpec {
                program: "program".into(),
                args: Vec::new(),
                directory: "/".into(),
                set: Vec::new(),
                remove: Vec::new(),
                process_set: None,
            }],
            settings: LaunchSettings {
                timeouts,
                failed_ranks: self.failed_ranks,
                pmi: self.protocol.pmi(),
                stdin: self.input.as_ref().map_or(StdinTarget::None, |input| input.readers.clone()),
                ..LaunchSettings::default()
            },
        }
    }
}

impl Program {
    fn of(epochs: u32, random: &mut Random) -> Self {
        let what = match random.below(60) {
            0 => Some(Wrong::Exit(random.between(1, 99) as i32)),
            1 => Some(Wrong::Abort(random.between(0, 99) as i32)),
            2 => Some(Wrong::Crash(if random.chance(50) { 9 } else { 11 })),
            3 => Some(Wrong::Leave),
            4 => Some(Wrong::Desert),
            5 => Some(Wrong::Hang),
            6 => Some(Wrong::Babble),
            _ => None,
        };
        let before = random.between(0, u64::from(epochs)) as u32;
        Self {
            pace: Duration::from_micros(10_u64.pow(random.between(1, 5) as u32)),
            line: random.between(1, 300) as usize,
            fault: what.map(|what| Misstep { before, what }),
            on_term: [OnTerm::Dies, OnTerm::Dies, OnTerm::Exits, OnTerm::Ignores][random.below(4) as usize],
            is_missing: random.chance(1),
        }
    }
}
