//! Barriers of some ranks of a job.

use rustix::fd::BorrowedFd;

use super::{Client, Wire};
use crate::error::ClientError;

/// Ranks that meet in a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankGroup<'a> {
    /// All ranks of the job.
    World,
    /// The job's ranks on this rank's node.
    Node,
    /// These ranks, this one among them. Neither order nor repetition means anything.
    Ranks(&'a [u32]),
}

/// A barrier of a group that this process has begun, for [`Client::test_barrier`] and [`Client::wait_for_barrier`].
///
/// One that is dropped stays begun: the others can leave it, and its tag cannot be used again by this process.
#[derive(Debug)]
#[must_use = "a barrier has not ended before it is waited for"]
pub struct PendingBarrier {
    /// Number of its tag; `None` if there is nobody to wait for.
    tag: Option<u32>,
}

/// Barriers of groups: PMI-1.2.
///
/// Lattice serves them always, Hydra from 5.0 on. A process may have several open, each with a tag of its own, which all ranks of the group
/// give alike; other calls may be made meanwhile.
impl Client {
    /// Waits until every rank of `group` has called this as often with this tag. What they put before can be got by all of them then.
    ///
    /// # Errors
    /// As [`begin_barrier`](Self::begin_barrier) and [`wait_for_barrier`](Self::wait_for_barrier).
    pub fn group_barrier(&mut self, group: RankGroup<'_>, tag: Option<&str>) -> Result<(), ClientError> {
        let begun = self.begin_barrier(group, tag)?;
        self.wait_for_barrier(begun)
    }

    /// Begins a barrier of `group`, and does not wait.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-2 and under launchers that do not serve it; [`ClientError::GroupBarrier`] for a group that this rank is
    /// not in, or that has ranks which the job does not have, and for the tag of a barrier that is open.
    pub fn begin_barrier(&mut self, group: RankGroup<'_>, tag: Option<&str>) -> Result<PendingBarrier, ClientError> {
        let tag = match &mut self.wire {
            Wire::Pmi1(wire) => wire.begin_barrier(group, tag)?,
            Wire::Pmi2(_) => return Err(MISSING_IN_PMI2),
            Wire::Alone(_) => match group {
                RankGroup::Ranks(ranks) if ranks.iter().max() != Some(&0) => {
                    return Err(ClientError::GroupBarrier { needed: "rank 0 as its only member: there is no other" });
                }
                _ => None,
            },
        };
        Ok(PendingBarrier { tag })
    }

    /// Returns true if all ranks of the group have come; does not wait for them. Then the barrier has ended.
    ///
    /// # Errors
    /// Fails when the server is gone or refuses the barrier.
    pub fn test_barrier(&mut self, barrier: &PendingBarrier) -> Result<bool, ClientError> {
        let has_ended = match (&mut self.wire, barrier.tag) {
            (Wire::Pmi1(wire), Some(tag)) => wire.test_barrier(tag)?,
            _ => true,
        };
        if has_ended {
            self.shared.note_group_barrier();
        }
        Ok(has_ended)
    }

    /// Waits until all ranks of the group have come.
    ///
    /// # Errors
    /// Fails when the server is gone or refuses the barrier.
    #[expect(clippy::needless_pass_by_value, reason = "it has ended")]
    pub fn wait_for_barrier(&mut self, barrier: PendingBarrier) -> Result<(), ClientError> {
        if let (Wire::Pmi1(wire), Some(tag)) = (&mut self.wire, barrier.tag) {
            wire.wait_for_barrier(tag)?;
        }
        self.shared.note_group_barrier();
        Ok(())
    }

    /// Finds out whether the launcher serves barriers of groups.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] if not; fails when the server is gone.
    pub fn need_group_barriers(&mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.need_group_barriers(),
            Wire::Pmi2(_) => Err(MISSING_IN_PMI2),
            Wire::Alone(_) => Ok(()),
        }
    }

    /// The connection to the launcher, to be waited on with `poll(2)`; `None` without a launcher. It becomes readable when a barrier of a group has
    /// ended, unless another call has read that before.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.wire {
            Wire::Pmi1(wire) => Some(wire.as_fd()),
            Wire::Pmi2(wire) => Some(wire.as_fd()),
            Wire::Alone(_) => None,
        }
    }
}

const MISSING_IN_PMI2: ClientError = ClientError::Unsupported { call: "group_barrier", place: "in PMI-2" };
