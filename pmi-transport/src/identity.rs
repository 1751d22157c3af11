//! Identity of processes: the caller of a request, and the credentials by which a process proves who it is.
//!
//! A [`Caller`] has one written form, a URI. It stands in certificates as their subject alternative name, and, on loopback
//! connections without TLS, in the metadata of each call. Callers on a Unix socket are named by the kernel instead.
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
    /// No proof: plain TCP between loopback addresses, where every claim is believed. For trying out.
    Insecure {
        /// Name that this process claims.
        name: Caller,
    },
    /// Mutual TLS with certificates of one CA.
    Tls(TlsIdentity),
}

impl Security {
    /// Mutual TLS with the certificate and key in these files.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, and for a key that everybody can read.
    pub fn from_files(files: &TlsFiles) -> Result<Self, IdentityError> {
        TlsIdentity::from_files(files.clone()).map(Self::Tls)
    }

    /// The caller that the certificate of `files` names. Reads that file alone: a process that is about to fork must not have the key.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or names no caller.
    pub fn named_in(files: &TlsFiles) -> Result<Caller, IdentityError> {
        TlsIdentity::named_in(files)
    }

    /// Reads the files of our identity again at once; without that, they are when they have changed and the next connection is made.
    ///
    /// # Errors
    /// Fails if they cannot be used, or are somebody else's; those before stay in use.
    pub fn renew(&self) -> Result<(), IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(()),
            Self::Tls(identity) => identity.renew(),
        }
    }

    /// Renews at each SIGHUP, and logs failures; looks twice a second for files that have changed, so that connections of revoked
    /// certificates are closed. Nobody who makes a connection looks meanwhile, or waits for the files' file system. Never ends.
    pub async fn keep_current(self) {
        let Self::Tls(identity) = &self else { return std::future::pending().await };
        let files = match Looking::start(identity.clone()) {
            Ok(files) => files,
            Err(error) => {
                // Whoever makes a connection looks, as where nobody keeps it current.
                tracing::error!(%error, "no thread can be started to look for new certificates");
                return std::future::pending().await;
            }
        };
        let _kept = identity.keep();
        let mut look = interval(limits::REVOCATION_LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hangup = signal(SignalKind::hangup()).ok();
        loop {
            // Without the signal, changes are seen all the same.
            let told = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = look.tick() => {
                    // What is wrong was said.
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

    /// When our certificate is valid; `None` without one.
    ///
    /// # Errors
    /// Fails for a certificate that cannot be read, which was never taken.
    pub fn validity(&self) -> Result<Option<Validity>, IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(None),
            Self::Tls(identity) => identity.validity().map(Some),
        }
    }

    /// Makes a key to take the place of ours, and a request for its certificate; `None` without one.
    ///
    /// # Errors
    /// Fails if no key can be made.
    pub fn begin_renewal(&self) -> Result<Option<Renewal>, IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(None),
            Self::Tls(identity) => identity.begin_renewal().map(Some),
        }
    }

    /// The list of revoked certificates that was read last; an empty one without certificates. Where nobody [keeps it
    /// current](Self::keep_current), it is as old as the last connection.
    pub fn revocations(&self) -> Arc<RevocationList> {
        match self {
            Self::Insecure { .. } => Arc::default(),
            Self::Tls(identity) => identity.revocations(),
        }
    }

    /// Puts a list of revoked certificates (in PEM) in the place of the one in use, and closes connections of those that are on it.
    ///
    /// # Errors
    /// Refuses a list that no CA of ours has signed, and one on which something is missing that is on ours. Fails if it cannot be
    /// written.
    pub fn take_revocations(&self, list: Bytes) -> Result<(), IdentityError> {
        match self {
            Self::Insecure { .. } => Ok(()),
            Self::Tls(identity) => identity.take_revocations(list),
        }
    }

    /// Name of this process for its peers, except on a Unix socket: there the kernel tells.
    pub fn caller(&self) -> &Caller {
        match self {
            Self::Insecure { name } => name,
            Self::Tls(identity) => identity.caller(),
        }
    }
}

/// Metadata key under which a caller on an insecure connection names itself, as a URI.
pub(crate) const CALLER_HEADER: &str = "x-lattice-caller";

/// Accepted connection; in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) peer: Peer,
    pub(crate) close: PeerClose,
}

/// Knowledge of how a connection ended: closed by the other side, as the kernel does for a process that was killed, or lost.
#[derive(Clone, Debug, Default)]
pub struct PeerClose(Arc<AtomicBool>);

impl PeerClose {
    /// True if the other side has closed the connection. False while it stands, after the network was lost, and for connections that another
    /// daemon passes on.
    pub fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Other end of an accepted connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// Identified by the kernel.
    Local(Caller),
    /// Identified by the agent of its node; an error says why it may not call from there.
    Proxied(Result<Caller, String>),
    /// Identified by the certificate that it has shown; an error if that names nobody.
    Certified {
        caller: Result<Caller, CertificateNameError>,
        certificate: CertificateDer<'static>,
        /// Address that it connected from.
        from: Option<IpAddr>,
    },
    /// Named by each call itself, and believed.
    Claimed,
}

/// Returns the caller of a request.
///
/// # Errors
/// Fails for a request that did not pass the layer that [`crate::listen::serve`] puts before all services.
pub fn caller_of<T>(request: &Request<T>) -> Result<&Caller, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the request's caller was not looked up"))
}

/// Returns the means to see later whether the caller of a request has closed its connection.
pub fn close_of<T>(request: &Request<T>) -> PeerClose {
    request.extensions().get::<Incoming>().map(|incoming| incoming.close.clone()).unwrap_or_default()
}

/// Returns the address from which the caller of a request, who has shown a certificate, has connected; `None` if it needed none.
pub fn source_of<T>(request: &Request<T>) -> Option<IpAddr> {
    match &request.extensions().get::<Incoming>()?.peer {
        Peer::Certified { from, .. } => *from,
        Peer::Local(_) | Peer::Proxied(_) | Peer::Claimed => None,
    }
}

/// Returns the certificate that the caller of a request has shown, in DER; `None` if it needed none.
pub fn certificate_of<T>(request: &Request<T>) -> Option<&[u8]> {
    match &request.extensions().get::<Incoming>()?.peer {
        Peer::Certified { certificate, .. } => Some(certificate),
        Peer::Local(_) | Peer::Proxied(_) | Peer::Claimed => None,
    }
}
