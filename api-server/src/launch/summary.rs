//! Summary of a launch, as shown in lists of launches.

use std::time::Duration;

use lattice_overlay::address::SetId;
use tokio::time::Instant;

use super::event::{Activity, Completion, Overview};
use crate::launch_id::LaunchId;

/// Summary of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub id: LaunchId,
    pub allocation_id: String,
    /// The user of the launch.
    pub uid: u32,
    pub stage: Stage,
    /// The names of its nodes, as a hostlist.
    pub nodes: String,
    /// The number of ranks of all its jobs.
    pub ranks: u32,
    /// The first program with its arguments, truncated to the space in a list.
    pub command: String,
    /// The start time, in seconds since 1970.
    pub started_at: u64,
    /// Nanoseconds from that second to the start.
    pub started_nanos: u32,
    /// Time from the start to the end. For a launch that is not over, time from the start to the last write of its record.
    pub duration: Duration,
    /// The first cause as text; empty if there is none.
    pub cause: String,
    /// The time since which the owner is stopped, in seconds since 1970; 0 while it is not.
    pub client_stopped_at: u64,
    /// Its id among the sets of its user; `None` if it is not a set.
    pub set: Option<SetId>,
}

/// Stage of a launch, as shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The launch is not over.
    At(Activity),
    Succeeded,
    Failed,
}

/// Facts about a launch that is over, in addition to its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Course {
    /// Recorded by a server of a version without this field.
    Unknown = 0,
    /// Not all of its nodes accepted it.
    NotBegun = 1,
    /// The launch began, and no node itself was lost before its end.
    Ran = 2,
    /// A node itself was lost while the launch ran, and not only its part of the launch.
    LostNode = 3,
}

impl Course {
    /// Returns true if a launch with the loss of a node as its cause has lost the node itself.
    pub(crate) fn has_lost_a_node(self) -> bool {
        matches!(self, Self::LostNode | Self::Unknown)
    }
}

impl Summary {
    /// Returns true if the launch is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Succeeded | Stage::Failed)
    }

    /// Returns the summary at the time `now`, for a launch that started at `begun`. A launch that is not over has run until `now`.
    pub(crate) fn at(self, begun: Instant, now: Instant) -> Self {
        if self.is_over() {
            return self;
        }
        Self { duration: now.saturating_duration_since(begun), ..self }
    }

    /// Applies the overview of a launch that is not over.
    pub(crate) fn update(&mut self, overview: Overview) {
        let Overview { activity, ranks, cause, client_stopped_at } = overview;
        (self.stage, self.ranks) = (Stage::At(activity), ranks);
        (self.cause, self.client_stopped_at) = (cause, client_stopped_at);
    }

    /// Applies the end of the launch, which had this number of ranks.
    pub(crate) fn conclude(&mut self, completion: &Completion, ranks: u32) {
        self.stage = if completion.cause.is_none() { Stage::Succeeded } else { Stage::Failed };
        self.cause.clone_from(&completion.message);
        (self.ranks, self.client_stopped_at, self.duration) = (ranks, 0, completion.duration);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lattice_session::cause::{Cause, CauseKind};

    use super::*;

    /// An active launch of one user.
    pub(crate) fn active(id: &str) -> Summary {
        Summary {
            id: id.into(),
            allocation_id: "a".to_owned(),
            uid: 1000,
            stage: Stage::At(Activity::Active),
            nodes: "node[0-3]".to_owned(),
            ranks: 8,
            command: "./app -x".to_owned(),
            started_at: 1_700_000_000,
            started_nanos: 250,
            duration: Duration::from_secs(7),
            cause: String::new(),
            client_stopped_at: 5,
            set: Some(SetId::from_bits(4_096_007)),
        }
    }

    fn completion(cause: Option<Cause>) -> Completion {
        Completion {
            launch_id: "l".into(),
            allocation_id: "a".to_owned(),
            message: cause.as_ref().map(ToString::to_string).unwrap_or_default(),
            cause,
            ends: Vec::new(),
            duration: Duration::from_secs(9),
            usage: None,
            by_node: None,
        }
    }

    #[test]
    fn the_duration_of_a_launch_grows_until_it_is_over() {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(60);
        let mut summary = active("l");
        assert_eq!(summary.clone().at(begun, now).duration, Duration::from_secs(60));
        summary.conclude(&completion(None), 8);
        assert_eq!(summary.at(begun, now).duration, Duration::from_secs(9));
    }

    #[test]
    fn an_end_says_whether_it_failed_and_that_no_owner_is_stopped_any_more() {
        let lost = Cause { host: "node1".to_owned(), kind: CauseKind::NodeLost { reason: "gone".to_owned() } };
        for (cause, stage, words) in
            [(None, Stage::Succeeded, ""), (Some(lost), Stage::Failed, "node node1 was lost: gone")]
        {
            let mut summary = active("l");
            summary.conclude(&completion(cause), 9);
            assert!(summary.is_over());
            assert_eq!((summary.stage, summary.cause.as_str()), (stage, words));
            assert_eq!((summary.ranks, summary.client_stopped_at), (9, 0));
        }
    }
}
