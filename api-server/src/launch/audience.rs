//! Who follows a launch.
//!
//! ```text
//!             attach                   gone                   too long
//! Awaited ───────────────> Here ───────────────> Awaited ───────────────> Nobody (the launch is ended)
//!    (first)                │ ^
//!       said goodbye: Ctrl-Z│ │attach
//!                           v │
//!                          Away     (over restarts of the server, too)
//! ```
//!
//! Output waits for the owner, while there is one or one is expected; a launch that was detached has none. Viewers come and go.

use std::collections::BTreeMap;
use std::sync::Arc;

use lattice_session::timeouts::{FIRST_OWNER, NEXT_OWNER};
use pmi_transport::proto::v1::LaunchSpec;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tonic::Status;

use super::following::ClientSender;
use super::spool::{self, Spool};
use super::tape::{Start, Tape};
use super::telling;
use crate::server::unix_now;

/// How many may look at a launch beside its owner.
const VIEWERS_MAX: usize = 16;

/// The clients of a launch, and what it is to do when they come and go.
#[derive(Debug)]
pub(super) struct Audience {
    owner: Owner,
    viewers: BTreeMap<u64, Client>,
    /// How many clients there have been; also the number of the last one.
    clients: u64,
    tape: Arc<Tape>,
    /// Tells each client; ends with the number of one that is gone.
    telling: JoinSet<u64>,
    /// Puts the launch's output on disk.
    spooling: Option<Spooling>,
    /// It was started to be nobody's.
    detached: bool,
}

#[derive(Debug)]
enum Owner {
    /// There is none, or it was given up.
    Nobody,
    /// It is expected, but not for longer than this.
    Awaited { until: Instant },
    Here {
        client: Client,
        /// Since when it says no more, in seconds since 1970, if it does not: it is not to be missed then.
        said_goodbye: Option<u64>,
    },
    /// It was stopped with Ctrl-Z then, and comes back when its user wants it to.
    Away { since: u64 },
}

/// A client that listens.
#[derive(Debug)]
struct Client {
    number: u64,
    sender: ClientSender,
    teller: AbortHandle,
}

/// The task that writes a launch's spool, and how far it has come.
#[derive(Debug)]
struct Spooling {
    task: JoinSet<()>,
    written: watch::Receiver<u64>,
}

/// What happened by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The client with this number is gone.
    Gone(u64),
    /// Everything up to this event is on disk.
    Spooled(u64),
    /// Nothing more is put on disk.
    NotSpooled,
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Owner,
    Viewer,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.teller.abort();
    }
}

impl Client {
    /// Ends the client's stream with a status, if there is room for that.
    fn dismiss(self, status: Status) {
        // A client that does not listen is not told.
        let _ = self.sender.try_send(Err(status));
    }
}

impl Audience {
    /// For a launch whose events are on `tape`, from number `first` on. With a spool, they are put on disk.
    pub(super) fn new(detached: bool, first: u64, tape: Arc<Tape>, spool: Option<Arc<Spool>>, now: Instant) -> Self {
        let spooling = spool.map(|spool| {
            let (progress, written) = watch::channel(first - 1);
            let mut task = JoinSet::new();
            task.spawn(spool::write(Arc::clone(&tape), spool, first, progress));
            Spooling { task, written }
        });
        let owner = if detached { Owner::Nobody } else { Owner::Awaited { until: now + FIRST_OWNER } };
        let (viewers, telling) = (BTreeMap::new(), JoinSet::new());
        Self { owner, viewers, clients: 0, tape, telling, spooling, detached }
    }

    /// A client is there; it is the owner if it says so and the launch can have one. Returns its number.
    ///
    /// # Errors
    /// Refuses a viewer when there are too many.
    pub(super) fn join(
        &mut self,
        after: u64,
        owns: bool,
        spec: LaunchSpec,
        sender: ClientSender,
    ) -> Result<u64, Status> {
        let owns = owns && !self.detached;
        if !owns && self.viewers.len() >= VIEWERS_MAX {
            let text = format!("{VIEWERS_MAX} others look at the launch already; try again when one has left");
            return Err(Status::resource_exhausted(text));
        }
        self.clients += 1;
        let number = self.clients;
        let start = if after == 0 && !self.detached { Start::Unsettled } else { Start::After(after) };
        self.tape.join(number, start, spec);
        let teller = self.telling.spawn(telling::tell(Arc::clone(&self.tape), number, sender.clone()));
        let client = Client { number, sender, teller };
        if !owns {
            self.viewers.insert(number, client);
            return Ok(number);
        }
        if let Owner::Here { client, .. } =
            std::mem::replace(&mut self.owner, Owner::Here { client, said_goodbye: None })
        {
            self.tape.leave(client.number);
            client.dismiss(Status::aborted("another client follows the launch now"));
        }
        Ok(number)
    }

    /// What a client may do; `None` if there is no client with this number.
    pub(super) fn role(&self, number: u64) -> Option<Role> {
        match self.owner() {
            Some(owner) if owner == number => Some(Role::Owner),
            _ => self.viewers.contains_key(&number).then_some(Role::Viewer),
        }
    }

    /// The number of the owner, if it is here.
    pub(super) fn owner(&self) -> Option<u64> {
        match &self.owner {
            Owner::Here { client, .. } => Some(client.number),
            _ => None,
        }
    }

    /// Whether the owner is here, or may come back yet.
    pub(super) fn expects_owner(&self, now: Instant) -> bool {
        match self.owner {
            Owner::Here { .. } => true,
            Owner::Awaited { until } => now < until,
            Owner::Away { .. } | Owner::Nobody => false,
        }
    }

    /// Whether nobody follows at present.
    pub(super) fn is_empty(&self) -> bool {
        self.viewers.is_empty() && self.owner().is_none()
    }

    /// Whether the launch was started to have no owner; then nothing tells whether all who want to see it have.
    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }

    /// The launch has begun, and its owner has yet to hear of it.
    pub(super) fn expect_owner(&mut self, now: Instant) {
        if let Owner::Awaited { until } = &mut self.owner {
            *until = now + FIRST_OWNER;
        }
    }

    /// The owner was stopped then, as an earlier server has written down.
    pub(super) fn resume_away(&mut self, since: u64) {
        self.owner = Owner::Away { since };
    }

    /// Since when the owner is stopped, in seconds since 1970, if it is.
    pub(super) fn stopped_since(&self) -> Option<u64> {
        match self.owner {
            Owner::Here { said_goodbye, .. } => said_goodbye,
            Owner::Away { since } => Some(since),
            Owner::Awaited { .. } | Owner::Nobody => None,
        }
    }

    /// A client has said all that it will say, in order.
    pub(super) fn on_goodbye(&mut self, number: u64) {
        if let Owner::Here { client, said_goodbye } = &mut self.owner
            && client.number == number
        {
            *said_goodbye = Some(unix_now());
        }
    }

    /// A client does not listen any more.
    pub(super) fn on_gone(&mut self, number: u64, now: Instant) {
        self.tape.leave(number);
        if self.viewers.remove(&number).is_some() || self.owner() != Some(number) {
            return;
        }
        self.owner = match self.owner {
            Owner::Here { said_goodbye: Some(since), .. } => Owner::Away { since },
            _ => Owner::Awaited { until: now + NEXT_OWNER },
        };
    }

    /// Sends a client away.
    pub(super) fn dismiss(&mut self, number: u64, status: Status, now: Instant) {
        tracing::info!(reason = status.message(), "a client is dismissed");
        self.tape.leave(number);
        if let Some(viewer) = self.viewers.remove(&number) {
            return viewer.dismiss(status);
        }
        if self.owner() == Some(number) {
            let awaited = Owner::Awaited { until: now + NEXT_OWNER };
            if let Owner::Here { client, .. } = std::mem::replace(&mut self.owner, awaited) {
                client.dismiss(status);
            }
        }
    }

    /// Whether the owner is missed for too long; then it is given up.
    pub(super) fn gives_up_owner(&mut self, now: Instant) -> bool {
        let too_long = matches!(self.owner, Owner::Awaited { until } if now >= until);
        if too_long {
            self.owner = Owner::Nobody;
        }
        too_long
    }

    /// The next change. Can be dropped and called again without a loss.
    pub(super) async fn changed(&mut self) -> Change {
        loop {
            tokio::select! {
                // A client that was dismissed, or replaced, has no number to tell.
                Some(ended) = self.telling.join_next() => if let Ok(number) = ended {
                    return Change::Gone(number);
                },
                written = written(&mut self.spooling) => match written {
                    Some(sequence) => return Change::Spooled(sequence),
                    None => {
                        self.spooling = None;
                        return Change::NotSpooled;
                    }
                },
            }
        }
    }
}

/// How far the output is on disk, when that changes; `None` when it will not any more.
async fn written(spooling: &mut Option<Spooling>) -> Option<u64> {
    let Some(Spooling { task, written }) = spooling else { return std::future::pending().await };
    tokio::select! {
        biased;
        Ok(()) = written.changed() => Some(*written.borrow_and_update()),
        _ = task.join_next() => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    type Heard = mpsc::Receiver<Result<pmi_transport::proto::v1::AttachResponse, Status>>;

    fn audience(detached: bool) -> Audience {
        Audience::new(detached, 1, Tape::new(1, true, None), None, Instant::now())
    }

    fn join(audience: &mut Audience, owns: bool) -> (Result<u64, Status>, Heard) {
        let (sender, heard) = mpsc::channel(8);
        (audience.join(0, owns, LaunchSpec::default(), sender), heard)
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_vanishes_is_given_up_and_one_that_was_stopped_is_not() {
        let mut audience = audience(false);
        let now = Instant::now();
        assert!(!audience.gives_up_owner(now));
        for said_goodbye in [true, false] {
            let (number, heard) = join(&mut audience, true);
            let number = number.unwrap();
            assert!(!audience.gives_up_owner(now + FIRST_OWNER));
            if said_goodbye {
                audience.on_goodbye(number);
            }
            drop(heard);
            assert_eq!(audience.changed().await, Change::Gone(number));
            audience.on_gone(number, now);
            assert_eq!(audience.gives_up_owner(now + NEXT_OWNER), !said_goodbye);
            assert_eq!(audience.stopped_since().is_some(), said_goodbye);
        }
        assert!(!audience.gives_up_owner(now + 2 * FIRST_OWNER), "told once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_was_stopped_is_awaited_by_the_next_server() {
        let mut audience = audience(false);
        audience.resume_away(7);
        assert!(!audience.gives_up_owner(Instant::now() + 2 * FIRST_OWNER));
        assert_eq!(audience.stopped_since(), Some(7));
        let (_, _heard) = join(&mut audience, true);
        assert_eq!(audience.stopped_since(), None);
    }

    #[tokio::test]
    async fn viewers_change_nothing_for_the_owner() {
        let mut audience = audience(false);
        let (owner, _heard) = join(&mut audience, true);
        let owner = owner.unwrap();
        let viewers: Vec<_> = (0..VIEWERS_MAX).map(|_| join(&mut audience, false)).collect();
        assert_eq!(join(&mut audience, false).0.unwrap_err().code(), tonic::Code::ResourceExhausted);
        for (number, heard) in viewers {
            let number = number.unwrap();
            assert_eq!(audience.role(number), Some(Role::Viewer));
            audience.on_goodbye(number);
            drop(heard);
            assert_eq!(audience.changed().await, Change::Gone(number));
            audience.on_gone(number, Instant::now());
            assert_eq!((audience.role(number), audience.role(owner)), (None, Some(Role::Owner)));
        }
        assert!(!audience.gives_up_owner(Instant::now() + 2 * FIRST_OWNER));
    }

    #[tokio::test]
    async fn a_new_owner_replaces_the_one_before() {
        let mut audience = audience(false);
        let (first, mut heard) = join(&mut audience, true);
        let (second, _heard) = join(&mut audience, true);
        assert_eq!((audience.role(first.unwrap()), audience.owner()), (None, Some(second.unwrap())));
        let mut last = None;
        while let Some(message) = heard.recv().await {
            last = Some(message);
        }
        assert_eq!(last.unwrap().unwrap_err().code(), tonic::Code::Aborted);
    }

    #[tokio::test]
    async fn a_detached_launch_has_no_owner() {
        let mut audience = audience(true);
        let (number, _heard) = join(&mut audience, true);
        assert_eq!(audience.role(number.unwrap()), Some(Role::Viewer));
        assert!(!audience.gives_up_owner(Instant::now() + 2 * FIRST_OWNER));
    }
}
