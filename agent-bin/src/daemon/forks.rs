//! The agent's side of the fork server: requests session processes, and passes on the exit of each to who waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;
use parking_lot::Mutex;
use rank_spawner::{ForkEvent, ForkServer, ForkedProcess, RankExit};
use tokio::sync::oneshot;

/// Session process, and the announcement of its exit.
pub(super) struct Forked {
    pub(super) process: ForkedProcess,
    /// Fails if the fork server is gone.
    pub(super) ended: oneshot::Receiver<RankExit>,
}

/// Asks the fork server.
pub(super) struct Forks {
    server: Arc<ForkServer>,
    expected: Arc<Mutex<Expected>>,
}

/// Events that are expected of the fork server.
#[derive(Default)]
struct Expected {
    /// Open requests, in order.
    starts: VecDeque<oneshot::Sender<Result<Forked, Errno>>>,
    ends: HashMap<Pid, oneshot::Sender<RankExit>>,
}

impl Forks {
    /// Begins to listen to the server. The future ends when the server is gone.
    pub(super) fn new(server: ForkServer) -> (Self, impl Future<Output = ()>) {
        let server = Arc::new(server);
        let expected = Arc::new(Mutex::new(Expected::default()));
        let listening = tokio::spawn(listen(Arc::clone(&server), Arc::clone(&expected)));
        let gone = async {
            // It does not panic, and nobody aborts it.
            let _ = listening.await;
        };
        (Self { server, expected }, gone)
    }

    /// A new process.
    pub(super) async fn start(&self) -> Result<Forked, Errno> {
        let (sender, started) = oneshot::channel();
        {
            let mut expected = self.expected.lock();
            self.server.request()?;
            expected.starts.push_back(sender);
        }
        started.await.unwrap_or(Err(Errno::EPIPE))
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
    tracing::error!("the fork server is gone");
    // Whoever waits for it hears so.
    *expected.lock() = Expected::default();
}

impl Expected {
    fn take(&mut self, news: ForkEvent) {
        match news {
            ForkEvent::Started(process) => {
                let (sender, ended) = oneshot::channel();
                self.ends.insert(process.pid, sender);
                self.answer(Ok(Forked { process, ended }));
            }
            ForkEvent::NotStarted(errno) => self.answer(Err(errno)),
            ForkEvent::Ended { pid, exit } => {
                if let Some(ended) = self.ends.remove(&pid) {
                    // Nobody waits for a session that has reported.
                    let _ = ended.send(exit);
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, answer: Result<Forked, Errno>) {
        if let Some(asked) = self.starts.pop_front() {
            // A process that nobody wants any more sees the end of its socket.
            let _ = asked.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(expected: &mut Expected) -> oneshot::Receiver<Result<Forked, Errno>> {
        let (sender, started) = oneshot::channel();
        expected.starts.push_back(sender);
        started
    }

    #[tokio::test]
    async fn requests_are_answered_in_their_order() {
        let mut expected = Expected::default();
        let (first, second) = (refused(&mut expected), refused(&mut expected));
        expected.take(ForkEvent::NotStarted(Errno::EAGAIN));
        expected.take(ForkEvent::NotStarted(Errno::EMFILE));
        assert_eq!(first.await.unwrap().err(), Some(Errno::EAGAIN));
        assert_eq!(second.await.unwrap().err(), Some(Errno::EMFILE));
        // An answer that nobody waits for is dropped.
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
