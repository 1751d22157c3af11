//! The agent's side of the fork server: asks for session processes, and hears how they ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;
use parking_lot::Mutex;
use rank_spawner::{ForkEvent, ForkServer, ForkedProcess, RankExit};
use tokio::sync::oneshot;

/// A session process, and the news of its end.
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

/// What the fork server will tell of.
#[derive(Default)]
struct Expected {
    /// Who asked, in order.
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
