//! Server side of connections: listening sockets, proof of who is at the other end, and serving until told to end.
//!
//! ```text
//! Listener ──accept──> who is it? ──Connection { stream, Peer }──> HTTP/2 ──> authorization table ──> services
//!  (a task each)   (kernel, certificate,                           (tonic)     (Caller in the extensions)
//!                   or each call's claim)
//!      └ Greetings: places per address     └── Budget: connections, calls, bytes of each peer, both ways ──┘
//! ```
//!
//! Nothing that a peer does ends the listening: a connection that fails, fails alone, and when the system is out of descriptors
//! accepting pauses until there are some again.

mod answer_body;
mod arrival;
mod budget;
mod connection;
mod count_calls;
mod framing;
mod greetings;
mod reflection;
mod request_body;
mod socket_file;

use crate::task;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use nix::sys::socket::{MsgFlags, recv};
use tokio::io::{DuplexStream, duplex};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream, lookup_host};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

use self::arrival::{Arrival, Identified, Proof, Refusal};
use self::budget::Budget;
use self::connection::Connection;
use self::count_calls::CountCalls;
pub use self::greetings::{Greeter, Greetings};
use self::socket_file::SocketFile;
use crate::address::{Address, PortRange};
use crate::authorize::Authorize;
use crate::call_check::Checked;
use crate::identity::{Caller, Security, TlsIdentity};
use crate::limits;
use crate::proto::takes_stream;
use crate::session_link::Arrivals;
use crate::tls::Clients;

/// Connections that the kernel keeps until we accept them; a whole cluster may come at once.
const BACKLOG: u32 = 4096;

/// Failure to listen or to serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address cannot be had.
    #[error("cannot listen at {address}")]
    Bind {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// Others listen at all ports of the range.
    #[error("no port of {range} is free at {host}; widen the range (port_range, --port-range)")]
    AllTaken {
        /// The host.
        host: String,
        /// The range.
        range: PortRange,
    },
    /// Somebody answers at the Unix socket already.
    #[error("cannot listen at unix:{}: another process does", path.display())]
    Taken {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something else than a socket is there.
    #[error("cannot listen at unix:{}: what is there is no socket; remove it, or name another path", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Without certificates, only this machine may call.
    #[error(
        "{address} can be reached from other machines; without certificates, listen at a loopback address such as 127.0.0.1"
    )]
    InsecureBeyondLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The services cannot be served.
    #[error("cannot serve")]
    Serve(#[source] tonic::transport::Error),
}

/// Listening socket. Connections wait in the kernel until [`serve`] has it.
pub struct Listener {
    socket: Socket,
    local: Address,
}

enum Socket {
    Tcp {
        listener: TcpListener,
        identity: Option<TlsIdentity>,
        clients: Clients,
        links: Option<Arc<Arrivals>>,
        greetings: Arc<Greetings>,
    },
    Unix(LocalSocket),
    Proxied(Mutex<mpsc::Receiver<Arrival>>),
}

/// Unix socket at which everybody on this machine may connect, and the kernel says who they are.
pub struct LocalSocket {
    // The fields are dropped in this order: nobody finds a file that nobody listens to.
    _file: SocketFile,
    listener: UnixListener,
}

impl LocalSocket {
    /// Makes the socket's file; one that was left over is replaced. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if it cannot be made, and if somebody listens there, or something else than a socket is there.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { address: Address::Unix(path.to_owned()), source };
        let (file, listener) = SocketFile::bind(path).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::Taken { path: path.to_owned() },
            io::ErrorKind::AlreadyExists => ListenError::NoSocket { path: path.to_owned() },
            _ => failed(source),
        })?;
        Ok(Self { _file: file, listener: UnixListener::from_std(listener).map_err(failed)? })
    }

    /// The next connection that its other end has not closed meanwhile.
    ///
    /// # Errors
    /// Fails if the system refuses, as where descriptors are missing.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            // A process that connects and closes in a loop costs no more than this.
            if !has_ended(&stream) {
                return Ok(stream);
            }
        }
    }
}

/// Connections that the stream of another call brings, on their way to [`serve`].
#[derive(Clone, Debug)]
pub struct Proxy(mpsc::Sender<Arrival>);

impl Proxy {
    /// Serves a connection to `caller`; an error in its place is the answer to all of his calls. Returns the other end; `None` once serving is over.
    pub async fn connect(&self, caller: Result<Caller, String>) -> Option<DuplexStream> {
        let (stream, other) = duplex(limits::PROXY_BUFFER);
        self.0.send(Arrival::Proxied { stream, caller }).await.ok()?;
        Some(other)
    }
}

impl Socket {
    async fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Tcp { listener, identity, clients, links, greetings } => {
                let (stream, from) = listener.accept().await?;
                let greeter = greetings.admit(from.ip());
                let proof = identity.clone().map(|identity| Proof { identity, clients: *clients });
                Ok(Arrival::Tcp { stream, from, proof, links: links.clone(), greeter })
            }
            Self::Unix(socket) => {
                let stream = socket.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok(Arrival::Unix { stream, uid })
            }
            Self::Proxied(arrivals) => match arrivals.lock().await.recv().await {
                Some(arrival) => Ok(arrival),
                // Nobody can bring one any more.
                None => std::future::pending().await,
            },
        }
    }
}

impl Listener {
    /// Listens at `address`, which names this process: a Unix socket's file is made for everybody to talk to, and removed with
    /// the listener; one that was left over is replaced. At a Unix socket callers are named by the kernel, elsewhere by what
    /// `security` says.
    ///
    /// # Errors
    /// Fails if the address cannot be had, and for one that other machines reach if nobody has to prove who they are.
    pub async fn bind(address: &Address, security: &Security) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { address: address.clone(), source };
        match address {
            Address::Unix(path) => Ok(Self { socket: Socket::Unix(LocalSocket::bind(path)?), local: address.clone() }),
            Address::Tcp { host, port } => {
                let found = permitted(host, *port, security).await?;
                let identity = match security {
                    Security::Insecure { .. } => {
                        tracing::warn!(%address, "INSECURE: everybody on this machine is believed whatever they say they are");
                        None
                    }
                    Security::Tls(identity) => Some(identity.clone()),
                };
                let listener = listen_tcp(found).map_err(failed)?;
                let local = listener.local_addr().map_err(failed)?;
                let local = Address::Tcp { host: local.ip().to_string(), port: local.port() };
                let (clients, greetings) = (Clients::All, Arc::default());
                let socket = Socket::Tcp { listener, identity, clients, links: None, greetings };
                Ok(Self { socket, local })
            }
        }
    }

    /// The same; an address with port 0 gets the first free port of `range`, if there is one.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), and if all ports of the range are taken.
    pub async fn bind_within(
        address: &Address,
        range: Option<PortRange>,
        security: &Security,
    ) -> Result<Self, ListenError> {
        let (Address::Tcp { host, port: 0 }, Some(range)) = (address, range) else {
            return Self::bind(address, security).await;
        };
        for port in range.ports() {
            match Self::bind(&Address::Tcp { host: host.clone(), port }, security).await {
                Err(ListenError::Bind { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound,
            }
        }
        Err(ListenError::AllTaken { host: host.clone(), range })
    }

    /// Listens to connections that come by a [`Proxy`].
    pub fn proxied() -> (Proxy, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (Proxy(sender), Self { socket: Socket::Proxied(Mutex::new(receiver)), local: Address::Unix("proxied".into()) })
    }

    /// Fails where [`bind`](Self::bind) would, as far as that can be told without listening.
    ///
    /// # Errors
    /// Fails for a host that nobody knows, and for an address that other machines reach if nobody has to prove who they are.
    pub async fn check(address: &Address, security: &Security) -> Result<(), ListenError> {
        match address {
            Address::Unix(_) => Ok(()),
            Address::Tcp { host, port } => permitted(host, *port, security).await.map(drop),
        }
    }

    /// Refuses users in the handshake: with a certificate, the API server, agents and administrators can connect, and nobody else. Without
    /// certificates, and over a Unix socket, nothing changes.
    pub fn for_daemons(mut self) -> Self {
        if let Socket::Tcp { clients, .. } = &mut self.socket {
            *clients = Clients::Daemons;
        }
        self
    }

    /// Takes links between sessions as well, and hands them over as `arrivals` says. No link comes over a Unix socket.
    pub fn with_links(mut self, arrivals: Arc<Arrivals>) -> Self {
        if let Socket::Tcp { links, .. } = &mut self.socket {
            *links = Some(arrivals);
        }
        self
    }

    /// Address that it listens at: with the port that the kernel chose, if it did.
    pub fn local_address(&self) -> Address {
        self.local.clone()
    }
}

/// Address that a host stands for, if it may be listened at.
async fn permitted(host: &str, port: u16, security: &Security) -> Result<SocketAddr, ListenError> {
    let failed = |source| ListenError::Bind { address: Address::Tcp { host: host.to_owned(), port }, source };
    let found = lookup_host((host, port)).await.map_err(failed)?.next();
    let found = found.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    match security {
        Security::Insecure { .. } if !found.ip().is_loopback() => {
            Err(ListenError::InsecureBeyondLoopback { address: found })
        }
        _ => Ok(found),
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.local).finish()
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A daemon that was restarted gets its port back at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `services`, and health and reflection beside them, to whoever connects to the `listeners`, until `shutdown`.
///
/// Whatever comes in is taken of its peer's budget, which is the same for all `listeners`. Each request is held against the table in
/// [`crate::authorize`]; the handlers find its [`Caller`] with [`crate::identity::caller_of`]. At the end the
/// listeners are closed at once, calls in progress are given a second, and then all connections are cut.
///
/// # Errors
/// Fails only at once, never because of what peers do.
pub async fn serve(
    listeners: Vec<Listener>,
    services: Routes,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ListenError> {
    let routes = with_our_services(services);
    let (cut, budget) = (CancellationToken::new(), Arc::new(Budget::default()));
    let mut accepting = JoinSet::new();
    let (sender, receiver) = mpsc::channel(1);
    for listener in listeners {
        accepting.spawn(task::boxed(accept_all(listener, sender.clone(), Arc::clone(&budget), cut.clone())));
    }
    drop(sender);

    let (tell, told) = oneshot::channel();
    let shutdown = async {
        shutdown.await;
        // Nobody hears it if serving is over already.
        let _ = tell.send(());
    };
    let connections = ReceiverStream::new(receiver).map(Ok::<_, io::Error>);
    let server = server().layer(Checked(Authorize)).layer(Checked(CountCalls { budget, takes_stream }));
    let serving = server.serve_with_incoming_shutdown(routes.prepare(), connections, shutdown);
    let mut serving = pin!(serving);
    let wind_up = async {
        let _ = told.await;
        accepting.shutdown().await;
        sleep(limits::SHUTDOWN_TIMEOUT).await;
        cut.cancel();
    };
    let result = tokio::select! {
        result = &mut serving => result,
        () = wind_up => serving.await,
    };
    accepting.shutdown().await;
    result.map_err(ListenError::Serve)
}

fn with_our_services(services: Routes) -> Routes {
    let (_, health) = tonic_health::server::health_reporter();
    reflection::added_to(services.add_service(health))
}

fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_frame_size(limits::FRAME_MAX)
        .max_concurrent_streams(limits::STREAMS_MAX)
        .http2_max_header_list_size(limits::HEADERS_MAX)
        .http2_max_pending_accept_reset_streams(Some(limits::PENDING_RESETS_MAX))
        .http2_keepalive_interval(Some(limits::KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(limits::KEEP_ALIVE_TIMEOUT))
}

/// Accepts connections at one socket for ever.
async fn accept_all(
    listener: Listener,
    connections: mpsc::Sender<Connection>,
    budget: Arc<Budget>,
    cut: CancellationToken,
) {
    let mut handshakes = JoinSet::new();
    loop {
        // A peer that is slow to say who it is keeps nobody else waiting: it goes when its place is needed.
        while handshakes.try_join_next().is_some() {}
        match listener.socket.accept().await {
            Ok(arrival) => {
                handshakes.spawn(task::boxed(greet(arrival, connections.clone(), Arc::clone(&budget), cut.clone())));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(at = %listener.local, %error, "cannot accept connections; trying on");
                sleep(limits::ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Identifies who made a connection, and passes it on unless it is refused.
async fn greet(arrival: Arrival, connections: mpsc::Sender<Connection>, budget: Arc<Budget>, cut: CancellationToken) {
    let from = arrival.to_string();
    match arrival.identify(&budget, &cut).await {
        // Nobody takes it any more when serving ends.
        Ok(Identified::Calls(connection)) => drop(connections.send(connection).await),
        // Its wait for the launch has bounds of its own, and takes no handshake's place.
        Ok(Identified::Link { arrivals, greeting, socket, from }) => {
            task::spawn(async move {
                if let Err(error) = arrivals.arrive(greeting, socket, from).await {
                    tracing::info!(from = %from.ip(), %error, "a link was refused");
                }
            });
        }
        Err(Refusal::Dismissed) => tracing::debug!(%from, "a connection went for another one"),
        Err(error) => tracing::info!(%from, %error, "a connection was refused"),
    }
}

/// Returns true if the other end has closed the connection without a byte.
fn has_ended(stream: &UnixStream) -> bool {
    recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) == Ok(0)
}

/// Returns true if `accept` failed because the connection that it was about is gone, according to accept(2).
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}
