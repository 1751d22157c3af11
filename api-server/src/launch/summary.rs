//! A launch in short, as lists of launches show it.

use std::time::Duration;

use lattice_overlay::address::SetId;
use tokio::time::Instant;

use super::event::{Activity, Completion, Overview};

/// A launch in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub id: String,
    pub allocation_id: String,
    /// The user whose launch it is.
    pub uid: u32,
    pub stage: Stage,
    /// The names of its nodes, as a hostlist.
    pub nodes: String,
    /// The number of ranks of all its jobs.
    pub ranks: u32,
    /// The first program with its arguments, as far as a list has room for them.
    pub command: String,
    /// The time at which it was started, in seconds since 1970.
    pub started_at: u64,
    /// Nanoseconds from that second to the start.
    pub started_nanos: u32,
    /// Time from its start to its end; of a launch that is not over, to when it was written down.
    pub duration: Duration,
    /// The first cause in words; empty if there is none.
    pub cause: String,
    /// Since when its owner is stopped, in seconds since 1970; 0 while it is not.
    pub client_stopped_at: u64,
    /// Its id among the sets of its user; `None` if it is none.
    pub set: Option<SetId>,
}

/// Stage of a launch, as users are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The launch is not over.
    At(Activity),
    Succeeded,
    Failed,
}

/// Course of a launch that is over, as far as its cause does not tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Course {
    /// It was written down by a server that did not say.
    Unknown = 0,
    /// Not all of its nodes accepted it.
    NotBegun = 1,
    /// It began, and no node itself was lost before it ended.
    Ran = 2,
    /// A node itself was lost while it ran, and not its part of the launch alone.
    LostNode = 3,
}

impl Course {
    /// Returns true if a launch whose cause is the loss of a node has lost the node itself.
    pub(crate) fn has_lost_a_node(self) -> bool {
        matches!(self, Self::LostNode | Self::Unknown)
    }
}

impl Summary {
    /// Returns true if nothing more happens in the launch.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Succeeded | Stage::Failed)
    }

    /// The same at the time `now`, of a launch that was begun then: one that is not over has run until now.
    pub(crate) fn at(self, begun: Instant, now: Instant) -> Self {
        if self.is_over() {
            return self;
        }
        Self { duration: now.saturating_duration_since(begun), ..self }
    }

    /// Takes over the state of a launch that is not over.
    pub(crate) fn update(&mut self, overview: Overview) {
        let Overview { activity, ranks, cause, client_stopped_at } = overview;
        (self.stage, self.ranks) = (Stage::At(activity), ranks);
        (self.cause, self.client_stopped_at) = (cause, client_stopped_at);
    }

    /// Takes over the end of the launch, in which there were so many ranks.
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

    /// A launch of one user that is active.
    pub(crate) fn active(id: &str) -> Summary {
        Summary {
            id: id.to_owned(),
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
            launch_id: "l".to_owned(),
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
