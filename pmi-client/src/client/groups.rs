//! Barriers of some ranks of a job.

use rustix::fd::BorrowedFd;

use super::{Client, Wire};
use crate::error::ClientError;

/// Ranks that enter a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankGroup<'a> {
    /// All ranks of the job.
    World,
    /// The job's ranks on this rank's node.
    Node,
    /// These ranks, including this one. Order and repetition have no effect.
    Ranks(&'a [u32]),
}

/// A barrier of a group that this process has begun, for [`Client::test_barrier`] and [`Client::wait_for_barrier`].
///
/// If it is dropped, the barrier stays open. The other ranks can leave it, and this process cannot use its tag again.
#[derive(Debug)]
#[must_use = "a barrier has not ended before it is waited for"]
pub struct PendingBarrier {
    /// Number of its tag; `None` if there are no other ranks.
    tag: Option<u32>,
}

/// Barriers of groups: PMI-1.2.
///
/// Lattice always serves them, Hydra from 5.0 on. A process may have several open barriers, each with its own tag. All ranks of the group must
/// use the same tag. Other calls may be made in the meantime.
impl Client {
    /// Waits until every rank of `group` has called this the same number of times with this tag. Then all of them can get their earlier puts.
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
    /// [`ClientError::Unsupported`] in PMI-2 and under launchers that do not serve it. [`ClientError::GroupBarrier`] for a group without this
    /// rank, for a group with ranks that the job does not have, and for the tag of an open barrier.
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

    /// Returns true if all ranks of the group have entered the barrier, which then has ended. Does not wait.
    ///
    /// # Errors
    /// Fails if the server is gone or refuses the barrier.
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

    /// Waits until all ranks of the group have entered the barrier.
    ///
    /// # Errors
    /// Fails if the server is gone or refuses the barrier.
    #[expect(clippy::needless_pass_by_value, reason = "it has ended")]
    pub fn wait_for_barrier(&mut self, barrier: PendingBarrier) -> Result<(), ClientError> {
        if let (Wire::Pmi1(wire), Some(tag)) = (&mut self.wire, barrier.tag) {
            wire.wait_for_barrier(tag)?;
        }
        self.shared.note_group_barrier();
        Ok(())
    }

    /// Checks whether the launcher serves barriers of groups.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] if not; fails if the server is gone.
    pub fn need_group_barriers(&mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.need_group_barriers(),
            Wire::Pmi2(_) => Err(MISSING_IN_PMI2),
            Wire::Alone(_) => Ok(()),
        }
    }

    /// The connection to the launcher, for `poll(2)`; `None` without a launcher. It becomes readable when a barrier of a group has ended, unless
    /// another call has already read this message.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.wire {
            Wire::Pmi1(wire) => Some(wire.as_fd()),
            Wire::Pmi2(wire) => Some(wire.as_fd()),
            Wire::Alone(_) => None,
        }
    }
}

const MISSING_IN_PMI2: ClientError = ClientError::Unsupported { call: "group_barrier", place: "in PMI-2" };
