//! A whole cluster in one thread and virtual time: API server, agents, sessions with their PMI servers, fences, ranks and a client.
//! One seed decides what is launched, what goes wrong and in which order everything happens, so a seed replays byte for byte.
//!
//! ```text
//! client ── API server: launch, outboxes, registry ── agent (stood in for) ── session: machine, PMI server, policy, words ── ranks
//!                │                                                                │
//!               disk                                                        fences, links ── other sessions
//! ```
//! The machines are those of the crates; what runs them there (tasks, channels, sockets) is stood in for. After each step
//! and at the end the invariants I1 to I9 of `docs/simulation.md` are checked against what really happened.
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

/// Time that everything gets after the last fault is over: more than any limit of the daemons but that for a report nobody takes.
const REST: Duration = Duration::from_secs(200);

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of everything that happened.
    pub digest: u64,
    /// Number of events.
    pub events: u64,
    /// Invariants that did not hold, in words.
    pub violations: Vec<String>,
    /// Everything that happened, if that was asked for.
    pub lines: Vec<String>,
}

/// What a run tells beside its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Every line, for somebody to read.
    Kept,
    /// None: the hash is enough.
    Dropped,
}

/// A seed's launch and faults, of which some may be left out.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    scenario: Scenario,
    faults: Vec<Fault>,
    /// Numbers of the faults that are not left out.
    kept: Vec<usize>,
}

impl Plan {
    /// Everything that the seed stands for.
    pub fn of(seed: u64) -> Self {
        Self::with(seed, Scenario::of(seed).with_features(seed))
    }

    /// The same launch and faults with ranks of PMI-1, without input and spawned jobs.
    pub fn plain(seed: u64) -> Self {
        Self::with(seed, Scenario::of(seed))
    }

    fn with(seed: u64, scenario: Scenario) -> Self {
        let faults = plan(seed, &scenario);
        Self { seed, scenario, kept: (0..faults.len()).collect(), faults }
    }

    /// The same with these faults only.
    pub fn with_only(&self, kept: &[usize]) -> Self {
        let kept = kept.iter().copied().filter(|&fault| fault < self.faults.len()).collect();
        Self { kept, ..self.clone() }
    }

    /// The numbers of the faults that are not left out.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// The launch and the faults, in words.
    pub fn describe(&self) -> String {
        let faults = self.kept.iter().map(|&fault| format!("\n  fault {fault}: {}", self.faults[fault]));
        format!("{:?}{}", self.scenario, faults.collect::<String>())
    }

    /// Runs it.
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

    /// The plan with as few faults as still break an invariant: each is left out that can be.
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
