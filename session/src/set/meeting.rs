//! Meetings of launches on one machine (MPI's connect and accept). The participating launch with the lowest id coordinates the meeting,
//! with the same [`Rendezvous`](crate::rendezvous) as the API server of a cluster.
//!
//! ```text
//! launch b ── own id, MeetCall ──> root of launch a: arrive ─┐
//! launch a ── itself ──────────────────────────────> arrive ─┴─ all are here ──> MeetAnswer to each
//!                                        └─ checks whether b exists: the end of b or c ends the meeting
//! ```
//! A message follows its length in four bytes. In a meeting, the end of a connection counts as the end of a launch.

use pmi_transport::task;
use std::collections::BTreeSet;
use std::time::Duration;

use lattice_overlay::directory::SetRecord;
use lattice_overlay::greeting::{Caller, Purpose};
use nix::unistd::geteuid;
use pmi_core::ids::NodeIndex;
use pmi_core::services::{MeetError, Meeting, Met};
use pmi_transport::limits::MESSAGE_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{self, ConnectError};
use super::{Founded, OwnSet, SetError, blocking};
use crate::rendezvous::{Answer, Participant, launch_of};
use crate::wire;

/// Limit of the id of a launch, in bytes.
const ID_MAX: usize = 256;
/// Time limit for a launch to appear in the directory. The action that makes a launch visible to other launches also creates its set.
const APPEARANCE: Duration = Duration::from_secs(2);
/// Pause between two looks in the directory.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time limit for a caller to send its contribution.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

impl OwnSet {
    /// Takes part in a meeting of this launch with other launches on this machine.
    pub(super) async fn meet_others(&self, meeting: Meeting) -> Result<Met, MeetError> {
        let own = self.0.facts.launch.clone().ok_or(MeetError::NotFound)?;
        let founded = self.founded().await.map_err(unavailable)?;
        let others = launches(&meeting.others, &own)?;
        let host = others.first().filter(|&first| *first < own).cloned();
        let call = wire::meeting::to_bytes(meeting);
        let answer = match host {
            None => self.arrive(&own, &call).await,
            Some(host) => {
                let host = self.appear(&host).await?;
                ask(&founded, &host, &own, &call).await?
            }
        };
        wire::meeting::answer_from_bytes(&answer)
    }

    /// Handles the connection of a launch that takes part in a meeting which this launch coordinates.
    pub(super) async fn host(&self, mut socket: UnixStream) {
        let Ok(Some((launch, call))) = timeout(CALL_TIMEOUT, read_call(&mut socket)).await else { return };
        let answer = tokio::select! {
            answer = self.arrive(&launch, &call) => answer,
            // The launch is gone, so its part of the meeting ends.
            () = connection::closed(&socket) => return self.0.rendezvous.withdraw(&launch),
        };
        // The launch may have ended.
        let _ = write(&mut socket, &answer).await;
    }

    /// Adds a launch to a meeting that this launch coordinates, and returns the encoded result. Missing launches are monitored during the
    /// wait.
    async fn arrive(&self, launch: &str, call: &[u8]) -> Vec<u8> {
        wire::rendezvous::answer_to_bytes(self.bring_together(launch, call).await)
    }

    async fn bring_together(&self, launch: &str, call: &[u8]) -> Answer {
        let call = wire::rendezvous::call_from_bytes(call);
        let call = call.map_err(|error| MeetError::Unavailable { reason: error.to_string() })?;
        if !call.jobs.iter().all(|job| launch_of(&job.namespace) == Some(launch)) {
            return Err(MeetError::Unavailable { reason: "a launch reports jobs that are not its own".to_owned() });
        }
        let others = launches(&call.others, launch)?;
        let participant = Participant { uid: geteuid().as_raw(), launch, node: NodeIndex(0) };
        let answer = self.0.rendezvous.arrive(participant, &others, call)?;
        let mut watched = JoinSet::new();
        for other in others.into_iter().filter(|other| Some(other) != self.0.facts.launch.as_ref()) {
            let set = self.clone();
            watched.spawn(task::boxed(async move {
                set.watch(&other).await;
                set.0.rendezvous.withdraw(&other);
            }));
        }
        let gone = MeetError::Unavailable { reason: "the launch that brings the others together is ending".to_owned() };
        answer.await.unwrap_or(Err(gone))
    }

    /// Returns when a launch has ended, or when no launch with this id appears.
    async fn watch(&self, launch: &str) {
        let Ok(founded) = self.founded().await else { return };
        if let Ok(record) = self.appear(launch).await
            && let Ok(socket) = connection::connect(&record, founded.caller(Purpose::Presence)).await
        {
            connection::closed(&socket).await;
        }
    }

    /// Returns the set of a launch. Waits for a set that does not exist yet.
    async fn appear(&self, launch: &str) -> Result<SetRecord, MeetError> {
        let until = Instant::now() + APPEARANCE;
        loop {
            let (set, launch) = (self.founded().await.map_err(unavailable)?, launch.to_owned());
            let found = blocking(move || set.directory.find_launch(&launch)).await;
            match found.and_then(|found| Ok(found?)).map_err(unavailable)? {
                Some(found) => return Ok(found),
                None if Instant::now() >= until => return Err(MeetError::NotFound),
                None => sleep(LOOK_AGAIN).await,
            }
        }
    }
}

impl Founded {
    pub(super) fn caller(&self, purpose: Purpose) -> Caller {
        Caller { set: self.record.id(), rank: 0, purpose }
    }
}

/// Returns the launches of other namespaces.
fn launches(namespaces: &[String], own: &str) -> Result<BTreeSet<String>, MeetError> {
    let others: Option<BTreeSet<String>> = namespaces.iter().map(|name| launch_of(name).map(str::to_owned)).collect();
    others.filter(|others| !others.is_empty() && !others.contains(own)).ok_or(MeetError::NotFound)
}

fn unavailable(error: SetError) -> MeetError {
    MeetError::Unavailable { reason: error.to_string() }
}

/// Sends the call to the launch that coordinates the meeting, and waits for the answer.
async fn ask(founded: &Founded, host: &SetRecord, own: &str, call: &[u8]) -> Result<Vec<u8>, MeetError> {
    // A launch that ends closes its connections.
    let ended = |_: std::io::Error| MeetError::NotFound;
    let mut socket = match connection::connect(host, founded.caller(Purpose::Meeting)).await {
        Ok(socket) => socket,
        Err(ConnectError::Io(_)) => return Err(MeetError::NotFound),
        Err(error) => return Err(MeetError::Unavailable { reason: error.to_string() }),
    };
    write(&mut socket, own.as_bytes()).await.map_err(ended)?;
    write(&mut socket, call).await.map_err(ended)?;
    read(&mut socket, MESSAGE_MAX).await.ok_or(MeetError::NotFound)
}

async fn read_call(socket: &mut UnixStream) -> Option<(String, Vec<u8>)> {
    let launch = String::from_utf8(read(socket, ID_MAX).await?).ok()?;
    Some((launch, read(socket, MESSAGE_MAX).await?))
}

/// Reads a message; `None` at the end of the connection, and for a message over the limit.
async fn read(socket: &mut UnixStream, most: usize) -> Option<Vec<u8>> {
    let len = usize::try_from(socket.read_u32().await.ok()?).ok().filter(|&len| len <= most)?;
    let mut message = vec![0; len];
    socket.read_exact(&mut message).await.ok()?;
    Some(message)
}

async fn write(socket: &mut UnixStream, message: &[u8]) -> std::io::Result<()> {
    socket.write_u32(message.len() as u32).await?;
    socket.write_all(message).await
}
