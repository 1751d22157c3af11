//! The stream of one node's reports: a stream of its own, or a part of a relay's stream.

use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1::{LaunchReport, NodeCommand, ReportFor, Resumed, launch_report};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::outbox::{Attempt, Outbox, StreamEnd};
use super::{LaunchHandle, Request};
use crate::wire::node::{decode_event, encode_message};

/// Capacity of the channel for commands to a node.
pub(crate) const TO_NODE: usize = 16;

/// A stream from a node, and its launch.
pub(crate) struct ReportStream {
    handle: LaunchHandle,
    outbox: Outbox,
    node: NodeIndex,
    attempt: Attempt,
}

impl ReportStream {
    /// The stream that begins with the message `of`.
    ///
    /// # Errors
    /// Fails if the launch has no such node, or needs no more reports from it.
    pub(crate) fn of(handle: LaunchHandle, of: &ReportFor) -> Result<Self, Status> {
        let ReportFor { launch_id, node_id, node_index, again } = of;
        let node = NodeIndex(*node_index);
        let outbox = handle.outbox(node, node_id).cloned().ok_or_else(|| {
            Status::invalid_argument(format!("{node_id} is not node {node_index} of launch {launch_id}"))
        })?;
        if handle.has_lost(node) {
            let text = format!("launch {launch_id} goes on, or has ended, without {node_id}");
            return Err(Status::failed_precondition(text));
        }
        if outbox.is_closed() {
            let text = format!("launch {launch_id} has all that it needs of {node_id}");
            return Err(Status::failed_precondition(text));
        }
        let attempt = if *again { Attempt::Again } else { Attempt::First };
        Ok(Self { handle, outbox, node, attempt })
    }

    /// Forwards events from the node to the launch, and commands to the node, until one side has ended.
    pub(crate) async fn run(
        self,
        mut told: impl Stream<Item = Result<LaunchReport, Status>> + Unpin,
        sender: mpsc::Sender<Result<NodeCommand, Status>>,
    ) {
        let (node, attempt) = (self.node, self.attempt);
        let stream = self.outbox.open(attempt);
        if !self.handle.send(Request::StreamOpened { node, stream, attempt }).await {
            return;
        }
        tokio::select! {
            () = self.take_events(stream, &mut told, &sender) => {}
            () = self.give_commands(stream, &sender) => {}
        }
        self.handle.send(Request::StreamClosed { node, stream }).await;
    }

    async fn take_events(
        &self,
        stream: u64,
        told: &mut (impl Stream<Item = Result<LaunchReport, Status>> + Unpin),
        sender: &mpsc::Sender<Result<NodeCommand, Status>>,
    ) {
        loop {
            let request = match told.next().await {
                Some(Ok(report)) => self.request(stream, report),
                // The node has sent all reports, and waits for their acknowledgement.
                None => return sender.closed().await,
                // The node opens a new stream, or is lost.
                Some(Err(_)) => return,
            };
            if let Some(request) = request
                && !self.handle.send(request).await
            {
                return;
            }
        }
    }

    /// The request to the launch that corresponds to a message; `None` for a message of a later version.
    fn request(&self, stream: u64, report: LaunchReport) -> Option<Request> {
        let node = self.node;
        match report.what? {
            launch_report::What::Of(_) => None,
            launch_report::What::Event(event) => {
                if event.commands_taken > 0 {
                    self.outbox.confirm(event.commands_taken);
                }
                let (sequence, event) = (event.sequence, decode_event(event));
                (sequence > 0 || event.is_some()).then_some(Request::Event { node, sequence, event })
            }
            launch_report::What::Resumed(Resumed { after, commands_taken, .. }) => {
                Some(Request::Resumed { node, stream, after, commands_taken })
            }
        }
    }

    async fn give_commands(&self, stream: u64, sender: &mpsc::Sender<Result<NodeCommand, Status>>) {
        loop {
            let message = match self.outbox.next(stream).await {
                Ok(message) => Ok(encode_message(message)),
                // The end of the stream without an error acknowledges the report.
                Err(StreamEnd::Closed) => return,
                Err(StreamEnd::Replaced) => Err(Status::aborted("the node has opened another stream")),
            };
            let is_end = message.is_err();
            if sender.send(message).await.is_err() || is_end {
                return;
            }
        }
    }
}
