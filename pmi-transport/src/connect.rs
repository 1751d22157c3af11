//! Client side of connections: channels to other processes, proof of the peer's identity, and detection of lost peers.
//!
//! Every client uses a [`Channel`] made here, so that the limits and time-outs of connections are in one place. Each channel names the
//! expected peer, so that no client talks to an unknown process.

mod agents;
mod dialer;
mod unix_socket;

use std::error::Error;
use std::io;
use std::iter::successors;
use std::net::IpAddr;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

pub use self::agents::{AgentChannelError, AgentChannels};
pub use self::dialer::DialError;
use self::dialer::{Dialer, NOT_TAKEN, PeerProof};
use crate::address::Address;
use crate::identity::{CALLER_HEADER, Caller, Security};
use crate::limits;
use crate::tls::TlsIdentity;

/// Channel that clients of all services are made from: `LaunchServiceClient::new(channel)`. Clones share one connection.
pub type Channel = InterceptedService<tonic::transport::Channel, Introduction>;

/// Failure to make a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Without certificates, only loopback addresses are allowed.
    #[error(
        "{address} is not this machine, and without certificates nothing else is talked to; name certificates, or a loopback address"
    )]
    InsecureBeyondLoopback {
        /// Address of the peer.
        address: Address,
    },
    /// The name is not a valid host name, so no certificate can have it.
    #[error("{name:?} is no name that a host can have")]
    HostName {
        /// The name.
        name: String,
        /// Error of the name.
        source: InvalidDnsNameError,
    },
}

/// Makes a channel to `peer` at `address`.
///
/// The channel connects at its first use, and again after a lost connection. A call fails with the status `Unavailable` if no
/// connection is made within [`limits::CONNECT_TIMEOUT`], or if the connection becomes silent; [`reason`] returns the cause. With
/// certificates, the other end must prove to be `peer`. On a Unix socket the kernel identifies us and `security` is not used. There,
/// any process that can create sockets in that directory is trusted. Must be called within a tokio runtime.
///
/// # Errors
/// Fails if `security` is not sufficient for the address.
pub fn channel(address: &Address, peer: &Caller, security: &Security) -> Result<Channel, ConnectError> {
    let (introduction, tls) = match (address, security) {
        (Address::Unix(_), _) => (Introduction { header: None }, None),
        (Address::Tcp { host, .. }, Security::Insecure { name }) if is_loopback(host) => (Introduction::of(name), None),
        (Address::Tcp { .. }, Security::Insecure { .. }) => {
            return Err(ConnectError::InsecureBeyondLoopback { address: address.clone() });
        }
        (Address::Tcp { host, .. }, Security::Tls(identity)) => {
            (Introduction { header: None }, Some(proof(host, peer, identity)?))
        }
    };
    let dialer = Dialer { address: address.clone(), tls };
    let connector = tower::service_fn(move |_| {
        let dialer = dialer.clone();
        async move { dialer.dial().await.map(TokioIo::new) }
    });
    Ok(InterceptedService::new(endpoint().connect_with_connector_lazy(connector), introduction))
}

/// Connects now instead of at the first call, and waits for the connection. The next call reports a failure.
pub async fn reach(channel: Channel) {
    let _ = answers(channel).await;
}

/// Connects, and waits for a response of the other end.
///
/// # Errors
/// Fails if no process listens, if the wrong process answers, or if no response arrives within [`limits::CONNECT_TIMEOUT`].
pub async fn answers(channel: Channel) -> Result<(), Status> {
    // The content of the response does not matter. Every listener of ours answers a health check of any caller.
    let mut health = HealthClient::new(channel);
    let answer = timeout(limits::CONNECT_TIMEOUT, health.check(HealthCheckRequest::default())).await;
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))).map(drop)
}

/// Proof that `peer` must give: its role and name, and a host name. For an agent, the host name is the name of its node, at every
/// address: addresses of nodes change, and a node may have several.
fn proof(host: &str, peer: &Caller, identity: &TlsIdentity) -> Result<PeerProof, ConnectError> {
    let name = if let Caller::Agent(node) = peer { node } else { host };
    let bad = |source| ConnectError::HostName { name: name.to_owned(), source };
    let name = ServerName::try_from(name.to_owned()).map_err(bad)?;
    Ok(PeerProof { identity: identity.clone(), peer: peer.clone(), name })
}

/// Settings of the connections. The URI only fills the `:authority` of requests; the dialer has the real address.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://lattice")
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_frame_size(limits::FRAME_MAX)
        .http2_max_header_list_size(limits::HEADERS_MAX)
        .http2_keep_alive_interval(limits::KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns the reason why a call failed, for users: the handler's message, or the error of the connection.
pub fn reason(status: &Status) -> String {
    let mut last: Option<&dyn Error> = None;
    let mut cause = status.source();
    while let Some(error) = cause {
        last = Some(error);
        if error.is::<DialError>() {
            break;
        }
        cause = error.source();
    }
    let Some(last) = last else { return status.message().to_owned() };
    match last.source() {
        Some(cause) if !matches!(last.downcast_ref(), Some(DialError::Unreachable { .. })) => {
            format!("{last}: {cause}")
        }
        _ => last.to_string(),
    }
}

/// True for a call that failed because no process listens at the address of a running machine: the former listener has ended.
pub fn is_refused(status: &Status) -> bool {
    matches!(dialed(status), Some(DialError::Unreachable { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused)
}

/// True for a call that was never sent, because there was no connection. Such a call may be repeated over a later connection.
pub fn is_unheard(status: &Status) -> bool {
    use DialError as E;
    matches!(dialed(status), Some(E::Unreachable { .. } | E::Late { .. } | E::HungUp { .. }))
}

/// True for a call that failed because one end refused the other's certificate, or because the wrong process answered.
pub fn is_distrusted(status: &Status) -> bool {
    use DialError as E;
    matches!(dialed(status), Some(E::Handshake { .. } | E::Nameless { .. } | E::Stranger { .. }))
        || is_not_taken(status)
}

/// True for a call that failed because the other end closed the connection and refused our certificate.
fn is_not_taken(status: &Status) -> bool {
    let sources = successors(status.source(), |&error| error.source());
    sources.filter_map(|error| error.downcast_ref::<io::Error>()).any(|error| error.kind() == NOT_TAKEN)
}

/// True for a call that lost its connection before the response arrived. The other end may have executed the call.
pub fn is_cut_off(status: &Status) -> bool {
    // A status that the other end returns has no source.
    status.source().is_some() && dialed(status).is_none() && !is_not_taken(status)
}

/// Pause between two attempts of a call that was cut off.
const CUT_OFF_PAUSE: Duration = Duration::from_millis(50);

/// Makes an idempotent call, and repeats it for up to `patience` while it is [cut off](is_cut_off). The process that replaces the
/// called one reports the outcome.
///
/// # Errors
/// Returns the error of the last call, or of the call that was cut off if no later call is answered.
pub async fn again_if_cut_off<T, F>(patience: Duration, mut call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut cut_off: Option<(Status, Instant)> = None;
    loop {
        match (call().await, &cut_off) {
            (Err(status), None) if is_cut_off(&status) => cut_off = Some((status, Instant::now() + patience)),
            (Err(status), Some(_)) if is_cut_off(&status) || is_unheard(&status) => {}
            (result, _) => return result,
        }
        if let Some((status, _)) = cut_off.take_if(|(_, until)| Instant::now() >= *until) {
            return Err(status);
        }
        sleep(CUT_OFF_PAUSE).await;
    }
}

/// Returns the connection failure that made a call fail.
fn dialed(status: &Status) -> Option<&DialError> {
    successors(status.source(), |&error| error.source()).find_map(|error| error.downcast_ref())
}

/// Interceptor that adds the name of this process to every call on connections without proof of identity.
#[derive(Clone, Debug)]
pub struct Introduction {
    header: Option<MetadataValue<Ascii>>,
}

impl Introduction {
    fn of(name: &Caller) -> Self {
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Outcome of a call to this port.
    async fn called(port: u16) -> Status {
        let address = Address::Tcp { host: "127.0.0.1".to_owned(), port };
        let channel = channel(&address, &Caller::Api, &Security::Insecure { name: Caller::User(7) }).unwrap();
        answers(channel).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_told_from_one_where_nobody_speaks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let hanging_up = std::thread::spawn(move || listener.accept().map(drop));
        let status = called(port).await;
        assert!(!is_refused(&status) && !is_unheard(&status) && !is_distrusted(&status), "{status:?}");
        hanging_up.join().unwrap().unwrap();
        let status = called(port).await;
        assert!(is_refused(&status) && is_unheard(&status) && !is_distrusted(&status), "{status:?}");
        assert!(!is_refused(&Status::unavailable("something else")));
    }

    /// Makes a call that returns the results of `calls` in turn, then the last one repeatedly. Returns the outcome and the number of
    /// calls.
    async fn asked_again(calls: &[fn() -> Result<u8, Status>]) -> (Result<u8, String>, usize) {
        let made = std::cell::Cell::new(0);
        let call = || {
            let number = made.replace(made.get() + 1);
            std::future::ready(calls[number.min(calls.len() - 1)]())
        };
        let outcome = again_if_cut_off(Duration::from_secs(1), call).await;
        (outcome.map_err(|status| reason(&status)), made.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_cut_off_is_made_again_until_somebody_answers() {
        fn refused() -> Result<u8, Status> {
            let source = io::Error::from(io::ErrorKind::ConnectionRefused);
            Err(Status::from_error(Box::new(DialError::Unreachable {
                address: "127.0.0.1:1".parse().unwrap(),
                source,
            })))
        }
        let cut_off: fn() -> _ = || Err(Status::from_error(Box::new(io::Error::from(io::ErrorKind::BrokenPipe))));
        let busy: fn() -> _ = || Err(Status::resource_exhausted("no room"));
        let answer: fn() -> _ = || Ok(7);
        assert_eq!(asked_again(&[answer]).await, (Ok(7), 1));
        assert_eq!(asked_again(&[cut_off, refused, cut_off, answer]).await, (Ok(7), 4));
        assert_eq!(asked_again(&[cut_off, busy]).await, (Err("no room".to_owned()), 2));
        // The first call was never sent. The caller decides whether to repeat it.
        let (outcome, calls) = asked_again(&[refused]).await;
        assert!(outcome.unwrap_err().contains("refused"));
        assert_eq!(calls, 1);
        // The outcome of the first call stays unknown, whatever later calls return.
        let (outcome, calls) = asked_again(&[cut_off, refused]).await;
        assert!(outcome.unwrap_err().contains("broken pipe") && calls > 2);
    }
}
