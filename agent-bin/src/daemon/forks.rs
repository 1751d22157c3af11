//! The agent's side of the fork server: asks for session processes, and hears how they ended.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;
use parking_lot::Mutex;
use rank_spawner::{ForkNews, ForkServer, ForkedProcess, RankExit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// A session process, and the news of its end.
pub(super) struct Forked {
    pub(super) process: ForkedProcess,
    /// Fails if the fork server is gone.
    pub(super) ended: oneshot::Receiver<RankExit>,
}

/// Asks the fork server.
pub(super) struct Forks {
    server: Arc<AsyncFd<ForkServer>>,
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
    pub(super) fn new(server: ForkServer) -> io::Result<(Self, impl Future<Output = ()>)> {
        let server = Arc::new(AsyncFd::with_interest(server, Interest::READABLE)?);
        let expected = Arc::new(Mutex::new(Expected::default()));
        let listening = tokio::spawn(listen(Arc::clone(&server), Arc::clone(&expected)));
        let gone = async {
            // It does not panic, and nobody aborts it.
            let _ = listening.await;
        };
        Ok((Self { server, expected }, gone))
    }

    /// A new process.
    pub(super) async fn start(&self) -> Result<Forked, Errno> {
        let (sender, started) = oneshot::channel();
        {
            let mut expected = self.expected.lock();
            self.server.get_ref().ask()?;
            expected.starts.push_back(sender);
        }
        started.await.unwrap_or(Err(Errno::EPIPE))
    }
}

async fn listen(server: Arc<AsyncFd<ForkServer>>, expected: Arc<Mutex<Expected>>) {
    while let Ok(mut ready) = server.readable().await {
        loop {
            match server.get_ref().news() {
                Ok(Some(news)) => expected.lock().take(news),
                Ok(None) => break ready.clear_ready(),
                // News that cannot be taken in, for want of descriptors, is an answer too.
                Err(Errno::EMFILE) => expected.lock().take(ForkNews::NotStarted(Errno::EMFILE)),
                Err(errno) => {
                    tracing::error!(%errno, "the fork server is gone");
                    *expected.lock() = Expected::default();
                    return;
                }
            }
        }
    }
}

impl Expected {
    fn take(&mut self, news: ForkNews) {
        match news {
            ForkNews::Started(process) => {
                let (sender, ended) = oneshot::channel();
                self.ends.insert(process.pid, sender);
                self.answer(Ok(Forked { process, ended }));
            }
            ForkNews::NotStarted(errno) => self.answer(Err(errno)),
            ForkNews::Ended { pid, exit } => {
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
