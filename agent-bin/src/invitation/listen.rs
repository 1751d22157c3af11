//! `lattice-agent listen`: waits for invitations, and starts an agent for each.
//!
//! A caller with the key starts agents here, and through them any program, as the user of this process. Other callers are refused before any
//! work is done for them.

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

/// Time limit for a caller to name this node, after it has proved that it has the key.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// Time limit, from its connection, for a caller to prove itself and to name a node; includes a margin.
const INVITED_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for an agent to end after the end of its input. It ends its launches first.
const LEAVE_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for the last output of an agent that has ended; processes that it started may keep the output open.
const WORDS_WITHIN: Duration = Duration::from_secs(1);
/// Size of one read of an agent's output, in bytes.
const WORDS_ROOM: usize = 4096;

/// Arguments of `lattice-agent listen`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListenArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// End when the first invited agent has ended
    #[arg(long)]
    once: bool,
    /// End if no invitation arrives within this many seconds
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
}

/// Reason why this node cannot be invited.
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
    /// A name may still have the address of an earlier host.
    #[error("this is {here}, and {meant} is meant")]
    Another { here: String, meant: String },
    #[error("cannot start an agent: {0}")]
    Start(#[from] io::Error),
}

/// State that all connections share.
struct Host {
    key: SharedKey,
    /// True when all agents must leave.
    leaving: watch::Sender<bool>,
    /// Running agents; the tasks that wait for them reap them.
    agents: Mutex<BTreeSet<Pid>>,
    /// An agent was started, and may have ended.
    was_invited: AtomicBool,
}

/// Time limit for the first invitation.
struct Patience {
    /// `None` for no limit.
    until: Option<Instant>,
    /// The limit was extended for callers that were about to invite this node.
    is_prolonged: bool,
}

impl Patience {
    /// A limit of this many seconds; no limit without a number, or if the clock cannot represent it.
    fn of(seconds: Option<u64>, now: Instant) -> Self {
        let until = seconds.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)));
        Self { until, is_prolonged: false }
    }

    /// Handles the end of the limit, with this number of callers under way. Returns true if no invitation will arrive.
    fn is_over(&mut self, was_invited: bool, callers: usize, now: Instant) -> bool {
        let prolonged = callers > 0 && !self.is_prolonged;
        self.until = (prolonged && !was_invited).then(|| now + INVITED_WITHIN);
        self.is_prolonged = true;
        !was_invited && !prolonged
    }
}

impl ListenArgs {
    /// Waits for invitations until SIGTERM or SIGINT. Depending on the arguments, also ends when the first agent has ended, or when the time for
    /// an invitation is over.
    ///
    /// # Errors
    /// Fails if there is no key, or if the port is not available.
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
                    // For example without free descriptors: connections that end release some.
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
                        tracing::info!("this node was not invited, and is not needed any more");
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

/// A socket for IPv6, which accepts IPv4 as well, or a socket for IPv4 if IPv6 is not available.
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
                // A connection that only tests if the port is open.
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
                // The caller may be gone.
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

    /// The stream of a caller that has the key, the name that it sent for this node, and the bytes that arrived with it.
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

    /// Starts an agent; its output goes to the pipe.
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

    /// Forwards received bytes to the agent, and its output back, until it has ended.
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
        // Fails for an agent that has ended.
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

    /// Forwards received bytes to the agent, until they end or all agents must leave.
    async fn feed(&self, (mut reader, first): (SealedReader, BytesMut), mut input: ChildStdin) {
        let mut leaving = self.leaving.subscribe();
        let fed = async {
            let mut piece = first;
            loop {
                if input.write_all(&piece).await.is_err() {
                    // The agent reads no more, so it ends.
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

    /// Reaps the orphans of this process, which is the first one of its container, but not its agents.
    fn reap(&self) {
        let agents: Vec<Pid> = self.agents.lock().iter().copied().collect();
        let Ok(nobodys) = JobId::new("lattice-listen") else { return };
        let tag = LaunchTag::new(nobodys);
        let orphans = Orphans::Claim { except: &agents };
        // Processes that are not reaped now are reaped next time.
        let _ = reap_adopted(&SweepScope { tag: &tag, ranks: &agents, orphans });
    }
}

fn agent_pid(agent: &Child) -> Option<Pid> {
    agent.id().map(|pid| Pid::from_raw(pid.cast_signed()))
}

/// Sends a line of welcome and then the output of an agent, until it ends. The agent continues without a reader.
async fn pass_on(mut words: pipe::Receiver, mut writer: SealedWriter) {
    let mut heard = writer.write_all(format!("{WELCOME}\n").as_bytes()).await.is_ok();
    let mut room = vec![0; WORDS_ROOM];
    while let Ok(length @ 1..) = words.read(&mut room).await {
        heard = heard && writer.write_all(&room[..length]).await.is_ok();
    }
    if heard {
        // The caller may be gone.
        let _ = writer.end().await;
    }
}

/// Refuses the name of another host.
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
        // The agent may have ended.
        let mut patience = Patience::of(Some(5), now);
        assert!(!patience.is_over(true, 0, now));
        assert_eq!(patience.until, None);
        // A connected caller may still prove that it has the key.
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
