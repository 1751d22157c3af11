//! Identity of processes: the caller of a request, and the credentials that prove the identity of a process.
//!
//! A [`Caller`] has one written form, a URI. Certificates have it as subject alternative name. Calls on loopback connections without TLS
//! have it in their metadata. On a Unix socket the kernel identifies the caller instead.
//!
//! ```text
//! lattice:///api                the API server            lattice:///user/1000   a user, by uid
//! lattice:///agent/node3        the agent of node3        lattice:///admin       an administrator
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tonic::{Request, Status};

pub use lattice_pki::{Caller, CallerError, Role, is_node_name};

use crate::error_chain::chain;
use crate::limits;
use crate::tls::{Looking, What};

pub use crate::tls::{CertificateNameError, IdentityError, Renewal, RevocationList, TlsFiles, TlsIdentity, Validity};

/// Mutual authentication of a process and its peers.
#[derive(Clone, Debug)]
pub enum Security {
    /// No authentication: plain TCP between loopback addresses, where every claimed identity is accepted. For trials only.
    Insecure {
        /// Identity that this process claims.
        name: Caller,
    },
    /// Mutual TLS with certificates of one CA.
    Tls(TlsIdentity),
}

impl Security {
    /// Mutual TLS with the certificate and key in these files.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, or if the key is readable by all users.
    pub fn from_files(files: &TlsFiles) -> Result<Self, IdentityError> {
        TlsIdentity::from_files(files.clone()).map(Self::Tls)
    }

    /// The caller that the certificate of `files` names. Reads only that file, because a process that is about to fork must not hold the
    /// key.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or names no caller.
    pub fn named_in(files: &TlsFiles) -> Result<Caller, IdentityError> {
        TlsIdentity::named_in(files)
    }

    /// Reads our identity files again at once. Otherwise changed files are read again when the next connection is made.
    ///
    /// # Errors
    /// Fails if the files cannot be used, or name another caller. The previous files then stay in use.
    pub fn renew(&self) -> Result<(), IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(()),
            Self::Tls(identity) => identity.renew(),
        }
    }

    /// Reads the files again at each SIGHUP, and logs failures. Checks twice a second for changed files, so that connections of revoked
    /// certificates are closed. Meanwhile new connections do not check the files, and do not wait for their file system. Never returns.
    pub async fn keep_current(self) {
        let Self::Tls(identity) = &self else { return std::future::pending().await };
        let files = match Looking::start(identity.clone()) {
            Ok(files) => files,
            Err(error) => {
                // Each new connection checks the files itself, as without this task.
                tracing::error!(%error, "no thread can be started to look for new certificates");
                return std::future::pending().await;
            }
        };
        let _kept = identity.keep();
        let mut look = interval(limits::REVOCATION_LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hangup = signal(SignalKind::hangup()).ok();
        loop {
            // Without the signal, the periodic check still detects changes.
            let told = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = look.tick() => {
                    // The error is logged already.
                    let _ = files.order(What::Look).await;
                }
                _ = told => {
                    if let Err(error) = files.order(What::Renew).await {
                        tracing::error!(error = chain(&error), "the certificate is not renewed; the one before stays in use");
                    }
                }
            }
        }
    }

    /// Validity period of our certificate; `None` without one.
    ///
    /// # Errors
    /// Fails if the certificate cannot be read. Such a certificate is never accepted into use.
    pub fn validity(&self) -> Result<Option<Validity>, IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(None),
            Self::Tls(identity) => identity.validity().map(Some),
        }
    }

    /// Makes a new key and a certificate request for it; `None` without TLS.
    ///
    /// # Errors
    /// Fails if no key can be made.
    pub fn begin_renewal(&self) -> Result<Option<Renewal>, IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(None),
            Self::Tls(identity) => identity.begin_renewal().map(Some),
        }
    }

    /// The list of revoked certificates that was read last; an empty list without certificates. Unless the identity is [kept
    /// current](Self::keep_current), the list is as old as the last connection.
    pub fn revocations(&self) -> Arc<RevocationList> {
        match self {
            Self::Insecure { .. } => Arc::default(),
            Self::Tls(identity) => identity.revocations(),
        }
    }

    /// Replaces the list of revoked certificates with `list` (in PEM), and closes the connections of the certificates on it.
    ///
    /// # Errors
    /// Refuses a list that no CA of ours has signed, and a list that lacks an entry of the current one. Fails if the file cannot be written.
    pub fn take_revocations(&self, list: Bytes) -> Result<(), IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(()),
            Self::Tls(identity) => identity.take_revocations(list),
        }
    }

    /// Name that this process has for its peers. On a Unix socket, the kernel identifies the process instead.
    pub fn caller(&self) -> &Caller {
        match self {
            Self::Insecure { name } => name,
            Self::Tls(identity) => identity.caller(),
        }
    }
}

/// Metadata key of the URI by which a caller on an insecure connection names itself.
pub(crate) const CALLER_HEADER: &str = "x-lattice-caller";

/// Accepted connection. It is in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) peer: Peer,
    pub(crate) close: PeerClose,
}

/// State of a connection's end: true once the peer has closed it. The kernel closes the connections of a killed process too.
#[derive(Clone, Debug, Default)]
pub struct PeerClose(Arc<AtomicBool>);

impl PeerClose {
    /// Returns true if the peer has closed the connection. Returns false while it is open, after a network loss, and for proxied
    /// connections.
    pub fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Peer of an accepted connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// Identified by the kernel.
    Local(Caller),
    /// Identified by the agent of its node. The error is the reason why it may not call from there.
    Proxied(Result<Caller, String>),
    /// Identified by its certificate. The error means that the certificate names no caller.
    Certified {
        caller: Result<Caller, CertificateNameError>,
        certificate: CertificateDer<'static>,
        /// Address of the peer.
        from: Option<IpAddr>,
    },
    /// Each call names its caller, without proof.
    Claimed,
}

/// Returns the caller of a request.
///
/// # Errors
/// Fails for a request that did not pass the layer that [`crate::listen::serve`] adds before all services.
pub fn caller_of<T>(request: &Request<T>) -> Result<&Caller, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the request's caller was not looked up"))
}

/// Returns a handle that reports later whether the caller of a request has closed its connection.
pub fn close_of<T>(request: &Request<T>) -> PeerClose {
    request.extensions().get::<Incoming>().map(|incoming| incoming.close.clone()).unwrap_or_default()
}

/// Returns the address of a request's caller if it has shown a certificate; otherwise `None`.
pub fn source_of<T>(request: &Request<T>) -> Option<IpAddr> {
    match &request.extensions().get::<Incoming>()?.peer {
        Peer::Certified { from, .. } => *from,
        Peer::Local(_) | Peer::Proxied(_) | Peer::Claimed => None,
    }
}

/// Returns the certificate of a request's caller, in DER; `None` if the connection needs none.
pub fn certificate_of<T>(request: &Request<T>) -> Option<&[u8]> {
    match &request.extensions().get::<Incoming>()?.peer {
        Peer::Certified { certificate, .. } => Some(certificate),
        Peer::Local(_) | Peer::Proxied(_) | Peer::Claimed => None,
    }
}
