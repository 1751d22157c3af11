//! One HTTP request and its answer. [`crate::retry`] handles retries and the meaning of a status.

use std::io;
use std::sync::Arc;
use std::time::Duration;

// Only for its feature, which removes the trace level from the program. At that level ureq logs every byte that it sends and
// receives, keys and passwords included.
use log as _;
use ureq::http;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use zeroize::Zeroizing;

use crate::retry_after::retry_after;

/// Limit on the length of a body, in bytes; a longer answer is an error. A list of ten thousand services fits.
const LONGEST_ANSWER: u64 = 4 << 20;

/// HTTP methods of the calls to fabric managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// Request. Its headers and body may have secrets.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a str,
    pub(crate) authorization: Option<Zeroizing<String>>,
    pub(crate) idempotency_key: Option<&'a str>,
    pub(crate) body: Option<&'a Body>,
}

/// Body with its content type.
pub(crate) struct Body {
    pub(crate) content_type: &'static str,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

/// Complete answer.
#[derive(Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// Error of a request without a complete answer. The texts have no secrets: they come from this machine.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request was not sent.
    Unreachable(String),
    /// The time limit passed.
    Slow,
    /// The connection broke; the request may have been carried out.
    Broken(String),
}

/// Transport of requests; tests use one without a network.
pub(crate) trait Wire: Send + Sync {
    fn send(&self, request: &Request<'_>, timeout: Duration) -> Result<Response, Failure>;
}

/// Trusted authorities, and the client's own identity. PEM, checked.
pub(crate) struct Tls {
    pub(crate) authorities: Vec<Certificate<'static>>,
    pub(crate) identity: Option<(Vec<Certificate<'static>>, PrivateKey<'static>)>,
}

/// Requests over TCP, by ureq. Connections are reused.
pub(crate) struct Http(ureq::Agent);

impl Http {
    pub(crate) fn new(tls: Tls) -> Self {
        let identity = tls.identity.map(|(chain, key)| ClientCert::new_with_certs(&chain, key));
        let settings = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&tls.authorities))
            .client_cert(identity)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = ureq::Agent::config_builder()
            .tls_config(settings.build())
            .http_status_as_error(false)
            // A redirection could send a token elsewhere. A proxy from the environment is for the internet, not for a fabric.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("lattice/", env!("CARGO_PKG_VERSION")))
            .accept("application/json")
            .build();
        Self(config.new_agent())
    }
}

impl Wire for Http {
    fn send(&self, request: &Request<'_>, timeout: Duration) -> Result<Response, Failure> {
        let mut builder = http::Request::builder().method(request.method.name()).uri(request.url);
        if let Some(authorization) = &request.authorization {
            let mut value = http::HeaderValue::from_str(authorization)
                .map_err(|_| Failure::Unreachable("the credentials hold a character that HTTP cannot carry".into()))?;
            value.set_sensitive(true);
            builder = builder.header(http::header::AUTHORIZATION, value);
        }
        if let Some(key) = request.idempotency_key {
            builder = builder.header("idempotency-key", key);
        }
        let sent = match request.body {
            None => {
                let request = builder.body(()).map_err(|error| Failure::Unreachable(error.to_string()))?;
                self.0.run(self.0.configure_request(request).timeout_global(Some(timeout)).build())
            }
            Some(body) => {
                let request = builder
                    .header(http::header::CONTENT_TYPE, body.content_type)
                    .body(body.bytes.as_slice())
                    .map_err(|error| Failure::Unreachable(error.to_string()))?;
                self.0.run(self.0.configure_request(request).timeout_global(Some(timeout)).build())
            }
        };
        let mut response = sent.map_err(failure)?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = header("retry-after").and_then(|asked| retry_after(asked, header("date")));
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec().map_err(failure)?;
        Ok(Response { status, retry_after, body: body.into() })
    }
}

fn failure(error: ureq::Error) -> Failure {
    use ureq::Error;
    match error {
        Error::Timeout(_) => Failure::Slow,
        Error::HostNotFound => Failure::Unreachable("no address is known for the host".into()),
        Error::ConnectionFailed => Failure::Unreachable("no connection".into()),
        Error::Io(error) => stream_failure(&error),
        Error::Rustls(error) => Failure::Unreachable(format!("TLS: {error}")),
        Error::Tls(reason) => Failure::Unreachable(format!("TLS: {reason}")),
        Error::BadUri(uri) => Failure::Unreachable(format!("`{uri}` is no URL")),
        Error::BodyExceedsLimit(limit) => Failure::Broken(format!("the answer is longer than {limit} bytes")),
        // The text of a protocol error may quote data of the service.
        Error::Protocol(_) => Failure::Broken("the answer is not HTTP".into()),
        Error::LargeResponseHeader(seen, limit) => {
            Failure::Broken(format!("the answer's header has {seen} bytes; the limit is {limit}"))
        }
        _ => Failure::Broken("no whole answer came".into()),
    }
}

/// Failure of the connection.
fn stream_failure(error: &io::Error) -> Failure {
    // An error of the stream contains TLS's error about the peer.
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return Failure::Unreachable(format!("TLS: {error}"));
    }
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Failure::Slow,
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::AddrNotAvailable => Failure::Unreachable(error.to_string()),
        _ => Failure::Broken(error.to_string()),
    }
}
