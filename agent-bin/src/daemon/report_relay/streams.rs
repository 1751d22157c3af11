//! The stream on which a caller fetches this node's reports. Reports of the node and of its branches go up on it together; messages go down.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lattice_session::wire::report_relay::may_come;
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::launch_report::What as Report;
use proto::node_event::What as Event;
use proto::relayed_command::What as Command;
use proto::relayed_report::What;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::super::Node;
use super::branch::{self, Branch};
use super::{Downward, MESSAGES, Offer, REPORTS, Relayed, Way};

/// Size of collected reports, in bytes, from which a message is sent at once.
const TOGETHER_MAX: usize = 256 << 10;

/// Maximum time that starts and ends wait for the starts and ends of other nodes, so that they share a message.
const HOLD: Duration = Duration::from_millis(5);

/// Maximum number of bytes that a message adds to a report: the field number and the length.
const ENVELOPE: usize = 8;

/// Maximum number of messages on their way to the caller.
const ON_THEIR_WAY: usize = 4;

/// Maximum number of nodes' messages that wait to be combined.
const ARRIVING: usize = 64;

/// Reports of one node or branch.
type Reports = Vec<proto::RelayedReport>;

/// Relays the reports of a launch's nodes to the sender of these messages, until all nodes have finished or the sender is gone.
pub(in super::super) fn relay(
    node: Arc<Node>,
    launch_id: String,
    relayed: Arc<Relayed>,
    messages: Streaming<proto::RelayedCommands>,
) -> ReceiverStream<Result<proto::RelayedReports, Status>> {
    let (up, upward) = mpsc::channel(ON_THEIR_WAY);
    let (reports, arriving) = mpsc::channel(ARRIVING);
    let mut tasks = JoinSet::new();
    let own = offer(&relayed, reports.clone(), &mut tasks);
    let mut branches = Vec::with_capacity(relayed.behind.len());
    for nodes in &relayed.behind {
        let (branch, told) = Branch::new(&launch_id, nodes.clone());
        let channel = branch::channel(&node, &relayed, nodes.start);
        tasks.spawn(branch::pass_on(channel, nodes.clone(), told, reports.clone()));
        branches.push(branch);
    }
    drop(reports);
    let nodes = 1 + relayed.behind.iter().map(ExactSizeIterator::len).sum::<usize>();
    let down = Down { own: Some(own), own_index: relayed.own, branches };
    tokio::spawn(async move {
        let giving = async {
            down.give(messages).await;
            // The nodes leave because their messages have ended.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = put_together(arriving, &up, nodes) => {}
            () = giving => {}
        }
        // This also ends the streams to branches that are still open.
        drop(tasks);
    });
    ReceiverStream::new(upward)
}

/// Messages to this node itself.
struct Own {
    messages: mpsc::Sender<Downward>,
    /// The end of its stream was sent to it.
    has_ended: Arc<AtomicBool>,
}

/// Offers a route to this node's delivery; its reports go to `reports`.
fn offer(relayed: &Relayed, reports: mpsc::Sender<Reports>, tasks: &mut JoinSet<()>) -> Own {
    let (own, mut reported) = mpsc::channel(REPORTS);
    let (messages, commands) = mpsc::channel(MESSAGES);
    // A delivery with a stream to the API server takes no offer. The route is then dropped, which ends both channels.
    let _ = relayed.offers.try_send(Offer::Way(Way { reports: own, commands }));
    let (index, has_ended) = (relayed.own, Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&has_ended);
    tasks.spawn(async move {
        let mut batch = Vec::new();
        while reported.recv_many(&mut batch, REPORTS).await > 0 {
            let of_node = |report| proto::RelayedReport { node_index: index, what: Some(What::Report(report)) };
            if reports.send(batch.drain(..).map(of_node).collect()).await.is_err() {
                return;
            }
        }
        if !ended.load(Ordering::Relaxed) {
            let left = proto::RelayedReport { node_index: index, what: Some(What::Left(proto::Nothing {})) };
            let _ = reports.send(vec![left]).await;
        }
    });
    Own { messages, has_ended }
}

/// Path of messages to the nodes.
struct Down {
    /// `None` when the node receives no more messages on this path.
    own: Option<Own>,
    own_index: u32,
    branches: Vec<Branch>,
}

impl Down {
    /// Forwards messages until their sender is gone.
    async fn give(mut self, mut messages: Streaming<proto::RelayedCommands>) {
        while let Ok(Some(message)) = messages.message().await {
            let mut shares: Vec<Vec<proto::RelayedCommand>> = vec![Vec::new(); self.branches.len()];
            for command in message.commands {
                if command.node_index == self.own_index {
                    self.tell_own(command.what);
                } else if let Some(branch) = self.branches.iter().position(|it| it.nodes.contains(&command.node_index))
                {
                    shares[branch].push(command);
                }
            }
            for (branch, commands) in self.branches.iter_mut().zip(shares).filter(|(_, commands)| !commands.is_empty())
            {
                let message = proto::RelayedCommands { launch_id: String::new(), commands };
                if branch.messages.as_ref().is_none_or(|messages| messages.try_send(message).is_err()) {
                    branch.messages = None;
                }
            }
        }
    }

    fn tell_own(&mut self, what: Option<Command>) {
        let Some(own) = &self.own else { return };
        let message = match what {
            Some(Command::Command(command)) if may_come(&command) => Downward::Command(command),
            Some(Command::End(proto::StreamEnd { code, message })) => {
                own.has_ended.store(true, Ordering::Relaxed);
                let result = if code == 0 { Ok(()) } else { Err(Status::new(Code::from(code), message)) };
                Downward::End(result)
            }
            // The relay must not send this, or has a later version. The API server sends it to the node directly.
            Some(Command::Command(_)) | None => return self.own = None,
        };
        let is_end = matches!(message, Downward::End(_));
        if own.messages.try_send(message).is_err() || is_end {
            self.own = None;
        }
    }
}

/// Sends arriving reports in as few messages as possible, without delaying urgent ones.
async fn put_together(
    mut arriving: mpsc::Receiver<Reports>,
    up: &mpsc::Sender<Result<proto::RelayedReports, Status>>,
    nodes: usize,
) {
    while let Some(mut reports) = arriving.recv().await {
        let deadline = Instant::now() + HOLD;
        let mut heard: BTreeSet<u32> = reports.iter().map(|report| report.node_index).collect();
        let mut bytes = bytes_of(&reports);
        let mut is_urgent = reports.iter().any(is_waited_for);
        while !is_urgent && heard.len() < nodes && bytes < TOGETHER_MAX {
            let Ok(Some(more)) = timeout_at(deadline, arriving.recv()).await else { break };
            is_urgent = more.iter().any(is_waited_for);
            heard.extend(more.iter().map(|report| report.node_index));
            bytes += bytes_of(&more);
            reports.extend(more);
        }
        for message in messages(reports) {
            if up.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }
}

/// Reports in messages that do not exceed the size limit.
fn messages(reports: Reports) -> Vec<proto::RelayedReports> {
    let (mut messages, mut bytes) = (vec![proto::RelayedReports::default()], 0);
    for report in reports {
        let length = report.encoded_len() + ENVELOPE;
        if bytes > 0 && bytes + length > MESSAGE_MAX {
            messages.push(proto::RelayedReports::default());
            bytes = 0;
        }
        bytes += length;
        messages.last_mut().expect("there is one").reports.push(report);
    }
    messages
}

fn bytes_of(reports: &Reports) -> usize {
    reports.iter().map(Message::encoded_len).sum()
}

/// Returns false for reports of normal progress: the start of a stream, starts, exits and the report.
fn is_waited_for(report: &proto::RelayedReport) -> bool {
    let Some(What::Report(proto::LaunchReport { what: Some(what) })) = &report.what else { return false };
    match what {
        Report::Of(_) => false,
        Report::Resumed(_) => true,
        Report::Event(event) => {
            !matches!(event.what, Some(Event::Mapped(_) | Event::Started(_) | Event::Exited(_) | Event::Report(_)))
        }
    }
}
