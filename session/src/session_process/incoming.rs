//! Messages from the agent to a session process: commands for the session, answers to its calls, grants of credit, and input. The
//! connection of the agent can be replaced by that of another agent.

use pmi_transport::task;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmi_core::quiet::{self, ReadHalf};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::to_session::What;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::agent_calls::AgentCalls;
use super::confirmations::{Confirmations, Connection, End, Resume};
use super::credit::OutputCredit;
use super::frames::{TO_SESSION_MAX, ToAgent, codec};
use super::kept_events::Position;
use super::node_links::{Arrived, NodeQuestion};
use super::stdin::Input;
use crate::gathered::GatherOrder;
use crate::input_piece::InputPiece;
use crate::session_io::Control;
use crate::wire;
use crate::wire::command::{self, Command};
use crate::wire::event::NodeHappening;

/// Receivers of the agent's messages.
pub(super) struct Incoming {
    /// Number of nodes of the launch.
    pub(super) nodes: usize,
    pub(super) control: mpsc::Sender<Control>,
    /// Receiver of questions to this session and other sessions.
    pub(super) gathering: mpsc::Sender<NodeQuestion>,
    pub(super) calls: AgentCalls,
    pub(super) credit: Arc<OutputCredit>,
    /// Input that the API server sends to this node alone.
    pub(super) input: Arc<Mutex<Input>>,
    /// Receiver of input for this node and other nodes.
    pub(super) passing: mpsc::Sender<Arrived>,
    /// Sender to the agent, for replies and warnings.
    pub(super) urgent: mpsc::Sender<ToAgent>,
    pub(super) confirmations: Arc<Confirmations>,
    pub(super) agents: NextAgents,
}

/// Connections of the agents after the first one.
pub(super) struct NextAgents {
    pub(super) connections: mpsc::Receiver<UnixStream>,
    /// Time for which the session continues without an agent.
    pub(super) lease: Duration,
}

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// The agent is gone.
    Closed,
    /// The agent sent invalid bytes.
    Unreadable,
}

impl Incoming {
    /// Reads until the agent is gone and no other agent connects in time, or until an agent sends invalid bytes. Then the session ends its
    /// ranks and waits for no further message.
    pub(super) async fn run(mut self, mut reader: ReadHalf) {
        while self.read(reader).await == ConnectionEnd::Closed {
            match self.next_connection().await {
                Some(next) => reader = next,
                None => break,
            }
        }
        self.calls.close();
        self.credit.lift();
        self.confirmations.end(End::AgentGone);
        // Dropping `control` ends the ranks.
    }

    /// Waits for another agent, and sends it the unanswered calls.
    async fn next_connection(&mut self) -> Option<ReadHalf> {
        let NextAgents { connections, lease } = &self.agents;
        // Without a next agent there is no wait, and pending writes to the present connection are not cancelled.
        if connections.is_closed() && connections.is_empty() {
            return None;
        }
        self.confirmations.reconnect(Connection::Broken);
        let (reader, writer) = timeout(*lease, self.usable_connection()).await.ok().flatten()?;
        self.confirmations.reconnect(Connection::New(writer));
        self.calls.ask_again().await;
        Some(reader)
    }

    /// Waits for a usable connection; `None` when no connection can follow.
    async fn usable_connection(&mut self) -> Option<(ReadHalf, quiet::WriteHalf)> {
        loop {
            let next = self.agents.connections.recv().await?;
            if let Ok(both) = self.accept(next) {
                return Some(both);
            }
        }
    }

    fn accept(&self, socket: UnixStream) -> io::Result<(ReadHalf, quiet::WriteHalf)> {
        let both = quiet::split(socket);
        if let Err(error) = &both {
            self.warn(format!("the connection of another agent cannot be used: {error}"));
        }
        both
    }

    async fn read(&mut self, reader: ReadHalf) -> ConnectionEnd {
        let mut frames = FramedRead::new(reader, codec(TO_SESSION_MAX));
        while let Some(frame) = frames.next().await {
            match frame.and_then(|frame| Ok(proto::ToSession::decode(frame.freeze())?)) {
                Ok(message) => self.take(message).await,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.warn(format!("the ranks are ended, as a message of the agent cannot be read: {error}"));
                    return ConnectionEnd::Unreadable;
                }
                // The connection ended in the middle of a message, or was reset.
                Err(_) => break,
            }
        }
        ConnectionEnd::Closed
    }

    async fn take(&mut self, message: proto::ToSession) {
        match message.what {
            Some(What::Command(command)) => self.take_command(command).await,
            Some(What::Answer(answer)) => self.calls.answer(answer),
            Some(What::Question(question)) => self.pass_on(question).await,
            Some(What::Resume(order)) => resume(&order, &self.confirmations, &self.credit),
            Some(What::Unheard(proto::Nothing {})) => self.confirmations.unheard(),
            Some(What::Dismissed(proto::Nothing {})) => {
                // No agent grants credit any more.
                self.credit.lift();
                self.confirmations.end(End::Dismissed);
            }
            // A second start, or a message of a later version.
            Some(What::Start(_)) | None => {}
        }
    }

    /// Carries out a command that was not received before. The field `events_taken` is valid without a command.
    async fn take_command(&mut self, command: proto::NodeCommand) {
        let proto::NodeCommand { sequence, events_taken, .. } = command;
        if events_taken > 0 {
            self.confirmations.confirm(events_taken);
        }
        if (command.what.is_some() || events_taken == 0) && self.confirmations.is_new_command(sequence) {
            self.obey(command).await;
            self.confirmations.command_taken(sequence);
        }
    }

    /// Sends a warning to the agent's log, because this process has no log. The warning is dropped if the agent reads too slowly.
    fn warn(&self, text: String) {
        let _ = self.urgent.try_send(ToAgent::warning(text));
    }

    async fn obey(&mut self, command: proto::NodeCommand) {
        match command::decode(command, self.nodes) {
            Ok(Command::Control(
                question @ (Control::AskProgress(_) | Control::AskUsage(_) | Control::AskStacks(_)),
            )) => {
                self.credit.expect_answer();
                drop(self.control.send(question).await);
            }
            // Fails when the session has ended.
            Ok(Command::Control(control)) => drop(self.control.send(control).await),
            Ok(Command::Gather { question, order }) => self.gather(question, order).await,
            Ok(Command::Stdin(bytes)) => {
                let pushed = self.input.lock().push(bytes);
                if let Err(error) = pushed {
                    self.warn(error.to_string());
                }
            }
            Ok(Command::StdinEnd) => self.input.lock().end(),
            Ok(Command::Input(piece)) => self.pass_input(piece).await,
            Ok(Command::OutputCredit(bytes)) => self.credit.grant(bytes),
            Err(error) => self.warn(format!("a command is passed over: {error}")),
        }
    }

    /// Sends a question to several sessions, and forwards their answers when they are complete. Without links the answer is empty.
    async fn gather(&self, question: u64, order: GatherOrder) {
        let (reply, answer) = oneshot::channel();
        // If this fails, the receiver of the answer is closed as well.
        let _ = self.gathering.send(NodeQuestion { order, reply }).await;
        let urgent = self.urgent.clone();
        task::spawn(async move {
            let gathered = answer.await.unwrap_or_else(|_| Err("it has ended".to_owned())).unwrap_or_default();
            // Fails when the session has ended.
            let _ = urgent.send(ToAgent::event(wire::event::encode_gathered(question, &gathered))).await;
        });
    }

    /// Forwards a piece of input. When all other nodes have received it, reports the nodes that have not.
    async fn pass_input(&self, piece: InputPiece) {
        let (offset, (reply, answer)) = (piece.offset, oneshot::channel());
        // If this fails, the receiver of the answer is closed as well.
        let _ = self.passing.send(Arrived { piece, reply }).await;
        let urgent = self.urgent.clone();
        task::spawn(async move {
            // If this session is ending, the API server sends the piece to the other nodes by another path.
            let Ok(Ok(missed)) = answer.await else { return };
            let event = wire::event::encode_happening(&NodeHappening::InputPassed { offset, missed });
            // Fails when the session has ended.
            let _ = urgent.send(ToAgent::event(event)).await;
        });
    }

    /// Forwards another node's question to the session, and returns the answer to the agent.
    async fn pass_on(&self, question: proto::DataRequest) {
        let proto::DataRequest { launch_id, request_id, question, .. } = question;
        let (reply, answer) = oneshot::channel();
        let asked = self.control.send(Control::Question { question, reply }).await;
        let urgent = self.urgent.clone();
        task::spawn(async move {
            let answer = match asked {
                Ok(()) => answer.await.unwrap_or_else(|_| Err("its part of the launch has ended".to_owned())),
                Err(_) => Err("its part of the launch has ended".to_owned()),
            };
            // Fails if the agent is gone. The node that asked then has no path for the answer.
            let _ = urgent.send(ToAgent::reply(launch_id, request_id, answer)).await;
        });
    }
}

/// Handles the order to resend events, before later grants of the API server.
pub(super) fn resume(order: &proto::ResumeEvents, confirmations: &Confirmations, credit: &OutputCredit) {
    let &proto::ResumeEvents { stream, after, handed } = order;
    let position = after.map_or(Position::Unknown { handed }, Position::After);
    if after.is_none() {
        credit.forgive();
    }
    confirmations.resume(Resume { stream, position });
}

#[cfg(test)]
mod tests;
