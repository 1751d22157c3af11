//! Client side of connections: channels to other processes, proof of who answers, and detection of peers that are gone.
//!
//! Every client of ours talks through a [`Channel`] made here, so that the limits and time limits of connections are in one
//! place, and so that nobody talks to a stranger: who makes a channel says who must be at its other end.

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

/// A channel that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Without certificates only this machine is talked to.
    #[error(
        "{address} is not this machine, and without certificates nothing else is talked to; name certificates, or a loopback address"
    )]
    InsecureBeyondLoopback {
        /// Address of the peer.
        address: Address,
    },
    /// No certificate can be for this name.
    #[error("{name:?} is no name that a host can have")]
    HostName {
        /// The name.
        name: String,
        /// Fault of the name.
        source: InvalidDnsNameError,
    },
}

/// Makes a channel to `peer` at `address`.
///
/// The channel connects when it is first used, and again after a connection was lost; a call fails with the status `Unavailable` when
/// that is not possible within [`limits::CONNECT_TIMEOUT`], and when a connection falls silent; [`reason`] says why. With
/// certificates, who answers must prove to be `peer`. Over a Unix socket we are whom the kernel says we are; `security` is not
/// used, and who may make sockets in that directory answers. Must be called within a tokio runtime.
///
/// # Errors
/// Fails if `security` does not suffice for the address.
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

/// Connects now rather than with the first call, and waits for it. A failure is seen by the call that follows.
pub async fn reach(channel: Channel) {
    let _ = answers(channel).await;
}

/// Connects, and waits until the other end answers.
///
/// # Errors
/// Fails if nobody is there, or is not who it should be, or gives no answer within [`limits::CONNECT_TIMEOUT`].
pub async fn answers(channel: Channel) -> Result<(), Status> {
    // What it answers does not matter; every listener of ours has an answer for everybody.
    let mut health = HealthClient::new(channel);
    let answer = timeout(limits::CONNECT_TIMEOUT, health.check(HealthCheckRequest::default())).await;
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))).map(drop)
}

/// Proof that is asked of `peer`: its role and name, and a name of its host. An agent's host has its node's name, however it is
/// reached: addresses of nodes change, and nodes have several.
fn proof(host: &str, peer: &Caller, identity: &TlsIdentity) -> Result<PeerProof, ConnectError> {
    let name = if let Caller::Agent(node) = peer { node } else { host };
    let bad = |source| ConnectError::HostName { name: name.to_owned(), source };
    let name = ServerName::try_from(name.to_owned()).map_err(bad)?;
    Ok(PeerProof { identity: identity.clone(), peer: peer.clone(), name })
}

/// The connections' settings. The address is that of every request's `:authority`, and leads nowhere: the dialer knows the way.
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

/// Returns the reason why a call failed, for people: the handler's words, or the fate of the connection.
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

/// True for a call that failed because nothing listens at the address, on a machine that is there: whoever did has ended.
pub fn is_refused(status: &Status) -> bool {
    matches!(dialed(status), Some(DialError::Unreachable { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused)
}

/// True for a call that nobody has heard of, as there was no connection, and that may be repeated when there is one.
pub fn is_unheard(status: &Status) -> bool {
    use DialError as E;
    matches!(dialed(status), Some(E::Unreachable { .. } | E::Late { .. } | E::HungUp { .. }))
}

/// True for a call that failed because one end does not take the other's certificate, or another process answers.
pub fn is_distrusted(status: &Status) -> bool {
    use DialError as E;
    matches!(dialed(status), Some(E::Handshake { .. } | E::Nameless { .. } | E::Stranger { .. }))
        || is_not_taken(status)
}

/// True for a call whose connection was closed by the other end as it does not take our certificate.
fn is_not_taken(status: &Status) -> bool {
    let sources = successors(status.source(), |&error| error.source());
    sources.filter_map(|error| error.downcast_ref::<io::Error>()).any(|error| error.kind() == NOT_TAKEN)
}

/// True for a call whose connection broke before the answer came: the other end may have carried it out.
pub fn is_cut_off(status: &Status) -> bool {
    // What the other end answers has no source.
    status.source().is_some() && dialed(status).is_none() && !is_not_taken(status)
}

/// Pause between two attempts of a call that was cut off.
const CUT_OFF_PAUSE: Duration = Duration::from_millis(50);

/// Makes a call that does no harm when it is made twice, and again if it is [cut off](is_cut_off), for as long as `patience` lasts: the
/// process that comes after the one that was asked says what has become of it.
///
/// # Errors
/// That of the last call; that of the one that was cut off if nobody can be asked about it.
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

/// The failure to make a connection by which a call failed.
fn dialed(status: &Status) -> Option<&DialError> {
    successors(status.source(), |&error| error.source()).find_map(|error| error.downcast_ref())
}

/// Interceptor that names this process in every call, where nobody can prove it.
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

    /// A call that answers in turn with what `calls` gives, the last one from then on; returns the outcome and the number of calls.
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
        // Nobody has heard of the first call: it is for others to try again.
        let (outcome, calls) = asked_again(&[refused]).await;
        assert!(outcome.unwrap_err().contains("refused"));
        assert_eq!(calls, 1);
        // What has become of the first call remains unknown, whatever the later ones say.
        let (outcome, calls) = asked_again(&[cut_off, refused]).await;
        assert!(outcome.unwrap_err().contains("broken pipe") && calls > 2);
    }
}
