//! `lattice-agent listen`: waits for invitations, and starts an agent for each.
//!
//! Whoever has the key starts agents here, and by them whatever he likes, as the user that this process runs as. Others are refused before
//! anything is done for them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use clap::Args;
use lattice_session::deadline::until;
use nix::unistd::{Pid, gethostname};
use parking_lot::Mutex;
use pmi_core::ids::JobId;
use pmi_transport::identity::is_node_name;
use pmi_transport::listen::{Greeter, Greetings};
use pmi_transport::sealed_stream::{self, SealedError, SealedReader, SealedWriter, SharedKey};
use rank_spawner::{LaunchTag, Orphans, SweepScope, reap_adopted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{KeyArgs, KeyError, PORT, WELCOME, first_line};

/// Time for a caller to name this node, after it has proven that it has the key.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// Time from its connection for a caller to prove itself and to say whom it means, with some to spare.
const INVITED_WITHIN: Duration = Duration::from_secs(30);
/// Time for an agent to end once its input has. It ends its launches first.
const LEAVE_WITHIN: Duration = Duration::from_secs(60);
/// Time for the last words of an agent that has ended; what it has started may hold its output open.
const WORDS_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of an agent's words that are passed on at once.
const WORDS_ROOM: usize = 4096;

/// Arguments of `lattice-agent listen`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListenArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// End when the first agent that was invited has ended
    #[arg(long)]
    once: bool,
    /// End if nobody has been invited within so many seconds
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
}

/// Nobody can be invited here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot listen at port {PORT}: {0}")]
    Port(io::Error),
    #[error("cannot wait for invitations: {0}")]
    System(#[from] io::Error),
}

/// Reason why a caller gets no agent.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Stream(#[from] SealedError),
    #[error("it named no node within {NAMED_WITHIN:?}")]
    Late,
    #[error("it named no node")]
    Nameless,
    #[error("its place was needed for another connection")]
    Dismissed,
    /// The address of a name may still be that of a host that was there before.
    #[error("this is {here}, and {meant} is meant")]
    Another { here: String, meant: String },
    #[error("cannot start an agent: {0}")]
    Start(#[from] io::Error),
}

/// State that all connections share.
struct Host {
    key: SharedKey,
    /// Becomes true when all agents are to leave.
    leaving: watch::Sender<bool>,
    /// Agents, which are reaped by those who wait for them.
    agents: Mutex<BTreeSet<Pid>>,
    /// An agent was started, whether or not it has ended.
    was_invited: AtomicBool,
}

/// Time until which an invitation must have come.
struct Patience {
    /// `None` for ever.
    until: Option<Instant>,
    /// It was prolonged for those who were about to invite this node.
    is_prolonged: bool,
}

impl Patience {
    /// Patience for so many seconds; for ever without a number, and for more than a clock can count.
    fn of(seconds: Option<u64>, now: Instant) -> Self {
        let until = seconds.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)));
        Self { until, is_prolonged: false }
    }

    /// The time is over, while so many callers have not said yet what they want. Returns true if nobody will invite this node.
    fn is_over(&mut self, was_invited: bool, callers: usize, now: Instant) -> bool {
        let prolonged = callers > 0 && !self.is_prolonged;
        self.until = (prolonged && !was_invited).then(|| now + INVITED_WITHIN);
        self.is_prolonged = true;
        !was_invited && !prolonged
    }
}

impl ListenArgs {
    /// Waits for invitations until SIGTERM or SIGINT, or, where that is asked for, until the first agent has ended or the time for an
    /// invitation is over.
    ///
    /// # Errors
    /// Fails if there is no key, or the port cannot be listened at.
    pub(crate) fn run(&self) -> Result<(), ListenError> {
        let (key, leaving) = (self.key.read()?, watch::Sender::new(false));
        let host = Arc::new(Host { key, leaving, agents: Mutex::default(), was_invited: AtomicBool::new(false) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(&host))
    }

    async fn serve(&self, host: &Arc<Host>) -> Result<(), ListenError> {
        let listener = listener().await.map_err(ListenError::Port)?;
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut ended_children = signal(SignalKind::child())?;
        let (mut serving, greetings) = (JoinSet::new(), Arc::default());
        let mut patience = Patience::of(self.within, Instant::now());
        let mut too_late = pin!(until(patience.until));
        tracing::info!("waits for invitations at port {PORT}");
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                arrived = listener.accept() => match arrived {
                    Ok((socket, peer)) => {
                        let greeter = Greetings::admit(&greetings, peer.ip());
                        serving.spawn(Arc::clone(host).serve((socket, greeter), peer.ip()));
                    }
                    // As when descriptors are short: connections that end give some back.
                    Err(error) => {
                        tracing::warn!("cannot take a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(served) = serving.join_next() => if self.once && matches!(served, Ok(Served::Agent)) { break },
                _ = ended_children.recv() => host.reap(),
                () = &mut too_late => {
                    let was_invited = host.was_invited.load(Ordering::Relaxed);
                    if patience.is_over(was_invited, serving.len(), Instant::now()) {
                        tracing::info!("nobody has invited this node, which is needed no more");
                        break;
                    }
                    too_late.set(until(patience.until));
                }
            }
        }
        // Agents leave when their input ends.
        let _ = host.leaving.send(true);
        let all_left = async { while serving.join_next().await.is_some() {} };
        let _ = timeout(LEAVE_WITHIN, all_left).await;
        Ok(())
    }
}

/// A socket for IPv6, which takes IPv4 as well, or one for IPv4 where there is no other.
async fn listener() -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await,
    }
}

/// Outcome of a connection.
enum Served {
    Agent,
    Nobody,
}

impl Host {
    /// Serves a connection to its end.
    async fn serve(self: Arc<Self>, (socket, greeter): (TcpStream, Greeter), peer: IpAddr) -> Served {
        let named = tokio::select! {
            named = self.named(socket, &greeter) => named,
            () = greeter.gone() => Err(Refusal::Dismissed),
        };
        let (reader, mut writer, name, rest) = match named {
            Ok(named) => named,
            Err(Refusal::Stream(SealedError::Io(error))) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // A connection that only tests whether the port is open.
                return Served::Nobody;
            }
            Err(refusal) => {
                tracing::warn!(from = %peer, "a caller is refused: {refusal}");
                return Served::Nobody;
            }
        };
        drop(greeter);
        let started = checked(&name).and_then(|()| Ok(self.start(&name)?));
        let (agent, words) = match started {
            Ok(started) => started,
            Err(refusal) => {
                tracing::warn!(from = %peer, "a caller is refused: {refusal}");
                // It may be gone.
                let _ = writer.write_all(format!("{refusal}\n").as_bytes()).await;
                let _ = writer.end().await;
                return Served::Nobody;
            }
        };
        tracing::info!("{peer} has invited {name}");
        let status = self.accompany(agent, (reader, rest), (words, writer)).await;
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::info!("the agent of {name} has ended ({status})");
        Served::Agent
    }

    /// The stream of a caller that has the key, the name that it calls this node by, and bytes that came with it.
    async fn named(
        &self,
        socket: TcpStream,
        greeter: &Greeter,
    ) -> Result<(SealedReader, SealedWriter, String, BytesMut), Refusal> {
        greeter.first_byte(&socket).await.map_err(SealedError::from)?;
        let (mut reader, writer) = sealed_stream::answer(socket, &self.key).await?;
        let line = timeout(NAMED_WITHIN, first_line(&mut reader)).await.map_err(|_| Refusal::Late)??;
        let (name, rest) = line.filter(|(name, _)| is_node_name(name)).ok_or(Refusal::Nameless)?;
        Ok((reader, writer, name, rest))
    }

    /// Starts an agent; what it says comes out of the pipe.
    fn start(&self, name: &str) -> io::Result<(Child, pipe::Receiver)> {
        let (words, output) = io::pipe()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["join", "--node", name]).stdin(Stdio::piped());
        command.stdout(output.try_clone()?).stderr(output).process_group(0);
        let agent = command.spawn()?;
        self.was_invited.store(true, Ordering::Relaxed);
        self.agents.lock().extend(agent_pid(&agent));
        Ok((agent, pipe::Receiver::from_owned_fd(words.into())?))
    }

    /// Carries what comes to the agent, and its words back, until it has ended.
    async fn accompany(
        &self,
        mut agent: Child,
        incoming: (SealedReader, BytesMut),
        (words, writer): (pipe::Receiver, SealedWriter),
    ) -> io::Result<ExitStatus> {
        let (pid, input) = (agent_pid(&agent), agent.stdin.take());
        let said = tokio::spawn(pass_on(words, writer));
        let fed = async {
            if let Some(input) = input {
                self.feed(incoming, input).await;
            }
        };
        tokio::select! {
            _ = agent.wait() => {}
            () = fed => drop(timeout(LEAVE_WITHIN, agent.wait()).await),
        }
        // Refused for one that has ended.
        let _ = agent.start_kill();
        let status = agent.wait().await;
        if let Some(pid) = pid {
            self.agents.lock().remove(&pid);
        }
        let abort = said.abort_handle();
        if timeout(WORDS_WITHIN, said).await.is_err() {
            abort.abort();
        }
        status
    }

    /// Gives the agent what comes, until that ends or all agents are to leave.
    async fn feed(&self, (mut reader, first): (SealedReader, BytesMut), mut input: ChildStdin) {
        let mut leaving = self.leaving.subscribe();
        let fed = async {
            let mut piece = first;
            loop {
                if input.write_all(&piece).await.is_err() {
                    // It reads no more, so it ends.
                    return std::future::pending().await;
                }
                match reader.next().await {
                    Ok(next) if !next.is_empty() => piece = next,
                    _ => return,
                }
            }
        };
        tokio::select! {
            () = fed => {}
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
    }

    /// Reaps what has fallen to this process as the first one of its container, but agents.
    fn reap(&self) {
        let agents: Vec<Pid> = self.agents.lock().iter().copied().collect();
        let Ok(nobodys) = JobId::new("lattice-listen") else { return };
        let tag = LaunchTag::new(nobodys);
        let orphans = Orphans::Claim { except: &agents };
        // What is not reaped now is reaped next time.
        let _ = reap_adopted(&SweepScope { tag: &tag, ranks: &agents, orphans });
    }
}

fn agent_pid(agent: &Child) -> Option<Pid> {
    agent.id().map(|pid| Pid::from_raw(pid.cast_signed()))
}

/// Passes on what an agent says, with a word of welcome before, until it ends; whether anybody listens is of no concern to the agent.
async fn pass_on(mut words: pipe::Receiver, mut writer: SealedWriter) {
    let mut heard = writer.write_all(format!("{WELCOME}\n").as_bytes()).await.is_ok();
    let mut room = vec![0; WORDS_ROOM];
    while let Ok(length @ 1..) = words.read(&mut room).await {
        heard = heard && writer.write_all(&room[..length]).await.is_ok();
    }
    if heard {
        // The caller may be gone by now.
        let _ = writer.end().await;
    }
}

/// Refuses a name that is another host's.
fn checked(name: &str) -> Result<(), Refusal> {
    let here = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    if label(&here) == label(name) { Ok(()) } else { Err(Refusal::Another { here, meant: name.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_invited_or_is_about_to_be_waits_on() {
        let now = Instant::now();
        let mut patience = Patience::of(Some(5), now);
        assert_eq!(patience.until, Some(now + Duration::from_secs(5)));
        assert!(patience.is_over(false, 0, now), "nobody came");
        // The agent may have ended by now.
        let mut patience = Patience::of(Some(5), now);
        assert!(!patience.is_over(true, 0, now));
        assert_eq!(patience.until, None);
        // Somebody is about to prove that he has the key, or is a stranger.
        let mut patience = Patience::of(Some(5), now);
        assert!(!patience.is_over(false, 1, now));
        assert_eq!(patience.until, Some(now + INVITED_WITHIN));
        assert!(patience.is_over(false, 1, now), "strangers do not hold it up for ever");
        let mut patience = Patience::of(Some(5), now);
        assert!(!patience.is_over(false, 1, now) && !patience.is_over(true, 1, now));
        assert_eq!(patience.until, None);
        for forever in [None, Some(u64::MAX)] {
            assert_eq!(Patience::of(forever, now).until, None);
        }
    }
}
