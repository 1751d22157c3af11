//! Messages of the agent to a session process: commands for the session, answers for its calls, grants of credit, input; and the
//! connection that they come over, which another agent may replace by a new one.

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
use super::node_links::{Arrived, Asked};
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
    /// Receiver of questions to this session and others.
    pub(super) gathering: mpsc::Sender<Asked>,
    pub(super) calls: AgentCalls,
    pub(super) credit: Arc<OutputCredit>,
    /// Input that comes from the API server alone.
    pub(super) input: Arc<Mutex<Input>>,
    /// Receiver of input for this node and others.
    pub(super) passing: mpsc::Sender<Arrived>,
    /// Way back to the agent, for replies and warnings.
    pub(super) urgent: mpsc::Sender<ToAgent>,
    pub(super) confirmations: Arc<Confirmations>,
    pub(super) agents: NextAgents,
}

/// Connections to agents that follow the first one.
pub(super) struct NextAgents {
    pub(super) connections: mpsc::Receiver<UnixStream>,
    /// Time for which the session runs on without one.
    pub(super) lease: Duration,
}

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// The agent is gone.
    Closed,
    /// The agent sent bytes that are no message.
    Unreadable,
}

impl Incoming {
    /// Reads until the agent is gone and no other comes in time, or until one sends bytes that are no message; then the session ends
    /// its ranks, and waits for nothing more.
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

    /// Waits for another agent, and asks it what the one before did not answer.
    async fn next_connection(&mut self) -> Option<ReadHalf> {
        let NextAgents { connections, lease } = &self.agents;
        // Nobody is there to be waited for: then nothing is broken off that could still be written.
        if connections.is_closed() && connections.is_empty() {
            return None;
        }
        self.confirmations.reconnect(Connection::Broken);
        let (reader, writer) = timeout(*lease, self.usable_connection()).await.ok().flatten()?;
        self.confirmations.reconnect(Connection::New(writer));
        self.calls.ask_again().await;
        Some(reader)
    }

    /// Waits for a connection that can be used; `None` once no other can come.
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
                // It ended in the middle of a message, or was reset.
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
                // Nobody would grant any.
                self.credit.lift();
                self.confirmations.end(End::Dismissed);
            }
            // A second start, or what only a later version says.
            Some(What::Start(_)) | None => {}
        }
    }

    /// Carries out a command that did not come before. What it says of events has no need of a command.
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

    /// Has the agent log a warning: this process has no log. Left out when the agent is behind with reading.
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
            // The session has ended if it takes no more.
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

    /// Has sessions asked, and passes on what they tell when it is there: nothing, if there are no links to them.
    async fn gather(&self, question: u64, order: GatherOrder) {
        let (reply, answer) = oneshot::channel();
        // Then the reply is gone as well.
        let _ = self.gathering.send(Asked { order, reply }).await;
        let urgent = self.urgent.clone();
        task::spawn(async move {
            let gathered = answer.await.unwrap_or_else(|_| Err("it has ended".to_owned())).unwrap_or_default();
            // Fails when the session has ended.
            let _ = urgent.send(ToAgent::event(wire::event::encode_gathered(question, &gathered))).await;
        });
    }

    /// Has a piece of input passed on, and tells which nodes have not taken it when all others have.
    async fn pass_input(&self, piece: InputPiece) {
        let (offset, (reply, answer)) = (piece.offset, oneshot::channel());
        // Then the reply is gone as well.
        let _ = self.passing.send(Arrived { piece, reply }).await;
        let urgent = self.urgent.clone();
        task::spawn(async move {
            // Where this session is ending, the API server has the others get the piece otherwise.
            let Ok(Ok(missed)) = answer.await else { return };
            let event = wire::event::encode_happening(&NodeHappening::InputPassed { offset, missed });
            // Fails when the session has ended.
            let _ = urgent.send(ToAgent::event(event)).await;
        });
    }

    /// Passes another node's question to the session, and its answer back when it comes.
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
            // Fails if the agent is gone, and the node that asked with it.
            let _ = urgent.send(ToAgent::reply(launch_id, request_id, answer)).await;
        });
    }
}

/// Takes in the order to send events again, ahead of what the API server grants after it.
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
