//! What a session needs beside its spec: the things that cannot travel.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::driver::TraceSink;
use pmi_core::fence::Fence;
use pmi_core::services::Services;
use rank_spawner::{Keeper, LaunchTag};
use tokio::sync::mpsc;

use crate::event::Event;

/// What a session needs beside its spec.
pub struct Surroundings {
    /// How contributions reach the other nodes.
    pub fence: Arc<dyn Fence>,
    /// Names and spawns.
    pub services: Arc<dyn Services>,
    /// Where events go. The session's ranks wait while it is full: a slow reader slows the ranks.
    pub events: mpsc::Sender<Event>,
    /// What the user wants meanwhile. When it closes, the session ends its ranks.
    pub control: mpsc::Receiver<Control>,
    /// Where the launch's standard input comes from.
    pub stdin: StdinSource,
    /// Gets every PMI message, when the user wants a trace.
    pub trace: Option<TraceSink>,
    /// By what the processes of the launch are known; its value is the spec's launch id.
    pub tag: LaunchTag,
    /// Ends the launch should this process be killed. Who has one serves this launch alone and is a subreaper: every child
    /// of this process belongs to the launch.
    pub keeper: Option<Keeper>,
}

/// Where a launch's standard input comes from.
#[derive(Debug)]
pub enum StdinSource {
    /// There is none.
    Empty,
    /// A file, pipe or socket that the one reading rank can have as its own: what it does not read stays unread.
    Direct(OwnedFd),
    /// Pieces that the session passes on, as fast as the ranks read them; closed at the end of the input.
    Stream(mpsc::Receiver<Bytes>),
}

/// What a launch asks of a running session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Send this signal to every rank's process group.
    Signal(i32),
    /// End in order because the user sent this signal: it goes to the ranks, then SIGTERM, and SIGKILL when they take too long.
    End(i32),
    /// End now: SIGKILL. Counts as ended by this signal if nothing ended the launch before.
    Kill(i32),
}
