//! A whole cluster in one thread and virtual time: API server, agents, sessions with their PMI servers, fences, ranks and a client.
//! A seed determines the launch, the faults and the order of all events. Therefore a run of a seed is reproducible byte for byte.
//!
//! ```text
//! client ── API server: launch, outboxes, registry ── agent (a stand-in) ── session: machine, PMI server, policy, words ── ranks
//!                │                                                              │
//!               disk                                                      fences, links ── other sessions
//! ```
//! The state machines are those of the crates. Stand-ins replace the tasks, channels and sockets that run them in the crates. After
//! each step and at the end, the invariants I1 to I9 of `docs/dev/simulation.md` are checked against the true course of the run.
#![forbid(unsafe_code)]

mod api_host;
mod client;
mod connection;
mod event;
mod faults;
mod input;
mod journal;
mod network;
mod node;
mod random;
mod rank;
mod scenario;
mod schedule;
mod speech;
mod surroundings;
mod time;
mod truth;
mod world;

use std::time::Duration;

use self::faults::{Fault, plan};
use self::scenario::Scenario;
use self::world::World;

/// Time after the end of the last fault. It is longer than any limit of the daemons, except the limit for a report that is never
/// accepted.
const REST: Duration = Duration::from_secs(200);

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all events.
    pub digest: u64,
    /// Number of events.
    pub events: u64,
    /// Descriptions of the violated invariants.
    pub violations: Vec<String>,
    /// All events, if requested.
    pub lines: Vec<String>,
}

/// Request for the lines of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// All lines.
    Kept,
    /// No lines: the hash is sufficient.
    Dropped,
}

/// The launch and the faults of a seed. Some faults may be left out.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    scenario: Scenario,
    faults: Vec<Fault>,
    /// Numbers of the remaining faults.
    kept: Vec<usize>,
}

impl Plan {
    /// Returns the complete plan of a seed.
    pub fn of(seed: u64) -> Self {
        Self::with(seed, Scenario::of(seed).with_features(seed))
    }

    /// Returns the same launch and faults with ranks of PMI-1, and without input and spawned jobs.
    pub fn plain(seed: u64) -> Self {
        Self::with(seed, Scenario::of(seed))
    }

    fn with(seed: u64, scenario: Scenario) -> Self {
        let faults = plan(seed, &scenario);
        Self { seed, scenario, kept: (0..faults.len()).collect(), faults }
    }

    /// Returns the same plan with these faults only.
    pub fn with_only(&self, kept: &[usize]) -> Self {
        let kept = kept.iter().copied().filter(|&fault| fault < self.faults.len()).collect();
        Self { kept, ..self.clone() }
    }

    /// Returns the numbers of the remaining faults.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// Returns a description of the launch and the faults.
    pub fn describe(&self) -> String {
        let faults = self.kept.iter().map(|&fault| format!("\n  fault {fault}: {}", self.faults[fault]));
        format!("{:?}{}", self.scenario, faults.collect::<String>())
    }

    /// Runs the plan.
    pub fn run(&self, lines: Lines) -> Outcome {
        let faults: Vec<Fault> = self.kept.iter().map(|&fault| self.faults[fault]).collect();
        let over = faults.iter().map(|fault| fault.at + fault.kind.lasts()).max().unwrap_or_default();
        let mut world = World::new(self.seed, self.scenario.clone(), faults, lines == Lines::Kept);
        world.run_until(over + REST);
        world.check_end();
        let (journal, violations) = world.into_record();
        let (digest, events) = (journal.digest(), journal.events());
        Outcome { digest, events, violations, lines: journal.into_lines() }
    }

    /// Returns the plan with as few faults as possible that still violates an invariant. It leaves out each fault that is not
    /// necessary.
    pub fn shrink(&self) -> Self {
        let mut smallest = self.clone();
        loop {
            let smaller = (0..smallest.kept.len()).map(|left_out| {
                let kept: Vec<usize> = smallest
                    .kept
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| *at != left_out)
                    .map(|(_, &fault)| fault)
                    .collect();
                smallest.with_only(&kept)
            });
            let mut smaller = smaller;
            match smaller.find(|plan| !plan.run(Lines::Dropped).violations.is_empty()) {
                Some(plan) => smallest = plan,
                None => return smallest,
            }
        }
    }
}
