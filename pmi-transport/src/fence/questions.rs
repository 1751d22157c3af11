//! Questions between the nodes of one launch outside of fences (direct modex), as a pure state machine.
//!
//! ```text
//!  asking node:     ask ──> waiting ──reply, node lost, withdraw──> gone
//!  answering node:  request ──> open ──answer, leave──> replied
//!                                 └──asking node lost──> void: counted until its answer is ready, which is dropped
//! ```
//! A question has one answer, from the node that was asked. A long answer arrives in several replies, in order. A node that leaves the
//! launch refuses all open questions.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pmi_core::ids::NodeIndex;

use super::AskError;
use super::effects::{AnswerId, Effects, NodeQuestion, Question, QuestionId};
use crate::limits::{ANSWER_MAX, CHUNK_MAX, WHOLE_MAX};
use crate::proto::v1::{DataReply, DataRequest, LinkFrame, data_reply, link_frame::What};

/// Unanswered questions of one launch on one node.
#[derive(Debug)]
pub(super) struct Questions {
    launch_id: Arc<str>,
    me: NodeIndex,
    last_id: u64,
    /// Questions of this node.
    asked: HashMap<QuestionId, PendingAnswer>,
    /// Questions of other nodes; `None` once the asking node is lost.
    open: HashMap<AnswerId, Option<Asker>>,
    /// Maximum entries of `open`.
    open_max: usize,
}

/// Node that was asked, and the received part of its answer.
#[derive(Debug)]
struct PendingAnswer {
    node: NodeIndex,
    arrived: BytesMut,
}

/// Node that asked, and its number for the question.
#[derive(Clone, Copy, Debug)]
struct Asker {
    node: NodeIndex,
    request_id: u64,
}

impl Questions {
    /// Creates an empty set. At most `open_max` questions of other nodes may be open.
    pub(super) fn new(launch_id: Arc<str>, me: NodeIndex, open_max: usize) -> Self {
        Self { launch_id, me, last_id: 0, asked: HashMap::new(), open: HashMap::new(), open_max }
    }

    /// Asks `node`, which must be another node of the launch. The answer is an effect of a later input.
    pub(super) fn ask(&mut self, node: NodeIndex, question: Question, effects: &mut Effects) -> QuestionId {
        let id = QuestionId(self.next_id());
        self.asked.insert(id, PendingAnswer { node, arrived: BytesMut::new() });
        let (launch_id, from_node) = (self.launch_id.to_string(), self.me.0);
        let (question, to_session) = match question {
            Question::Server(question) => (question, Bytes::new()),
            Question::Session(message) => (Bytes::new(), message),
        };
        let request = DataRequest { launch_id, request_id: id.0, from_node, question, to_session };
        effects.frames.push((node, LinkFrame { what: Some(What::DataRequest(request)) }));
        id
    }

    /// Drops a question of this node; its answer counts as late.
    pub(super) fn withdraw(&mut self, id: QuestionId) {
        self.asked.remove(&id);
    }

    /// Processes a question of the node `from`.
    pub(super) fn on_request(&mut self, from: NodeIndex, request: DataRequest, effects: &mut Effects) {
        let DataRequest { request_id, question, to_session, .. } = request;
        let question = if to_session.is_empty() { Question::Server(question) } else { Question::Session(to_session) };
        let asker = Asker { node: from, request_id };
        if self.open.len() >= self.open_max {
            effects.counters.dropped += 1;
            self.reply(asker, Err("it looks for too many answers already".to_owned()), effects);
            return;
        }
        let id = AnswerId(self.next_id());
        self.open.insert(id, Some(asker));
        effects.asked.push(NodeQuestion { id, from, question });
    }

    /// Sends this node's answer to a question of another node, unless that node is lost.
    pub(super) fn answer(&mut self, id: AnswerId, answer: Result<Bytes, String>, effects: &mut Effects) {
        if let Some(Some(asker)) = self.open.remove(&id) {
            self.reply(asker, answer, effects);
        }
    }

    /// Processes an answer of the node `from`.
    pub(super) fn on_reply(&mut self, from: NodeIndex, reply: DataReply, effects: &mut Effects) {
        let id = QuestionId(reply.request_id);
        let Some(asking) = self.asked.get_mut(&id).filter(|asking| asking.node == from) else {
            effects.counters.late += 1;
            return;
        };
        let refused = |reason| Err(AskError::Refused { node: from, reason });
        let answer = match reply.result {
            Some(data_reply::Result::Data(data)) if asking.arrived.len() + data.len() > ANSWER_MAX => {
                refused(format!("its answer has more than {ANSWER_MAX} bytes"))
            }
            Some(data_reply::Result::Data(data)) if reply.goes_on => return asking.arrived.extend_from_slice(&data),
            Some(data_reply::Result::Data(data)) if asking.arrived.is_empty() => Ok(data),
            Some(data_reply::Result::Data(data)) => {
                asking.arrived.extend_from_slice(&data);
                Ok(mem::take(&mut asking.arrived).freeze())
            }
            Some(data_reply::Result::Error(reason)) => refused(reason),
            None => refused("its answer is empty".to_owned()),
        };
        self.asked.remove(&id);
        effects.answered.push((id, answer));
    }

    /// Fails the open questions to the node `lost`, and voids the open questions of that node.
    pub(super) fn lose(&mut self, lost: NodeIndex, reason: &str, effects: &mut Effects) {
        let failed = self.asked.extract_if(|_, asking| asking.node == lost).map(|(id, _)| id);
        let error = || AskError::NodeLost { node: lost, reason: reason.to_owned() };
        effects.answered.extend(failed.map(|id| (id, Err(error()))));
        for asker in self.open.values_mut() {
            *asker = asker.take().filter(|asker| asker.node != lost);
        }
    }

    /// Refuses every open question of other nodes, with the given reason.
    pub(super) fn leave(&mut self, reason: &str, effects: &mut Effects) {
        for asker in mem::take(&mut self.open).into_values().flatten() {
            self.reply(asker, Err(reason.to_owned()), effects);
        }
    }

    fn reply(&self, to: Asker, answer: Result<Bytes, String>, effects: &mut Effects) {
        let mut send = |result, goes_on| {
            let (launch_id, request_id, result) = (self.launch_id.to_string(), to.request_id, Some(result));
            let reply = DataReply { launch_id, request_id, result, goes_on };
            effects.frames.push((to.node, LinkFrame { what: Some(What::DataReply(reply)) }));
        };
        match answer {
            Ok(data) if data.len() > ANSWER_MAX => {
                let reason = format!("its answer has {} bytes, and {ANSWER_MAX} are the most", data.len());
                send(data_reply::Result::Error(reason), false);
            }
            Ok(mut data) => {
                while data.len() > WHOLE_MAX {
                    send(data_reply::Result::Data(data.split_to(CHUNK_MAX)), true);
                }
                send(data_reply::Result::Data(data), false);
            }
            Err(reason) => send(data_reply::Result::Error(reason), false),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: NodeIndex = NodeIndex(1);

    fn what() -> Question {
        Question::Server("what".into())
    }

    fn questions(open_max: usize) -> Questions {
        Questions::new("launch".into(), NodeIndex(0), open_max)
    }

    fn request(request_id: u64) -> DataRequest {
        DataRequest {
            launch_id: "launch".into(),
            request_id,
            from_node: OTHER.0,
            question: "what".into(),
            to_session: Bytes::new(),
        }
    }

    fn reply(request_id: u64, result: Option<data_reply::Result>) -> DataReply {
        DataReply { launch_id: "launch".into(), request_id, result, goes_on: false }
    }

    /// Replies among the frames, as number and result.
    fn replies(effects: &Effects) -> Vec<(u64, Result<&[u8], &str>)> {
        let mut replies = Vec::new();
        for (to, frame) in &effects.frames {
            let Some(What::DataReply(reply)) = &frame.what else { continue };
            assert_eq!(*to, OTHER);
            let result = match reply.result.as_ref().expect("a reply says something") {
                data_reply::Result::Data(data) => Ok(&**data),
                data_reply::Result::Error(reason) => Err(&**reason),
            };
            replies.push((reply.request_id, result));
        }
        replies
    }

    #[test]
    fn an_answer_counts_once_and_only_from_the_node_that_was_asked() {
        let (mut questions, mut effects) = (questions(1), Effects::default());
        let id = questions.ask(OTHER, what(), &mut effects);
        let data = || Some(data_reply::Result::Data("that".into()));
        questions.on_reply(NodeIndex(2), reply(id.0, data()), &mut effects);
        assert_eq!((effects.answered.len(), effects.counters.late), (0, 1));
        for late in 1..3 {
            questions.on_reply(OTHER, reply(id.0, data()), &mut effects);
            assert_eq!((effects.answered.as_slice(), effects.counters.late), (&[(id, Ok("that".into()))][..], late));
        }
    }

    /// A longer message than [`MESSAGE_MAX`](crate::limits::MESSAGE_MAX) ends its link.
    #[test]
    fn an_answer_longer_than_a_message_comes_in_parts_and_is_put_together() {
        for (len, replies) in [(CHUNK_MAX, 1), (WHOLE_MAX, 1), (WHOLE_MAX + 1, 2), (8 * CHUNK_MAX, 6)] {
            let (mut asking, mut answering, mut effects) = (questions(1), questions(1), Effects::default());
            let id = asking.ask(OTHER, what(), &mut effects);
            answering.on_request(NodeIndex(0), request(id.0), &mut effects);
            let answer: Bytes = (0..len).map(|at| at as u8).collect();
            let mut replied = Effects::default();
            answering.answer(effects.asked[0].id, Ok(answer.clone()), &mut replied);
            assert_eq!(replied.frames.len(), replies);
            for (_, frame) in replied.frames {
                let Some(What::DataReply(reply)) = frame.what else { panic!("no reply") };
                assert!(effects.answered.is_empty(), "the answer is not whole yet");
                assert!(matches!(&reply.result, Some(data_reply::Result::Data(data)) if data.len() <= WHOLE_MAX));
                asking.on_reply(OTHER, reply, &mut effects);
            }
            assert!(effects.answered == [(id, Ok(answer))], "{len} bytes");
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error_at_both_ends() {
        let (mut asking, mut answering, mut effects) = (questions(1), questions(1), Effects::default());
        answering.on_request(OTHER, request(1), &mut effects);
        let long = Bytes::from(vec![0; ANSWER_MAX + 1]);
        answering.answer(effects.asked[0].id, Ok(long.clone()), &mut effects);
        assert_eq!(replies(&effects), [(1, Err("its answer has 67108865 bytes, and 67108864 are the most"))]);
        let id = asking.ask(OTHER, what(), &mut effects);
        for _ in 0..2 {
            let data = Some(data_reply::Result::Data(long.slice(..ANSWER_MAX)));
            asking.on_reply(OTHER, DataReply { goes_on: true, ..reply(id.0, data) }, &mut effects);
        }
        assert!(matches!(&effects.answered[..], [(_, Err(AskError::Refused { .. }))]));
    }

    #[test]
    fn what_is_for_the_session_is_told_from_what_is_for_its_server() {
        for question in [what(), Question::Session("news".into())] {
            let (mut asking, mut answering, mut effects) = (questions(1), questions(1), Effects::default());
            asking.ask(OTHER, question.clone(), &mut effects);
            let Some(What::DataRequest(request)) = effects.frames.pop().and_then(|(_, frame)| frame.what) else {
                panic!("nothing is asked");
            };
            answering.on_request(NodeIndex(0), request, &mut effects);
            assert_eq!(effects.asked.pop().map(|asked| asked.question), Some(question));
        }
    }

    #[test]
    fn a_refusal_and_an_empty_answer_are_errors_that_name_the_node() {
        let (mut questions, mut effects) = (questions(1), Effects::default());
        for (result, expected) in [
            (Some(data_reply::Result::Error("no".into())), "node 1 has no answer: no"),
            (None, "node 1 has no answer: its answer is empty"),
        ] {
            let id = questions.ask(OTHER, what(), &mut effects);
            questions.on_reply(OTHER, reply(id.0, result), &mut effects);
            let (answered, answer) = effects.answered.pop().unwrap();
            assert_eq!((answered, answer.unwrap_err().to_string().as_str()), (id, expected));
        }
    }

    #[test]
    fn the_loss_of_a_node_fails_what_it_was_asked_and_nothing_else() {
        let (mut questions, mut effects) = (questions(1), Effects::default());
        let lost = questions.ask(OTHER, what(), &mut effects);
        let other = questions.ask(NodeIndex(2), what(), &mut effects);
        questions.lose(OTHER, "gone", &mut effects);
        let error = AskError::NodeLost { node: OTHER, reason: "gone".into() };
        assert_eq!(effects.answered, [(lost, Err(error))]);
        questions.on_reply(NodeIndex(2), reply(other.0, None), &mut effects);
        assert_eq!(effects.answered.len(), 2);
    }

    #[test]
    fn a_withdrawn_question_has_no_answer() {
        let (mut questions, mut effects) = (questions(1), Effects::default());
        let id = questions.ask(OTHER, what(), &mut effects);
        questions.withdraw(id);
        questions.on_reply(OTHER, reply(id.0, None), &mut effects);
        questions.lose(OTHER, "gone", &mut effects);
        assert_eq!((effects.answered.len(), effects.counters.late), (0, 1));
    }

    #[test]
    fn more_questions_than_may_be_open_are_refused_at_once() {
        let (mut questions, mut effects) = (questions(1), Effects::default());
        questions.on_request(OTHER, request(7), &mut effects);
        questions.on_request(OTHER, request(8), &mut effects);
        assert_eq!(replies(&effects), [(8, Err("it looks for too many answers already"))]);
        let asked = effects.asked.pop().unwrap();
        questions.answer(asked.id, Ok("that".into()), &mut effects);
        questions.on_request(OTHER, request(9), &mut effects);
        assert_eq!((replies(&effects)[1], effects.asked.len()), ((7, Ok(&b"that"[..])), 1));
    }

    #[test]
    fn an_agent_that_was_started_anew_gets_no_answer_to_its_predecessors_question() {
        let (mut questions, mut effects) = (questions(2), Effects::default());
        questions.on_request(OTHER, request(1), &mut effects);
        questions.lose(OTHER, "its agent was started anew", &mut effects);
        // After a restart, a node numbers its questions from the beginning.
        questions.on_request(OTHER, request(1), &mut effects);
        questions.on_request(OTHER, request(2), &mut effects);
        assert_eq!(replies(&effects), [(2, Err("it looks for too many answers already"))], "void ones still count");
        let [old, new] = [0, 1].map(|at| effects.asked[at].id);
        questions.answer(old, Ok("old".into()), &mut effects);
        questions.answer(new, Ok("new".into()), &mut effects);
        assert_eq!(replies(&effects)[1..], [(1, Ok(&b"new"[..]))]);
    }

    #[test]
    fn a_node_that_leaves_refuses_what_is_open_and_answers_nothing_after_that() {
        let (mut questions, mut effects) = (questions(2), Effects::default());
        questions.on_request(OTHER, request(1), &mut effects);
        questions.on_request(OTHER, request(2), &mut effects);
        let [answered, open] = [0, 1].map(|at| effects.asked[at].id);
        questions.answer(answered, Ok("that".into()), &mut effects);
        questions.leave("gone", &mut effects);
        questions.answer(open, Ok("that".into()), &mut effects);
        assert_eq!(replies(&effects), [(1, Ok(&b"that"[..])), (2, Err("gone"))]);
    }
}
