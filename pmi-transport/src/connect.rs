//! Channels to other processes: to whom, over what, and how it is noticed that they are gone.
//!
//! Every client of ours talks through a [`Channel`] made here, so that the limits and time limits of connections are in one
//! place, and so that nobody talks to a stranger: who makes a channel says who must be at its other end.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::metadata::Ascii;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use crate::address::Address;
use crate::authorize::CALLER_HEADER;
use crate::identity::{Caller, Security};
use crate::limits;
use crate::stream::ByteStream;

/// What the clients of all services are made from: `LaunchServiceClient::new(channel)`. Clones share one connection.
pub type Channel = InterceptedService<tonic::transport::Channel, Introduction>;

/// A channel that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Without certificates only this machine is talked to.
    #[error(
        "{address} is not this machine, and without certificates nothing else is talked to; name certificates, or a loopback address"
    )]
    InsecureBeyondLoopback {
        /// Whom to talk to.
        address: Address,
    },
}

/// A channel to `peer` at `address`.
///
/// It connects when it is first used, and again after a connection was lost; a call fails with the status `Unavailable` when
/// that is not possible within [`limits::CONNECT_PATIENCE`], and when a connection falls silent. Over a Unix socket we are whom the
/// kernel says we are; `security` is not used. Must be called within a tokio runtime.
///
/// # Errors
/// Fails if `security` does not suffice for the address.
pub fn channel(address: &Address, peer: &Caller, security: &Security) -> Result<Channel, ConnectError> {
    let introduction = match (address, security) {
        (Address::Unix(_), _) => Introduction { header: None },
        (Address::Tcp { host, .. }, Security::Insecure { name }) if is_loopback(host) => Introduction::as_caller(name),
        (Address::Tcp { .. }, Security::Insecure { .. }) => {
            return Err(ConnectError::InsecureBeyondLoopback { address: address.clone() });
        }
    };
    let dialer = Dialer { address: address.clone() };
    let connector = tower::service_fn(move |_| {
        let dialer = dialer.clone();
        async move { dialer.dial().await.map(TokioIo::new) }
    });
    Ok(InterceptedService::new(endpoint().connect_with_connector_lazy(connector), introduction))
}

/// The connections' settings. The address is that of every request's `:authority`, and leads nowhere: the connector knows the way.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://lattice")
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_frame_size(limits::FRAME_MAX)
        .http2_max_header_list_size(limits::HEADERS_MAX)
        .http2_keep_alive_interval(limits::KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(limits::KEEP_ALIVE_PATIENCE)
        .keep_alive_while_idle(true)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Says in every call who we are, where nobody can prove it.
#[derive(Clone, Debug)]
pub struct Introduction {
    header: Option<MetadataValue<Ascii>>,
}

impl Introduction {
    fn as_caller(name: &Caller) -> Self {
        let header = name.uri().parse().expect("the URI of a caller is ASCII");
        Self { header: Some(header) }
    }
}

impl Interceptor for Introduction {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.header {
            request.metadata_mut().insert(CALLER_HEADER, header.clone());
        }
        Ok(request)
    }
}

/// Makes the connections of one channel.
#[derive(Clone, Debug)]
struct Dialer {
    address: Address,
}

impl Dialer {
    async fn dial(&self) -> io::Result<ByteStream> {
        let patience = limits::CONNECT_PATIENCE;
        timeout(patience, self.connect()).await.unwrap_or_else(|_| Err(late(&self.address, patience)))
    }

    async fn connect(&self) -> io::Result<ByteStream> {
        match &self.address {
            Address::Unix(path) => Ok(ByteStream::Unix(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A fence is a chain of small messages; none may wait for the acknowledgement of the one before.
                stream.set_nodelay(true)?;
                Ok(ByteStream::Tcp(stream))
            }
        }
    }
}

fn late(address: &Address, patience: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{address} did not answer within {patience:?}"))
}
