//! `lattice-agent invite`: starts an agent on a host that waits for invitations, and then serves as its standard input.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use pmi_transport::sealed_stream::{self, SealedError, SealedReader, SealedWriter, SharedKey};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{KeyArgs, KeyError, PORT, WELCOME, first_line};

/// Time limit for the look-up of a name, and for the connection to one of its addresses.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit for the agent to end after the end of its input.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Size of one read of standard input, in bytes, and maximum number of reads that wait.
const READ_ROOM: usize = 16 << 10;
const PIECES: usize = 4;

/// Arguments of `lattice-agent invite`.
#[derive(Clone, Debug, Args)]
pub(crate) struct InviteArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Time limit in seconds for the host to be known and to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    within: u64,
    /// The host, by the name that the node has in the cluster
    #[arg(value_name = "HOST")]
    host: String,
}

/// Error of an invitation that is not accepted, or that breaks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InviteError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{host} has not accepted within {within:?}: {reason}")]
    Late { host: String, within: Duration, reason: String },
    #[error("the agent of {host} has ended")]
    Ended { host: String },
    #[error("the connection to {host} broke: {error}")]
    Broken { host: String, error: SealedError },
    #[error("cannot invite {host}: {error}")]
    System { host: String, error: io::Error },
}

impl InviteArgs {
    /// Invites the host, and runs until standard input or the agent ends.
    ///
    /// # Errors
    /// Fails if the host does not accept in time, and if the agent ends before the input.
    pub(crate) fn run(&self) -> Result<(), InviteError> {
        let key = self.key.read()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| InviteError::System { host: self.host.clone(), error })?;
        let carried = runtime.block_on(async {
            let (reader, writer) = self.accepted(&key).await?;
            self.carry(reader, writer).await
        });
        // A look-up or a read that still blocks delays no exit.
        runtime.shutdown_background();
        carried
    }

    /// Repeats the invitation until the host accepts.
    async fn accepted(&self, key: &SharedKey) -> Result<(SealedReader, SealedWriter), InviteError> {
        let mut reason = "it was not tried".to_owned();
        let accepted = async {
            loop {
                match try_once(&self.host, key).await {
                    Ok(stream) => return stream,
                    Err(other) if other != reason => {
                        tracing::info!("waits for {}: {other}", self.host);
                        reason = other;
                    }
                    Err(_) => {}
                }
                sleep(PAUSE).await;
            }
        };
        let within = Duration::from_secs(self.within);
        let accepted = timeout(within, accepted).await;
        accepted.map_err(|_| InviteError::Late { host: self.host.clone(), within, reason })
    }

    /// Forwards standard input to the agent, and the output of the agent to standard error.
    async fn carry(&self, mut reader: SealedReader, mut writer: SealedWriter) -> Result<(), InviteError> {
        let broken = |error| InviteError::Broken { host: self.host.clone(), error };
        let mut input = standard_input();
        let fed = async {
            while let Some(piece) = input.recv().await {
                writer.write_all(&piece).await?;
            }
            writer.end().await
        };
        let heard = async {
            loop {
                match reader.next().await {
                    Ok(words) if words.is_empty() => return Ok(()),
                    // A closed standard error is ignored.
                    Ok(words) => drop(io::stderr().write_all(&words)),
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::pin!(fed, heard);
        tokio::select! {
            ended = &mut heard => ended.map_err(broken).and(Err(InviteError::Ended { host: self.host.clone() })),
            fed = &mut fed => match fed {
                Ok(()) => timeout(END_WITHIN, heard).await.unwrap_or(Ok(())).map_err(broken),
                Err(error) => Err(broken(error)),
            },
        }
    }
}

/// The host's stream, or the reason why there is none yet.
async fn try_once(host: &str, key: &SharedKey) -> Result<(SealedReader, SealedWriter), String> {
    let late = |what: &str| format!("{what} within {STEP_WITHIN:?}");
    let addresses = timeout(STEP_WITHIN, lookup_host((host, PORT))).await;
    let addresses = addresses.map_err(|_| late("its name was not found"))?.map_err(|error| error.to_string())?;
    let mut reason = "its name has no address".to_owned();
    for address in addresses {
        let tried = async {
            let connected = timeout(STEP_WITHIN, TcpStream::connect(address)).await;
            let socket = connected.map_err(|_| late("no answer"))?.map_err(|error| error.to_string())?;
            welcomed(host, socket, key).await
        };
        match tried.await {
            Ok(stream) => return Ok(stream),
            Err(why) => reason = format!("{address}: {why}"),
        }
    }
    Err(reason)
}

/// Sends the name of the node that is meant, and waits until its agent starts.
async fn welcomed(host: &str, socket: TcpStream, key: &SharedKey) -> Result<(SealedReader, SealedWriter), String> {
    let words = |error: SealedError| error.to_string();
    let (mut reader, mut writer) = sealed_stream::open(socket, key).await.map_err(words)?;
    writer.write_all(format!("{host}\n").as_bytes()).await.map_err(words)?;
    let answer = timeout(STEP_WITHIN, first_line(&mut reader)).await;
    match answer.map_err(|_| format!("no answer within {STEP_WITHIN:?}"))?.map_err(words)? {
        Some((answer, rest)) if answer == WELCOME => {
            drop(io::stderr().write_all(&rest));
            Ok((reader, writer))
        }
        Some((refusal, _)) => Err(refusal),
        None => Err("it answers with something else than Lattice does".to_owned()),
    }
}

/// Pieces of standard input, until its end.
fn standard_input() -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel(PIECES);
    thread::spawn(move || {
        let mut room = vec![0; READ_ROOM];
        while let Ok(length @ 1..) = io::stdin().read(&mut room) {
            if send.blocking_send(room[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receive
}
