//! Answers of the host and of other nodes' servers, their questions, and timers.

use bytes::Bytes;
use pmi_core::services::JobProcesses;

use super::Server;
use super::action::Ticket;
use super::host::answer_client;
use super::inquiries::{look_for_peer, node_processes, signal_for_peer, signal_status};
use super::node_processes::NodeProcesses;
use super::open_questions::{AnswerReceiver, OpenQuestion};
use super::peer_gets::answer_with_all;
use super::question::Question;
use super::segments::decode_segment;
use crate::services::Answer;
use crate::wire::status;

impl Server {
    /// The host answered an [`Action::Call`](super::Action::Call).
    pub fn handle_answer(&mut self, ticket: Ticket, answer: &Answer) {
        let Self { launch, data, collectives, inquiries, .. } = self;
        let nothing = JobProcesses::default();
        let seen = || if let Answer::Seen(seen) = answer { seen } else { &nothing };
        let signalled =
            || if let Answer::Signalled(result) = answer { signal_status(result) } else { status::COMM_FAILURE };
        match launch.calls.remove(&ticket) {
            Some(AnswerReceiver::Rank { address, questions }) => {
                launch.credit(address.identity.seat, questions);
                answer_client(launch, address, answer);
            }
            Some(AnswerReceiver::Meeting(id)) => collectives.end_meeting(launch, data, &id, answer),
            Some(AnswerReceiver::Look { inquiry, job }) => {
                let at = (job, launch.jobs[job].namespace.node);
                let processes = node_processes(&launch.jobs, job, seen());
                inquiries.on_processes(launch, &collectives.groups, inquiry, at, Some(processes));
            }
            Some(AnswerReceiver::Signal { inquiry }) => {
                inquiries.on_signalled(launch, &collectives.groups, inquiry, signalled());
            }
            Some(AnswerReceiver::PeerLook { ticket, job }) => {
                let processes = node_processes(&launch.jobs, job, seen());
                launch.reply_to_peer(ticket, processes.encode());
            }
            Some(AnswerReceiver::PeerSignal { ticket }) => launch.answer_peer(ticket, signalled()),
            None => {}
        }
    }

    /// The server of an [`Action::Ask`](super::Action::Ask) has answered; `None` if it gives no answer.
    ///
    /// If a fence has ended here meanwhile, values in the answer may be older than the fence's data. The question is then sent again.
    pub fn handle_peer_answer(&mut self, ticket: Ticket, answer: Option<&Bytes>) {
        let Self { launch, data, collectives, streams, inquiries, .. } = self;
        match launch.take_peer_question(ticket, answer) {
            Some(OpenQuestion::Value(wanted)) => data.gets.on_value(launch, &wanted, answer),
            Some(OpenQuestion::Refresh(refresh)) => data.on_refreshed(launch, refresh, answer),
            Some(OpenQuestion::Withheld { job, node }) => {
                data.on_fetched(launch, job, node, answer.and_then(decode_segment));
            }
            Some(OpenQuestion::Look { inquiry, job, node }) => {
                let processes = answer.and_then(|answer| NodeProcesses::decode(answer));
                inquiries.on_processes(launch, &collectives.groups, inquiry, (job, node), processes);
            }
            Some(OpenQuestion::Signal { inquiry }) => {
                let answer = answer.and_then(|answer| answer.first_chunk()).copied();
                let status = answer.map_or(status::COMM_FAILURE, i32::from_be_bytes);
                inquiries.on_signalled(launch, &collectives.groups, inquiry, status);
            }
            Some(OpenQuestion::Output { node }) => streams.on_output(launch, ticket, node, answer),
            Some(OpenQuestion::Spread) | None => {}
        }
    }

    /// A server of another node requests committed data of a rank of this node. An [`Action::Reply`](super::Action::Reply) with the
    /// returned ticket holds the answer, now or later.
    pub fn handle_question(&mut self, question: &Bytes) -> Ticket {
        let Self { launch, data, streams, .. } = self;
        let ticket = launch.new_ticket();
        match Question::decode(question) {
            Some(Question::Data(question)) => data.peer_gets.serve(launch, ticket, question),
            Some(Question::AllOf { namespace }) => {
                let answer = answer_with_all(&launch.jobs, &namespace);
                launch.reply_to_peer(ticket, answer);
            }
            Some(Question::Spread { name, epoch }) => {
                launch.answer_peer(ticket, status::SUCCESS);
                data.withheld.spread(launch, &name, epoch);
            }
            Some(Question::Wish { name, epoch }) => {
                launch.answer_peer(ticket, status::SUCCESS);
                data.withheld.on_wish(launch, &name, epoch);
            }
            Some(Question::Processes { namespace }) => look_for_peer(launch, ticket, &namespace),
            Some(Question::Signal { namespace, signal, ranks }) => {
                signal_for_peer(launch, ticket, &namespace, signal, ranks);
            }
            Some(Question::Output { asker, wanted }) => streams.on_question(launch, ticket, asker, wanted),
            None => launch.answer_peer(ticket, status::BAD_PARAM),
        }
        ticket
    }

    /// A timer of an [`Action::SetTimer`](super::Action::SetTimer) has expired.
    pub fn handle_timer(&mut self, ticket: Ticket) {
        if !self.data.expire(&mut self.launch, ticket) {
            self.streams.remote.expire(&mut self.launch, ticket);
        }
    }
}
