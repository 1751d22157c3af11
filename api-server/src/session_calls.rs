//! Calls of sessions, each of which is executed once. A session with a new agent repeats the calls that the previous agent did not answer,
//! with the same numbers, and receives the one answer.
//!
//! ```text
//! first call ──> in progress ──answered──> kept while it is among the node's latest
//!                 ^  repeated calls wait for the same answer, or receive it at once
//! ```
//! A call without a number is executed each time.

use pmi_transport::task;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::launch_id::LaunchId;
use crate::wire::session_answer::SessionAnswer;

/// The most pending calls of one node of a launch.
const UNDER_WAY_MAX: usize = 4096;
/// The most stored answers for one node of a launch, and their most bytes: more than can be in transit to a session at a time.
const KEPT_MAX: usize = 1024;
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A call of a session.
#[derive(Clone, Debug)]
pub(crate) struct CallId<'a> {
    pub launch: LaunchId,
    pub node: &'a str,
    /// The number that the session assigned; 0 for none.
    pub number: u64,
}

/// Reason why a call is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("{UNDER_WAY_MAX} calls of this node wait for answers")]
    TooMany,
    #[error("the launch is over")]
    LaunchOver,
}

/// All numbered calls of sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionCalls {
    /// By launch, and by node.
    launches: Arc<Mutex<HashMap<LaunchId, HashMap<String, NodeCalls>>>>,
}

#[derive(Debug, Default)]
struct NodeCalls {
    calls: BTreeMap<u64, Call>,
    /// The answered calls, each with the size of its answer in bytes.
    answered: VecDeque<(u64, usize)>,
    bytes: usize,
}

#[derive(Debug)]
struct Call {
    answer: watch::Receiver<Option<SessionAnswer>>,
    task: AbortHandle,
}

impl Drop for Call {
    fn drop(&mut self) {
        // No session waits for the answer.
        self.task.abort();
    }
}

impl SessionCalls {
    /// Returns the answer of a call, which `make` computes unless the call was made before.
    ///
    /// # Errors
    /// Fails if too many calls wait, or if the launch ends.
    pub(crate) async fn answer(
        &self,
        id: CallId<'_>,
        make: impl Future<Output = SessionAnswer> + Send + 'static,
    ) -> Result<SessionAnswer, Unanswered> {
        if id.number == 0 {
            return Ok(make.await);
        }
        let mut answer = self.ask(id, make)?;
        let answered = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answered.ok_or(Unanswered::LaunchOver)
    }

    /// Begins a call, unless it began before.
    fn ask(
        &self,
        id: CallId<'_>,
        make: impl Future<Output = SessionAnswer> + Send + 'static,
    ) -> Result<watch::Receiver<Option<SessionAnswer>>, Unanswered> {
        let mut launches = self.launches.lock();
        let node = launches.entry(id.launch.clone()).or_default().entry(id.node.to_owned()).or_default();
        if let Some(call) = node.calls.get(&id.number) {
            return Ok(call.answer.clone());
        }
        if node.calls.len() - node.answered.len() >= UNDER_WAY_MAX {
            return Err(Unanswered::TooMany);
        }
        let (answered, answer) = watch::channel(None);
        let (all, launch, asker) = (Arc::clone(&self.launches), id.launch, id.node.to_owned());
        let task = task::spawn(async move {
            let found = make.await;
            let size = found.len();
            answered.send_replace(Some(found));
            // Even if no task waits for the answer.
            if let Some(node) = all.lock().get_mut(&launch).and_then(|nodes| nodes.get_mut(&asker)) {
                node.keep(id.number, size);
            }
        });
        node.calls.insert(id.number, Call { answer: answer.clone(), task: task.abort_handle() });
        Ok(answer)
    }

    /// Removes the calls of a launch that is over.
    pub(crate) fn forget(&self, launch: &LaunchId) {
        self.launches.lock().remove(launch);
    }
}

impl NodeCalls {
    /// Records the size of an answer, and removes the oldest answers to make room. The new answer is kept regardless of its size, because
    /// its caller may have to ask again.
    fn keep(&mut self, number: u64, size: usize) {
        self.answered.push_back((number, size));
        self.bytes += size;
        while self.answered.len() > 1 && (self.answered.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX) {
            let Some((oldest, size)) = self.answered.pop_front() else { break };
            self.bytes -= size;
            self.calls.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use pmi_transport::proto::v1::NameAnswer;

    use super::*;

    fn id(number: u64) -> CallId<'static> {
        CallId { launch: "l".into(), node: "n", number }
    }

    /// Calls that are answered with the number of calls before them.
    #[derive(Default)]
    struct World {
        calls: SessionCalls,
        made: Arc<AtomicU64>,
    }

    impl World {
        async fn ask(&self, number: u64) -> String {
            let made = Arc::clone(&self.made);
            let make = async move { SessionAnswer::sample(made.fetch_add(1, Ordering::Relaxed)) };
            self.calls.answer(id(number), make).await.unwrap().shown()
        }
    }

    #[tokio::test]
    async fn a_call_is_made_once_however_often_it_is_asked_for() {
        let world = World::default();
        assert_eq!((world.ask(1).await, world.ask(2).await, world.ask(1).await), ("0".into(), "1".into(), "0".into()));
        assert_eq!((world.ask(0).await, world.ask(0).await), ("2".into(), "3".into()), "without a number, each is one");
    }

    #[tokio::test]
    async fn a_call_goes_on_when_the_agent_that_asked_is_gone() {
        let world = World::default();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let slow = async move {
            let _ = gone.await;
            SessionAnswer::sample(7)
        };
        let first = world.calls.answer(id(1), slow);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, first).await.is_err(), "its agent is gone");
        let again = tokio::spawn(async move { world.ask(1).await });
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert_eq!(again.await.unwrap(), "7");
    }

    #[tokio::test]
    async fn the_end_of_a_launch_ends_its_calls() {
        let world = Arc::new(World::default());
        let waiting = tokio::spawn({
            let world = Arc::clone(&world);
            async move { world.calls.answer(id(1), std::future::pending()).await }
        });
        tokio::task::yield_now().await;
        world.calls.forget(&"l".into());
        assert!(matches!(waiting.await.unwrap(), Err(Unanswered::LaunchOver)));
        assert!(world.calls.launches.lock().is_empty());
    }

    #[tokio::test]
    async fn answers_are_kept_as_long_as_there_is_room() {
        let world = World::default();
        for number in 1..=2 * KEPT_MAX as u64 {
            world.ask(number).await;
        }
        let kept = world.calls.launches.lock()["l"]["n"].calls.len();
        assert_eq!(kept, KEPT_MAX);
        assert_eq!(world.ask(2 * KEPT_MAX as u64).await, (2 * KEPT_MAX - 1).to_string());
    }

    /// The caller may disconnect before the answer is forwarded, and then asks again.
    #[tokio::test]
    async fn the_last_answer_is_kept_however_large_it_is() {
        let world = World::default();
        let large = SessionAnswer::Name(NameAnswer { message: "m".repeat(KEPT_BYTES_MAX + 1), ..Default::default() });
        let first = world.calls.answer(id(1), std::future::ready(large)).await.unwrap();
        assert_eq!(world.ask(1).await, first.shown());
        assert_eq!((world.ask(2).await, world.ask(1).await), ("0".into(), "1".into()), "but not for ever");
    }

    /// A session that lost its agent repeats its calls through the next one. A session that has ended does not.
    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_is_under_way_no_longer() {
        let world = World::default();
        for number in 1..=2 * UNDER_WAY_MAX as u64 {
            let answer = async { SessionAnswer::sample(7) };
            drop(world.calls.ask(id(number), answer).expect("the ones before have their answers"));
            tokio::task::yield_now().await;
        }
        assert_eq!(world.calls.launches.lock()["l"]["n"].calls.len(), KEPT_MAX);
    }

    #[tokio::test]
    async fn calls_that_wait_are_bounded() {
        let world = World::default();
        for number in 1..=UNDER_WAY_MAX as u64 {
            drop(world.calls.ask(id(number), std::future::pending()).unwrap());
        }
        assert_eq!(world.calls.ask(id(0), std::future::pending()).unwrap_err(), Unanswered::TooMany);
    }
}
