//! Links of a simulated session: its part in the launch's fences, and messages between sessions. The course of a fence when nodes die is
//! real code. Its exchanges, which `linked_fence` awaits, start and end here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmi_core::deaths::Death;
use pmi_core::fence::{Contribution, FenceError, FenceId, Merged};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_transport::fence::{
    self, AnswerId, Brought, Effects, FanOut, Launch, Limits, Loss, Question, QuestionId, shares,
};
use pmi_transport::proto::v1 as proto;
use pmix_core::server::Ticket;
use proto::link_frame::What;

use super::input::Sent;
use crate::cause::Cause;
use crate::input_piece::InputPiece;
use crate::session_process::fence_course::{FenceCourse, FenceExchange};
use crate::session_process::linked_fence::NodeDeaths;
use crate::session_process::living_nodes::{LivingNodes, members};
use crate::spec::SessionSpec;
use crate::timeouts;
use crate::wire;
use crate::wire::failure::{self, LaunchFailure};
use crate::wire::question;

/// Interval between the ticks of fences.
const TICK: Duration = Duration::from_secs(1);

/// Fences and questions of one session, and their results.
pub(super) struct Links {
    launch: Option<Launch>,
    launch_id: String,
    me: NodeIndex,
    nodes: u32,
    fan_out: FanOut,
    job: JobId,
    living: LivingNodes,
    /// Lost nodes of the launch.
    cut_off: BTreeSet<NodeIndex>,
    node_deaths: NodeDeaths,
    /// Fences that have started and not ended on this node, and fences that are repeated for other nodes.
    open: Vec<OpenFence>,
    /// The fence that ended last, for a repetition.
    kept: Option<FenceCourse>,
    ended: VecDeque<(FenceId, Result<Merged, FenceError>)>,
    heard: VecDeque<(NodeIndex, LaunchFailure)>,
    frames: Vec<(NodeIndex, proto::LinkFrame)>,
    telling: BTreeMap<u64, PendingNotice>,
    tells: u64,
    /// Unanswered questions to other nodes.
    asked: Vec<(QuestionId, Purpose)>,
    news: VecDeque<News>,
    next_tick: Instant,
}

/// A fence that has started.
struct OpenFence {
    course: FenceCourse,
    attempt: Attempt,
    /// True for a fence that has already ended on this node and is repeated for other nodes.
    is_repetition: bool,
}

/// Purpose of a question to another node.
enum Purpose {
    /// A share of a piece of input, with its positions in the piece's nodes.
    Share(u64, Range<u32>),
    /// A question from the PMIx server.
    Server(Ticket),
}

impl Purpose {
    fn answered(self, answer: Result<Bytes, String>) -> News {
        match self {
            Self::Share(number, part) => News::InputAnswered(number, part, answer),
            Self::Server(ticket) => News::ServerAnswered(ticket, answer),
        }
    }
}

/// Messages from other nodes.
pub(super) enum News {
    /// Another session forwards a piece of input.
    InputAsked(AnswerId, InputPiece),
    /// Another node has answered a share of a piece.
    InputAnswered(u64, Range<u32>, Result<Bytes, String>),
    /// The PMIx server of another node sends a question.
    ServerAsked(AnswerId, Bytes),
    /// The PMIx server of another node has answered.
    ServerAnswered(Ticket, Result<Bytes, String>),
}

/// State of a fence's exchange.
enum Attempt {
    /// The exchange with this key is open.
    Open(proto::FenceKey),
    /// The exchange failed because of a lost node. The node may be declared dead until this time.
    Failed { error: FenceError, until: Instant },
}

/// An unacknowledged failure notification. The first node must notify the remaining nodes.
struct PendingNotice {
    id: QuestionId,
    nodes: Range<u32>,
    cause: Cause,
    until: Instant,
}

impl Links {
    pub(super) fn new(spec: &SessionSpec, fan_out: FanOut, now: Instant) -> Self {
        let (me, nodes) = (spec.node, spec.hosts.len() as u32);
        Self {
            launch: Some(Launch::new(&spec.launch_id, me, nodes, fan_out, Limits::default())),
            launch_id: spec.launch_id.clone(),
            me,
            nodes,
            fan_out,
            job: spec.job.id.clone(),
            living: LivingNodes::of(&spec.job),
            cut_off: BTreeSet::new(),
            node_deaths: NodeDeaths::in_launch(&spec.settings),
            open: Vec::new(),
            kept: None,
            ended: VecDeque::new(),
            heard: VecDeque::new(),
            frames: Vec::new(),
            telling: BTreeMap::new(),
            tells: 0,
            asked: Vec::new(),
            news: VecDeque::new(),
            next_tick: now + TICK,
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let tells = self.telling.values().map(|telling| telling.until);
        let losses = self.open.iter().filter_map(|fence| match fence.attempt {
            Attempt::Failed { until, .. } if !fence.is_repetition => Some(until),
            _ => None,
        });
        self.launch.as_ref().and_then(|_| tells.chain(losses).chain([self.next_tick]).min())
    }

    pub(super) fn on_time(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.act(now, Launch::tick);
        }
        let is_late = |fence: &mut OpenFence| {
            !fence.is_repetition && matches!(fence.attempt, Attempt::Failed { until, .. } if until <= now)
        };
        for OpenFence { course, attempt, .. } in self.open.extract_if(.., is_late) {
            if let Attempt::Failed { error, .. } = attempt {
                self.ended.push_back((course.id().clone(), Err(error)));
            }
        }
        let late: Vec<u64> =
            self.telling.iter().filter(|(_, telling)| telling.until <= now).map(|(number, _)| *number).collect();
        for number in late {
            if let Some(telling) = self.telling.remove(&number) {
                self.act(now, |launch, _| launch.withdraw(telling.id));
                self.tell_each(telling.nodes.start + 1..telling.nodes.end, &telling.cause, now);
            }
        }
    }

    /// Starts a fence of several nodes with this node's contribution. Returns the contribution if the fence is among this node alone.
    pub(super) fn begin(&mut self, id: FenceId, contribution: Contribution, now: Instant) -> Option<Contribution> {
        let (all, among) = (self.living.count_all(&id.scope), members(&id.scope, &self.living.watch().borrow()));
        let course = FenceCourse::new(id, self.me, all, among, contribution.clone());
        if course.is_alone() {
            return Some(contribution);
        }
        self.go_on(course, false, now);
        None
    }

    /// Starts the next exchange of a fence, or ends the fence if no exchange is left.
    fn go_on(&mut self, course: FenceCourse, is_repetition: bool, now: Instant) {
        let Some(FenceExchange { scope, among, contribution }) = course.exchange() else {
            return self.is_over(course, is_repetition, now);
        };
        let scope = wire::fence::encode_scope(&scope).unwrap_or_default();
        let scope = proto::FenceScope { node_gaps: Vec::new(), ..scope };
        let epoch = course.id().epoch;
        let key = proto::FenceKey {
            launch_id: self.launch_id.clone(),
            job_id: self.job.as_str().to_owned(),
            scope: Some(scope),
            epoch: epoch.0,
            members: 0,
        };
        let brought = Brought::from(contribution);
        let mut effects = Effects::default();
        let error = match self.launch.as_mut().map(|launch| launch.begin(key, &among, brought, &mut effects)) {
            Some(Ok(key)) => {
                self.open.push(OpenFence { course, attempt: Attempt::Open(key), is_repetition });
                return self.take(effects, now);
            }
            Some(Err(error)) => FenceError::from(error),
            None => FenceError::BadSegment { epoch, reason: "the launch has ended".to_owned() },
        };
        if !is_repetition {
            self.ended.push_back((course.id().clone(), Err(error)));
        }
        self.take(effects, now);
    }

    /// Ends a fence without a further exchange. Keeps it for other nodes, in place of the previous fence.
    fn is_over(&mut self, course: FenceCourse, is_repetition: bool, now: Instant) {
        if is_repetition {
            self.kept = Some(course);
            return;
        }
        self.ended.push_back((course.id().clone(), Ok(course.clone().into_result())));
        if self.node_deaths == NodeDeaths::AreBorne {
            self.kept = Some(course);
            let before: Vec<_> = self.open.extract_if(.., |fence| fence.is_repetition).collect();
            before.into_iter().for_each(|fence| self.give_up(fence.attempt, now));
        }
    }

    fn give_up(&mut self, attempt: Attempt, now: Instant) {
        if let Attempt::Open(key) = attempt {
            self.act(now, |launch, effects| launch.give_up(&key, effects));
        }
    }

    /// Handles deaths of ranks. Fences continue without nodes that are no longer members. The last fence that ended on this node is
    /// repeated, because other nodes may not have its result.
    pub(super) fn ranks_died(&mut self, deaths: &[Death], now: Instant) {
        let before = self.living.watch().borrow().clone();
        deaths.iter().for_each(|death| self.living.die(death.rank));
        if *self.living.watch().borrow() == before {
            return;
        }
        let kept = self.kept.take();
        for OpenFence { course, attempt, is_repetition } in std::mem::take(&mut self.open) {
            self.give_up(attempt, now);
            self.go_on_among_living(course, is_repetition, now);
        }
        if let Some(course) = kept {
            self.go_on_among_living(course, true, now);
        }
    }

    fn go_on_among_living(&mut self, mut course: FenceCourse, is_repetition: bool, now: Instant) {
        course.on_members(members(&course.id().scope, &self.living.watch().borrow()));
        self.go_on(course, is_repetition, now);
    }

    /// Cuts off a lost node of the launch. Its messages are ignored from now on, and no message is sent to it.
    pub(super) fn cut_off(&mut self, node: NodeIndex, now: Instant) {
        if self.cut_off.insert(node) {
            self.act(now, |launch, effects| {
                launch.lost(node, "the API server has declared it lost", Loss::Node, effects);
            });
        }
    }

    pub(super) fn on_frame(&mut self, from: NodeIndex, frame: proto::LinkFrame, now: Instant) {
        if let Some(what) = frame.what.filter(|_| !self.cut_off.contains(&from)) {
            self.act(now, |launch, effects| launch.on_frame(from, what, effects));
        }
    }

    pub(super) fn on_broken(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        self.act(now, |launch, effects| launch.lost(node, reason, Loss::Link, effects));
    }

    pub(super) fn on_absent(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        self.act(now, |launch, effects| launch.lost(node, reason, Loss::Absent, effects));
    }

    pub(super) fn poll_ended(&mut self) -> Option<(FenceId, Result<Merged, FenceError>)> {
        self.ended.pop_front()
    }

    pub(super) fn poll_heard(&mut self) -> Option<(NodeIndex, LaunchFailure)> {
        self.heard.pop_front()
    }

    pub(super) fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Sends a question to the PMIx server of another node.
    pub(super) fn ask_server(&mut self, node: NodeIndex, question: Bytes, ticket: Ticket, now: Instant) {
        self.ask(node, Question::Server(question), Purpose::Server(ticket), now);
    }

    fn ask(&mut self, node: NodeIndex, question: Question, purpose: Purpose, now: Instant) {
        let mut effects = Effects::default();
        match self.launch.as_mut().map(|launch| launch.ask(node, question, &mut effects)) {
            Some(Ok(id)) => self.asked.push((id, purpose)),
            _ => self.news.push_back(purpose.answered(Err("the launch has ended here".to_owned()))),
        }
        self.take(effects, now);
    }

    /// Sends a share of a piece.
    pub(super) fn pass_on(&mut self, sent: Sent, now: Instant) {
        let Sent { number, part, to, piece } = sent;
        let question = Question::Session(question::encode(&question::Question::Input(piece)));
        self.ask(to, question, Purpose::Share(number, part), now);
    }

    /// Answers a question of another session.
    pub(super) fn answer(&mut self, id: AnswerId, answer: Result<Bytes, String>, now: Instant) {
        self.act(now, |launch, effects| launch.answer(id, answer, effects));
    }

    pub(super) fn take_frames(&mut self) -> impl Iterator<Item = (NodeIndex, proto::LinkFrame)> + use<> {
        let cut_off = self.cut_off.clone();
        std::mem::take(&mut self.frames).into_iter().filter(move |(to, _)| !cut_off.contains(to))
    }

    /// Returns true while a failure notification is unacknowledged.
    pub(super) fn is_telling(&self) -> bool {
        !self.telling.is_empty()
    }

    /// Sends the failure to the next `below` nodes after this one, through the tree of the fences.
    pub(super) fn tell_below(&mut self, failure: &LaunchFailure, now: Instant) {
        let first = self.me.0 + 1;
        self.tell_each(first..self.nodes.min(first.saturating_add(failure.below)), &failure.cause, now);
    }

    fn tell_each(&mut self, nodes: Range<u32>, cause: &Cause, now: Instant) {
        let parts: Vec<_> = shares(nodes, self.fan_out.barrier).collect();
        for part in parts {
            let failure = LaunchFailure { cause: cause.clone(), below: part.len() as u32 - 1, api_is_silent: false };
            self.tell(part, failure, now);
        }
    }

    /// Sends this session's cause to the root.
    pub(super) fn tell_root(&mut self, failure: LaunchFailure, now: Instant) {
        self.tell(0..1, failure, now);
    }

    /// Sends the failure to the first of these nodes, which notifies the remaining nodes.
    fn tell(&mut self, nodes: Range<u32>, failure: LaunchFailure, now: Instant) {
        let question = Question::Session(failure::encode(&failure));
        let mut effects = Effects::default();
        let asked =
            self.launch.as_mut().and_then(|launch| launch.ask(NodeIndex(nodes.start), question, &mut effects).ok());
        if let Some(id) = asked {
            self.tells += 1;
            let telling = PendingNotice { id, nodes, cause: failure.cause, until: now + timeouts::TELL };
            self.telling.insert(self.tells, telling);
        }
        self.take(effects, now);
    }

    /// Leaves the launch. Other nodes receive a notice, and open fences and questions fail.
    pub(super) fn leave(&mut self) {
        let Some(mut launch) = self.launch.take() else { return };
        let mut effects = Effects::default();
        launch.leave(&mut effects);
        self.frames.extend(effects.frames);
        let left = || proto::LinkFrame { what: Some(What::Left(self.launch_id.clone())) };
        let others = (0..self.nodes).map(NodeIndex).filter(|node| *node != self.me);
        self.frames.extend(others.map(|node| (node, left())));
        self.telling.clear();
        let ended = || Err("the launch has ended here".to_owned());
        self.news.extend(self.asked.drain(..).map(|(_, purpose)| purpose.answered(ended())));
    }

    pub(super) fn has_left(&self) -> bool {
        self.launch.is_none()
    }

    fn act(&mut self, now: Instant, act: impl FnOnce(&mut Launch, &mut Effects)) {
        let mut effects = Effects::default();
        if let Some(launch) = &mut self.launch {
            act(launch, &mut effects);
        }
        self.take(effects, now);
    }

    fn take(&mut self, effects: Effects, now: Instant) {
        self.frames.extend(effects.frames);
        for (key, result) in effects.ended {
            let is_ended = |fence: &OpenFence| matches!(&fence.attempt, Attempt::Open(open) if *open == key);
            let Some(at) = self.open.iter().position(is_ended) else { continue };
            let OpenFence { mut course, is_repetition, .. } = self.open.remove(at);
            let is_loss = |error: &fence::FenceError| {
                is_repetition || error.node().is_some() && self.node_deaths == NodeDeaths::AreBorne
            };
            let gathered = match result {
                Err(error) if is_loss(&error) => {
                    let attempt = Attempt::Failed { error: error.into(), until: now + timeouts::LOSS_TOLD };
                    self.open.push(OpenFence { course, attempt, is_repetition });
                    continue;
                }
                result => result.map_err(FenceError::from).and_then(|gathered| course.on_gathered(gathered)),
            };
            match gathered {
                Ok(_) => self.go_on(course, is_repetition, now),
                Err(error) if !is_repetition => self.ended.push_back((course.id().clone(), Err(error))),
                Err(_) => {}
            }
        }
        for asked in effects.asked {
            let answer = match asked.question {
                Question::Session(message) => match question::decode(message.clone(), self.nodes as usize) {
                    Ok(Some(question::Question::Input(piece))) => {
                        self.news.push_back(News::InputAsked(asked.id, piece));
                        continue;
                    }
                    Ok(Some(question::Question::Gather(_))) => Err("sessions gather nothing".to_owned()),
                    Ok(None) => match failure::decode(message) {
                        Ok(failure) => {
                            self.heard.push_back((asked.from, failure));
                            Ok(Bytes::new())
                        }
                        Err(error) => Err(error.to_string()),
                    },
                    Err(error) => Err(error.to_string()),
                },
                Question::Server(question) => {
                    self.news.push_back(News::ServerAsked(asked.id, question));
                    continue;
                }
            };
            self.act(now, |launch, effects| launch.answer(asked.id, answer, effects));
        }
        for (id, answer) in effects.answered {
            if let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) {
                let (_, purpose) = self.asked.swap_remove(at);
                self.news.push_back(purpose.answered(answer.map_err(|error| error.to_string())));
                continue;
            }
            let Some(number) = self.telling.iter().find(|(_, telling)| telling.id == id).map(|(number, _)| *number)
            else {
                continue;
            };
            if let Some(telling) = self.telling.remove(&number)
                && answer.is_err()
            {
                self.tell_each(telling.nodes.start + 1..telling.nodes.end, &telling.cause, now);
            }
        }
    }
}
