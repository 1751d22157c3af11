//! Messages of the agent to a session process: commands for the session, answers for its calls, grants of credit, input.

use std::sync::Arc;

use pmi_core::quiet::ReadHalf;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::to_session::What;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::agent_calls::AgentCalls;
use super::credit::OutputCredit;
use super::frames::{TO_SESSION_MAX, ToAgent, codec};
use super::stdin::Input;
use crate::session_io::Control;
use crate::wire::command::{self, Command};

/// Receivers of the agent's messages.
pub(super) struct Incoming {
    /// Number of nodes of the launch.
    pub(super) nodes: usize,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) calls: AgentCalls,
    pub(super) credit: Arc<OutputCredit>,
    pub(super) input: Input,
    /// Way back to the agent, for replies and warnings.
    pub(super) urgent: mpsc::Sender<ToAgent>,
}

impl Incoming {
    /// Reads until the agent is gone, or sends bytes that are no message; then the session ends its ranks, and waits for nothing
    /// more.
    pub(super) async fn run(mut self, reader: ReadHalf) {
        let mut frames = FramedRead::new(reader, codec(TO_SESSION_MAX));
        while let Some(frame) = frames.next().await {
            match frame.and_then(|frame| Ok(proto::ToSession::decode(frame.freeze())?)) {
                Ok(message) => self.take(message).await,
                Err(error) => {
                    self.warn(format!("the ranks are ended, as a message of the agent cannot be read: {error}"));
                    break;
                }
            }
        }
        self.calls.close();
        self.credit.lift();
        // Dropping `control` ends the ranks.
    }

    async fn take(&mut self, message: proto::ToSession) {
        match message.what {
            Some(What::Command(command)) => self.obey(command).await,
            Some(What::Answer(answer)) => self.calls.answer(answer),
            Some(What::Question(question)) => self.pass_on(question).await,
            // A second start, or what only a later version says.
            Some(What::Start(_)) | None => {}
        }
    }

    /// Has the agent log a warning: this process has no log. Left out when the agent is behind with reading.
    fn warn(&self, text: String) {
        let _ = self.urgent.try_send(ToAgent::warning(text));
    }

    async fn obey(&mut self, command: proto::NodeCommand) {
        match command::decode(command, self.nodes) {
            Ok(Command::Control(question @ Control::AskProgress(_))) => {
                self.credit.expect_answer();
                drop(self.control.send(question).await);
            }
            // The session has ended if it takes no more.
            Ok(Command::Control(control)) => drop(self.control.send(control).await),
            Ok(Command::Stdin(bytes)) => self.input.push(bytes),
            Ok(Command::StdinEnd) => self.input.end(),
            Ok(Command::OutputCredit(bytes)) => self.credit.grant(bytes),
            Err(error) => self.warn(format!("a command is passed over: {error}")),
        }
    }

    /// Passes another node's question to the session, and its answer back when it comes.
    async fn pass_on(&self, question: proto::DataRequest) {
        let proto::DataRequest { launch_id, request_id, question, .. } = question;
        let (reply, answer) = oneshot::channel();
        let asked = self.control.send(Control::Question { question, reply }).await;
        let urgent = self.urgent.clone();
        tokio::spawn(async move {
            let answer = match asked {
                Ok(()) => answer.await.unwrap_or_else(|_| Err("its part of the launch has ended".to_owned())),
                Err(_) => Err("its part of the launch has ended".to_owned()),
            };
            // Fails if the agent is gone, and the node that asked with it.
            let _ = urgent.send(ToAgent::reply(launch_id, request_id, answer)).await;
        });
    }
}

#[cfg(test)]
mod tests;
