//! Server side of connections: listening sockets, authentication of peers, and serving until shutdown.
//!
//! ```text
//! Listener ──accept──> identify peer ──Connection { stream, Peer }──> HTTP/2 ──> authorization table ──> services
//!  (a task each)   (kernel, certificate,                            (tonic)     (Caller in the extensions)
//!                   or each call's claim)
//!      └ Greetings: places per address     └── Budget: connections, calls, bytes of each peer, both ways ──┘
//! ```
//!
//! No action of a peer ends the listening. A failed connection affects no other connection. When the system is out of descriptors,
//! accepting pauses until some are free.

mod answer_body;
mod arrival;
mod budget;
mod connection;
mod count_calls;
mod error;
mod framing;
mod greetings;
mod local_socket;
mod reflection;
mod request_body;
mod socket_file;

use crate::task;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::io::{DuplexStream, duplex};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
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
pub use self::error::ListenError;
pub use self::greetings::{Greeter, Greetings};
pub use self::local_socket::LocalSocket;
use crate::address::{Address, PortRange};
use crate::authorize::Authorize;
use crate::call_check::Checked;
use crate::identity::{Caller, Security, TlsIdentity};
use crate::limits;
use crate::proto::takes_stream;
use crate::session_link::Arrivals;
use crate::tls::Clients;

/// Connections that the kernel queues until they are accepted. A whole cluster may connect at once.
const BACKLOG: u32 = 4096;

/// Listening socket. The kernel queues connections until [`serve`] accepts them.
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

/// Sender that passes connections from the stream of another call to [`serve`].
#[derive(Clone, Debug)]
pub struct Proxy(mpsc::Sender<Arrival>);

impl Proxy {
    /// Serves a connection to `caller`. If `caller` is an error, it is the response to all calls. Returns the other end; `None` after
    /// shutdown.
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
                // The sender is gone, so no connection can arrive.
                None => std::future::pending().await,
            },
        }
    }
}

impl Listener {
    /// Listens at `address`, which names this process. A Unix socket's file is accessible to all users, replaces one without a listener,
    /// and is removed with this listener. On a Unix socket the kernel identifies callers; otherwise `security` determines their
    /// authentication.
    ///
    /// # Errors
    /// Fails if the address cannot be bound, or if other machines can reach it and `security` requires no certificates.
    pub async fn bind(address: &Address, security: &Security) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { address: address.clone(), source };
        match address {
            Address::Unix(path) => Ok(Self { socket: Socket::Unix(LocalSocket::bind(path)?), local: address.clone() }),
            Address::Tcp { host, port } => {
                let found = permitted(host, *port, security).await?;
                let identity = match security {
                    Security::Insecure { .. } => {
                        tracing::warn!(%address, "INSECURE: any process on this machine can act as any user");
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

    /// The same, but an address with port 0 gets the first free port of `range`, if a range is given.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), and if all ports of the range are in use.
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

    /// Returns a listener for connections that arrive through a [`Proxy`].
    pub fn proxied() -> (Proxy, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (Proxy(sender), Self { socket: Socket::Proxied(Mutex::new(receiver)), local: Address::Unix("proxied".into()) })
    }

    /// Checks the conditions of [`bind`](Self::bind) that can be checked without listening.
    ///
    /// # Errors
    /// Fails for an unknown host, or if other machines can reach the address and `security` requires no certificates.
    pub async fn check(address: &Address, security: &Security) -> Result<(), ListenError> {
        match address {
            Address::Unix(_) => Ok(()),
            Address::Tcp { host, port } => permitted(host, *port, security).await.map(drop),
        }
    }

    /// Refuses users during the handshake: with certificates, only the API server, agents and administrators can connect. Has no effect
    /// without certificates, or on a Unix socket.
    pub fn for_daemons(mut self) -> Self {
        if let Socket::Tcp { clients, .. } = &mut self.socket {
            *clients = Clients::Daemons;
        }
        self
    }

    /// Accepts links between sessions too, and passes them to `arrivals`. Unix sockets carry no links.
    pub fn with_links(mut self, arrivals: Arc<Arrivals>) -> Self {
        if let Socket::Tcp { links, .. } = &mut self.socket {
            *links = Some(arrivals);
        }
        self
    }

    /// Address of the listener, with the port that the kernel chose for port 0.
    pub fn local_address(&self) -> Address {
        self.local.clone()
    }
}

/// Resolves a host; fails if `security` does not permit listening at its address.
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
    // Lets a restarted daemon bind its port again at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `services`, with health and reflection, to the clients of the `listeners` until `shutdown`.
///
/// Connections, calls and bytes are charged to their peer's budget, over all `listeners`. Each request is checked against the table in
/// [`crate::authorize`]. Handlers get its [`Caller`] from [`crate::identity::caller_of`]. At shutdown the listeners are closed at once.
/// Calls in progress have a second to end. Then all connections are cut.
///
/// # Errors
/// Fails only at once, never because of an action of a peer.
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
        // Fails if serving has ended already.
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

/// Accepts connections at one socket indefinitely.
async fn accept_all(
    listener: Listener,
    connections: mpsc::Sender<Connection>,
    budget: Arc<Budget>,
    cut: CancellationToken,
) {
    let mut handshakes = JoinSet::new();
    loop {
        // A slow handshake delays no other peer: it is cancelled when its place is needed.
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

/// Identifies the peer of a connection. Passes the connection on unless it is refused.
async fn greet(arrival: Arrival, connections: mpsc::Sender<Connection>, budget: Arc<Budget>, cut: CancellationToken) {
    let from = arrival.to_string();
    match arrival.identify(&budget, &cut).await {
        // Fails if serving has ended.
        Ok(Identified::Calls(connection)) => drop(connections.send(connection).await),
        // The wait for its launch has its own limits, and uses no place of a handshake.
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

/// Returns true if `accept` failed because of the accepted connection, which is gone; see accept(2).
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}
