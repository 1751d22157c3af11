//! Resources that ranks of this node have registered. They are inspected at registration, and removed after the end of their rank.
//!
//! ```text
//! rank ──server──> SessionCall::Resource ──> pinned on a thread ──> kept by slot, sent to the keeper ──> the rank is answered
//!                                                                        │ release              │ the rank has ended
//!                                                                        v                      v
//!                                                                    forgotten     removed on a thread, then forgotten
//! ```
//! If this process is killed at any moment, the keeper's list has all remaining resources. The keeper receives a resource before the
//! resource that it replaces is taken from the list. No resource is taken from the list before it is removed.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pmi_core::ids::Rank;
use pmi_core::resources::{Resource, ResourceChange, ResourceError, ResourceStep};
use pmi_core::server::RESOURCES_MAX;
use rank_spawner::{Claimant, Keeper, Pinned};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Runner;
use crate::blocking;
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::{RankState, SlotId};
use crate::settings::OverdueRelease;

/// Maximum number of resources that are inspected at the same time, each by a thread.
const LOOKS_MAX: usize = 512;

/// Receiver of the answer to a step of a resource.
pub(super) type ResourceReply = oneshot::Sender<Result<(), ResourceError>>;

/// Resources of the ranks here.
pub(super) struct Resources {
    /// Start of the session.
    began: SystemTime,
    kept: HashMap<SlotId, Vec<RegisteredResource>>,
    /// Inspections of resources that are being registered, and removals.
    pub(super) threads: JoinSet<ResourceNews>,
    /// The last number that was sent to the keeper.
    last: u32,
}

struct RegisteredResource {
    resource: Resource,
    pinned: Pinned,
    number: u32,
}

/// Completed work of a thread.
pub(super) enum ResourceNews {
    /// The thread has inspected a resource.
    Looked(Look),
    /// The thread has removed resources. These are their numbers in the keeper.
    Removed(Vec<u32>),
}

/// An inspected resource.
pub(super) struct Look {
    slot: SlotId,
    change: ResourceChange,
    pinned: Result<Pinned, ResourceError>,
    reply: ResourceReply,
}

impl Resources {
    pub(super) fn new() -> Self {
        Self { began: SystemTime::now(), kept: HashMap::new(), threads: JoinSet::new(), last: 0 }
    }

    /// Returns the start of the launch here.
    pub(super) fn began(&self) -> SystemTime {
        self.began
    }

    /// Waits until a thread has completed; `None` if there is none. Cancel-safe.
    pub(super) async fn news(&mut self) -> Option<ResourceNews> {
        // An inspection that panicked has dropped its reply, which the rank receives as a refusal.
        self.threads.join_next().await?.ok()
    }

    /// Stores a pinned resource, and deletes the entry that it replaces.
    fn keep(&mut self, slot: SlotId, change: ResourceChange, pinned: Pinned, keeper: Option<&Keeper>) {
        self.last = self.last.wrapping_add(1);
        if let Some(keeper) = keeper {
            // A keeper that is gone removes nothing. Usually the session removes the resource itself.
            let _ = keeper.guard_resource(self.last, &pinned);
        }
        let replaced = self.take(slot, &change.resource, keeper);
        if replaced.is_none()
            && change.step == ResourceStep::Hold
            && let Some(intent) = change.resource.unnumbered()
        {
            self.take(slot, &intent, keeper);
        }
        self.kept.entry(slot).or_default().push(RegisteredResource {
            resource: change.resource,
            pinned,
            number: self.last,
        });
    }

    /// Deletes the entry of a resource that must not be removed any more.
    fn take(&mut self, slot: SlotId, resource: &Resource, keeper: Option<&Keeper>) -> Option<RegisteredResource> {
        let kept = self.kept.get_mut(&slot)?;
        let at = kept.iter().position(|kept| kept.resource == *resource)?;
        let taken = kept.remove(at);
        forget(taken.number, keeper);
        Some(taken)
    }

    fn count(&self, slot: SlotId) -> usize {
        self.kept.get(&slot).map_or(0, Vec::len)
    }
}

fn forget(number: u32, keeper: Option<&Keeper>) {
    if let Some(keeper) = keeper {
        // A failure has no effect: a keeper inspects a resource before it removes it.
        let _ = keeper.forget_resource(number);
    }
}

impl Runner {
    /// Handles a rank's registration or release of a resource.
    pub(super) fn on_resource(&mut self, job: JobNumber, rank: Rank, change: ResourceChange, reply: ResourceReply) {
        let shown = self.machine.jobs().get(job).shown(rank);
        let slot = self.machine.ranks().slot_of(shown);
        let running = slot.and_then(|slot| Some((slot, self.running_pid(slot)?)));
        let Some((slot, pid)) = running else {
            return answer(reply, Err(refused("the rank's process does not run")));
        };
        if change.step == ResourceStep::Release {
            let keeper = self.processes.as_ref().and_then(|processes| processes.keeper());
            self.resources.take(slot, &change.resource, keeper);
            return answer(reply, Ok(()));
        }
        // The server counts registrations. A registration with a late answer is counted here.
        if self.resources.count(slot) >= RESOURCES_MAX {
            return answer(reply, Err(refused("the rank has registered very many")));
        }
        if self.resources.threads.len() >= LOOKS_MAX {
            return answer(reply, Err(refused("very many resources are being looked at on this node")));
        }
        let ranks = self.machine.ranks().alive().filter_map(|(_, slot)| slot.state.pid()).map(pid_of).collect();
        let claimant = Claimant { tag: self.io.tag.clone(), rank: pid, ranks, since: self.resources.began };
        blocking::begin_in(&mut self.resources.threads, move || {
            let pinned = Pinned::new(&change.resource, change.step, &claimant);
            ResourceNews::Looked(Look { slot, change, pinned, reply })
        });
    }

    /// Handles the completed work of a thread.
    pub(super) fn on_resource_news(&mut self, news: ResourceNews) {
        match news {
            ResourceNews::Looked(look) => self.on_looked(look),
            ResourceNews::Removed(numbers) => {
                let keeper = self.processes.as_ref().and_then(|processes| processes.keeper());
                numbers.into_iter().for_each(|number| forget(number, keeper));
            }
        }
    }

    /// Handles an inspected resource: from now on it is removed when its rank ends.
    fn on_looked(&mut self, Look { slot, change, pinned, reply }: Look) {
        let result = match pinned {
            Ok(pinned) if self.running_pid(slot).is_some() => {
                let keeper = self.processes.as_ref().and_then(|processes| processes.keeper());
                self.resources.keep(slot, change, pinned, keeper);
                Ok(())
            }
            // The rank has ended meanwhile.
            Ok(pinned) => {
                blocking::begin_in(&mut self.resources.threads, move || {
                    pinned.remove();
                    ResourceNews::Removed(Vec::new())
                });
                Err(refused("the rank's process does not run"))
            }
            Err(error) => Err(error),
        };
        answer(reply, result);
    }

    /// Removes the resources of a rank that has ended.
    pub(super) fn remove_resources(&mut self, slot: SlotId) {
        let Some(kept) = self.resources.kept.remove(&slot) else { return };
        blocking::begin_in(&mut self.resources.threads, move || {
            let numbers = kept.iter().map(|kept| kept.number).collect();
            let (processes, others): (Vec<_>, Vec<_>) = kept.into_iter().partition(|kept| kept.pinned.is_process());
            processes.into_iter().chain(others).for_each(|kept| kept.pinned.remove());
            ResourceNews::Removed(numbers)
        });
    }

    /// Handles a rank that has not completed a release in time. The user gets a notice, and the rank is killed if the launch requires it.
    pub(super) fn on_overdue(&mut self, job: JobNumber, rank: Rank, resource: &Resource, within: Duration) {
        let shown = self.machine.jobs().get(job).shown(rank);
        let Some(slot) = self.machine.ranks().slot_of(shown) else { return };
        if self.running_pid(slot).is_none() {
            return;
        }
        let kills = self.spec.settings.overdue_release == OverdueRelease::Fail;
        self.machine.on_overdue(shown, resource.to_string(), within, kills);
        if let Some(processes) = self.processes.as_ref().filter(|_| kills) {
            processes.signal(Signal::SIGKILL, &[slot]);
        }
    }

    /// After the last rank, waits until all resources are removed, including resources that are still being inspected.
    pub(super) async fn end_resources(&mut self) {
        while !self.resources.threads.is_empty() {
            if let Some(news) = self.resources.news().await {
                self.on_resource_news(news);
            }
        }
    }

    fn running_pid(&self, slot: SlotId) -> Option<Pid> {
        match self.machine.ranks().find(slot)?.state {
            RankState::Running { pid, .. } => Some(pid_of(pid)),
            _ => None,
        }
    }
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}

fn refused(reason: &str) -> ResourceError {
    ResourceError::Refused { reason: reason.to_owned() }
}

fn answer(reply: ResourceReply, result: Result<(), ResourceError>) {
    // The requesting rank may be gone.
    let _ = reply.send(result);
}
