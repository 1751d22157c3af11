//! The clients of a launch, by number: its owner, its viewers, and the time limit for an absent owner to return.
//!
//! ```text
//!             attach                   gone                   too long
//! Awaited ───────────────> Here ───────────────> Awaited ───────────────> none (the launch is ended)
//!    (first)                │ ^
//!            goodbye: Ctrl-Z│ │attach
//!                           v │
//!                          Away     (over restarts of the server, too)
//! ```
//!
//! After a network failure, the time limit is longer than after a closed connection. The kernel closes the sockets of a process that was killed,
//! and a live client attaches again at once.
//!
//! Output waits for the owner while one is attached or expected. A detached launch has none. Viewers do not affect the launch.

use std::collections::BTreeSet;
use std::time::Duration;

use lattice_session::timeouts::{CLOSED_OWNER, FIRST_OWNER, NEXT_OWNER};
use tokio::time::Instant;

use super::facts::Ownership;
use super::input_credit::TooMuch;

/// The largest number of viewers of a launch.
pub(crate) const VIEWERS_MAX: usize = 16;

/// The highest signal number.
pub(crate) const SIGNAL_MAX: i32 = 64;

/// The clients of a launch.
#[derive(Debug)]
pub(crate) struct Attachments {
    owner: Owner,
    viewers: BTreeSet<u64>,
    /// Number of clients so far, which is the number of the last client.
    clients: u64,
    ownership: Ownership,
}

#[derive(Clone, Copy, Debug)]
enum Owner {
    /// The launch has no owner, or its owner did not return in time.
    Nobody,
    /// The owner is expected until this time. `last` is the number of the previous owner, 0 if there was none.
    Awaited { until: Instant, last: u64 },
    /// The owner is attached.
    Here { client: u64, sends: Sends },
    /// The owner was stopped with Ctrl-Z at this time (seconds since 1970), and may return at any time.
    Away { since: u64 },
}

/// State of the owner's stream of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    More,
    /// The owner ended the stream at this time, in seconds since 1970. Its absence has no time limit.
    Goodbye(u64),
    /// The owner's end of the connection was closed without a goodbye.
    Closed,
}

impl Sends {
    /// Time for an owner to attach again after its stream has ended.
    fn patience(self) -> Duration {
        if self == Self::Closed { CLOSED_OWNER } else { NEXT_OWNER }
    }
}

/// Role of a client: the actual role, or the requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Owner,
    Viewer,
}

/// A client that has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub client: u64,
    pub role: Role,
    /// Bytes of input that the client may send before the next grant.
    pub input_window: u64,
    /// The previous owner, which the client replaces.
    pub replaced: Option<u64>,
}

/// Refusal of a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VIEWERS_MAX} others look at the launch already; try again when one has left")]
pub(crate) struct TooManyViewers;

/// Reason why a client's stream is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Dismissal {
    #[error("another client follows the launch now")]
    Replaced,
    #[error("the stream follows a launch already")]
    AttachedTwice,
    #[error("only the owner of a launch gives it input and signals on this stream; others have calls of their own")]
    OwnersOnly,
    #[error(transparent)]
    TooMuchInput(#[from] TooMuch),
    #[error("{0} is no signal; there are 1 to {SIGNAL_MAX}")]
    NoSignal(i32),
}

impl Attachments {
    /// Attachments of a launch. If it is to have an owner, it waits for one from now on.
    pub(crate) fn new(ownership: Ownership, now: Instant) -> Self {
        let owner = match ownership {
            Ownership::Owned => Owner::Awaited { until: now + FIRST_OWNER, last: 0 },
            Ownership::Detached => Owner::Nobody,
        };
        Self { owner, viewers: BTreeSet::new(), clients: 0, ownership }
    }

    /// A client attaches. It becomes the owner if it asks for that role and the launch can have an owner.
    ///
    /// # Errors
    /// Fails for a viewer if the launch has the maximum number of viewers.
    pub(crate) fn join(&mut self, asked: Role) -> Result<Joined, TooManyViewers> {
        let role = if self.ownership == Ownership::Detached { Role::Viewer } else { asked };
        if role == Role::Viewer && self.viewers.len() >= VIEWERS_MAX {
            return Err(TooManyViewers);
        }
        self.clients += 1;
        let client = self.clients;
        let mut replaced = None;
        match role {
            Role::Owner => {
                replaced = self.owner();
                self.owner = Owner::Here { client, sends: Sends::More };
            }
            Role::Viewer => drop(self.viewers.insert(client)),
        }
        Ok(Joined { client, role, input_window: 0, replaced })
    }

    /// Role of a client; `None` if there is no client with this number.
    pub(crate) fn role(&self, client: u64) -> Option<Role> {
        match self.owner() {
            Some(owner) if owner == client => Some(Role::Owner),
            _ => self.viewers.contains(&client).then_some(Role::Viewer),
        }
    }

    /// The number of the owner, if it is attached.
    pub(crate) fn owner(&self) -> Option<u64> {
        match self.owner {
            Owner::Here { client, .. } => Some(client),
            _ => None,
        }
    }

    /// Returns true if the owner is attached, or may still return within its time limit.
    pub(crate) fn expects_owner(&self, now: Instant) -> bool {
        match self.owner {
            Owner::Here { .. } => true,
            Owner::Awaited { until, .. } => now < until,
            Owner::Away { .. } | Owner::Nobody => false,
        }
    }

    /// Returns true if no client is attached.
    pub(crate) fn is_empty(&self) -> bool {
        self.viewers.is_empty() && self.owner().is_none()
    }

    /// The launch has begun. The owner receives the launch id only now, so its time limit starts again.
    pub(crate) fn expect_owner(&mut self, now: Instant) {
        if let Owner::Awaited { until, .. } = &mut self.owner {
            *until = now + FIRST_OWNER;
        }
    }

    /// The owner was stopped at this time, according to the record of an earlier server.
    pub(crate) fn resume_away(&mut self, since: u64) {
        self.owner = Owner::Away { since };
    }

    /// The time since which the owner is stopped, in seconds since 1970; `None` if it is not stopped.
    pub(crate) fn stopped_since(&self) -> Option<u64> {
        match self.owner {
            Owner::Here { sends: Sends::Goodbye(since), .. } | Owner::Away { since } => Some(since),
            Owner::Here { .. } | Owner::Awaited { .. } | Owner::Nobody => None,
        }
    }

    /// A client has ended its stream of requests, at this time in seconds since 1970.
    pub(crate) fn on_goodbye(&mut self, client: u64, at: u64) {
        if let Owner::Here { client: owner, sends } = &mut self.owner
            && *owner == client
        {
            *sends = Sends::Goodbye(at);
        }
    }

    /// The client's end of the connection was closed without a goodbye. [`on_gone`](Self::on_gone) may be called before or after.
    pub(crate) fn on_closed(&mut self, client: u64, now: Instant) {
        match &mut self.owner {
            Owner::Here { client: owner, sends: sends @ Sends::More } if *owner == client => *sends = Sends::Closed,
            Owner::Awaited { until, last } if *last == client => *until = (*until).min(now + CLOSED_OWNER),
            _ => {}
        }
    }

    /// A client has detached.
    pub(crate) fn on_gone(&mut self, client: u64, now: Instant) {
        if self.viewers.remove(&client) || self.owner() != Some(client) {
            return;
        }
        self.owner = match self.owner {
            Owner::Here { sends: Sends::Goodbye(since), .. } => Owner::Away { since },
            Owner::Here { sends, .. } => Owner::Awaited { until: now + sends.patience(), last: client },
            other => other,
        };
    }

    /// The server dismisses a client. An owner may attach again as another client.
    pub(crate) fn dismiss(&mut self, client: u64, now: Instant) {
        if !self.viewers.remove(&client) && self.owner() == Some(client) {
            self.owner = Owner::Awaited { until: now + NEXT_OWNER, last: client };
        }
    }

    /// Returns true if the time limit of an absent owner is over. The launch then has no owner.
    pub(crate) fn gives_up_owner(&mut self, now: Instant) -> bool {
        let too_long = matches!(self.owner, Owner::Awaited { until, .. } if now >= until);
        if too_long {
            self.owner = Owner::Nobody;
        }
        too_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned() -> (Attachments, Instant) {
        let now = Instant::now();
        (Attachments::new(Ownership::Owned, now), now)
    }

    #[test]
    fn an_owner_that_vanishes_is_given_up_and_one_that_was_stopped_is_not() {
        let (mut attachments, now) = owned();
        assert!(!attachments.gives_up_owner(now));
        for stopped in [true, false] {
            let client = attachments.join(Role::Owner).unwrap().client;
            assert!(!attachments.gives_up_owner(now + FIRST_OWNER));
            if stopped {
                attachments.on_goodbye(client, 7);
            }
            attachments.on_gone(client, now);
            assert_eq!(attachments.gives_up_owner(now + NEXT_OWNER), !stopped);
            assert_eq!(attachments.stopped_since(), stopped.then_some(7));
        }
        assert!(!attachments.gives_up_owner(now + 2 * FIRST_OWNER), "once");
    }

    #[test]
    fn how_long_an_owner_is_waited_for_depends_on_whether_it_was_there() {
        type Before = fn(&mut Attachments, Instant);
        let cases: [(&str, Before, Duration); 6] = [
            ("it has yet to come", |_, _| {}, FIRST_OWNER),
            (
                "its connection broke",
                |all, now| {
                    let client = all.join(Role::Owner).unwrap().client;
                    all.on_gone(client, now);
                },
                NEXT_OWNER,
            ),
            (
                "its connection was closed",
                |all, now| {
                    let client = all.join(Role::Owner).unwrap().client;
                    all.on_closed(client, now);
                    all.on_gone(client, now);
                },
                CLOSED_OWNER,
            ),
            (
                "its connection was closed, which is reported last",
                |all, now| {
                    let client = all.join(Role::Owner).unwrap().client;
                    all.on_gone(client, now);
                    all.on_closed(client, now);
                },
                CLOSED_OWNER,
            ),
            (
                "the connection of the owner before it was closed as well",
                |all, now| {
                    let [first, second] = [(); 2].map(|()| all.join(Role::Owner).unwrap().client);
                    all.on_closed(first, now);
                    all.on_gone(second, now);
                    all.on_closed(first, now);
                },
                NEXT_OWNER,
            ),
            (
                "it was sent away",
                |all, now| {
                    let client = all.join(Role::Owner).unwrap().client;
                    all.dismiss(client, now);
                },
                NEXT_OWNER,
            ),
        ];
        for (what, before, limit) in cases {
            let (mut attachments, now) = owned();
            before(&mut attachments, now);
            let just_before = now + limit - Duration::from_millis(1);
            assert!(attachments.expects_owner(just_before) && !attachments.gives_up_owner(just_before), "{what}");
            assert!(!attachments.expects_owner(now + limit) && attachments.gives_up_owner(now + limit), "{what}");
        }
    }

    #[test]
    fn an_owner_that_was_stopped_is_awaited_by_the_next_server() {
        let (mut attachments, now) = owned();
        attachments.resume_away(7);
        assert!(!attachments.gives_up_owner(now + 2 * FIRST_OWNER));
        assert_eq!(attachments.stopped_since(), Some(7));
        attachments.join(Role::Owner).unwrap();
        assert_eq!(attachments.stopped_since(), None);
    }

    #[test]
    fn viewers_change_nothing_for_the_owner() {
        let (mut attachments, now) = owned();
        let owner = attachments.join(Role::Owner).unwrap().client;
        let viewers: Vec<u64> = (0..VIEWERS_MAX).map(|_| attachments.join(Role::Viewer).unwrap().client).collect();
        assert_eq!(attachments.join(Role::Viewer), Err(TooManyViewers));
        for viewer in viewers {
            assert_eq!(attachments.role(viewer), Some(Role::Viewer));
            attachments.on_goodbye(viewer, 7);
            attachments.on_gone(viewer, now);
            assert_eq!((attachments.role(viewer), attachments.role(owner)), (None, Some(Role::Owner)));
        }
        assert!(!attachments.gives_up_owner(now + 2 * FIRST_OWNER));
    }

    #[test]
    fn a_new_owner_replaces_the_one_before_whose_end_then_means_nothing() {
        let (mut attachments, now) = owned();
        let first = attachments.join(Role::Owner).unwrap();
        let second = attachments.join(Role::Owner).unwrap();
        assert_eq!((first.replaced, second.replaced), (None, Some(first.client)));
        assert_eq!((attachments.role(first.client), attachments.owner()), (None, Some(second.client)));
        attachments.on_goodbye(first.client, 7);
        attachments.on_gone(first.client, now);
        assert_eq!((attachments.owner(), attachments.stopped_since()), (Some(second.client), None));
    }

    #[test]
    fn a_detached_launch_has_no_owner() {
        let now = Instant::now();
        let mut attachments = Attachments::new(Ownership::Detached, now);
        assert_eq!(attachments.join(Role::Owner).unwrap().role, Role::Viewer);
        assert!(!attachments.gives_up_owner(now + 2 * FIRST_OWNER));
    }
}
