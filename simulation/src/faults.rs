//! The faults of a run, and their times: the plan of a seed. Shrinking removes irrelevant faults.

use std::fmt;
use std::time::Duration;

use lattice_session::timeouts;

use crate::connection::{Host, KEEP_ALIVE};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::surroundings::LEASE;
use crate::time::Time;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: Time,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// A host fails with all its processes, and restarts.
    CrashNode {
        node: u32,
        back: Duration,
    },
    /// An agent is killed, and restarts.
    KillAgent {
        node: u32,
        back: Duration,
    },
    /// The agent, its fork server and its session are killed. The agent restarts.
    KillService {
        node: u32,
        back: Duration,
    },
    KillSession {
        node: u32,
    },
    KillRank {
        rank: u32,
        signal: i32,
    },
    /// No process on the host runs for this time. For other hosts this is equivalent to an overloaded host.
    Pause {
        node: u32,
        time: Duration,
    },
    /// A host is cut off from all other hosts. Its outgoing messages, its incoming messages, or both are lost.
    Cut {
        host: Where,
        way: Way,
        time: Duration,
    },
    /// Two nodes cannot reach each other.
    CutPair {
        one: u32,
        other: u32,
        time: Duration,
    },
    /// All messages from and to a host take longer by this factor.
    Slow {
        host: Where,
        times: u64,
        time: Duration,
    },
    /// All connections of a host are reset.
    Reset {
        host: Where,
    },
    /// The API server is killed, and restarts.
    CrashApi {
        back: Duration,
    },
    /// The disk of the API server fails.
    Disk {
        time: Duration,
    },
    /// The wall clock of the API server changes by this many seconds.
    SetClock {
        seconds: i64,
    },
    /// The client is killed.
    KillClient,
    /// The connection of the client breaks; the client attaches again.
    ResetClient,
    /// The client ends the launch with this signal.
    Signal {
        signal: i32,
    },
    /// An administrator ends the launch.
    Abort,
    /// The client reads nothing for this time.
    StopReading {
        time: Duration,
    },
    /// A node receives the start request once more.
    StartAgain {
        node: u32,
    },
}

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Node(u32),
    Api,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
    Both,
}

/// The longest duration of a fault.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// The faults of a seed, in order of time.
pub(crate) fn plan(seed: u64, scenario: &Scenario) -> Vec<Fault> {
    let random = &mut Random::new(seed, 2);
    let count = [0, 0, 1, 1, 1, 2, 2, 3, 4, 6][random.below(10) as usize];
    // Most events happen at the start of a launch.
    let span = [50, 400, 3_000, 15_000][random.below(4) as usize];
    let mut faults: Vec<Fault> =
        (0..count).map(|_| Fault { at: Time(random.below(span * 1000)), kind: kind(scenario, random) }).collect();
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn kind(scenario: &Scenario, random: &mut Random) -> FaultKind {
    let nodes = u64::from(scenario.nodes());
    let node = random.below(nodes) as u32;
    let other = random.below(nodes) as u32;
    let host = if random.chance(30) { Where::Api } else { Where::Node(node) };
    let way = [Way::In, Way::Out, Way::Both, Way::Both][random.below(4) as usize];
    let time = match random.below(3) {
        0 => Duration::from_millis(random.between(1, 500)),
        1 => Duration::from_millis(random.between(500, 6_000)),
        _ => Duration::from_millis(random.between(6_000, LONGEST.as_millis() as u64)),
    };
    let signal = [2, 15, 9, 1][random.below(4) as usize];
    match random.below(22) {
        0 | 1 => FaultKind::CrashNode { node, back: time },
        2 | 3 => FaultKind::KillAgent { node, back: time },
        4 => FaultKind::KillService { node, back: time },
        5 => FaultKind::KillSession { node },
        6 => FaultKind::KillRank { rank: random.below(u64::from(scenario.size())) as u32, signal },
        7 | 8 => FaultKind::Pause { node, time },
        9 | 10 => FaultKind::Cut { host, way, time },
        11 => FaultKind::CutPair { one: node, other, time },
        12 => FaultKind::Slow { host, times: random.between(2, 200), time },
        13 => FaultKind::Reset { host },
        14 | 15 => FaultKind::CrashApi { back: time },
        16 => FaultKind::Disk { time },
        17 => FaultKind::SetClock { seconds: random.between(0, 630_000_000) as i64 - 315_000_000 },
        18 => [FaultKind::KillClient, FaultKind::ResetClient][random.below(2) as usize],
        19 => [FaultKind::Signal { signal }, FaultKind::Abort][random.below(2) as usize],
        20 => FaultKind::StopReading { time },
        _ => FaultKind::StartAgain { node },
    }
}

impl FaultKind {
    /// Returns the duration of the fault. After it only consequences remain.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::CrashNode { back: time, .. }
            | Self::KillAgent { back: time, .. }
            | Self::KillService { back: time, .. }
            | Self::CrashApi { back: time }
            | Self::Pause { time, .. }
            | Self::Cut { time, .. }
            | Self::CutPair { time, .. }
            | Self::Slow { time, .. }
            | Self::Disk { time }
            | Self::StopReading { time } => time,
            _ => Duration::ZERO,
        }
    }

    /// Returns true for a fault that a launch must survive if it is the only fault.
    pub(crate) fn is_harmless(self) -> bool {
        match self {
            Self::KillAgent { back, .. } | Self::CrashApi { back } => back <= Duration::from_secs(10),
            Self::Pause { time, .. } | Self::Cut { time, .. } | Self::CutPair { time, .. } => {
                time <= Duration::from_secs(2)
            }
            Self::Slow { times, .. } => times <= 20,
            Self::Disk { .. }
            | Self::SetClock { .. }
            | Self::ResetClient
            | Self::StopReading { .. }
            | Self::StartAgain { .. } => true,
            _ => false,
        }
    }

    /// Returns the nodes that a launch with `nodes` nodes may lose because of the fault.
    pub(crate) fn struck(self, nodes: u32) -> Vec<u32> {
        let all = || (0..nodes).collect();
        match self {
            Self::CrashNode { node, .. } | Self::KillService { node, .. } | Self::KillSession { node } => vec![node],
            // Sessions try to open links to the node for this time. Then these links end, with the links that the node has opened.
            // Each end treats the other one as lost.
            Self::KillAgent { back, .. } if back + timeouts::HEARTBEAT >= LEASE => all(),
            Self::KillAgent { node, back } if back + timeouts::HEARTBEAT >= timeouts::LOST_AFTER => vec![node],
            Self::Pause { time, .. } if time >= KEEP_ALIVE => all(),
            Self::Pause { node, time } if time >= timeouts::HEARTBEAT => vec![node],
            // If two nodes cannot reach each other, each node treats the other one as lost.
            Self::Cut { .. } | Self::Slow { .. } | Self::Reset { host: Where::Node(_) } => all(),
            Self::CutPair { one, other, .. } => vec![one, other],
            // Nodes to which no start request, or from which no answer, was sent before its end.
            Self::CrashApi { .. } => all(),
            _ => Vec::new(),
        }
    }

    /// Returns true if the fault may end the launch, because no client may follow it any more.
    pub(crate) fn may_end_launch(self) -> bool {
        match self {
            Self::StopReading { time } => time > timeouts::NEXT_OWNER,
            Self::Cut { host: Where::Api, time, .. } => time >= KEEP_ALIVE,
            Self::CrashApi { back } => back >= LEASE,
            Self::Slow { host: Where::Api, .. } => true,
            _ => false,
        }
    }

    /// Returns the directions that are cut, with this number of nodes and the other hosts.
    pub(crate) fn ways(self, nodes: u32) -> Vec<(Host, Host)> {
        match self {
            Self::Cut { host, way, .. } => {
                let host = host.host();
                let all = (0..nodes).map(Host).chain([Host::API, Host::CLIENT]);
                let both = |other| {
                    let inward = (way != Way::Out).then_some((other, host));
                    let outward = (way != Way::In).then_some((host, other));
                    inward.into_iter().chain(outward)
                };
                all.filter(|other| *other != host).flat_map(both).collect()
            }
            Self::CutPair { one, other, .. } if one != other => {
                vec![(Host(one), Host(other)), (Host(other), Host(one))]
            }
            _ => Vec::new(),
        }
    }
}

impl Where {
    pub(crate) fn host(self) -> Host {
        match self {
            Self::Node(node) => Host(node),
            Self::Api => Host::API,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.at, self.kind)
    }
}
