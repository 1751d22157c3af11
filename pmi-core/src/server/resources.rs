//! Registered resources, one table for each rank that has any. The host removes the resources that ranks leave.
//!
//! ```text
//!          intend               hold                 begin to release            time expires
//! (none) ─────────> Intended ─────────> Held ──────────────────────> Releasing ───────────────> Overdue, reported once
//!    └──────────────── hold ────────────^ │                              │                         │
//!    <────────────────────────────────────┴────────── release ───────────┴─────────────────────────┘
//! ```
//! Each step waits for the host, which checks the resource; a refusal keeps the earlier state. The table has no clock: a deadline is an
//! [`Action`] for the host.

use std::collections::HashMap;
use std::time::Duration;

use super::action::{Action, ReleaseTimer};
use super::calls::Calls;
use super::node::{JobNode, Origin};
use crate::ids::LocalRank;
use crate::resources::{Resource, ResourceChange, ResourceError, ResourceStep};
use crate::services::Call;
use crate::wire::request::{ResourceRequest, ResourceWish};
use crate::wire::{ErrorCode, Response};

/// Maximum number of registered resources of one rank.
pub const RESOURCES_MAX: usize = 256;

/// Tables of the ranks that have registered resources.
#[derive(Default)]
pub(super) struct Resources {
    tables: HashMap<LocalRank, Table>,
}

/// Resources of one rank.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// Number of the last deadline.
    last: u64,
}

#[derive(Debug)]
struct Entry {
    resource: Resource,
    phase: Phase,
    /// Step that waits for the host.
    asked: Option<ResourceStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The host has not recorded it yet.
    New,
    Intended,
    Held,
    Releasing {
        number: u64,
        within: Duration,
    },
    Overdue,
}

/// Reason why a rank cannot make a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum StepError {
    #[error("this rank has registered {RESOURCES_MAX} resources")]
    Full,
    #[error("this rank has not registered it")]
    NotThere,
    #[error("this rank has registered it already")]
    There,
    #[error("this rank is releasing it")]
    Releasing,
    #[error("a step of this resource waits for its answer")]
    Busy,
    #[error("a resource that was made has a number")]
    Unnumbered,
}

impl StepError {
    fn code(self) -> ErrorCode {
        match self {
            Self::Full => ErrorCode::NoMemory,
            Self::Unnumbered => ErrorCode::InvalidArgument,
            Self::NotThere | Self::There | Self::Releasing | Self::Busy => ErrorCode::Failed,
        }
    }
}

impl Table {
    fn position(&self, resource: &Resource) -> Option<usize> {
        self.entries.iter().position(|entry| entry.resource == *resource && entry.asked.is_none())
    }

    /// Finds an entry that may make a step: no other step of it waits for the host.
    fn ready(&self, resource: &Resource) -> Result<usize, StepError> {
        let exists = || self.entries.iter().any(|entry| entry.resource == *resource);
        self.position(resource).ok_or_else(|| if exists() { StepError::Busy } else { StepError::NotThere })
    }

    /// Begins a step of a rank. On success the caller must ask the host. Returns the deadline to cancel, if any.
    fn ask(&mut self, change: &ResourceChange) -> Result<Option<u64>, StepError> {
        let ResourceChange { resource, step } = change;
        match (step, self.ready(resource)) {
            (ResourceStep::Hold, _) if !resource.is_numbered() => Err(StepError::Unnumbered),
            // Several intents may be in progress; each has its own entry.
            (ResourceStep::Intend, _) if !resource.is_numbered() => self.add(change),
            (ResourceStep::Intend | ResourceStep::Hold, Err(StepError::NotThere)) => self.add(change),
            (_, Err(error)) => Err(error),
            (_, Ok(at)) => {
                let entry = &mut self.entries[at];
                match (step, entry.phase) {
                    (ResourceStep::Intend, Phase::Held) => return Err(StepError::There),
                    (ResourceStep::Intend | ResourceStep::Hold, Phase::Releasing { .. } | Phase::Overdue) => {
                        return Err(StepError::Releasing);
                    }
                    _ => {}
                }
                entry.asked = Some(*step);
                match entry.phase {
                    Phase::Releasing { number, .. } => Ok(Some(number)),
                    _ => Ok(None),
                }
            }
        }
    }

    fn add(&mut self, ResourceChange { resource, step }: &ResourceChange) -> Result<Option<u64>, StepError> {
        if self.entries.len() >= RESOURCES_MAX {
            return Err(StepError::Full);
        }
        self.entries.push(Entry { resource: resource.clone(), phase: Phase::New, asked: Some(*step) });
        Ok(None)
    }

    /// Applies the host's answer to a step.
    fn answered(&mut self, ResourceChange { resource, step }: &ResourceChange, accepted: bool) {
        let asked = |entry: &Entry| entry.resource == *resource && entry.asked == Some(*step);
        let Some(at) = self.entries.iter().position(asked) else { return };
        let entry = &mut self.entries[at];
        entry.asked = None;
        match (accepted, step) {
            (true, ResourceStep::Intend) => entry.phase = Phase::Intended,
            (true, ResourceStep::Hold) => {
                let was_new = std::mem::replace(&mut entry.phase, Phase::Held) == Phase::New;
                let intent = resource.unnumbered().filter(|_| was_new);
                if let Some(intent) = intent.and_then(|intent| self.position(&intent)) {
                    self.entries.remove(intent);
                }
            }
            (true, ResourceStep::Release) => drop(self.entries.remove(at)),
            (false, _) if entry.phase == Phase::New => drop(self.entries.remove(at)),
            // Its deadline was cancelled when the release was requested.
            (false, _) if matches!(entry.phase, Phase::Releasing { .. }) => entry.phase = Phase::Held,
            (false, _) => {}
        }
    }

    /// The rank is about to remove a resource within this time. Returns the deadline to cancel, if any, and the new deadline.
    fn begin_release(&mut self, resource: &Resource, within: Duration) -> Result<(Option<u64>, u64), StepError> {
        let at = self.ready(resource)?;
        self.last += 1;
        let (number, entry) = (self.last, &mut self.entries[at]);
        match std::mem::replace(&mut entry.phase, Phase::Releasing { number, within }) {
            Phase::Releasing { number: earlier, .. } => Ok((Some(earlier), number)),
            _ => Ok((None, number)),
        }
    }

    /// A deadline has expired. Returns the resource that is still held, and its time limit.
    fn overdue(&mut self, number: u64) -> Option<(Resource, Duration)> {
        let entry = self.entries.iter_mut().find(|entry| match entry.phase {
            Phase::Releasing { number: own, .. } => own == number && entry.asked.is_none(),
            _ => false,
        })?;
        match std::mem::replace(&mut entry.phase, Phase::Overdue) {
            Phase::Releasing { within, .. } => Some((entry.resource.clone(), within)),
            _ => None,
        }
    }
}

impl Resources {
    /// Answers a request about a resource, or passes it to the host.
    pub(super) fn handle(
        &mut self,
        node: &mut JobNode,
        calls: &mut Calls,
        origin: Origin<'_>,
        request: &ResourceRequest<'_>,
    ) -> Option<Response<'static>> {
        if !node.settings.resources {
            return Some(Response::Error { code: ErrorCode::Other, text: "unknown command".into() });
        }
        let resource = match Resource::parse(&request.name) {
            Ok(resource) => resource,
            Err(error) => {
                return Some(Response::Error { code: ErrorCode::InvalidArgument, text: error.to_string().into() });
            }
        };
        let local = origin.local;
        let step = match request.wish {
            ResourceWish::Intend => ResourceStep::Intend,
            ResourceWish::Hold => ResourceStep::Hold,
            ResourceWish::EndRelease => ResourceStep::Release,
            ResourceWish::BeginRelease { within } => return Some(self.begin_release(node, local, &resource, within)),
        };
        let change = ResourceChange { resource, step };
        let forgotten = match self.tables.entry(local).or_default().ask(&change) {
            Ok(forgotten) => forgotten,
            Err(error) => return Some(refused(error)),
        };
        if let Some(number) = forgotten {
            node.actions.push_back(Action::CancelTimer(ReleaseTimer { local, number }));
        }
        let refusal = calls.ask(node, origin, Call::Resource(change.clone()));
        if refusal.is_some() {
            self.end_step(local, &change, false);
        }
        refusal
    }

    fn begin_release(
        &mut self,
        node: &mut JobNode,
        local: LocalRank,
        resource: &Resource,
        within: Option<Duration>,
    ) -> Response<'static> {
        let Some(table) = self.tables.get_mut(&local) else { return refused(StepError::NotThere) };
        let (forgotten, number) = match table.begin_release(resource, within.unwrap_or_default()) {
            Ok(timers) => timers,
            Err(error) => return refused(error),
        };
        if let Some(number) = forgotten {
            node.actions.push_back(Action::CancelTimer(ReleaseTimer { local, number }));
        }
        if let Some(after) = within {
            node.actions.push_back(Action::SetTimer { timer: ReleaseTimer { local, number }, after });
        }
        Response::Done
    }

    /// The host has recorded a step, or refused it.
    pub(super) fn handle_answer(
        &mut self,
        local: LocalRank,
        change: &ResourceChange,
        result: &Result<(), ResourceError>,
    ) -> Response<'static> {
        self.end_step(local, change, result.is_ok());
        match result {
            Ok(()) => Response::Done,
            Err(error) => Response::Error { code: ErrorCode::Failed, text: error.to_string().into() },
        }
    }

    fn end_step(&mut self, local: LocalRank, change: &ResourceChange, accepted: bool) {
        if let Some(table) = self.tables.get_mut(&local) {
            table.answered(change, accepted);
        }
    }

    /// A deadline has expired. Reports the resource that is still held.
    pub(super) fn handle_timer(&mut self, node: &mut JobNode, timer: ReleaseTimer) {
        let ReleaseTimer { local, number } = timer;
        let overdue = self.tables.get_mut(&local).and_then(|table| table.overdue(number));
        if let Some((resource, within)) = overdue
            && !node.has_ended()
        {
            let rank = node.ranks[local].rank;
            node.actions.push_back(Action::Overdue { rank, resource, within });
        }
    }
}

fn refused(error: StepError) -> Response<'static> {
    Response::Error { code: error.code(), text: error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change(step: ResourceStep, name: &str) -> ResourceChange {
        ResourceChange { resource: Resource::parse(name.as_bytes()).unwrap(), step }
    }

    /// Makes a step that the host accepts.
    fn make(table: &mut Table, step: ResourceStep, name: &str) -> Result<(), StepError> {
        let change = change(step, name);
        table.ask(&change)?;
        table.answered(&change, true);
        Ok(())
    }

    fn phases(table: &Table) -> Vec<(String, Phase)> {
        table.entries.iter().map(|entry| (entry.resource.to_string(), entry.phase)).collect()
    }

    const FILE: &str = "file:/tmp/x";

    #[test]
    fn a_resource_is_intended_held_and_released() {
        let mut table = Table::default();
        for (step, expected) in [
            (ResourceStep::Intend, vec![(FILE.to_owned(), Phase::Intended)]),
            (ResourceStep::Intend, vec![(FILE.to_owned(), Phase::Intended)]),
            (ResourceStep::Hold, vec![(FILE.to_owned(), Phase::Held)]),
            (ResourceStep::Hold, vec![(FILE.to_owned(), Phase::Held)]),
            (ResourceStep::Release, vec![]),
        ] {
            make(&mut table, step, FILE).unwrap();
            assert_eq!(phases(&table), expected, "{step:?}");
        }
        assert_eq!(make(&mut table, ResourceStep::Release, FILE), Err(StepError::NotThere));
        make(&mut table, ResourceStep::Hold, FILE).unwrap();
        assert_eq!(make(&mut table, ResourceStep::Intend, FILE), Err(StepError::There));
    }

    #[test]
    fn one_that_gets_its_number_takes_the_place_of_an_intent_of_its_kind() {
        let mut table = Table::default();
        for name in ["shm:", "shm:", "sem:"] {
            make(&mut table, ResourceStep::Intend, name).unwrap();
        }
        make(&mut table, ResourceStep::Hold, "shm:7").unwrap();
        let names = |table: &Table| phases(table).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&table), ["shm:", "sem:", "shm:7"]);
        make(&mut table, ResourceStep::Hold, "shm:7").unwrap();
        assert_eq!(names(&table), ["shm:", "sem:", "shm:7"], "it had its number already");
        assert_eq!(make(&mut table, ResourceStep::Hold, "shm:"), Err(StepError::Unnumbered));
        make(&mut table, ResourceStep::Release, "shm:").unwrap();
        assert_eq!(names(&table), ["sem:", "shm:7"]);
    }

    #[test]
    fn what_the_host_refuses_leaves_what_was_before() {
        let mut table = Table::default();
        let hold = change(ResourceStep::Hold, FILE);
        assert_eq!(table.ask(&hold), Ok(None));
        assert_eq!(table.ask(&hold), Err(StepError::Busy));
        table.answered(&hold, false);
        assert_eq!(phases(&table), []);
        make(&mut table, ResourceStep::Intend, FILE).unwrap();
        assert_eq!(table.ask(&hold), Ok(None));
        table.answered(&hold, false);
        assert_eq!(phases(&table), [(FILE.to_owned(), Phase::Intended)]);
        table.answered(&hold, true);
        assert_eq!(phases(&table), [(FILE.to_owned(), Phase::Intended)], "nobody had asked");
    }

    #[test]
    fn a_release_is_overdue_once_and_only_if_it_was_not_ended() {
        let mut table = Table::default();
        let (resource, second) = (Resource::parse(FILE.as_bytes()).unwrap(), Duration::from_secs(1));
        assert_eq!(table.begin_release(&resource, second), Err(StepError::NotThere));
        make(&mut table, ResourceStep::Hold, FILE).unwrap();
        assert_eq!(table.begin_release(&resource, second), Ok((None, 1)));
        assert_eq!(table.begin_release(&resource, 2 * second), Ok((Some(1), 2)), "it was given more time");
        assert_eq!(table.overdue(1), None);
        assert_eq!(table.overdue(2), Some((resource.clone(), 2 * second)));
        assert_eq!(table.overdue(2), None);
        assert_eq!(make(&mut table, ResourceStep::Hold, FILE), Err(StepError::Releasing));
        assert_eq!(table.begin_release(&resource, second), Ok((None, 3)));
        assert_eq!(table.ask(&change(ResourceStep::Release, FILE)), Ok(Some(3)), "its deadline is forgotten");
        assert_eq!(table.overdue(3), None);
        table.answered(&change(ResourceStep::Release, FILE), true);
        assert_eq!(phases(&table), []);
    }

    #[test]
    fn a_full_table_takes_again_what_has_room() {
        let mut table = Table::default();
        for number in 0..RESOURCES_MAX {
            make(&mut table, ResourceStep::Intend, &format!("file:/{number}")).unwrap();
        }
        for refused in ["file:/x", "shm:"] {
            assert_eq!(make(&mut table, ResourceStep::Intend, refused), Err(StepError::Full));
        }
        make(&mut table, ResourceStep::Hold, "file:/3").unwrap();
        make(&mut table, ResourceStep::Release, "file:/7").unwrap();
        make(&mut table, ResourceStep::Intend, "shm:").unwrap();
    }

    proptest! {
        /// In any order of steps and answers the table is bounded, holds no name twice, and holds only requested resources.
        #[test]
        fn a_table_holds_what_was_accepted(steps in prop::collection::vec((0..5_u8, 0..4_usize, any::<bool>()), 0..60)) {
            let names = ["shm:", "shm:1", "file:/a", "pid:9"];
            let kinds = [ResourceStep::Intend, ResourceStep::Hold, ResourceStep::Release];
            let mut table = Table::default();
            for (what, name, accepted) in steps {
                let resource = Resource::parse(names[name].as_bytes()).unwrap();
                match kinds.get(usize::from(what)) {
                    Some(&step) => {
                        let change = ResourceChange { resource, step };
                        if table.ask(&change).is_ok() {
                            table.answered(&change, accepted);
                        }
                    }
                    None if what == 3 => drop(table.begin_release(&resource, Duration::ZERO)),
                    None => drop(table.overdue(name as u64)),
                }
                prop_assert!(table.entries.iter().all(|entry| entry.phase != Phase::New && entry.asked.is_none()));
                for name in &names[1..] {
                    let count = table.entries.iter().filter(|entry| entry.resource.to_string() == *name).count();
                    prop_assert!(count <= 1, "{} times {}", count, name);
                }
            }
        }
    }
}
