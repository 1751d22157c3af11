//! What the agent says to a session, sorted by whom it concerns.

use std::sync::Arc;

use pmi_core::quiet::ReadHalf;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::data_reply;
use proto::from_session::What as FromWhat;
use proto::to_session::What;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::agent_calls::AgentCalls;
use super::frames::{TO_SESSION_MAX, codec};
use super::outgoing::Credit;
use super::stdin::Input;
use crate::session_io::Control;
use crate::wire::command::{self, Command};

/// The ways from the socket into the session.
pub(super) struct Incoming {
    /// How many nodes the launch has.
    pub(super) nodes: usize,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) calls: AgentCalls,
    pub(super) credit: Arc<Credit>,
    pub(super) input: Input,
    /// The way back, for answers to questions.
    pub(super) urgent: mpsc::Sender<proto::FromSession>,
}

impl Incoming {
    /// Reads until the agent is gone, or says what no agent says; then the session ends its ranks, and waits for nothing more.
    pub(super) async fn run(mut self, reader: ReadHalf) {
        let mut frames = FramedRead::new(reader, codec(TO_SESSION_MAX));
        while let Some(Ok(frame)) = frames.next().await {
            let Ok(message) = proto::ToSession::decode(frame.freeze()) else { break };
            match message.what {
                Some(What::Command(command)) => self.obey(command).await,
                Some(What::Answer(answer)) => self.calls.answer(answer),
                Some(What::Question(question)) => self.pass_on(question).await,
                // A second start, or what only a later version says.
                Some(What::Start(_)) | None => {}
            }
        }
        self.calls.close();
        self.credit.lift();
        // Dropping `control` ends the ranks.
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
            Ok(Command::OutputCredit(bytes)) => self.credit.add(bytes),
            Err(error) => tracing::warn!(%error, "passed over a command of the agent"),
        }
    }

    /// Lets the session answer another node's question, when it can.
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
            let result = Some(match answer {
                Ok(data) => data_reply::Result::Data(data),
                Err(reason) => data_reply::Result::Error(reason),
            });
            let what = Some(FromWhat::Reply(proto::DataReply { launch_id, request_id, result }));
            // The agent is gone, and the one who asked with it.
            let _ = urgent.send(proto::FromSession { what }).await;
        });
    }
}
