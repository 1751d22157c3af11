//! Ranges of names: the processes that may find a name, and the publishers that a lookup searches.

use super::user::NameUser;

/// Processes that may find a published name, or publishers that a lookup searches.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum NameRange {
    /// All processes of the user.
    #[default]
    User,
    /// Processes of the same session: on a cluster, of the same allocation.
    Session,
    /// Processes on the same node.
    Node,
    /// Processes of the same job.
    Job,
    /// The process itself.
    Process,
    /// The listed processes.
    Listed(Vec<NamePeer>),
    /// No process, only the host.
    Host,
}

/// Processes that a [`NameRange::Listed`] admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePeer {
    /// Id of their job.
    pub job: String,
    /// The rank; `None` for all ranks of the job.
    pub rank: Option<u32>,
}

impl NameRange {
    /// Returns true if the range, as seen from `from`, contains `to`.
    pub(super) fn admits(&self, from: &NameUser, to: &NameUser, session: bool) -> bool {
        match self {
            Self::User => true,
            Self::Session => session,
            Self::Node => from.host == to.host,
            Self::Job => from.job == to.job,
            Self::Process => from.is(to),
            Self::Listed(peers) => {
                peers.iter().any(|peer| peer.job == to.job && peer.rank.is_none_or(|rank| rank == to.rank))
            }
            Self::Host => false,
        }
    }

    /// Returns true if a process of another launch may be in the range.
    pub fn leaves_launch(&self) -> bool {
        matches!(self, Self::User | Self::Session | Self::Node | Self::Listed(_))
    }

    /// Position from the narrowest range to the widest: a lookup prefers the narrowest.
    pub fn width(&self) -> u8 {
        match self {
            Self::Host => 0,
            Self::Process => 1,
            Self::Job => 2,
            Self::Listed(_) => 3,
            Self::Node => 4,
            Self::Session => 5,
            Self::User => 6,
        }
    }

    /// Returns true if names of two publishers of one launch in this range denote the same name.
    pub(super) fn is_shared(&self, one: &NameUser, other: &NameUser) -> bool {
        match self {
            Self::Process => one.is(other),
            Self::Job => one.job == other.job,
            Self::Node => one.host == other.host,
            Self::User | Self::Session | Self::Listed(_) | Self::Host => true,
        }
    }
}
