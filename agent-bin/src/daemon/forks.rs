//! The agent's side of fork servers: requests session processes, and delivers each exit to the task that waits for it. Apart from the agent's
//! own fork server there are the fork servers of earlier agents, with the sessions that outlived them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lattice_session::wire::order::StartOrder;
use nix::errno::Errno;
use nix::unistd::Pid;
use parking_lot::Mutex;
use rank_spawner::{ForkEvent, ForkServer, ForkedProcess, KeptProcess, KeptState, Label, RankExit, TakenUp};
use tokio::sync::oneshot;

/// Session process, and the channel for its exit.
pub(super) struct Forked {
    pub(super) pid: Pid,
    /// `None` for a process that ended before this agent started.
    pub(super) process: Option<Arc<ForkedProcess>>,
    /// Fails if the fork server has ended.
    pub(super) ended: oneshot::Receiver<RankExit>,
    server: Arc<ForkServer>,
}

/// Session process of an earlier agent, with the label that the agent attached.
pub(super) struct SurvivingSession {
    pub(super) forked: Forked,
    pub(super) label: Label,
}

/// Client of the agent's own fork server.
#[derive(Clone)]
pub(super) struct Forks {
    server: Arc<ForkServer>,
    expected: Arc<Mutex<Expected>>,
}

/// Reason why no process was started.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotStarted {
    /// The system refused the process, or the fork server has ended.
    #[error("no process for a session: {}", .0.desc())]
    System(Errno),
    /// There is not enough memory for the order.
    #[error("no memory for the order of a session: {0}")]
    Order(#[from] std::io::Error),
    /// The fork server refused the order.
    #[error("{0}")]
    Refused(String),
}

/// Events that are expected from a fork server.
#[derive(Default)]
struct Expected {
    /// Open start requests, in order.
    starts: VecDeque<oneshot::Sender<Result<Started, NotStarted>>>,
    /// Messages to the gate that await an answer, in order.
    words: VecDeque<oneshot::Sender<Vec<u8>>>,
    ends: HashMap<Pid, oneshot::Sender<RankExit>>,
}

/// New process, and the channel for its exit.
type Started = (ForkedProcess, oneshot::Receiver<RankExit>);

impl Forks {
    /// Starts to receive the server's events. The future ends when the server has ended.
    pub(super) fn new(server: ForkServer) -> (Self, impl Future<Output = ()>) {
        let server = Arc::new(server);
        let expected = Arc::new(Mutex::new(Expected::default()));
        let listening = tokio::spawn(listen(Arc::clone(&server), Arc::clone(&expected)));
        let gone = async {
            // The task does not panic, and is never aborted.
            let _ = listening.await;
            tracing::error!("the fork server is gone");
        };
        (Self { server, expected }, gone)
    }

    /// Starts a process for this order.
    pub(super) async fn start(&self, order: &StartOrder) -> Result<Forked, NotStarted> {
        let order = Label::new(&order.encode())?;
        let (sender, started) = oneshot::channel();
        {
            let mut expected = self.expected.lock();
            self.server.request(&order).map_err(NotStarted::System)?;
            expected.starts.push_back(sender);
        }
        let (process, ended) = started.await.unwrap_or(Err(NotStarted::System(Errno::EPIPE)))?;
        Ok(Forked { pid: process.pid, process: Some(Arc::new(process)), ended, server: Arc::clone(&self.server) })
    }

    /// Sends a message to the fork server's gate; returns its answer. The answer is empty if the message cannot be delivered or answered.
    pub(super) async fn tell(&self, word: &[u8]) -> Vec<u8> {
        let Ok(word) = Label::new(word) else { return Vec::new() };
        let (sender, told) = oneshot::channel();
        {
            let mut expected = self.expected.lock();
            if self.server.tell(&word).is_err() {
                return Vec::new();
            }
            expected.words.push_back(sender);
        }
        told.await.unwrap_or_default()
    }

    /// Starts to receive events from the fork server of an earlier agent; returns its sessions.
    pub(super) fn take_up(TakenUp { server, children, .. }: TakenUp) -> Vec<SurvivingSession> {
        let server = Arc::new(server);
        let mut expected = Expected::default();
        let mut kept = Vec::with_capacity(children.len());
        for KeptProcess { pid, label, state, .. } in children {
            let (sender, ended) = oneshot::channel();
            let process = match state {
                KeptState::Running(process) => {
                    expected.ends.insert(pid, sender);
                    Some(Arc::new(process))
                }
                KeptState::Ended(exit) => {
                    // The receiver `ended` still exists.
                    let _ = sender.send(exit);
                    None
                }
            };
            kept.push(SurvivingSession { forked: Forked { pid, process, ended, server: Arc::clone(&server) }, label });
        }
        // The task ends when all of these processes are forgotten.
        tokio::spawn(listen(server, Arc::new(Mutex::new(expected))));
        kept
    }

    /// Ends the fork server, and the sessions that it still has.
    pub(super) fn end(&self) {
        // An error means that the server has already ended.
        let _ = self.server.end();
    }
}

impl Forked {
    /// Keeps the process for the next agent. Must be called before the first message to the process.
    ///
    /// # Errors
    /// Fails if the fork server has ended or is blocked, or if there is not enough memory for the label.
    pub(super) fn keep(&self, label: &[u8]) -> std::io::Result<()> {
        let Some(process) = &self.process else { return Ok(()) };
        Ok(self.server.keep(process, &Label::new(label)?)?)
    }

    /// Stops keeping the process for later agents.
    pub(super) fn forget(&self) {
        if let Err(errno) = self.server.forget(self.pid) {
            tracing::debug!(pid = self.pid.as_raw(), "cannot reach the fork server: {}", errno.desc());
        }
    }

    /// Kills the process, and stops keeping it for later agents.
    pub(super) fn discard(&self) {
        self.kill();
        self.forget();
    }

    /// Kills the process if it runs. An agent that is not root has its fork server kill it.
    pub(super) fn kill(&self) {
        let Some(process) = &self.process else { return };
        if process.kill() == Err(Errno::EPERM)
            && let Err(errno) = self.server.kill(self.pid)
        {
            tracing::warn!(pid = self.pid.as_raw(), "cannot have the fork server kill it: {}", errno.desc());
        }
    }
}

async fn listen(server: Arc<ForkServer>, expected: Arc<Mutex<Expected>>) {
    loop {
        match server.next_event() {
            Ok(Some(news)) => expected.lock().take(news),
            Ok(None) if server.event_ready().await.is_ok() => {}
            Ok(None) | Err(_) => break,
        }
    }
    // Dropping the senders fails all waiting requests.
    *expected.lock() = Expected::default();
}

impl Expected {
    fn take(&mut self, news: ForkEvent) {
        match news {
            ForkEvent::Started(process) => {
                let (sender, ended) = oneshot::channel();
                self.ends.insert(process.pid, sender);
                self.answer(Ok((process, ended)));
            }
            ForkEvent::NotStarted(errno) => self.answer(Err(NotStarted::System(errno))),
            ForkEvent::Refused(why) => {
                let why = why.read().map_err(NotStarted::Order);
                self.answer(why.and_then(|why| Err(NotStarted::Refused(String::from_utf8_lossy(&why).into_owned()))));
            }
            ForkEvent::Told(answer) => {
                let answer = answer.and_then(|answer| answer.read().ok()).unwrap_or_default();
                // The caller may be gone.
                drop(self.words.pop_front().map(|told| told.send(answer)));
            }
            ForkEvent::Ended { pid, exit } => {
                if let Some(ended) = self.ends.remove(&pid) {
                    // After a session has reported, no task waits for its exit.
                    let _ = ended.send(exit);
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, answer: Result<Started, NotStarted>) {
        if let Some(asked) = self.starts.pop_front() {
            // If the caller is gone, the new process finds its door closed.
            let _ = asked.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(expected: &mut Expected) -> oneshot::Receiver<Result<Started, NotStarted>> {
        let (sender, started) = oneshot::channel();
        expected.starts.push_back(sender);
        started
    }

    #[tokio::test]
    async fn requests_are_answered_in_their_order() {
        let mut expected = Expected::default();
        let answers = [(); 3].map(|()| refused(&mut expected));
        expected.take(ForkEvent::NotStarted(Errno::EAGAIN));
        expected.take(ForkEvent::Refused(Label::new(b"it is forged").unwrap()));
        expected.take(ForkEvent::NotStarted(Errno::EMFILE));
        let texts = ["Try again", "it is forged", "Too many open files"];
        for (answer, expected) in answers.into_iter().zip(texts) {
            let Ok(Err(error)) = answer.await else { panic!("started") };
            assert!(error.to_string().ends_with(expected), "{error}");
        }
        // An answer without a waiting caller is dropped.
        expected.take(ForkEvent::NotStarted(Errno::EMFILE));
    }

    #[tokio::test]
    async fn an_exit_reaches_who_waits_for_that_process() {
        let mut expected = Expected::default();
        let (sender, ended) = oneshot::channel();
        expected.ends.insert(Pid::from_raw(7), sender);
        expected.take(ForkEvent::Ended { pid: Pid::from_raw(8), exit: RankExit::Code(0) });
        expected.take(ForkEvent::Ended { pid: Pid::from_raw(7), exit: RankExit::Code(2) });
        assert_eq!(ended.await, Ok(RankExit::Code(2)));
    }

    #[tokio::test]
    async fn without_a_fork_server_everybody_who_waits_hears_so() {
        let mut expected = Expected::default();
        let started = refused(&mut expected);
        drop(expected);
        assert!(started.await.is_err());
    }
}
