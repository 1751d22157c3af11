//! Connections with a certificate of the other end. They are closed when it is revoked. A list that prevented only new
//! connections would leave a thief the existing ones.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Certificate as lists of revoked certificates identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CertificateId {
    /// Name of its CA, in DER.
    issuer: Vec<u8>,
    /// Its number, without leading zeros.
    serial: Vec<u8>,
}

/// Revoked certificates.
pub(super) type Revoked = HashSet<CertificateId>;

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Proven {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    connections: BTreeMap<u64, (CertificateId, CancellationToken)>,
}

/// Registration of a connection for closing on revocation; dropping it ends the registration.
pub(crate) struct Watched {
    proven: Arc<Proven>,
    number: u64,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl CertificateId {
    /// Returns the id of a certificate; `None` if it cannot be parsed.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        Some(Self::new(certificate.issuer().as_raw(), certificate.raw_serial()))
    }

    pub(super) fn new(issuer: &[u8], serial: &[u8]) -> Self {
        let zeros = serial.iter().take_while(|&&byte| byte == 0).count();
        Self { issuer: issuer.to_owned(), serial: serial[zeros..].to_owned() }
    }
}

impl Proven {
    /// Registers a connection with the certificate that its other end has shown.
    pub(super) fn enter(self: &Arc<Self>, certificate: CertificateId) -> Watched {
        let close = CancellationToken::new();
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        table.connections.insert(number, (certificate, close.clone()));
        Watched { proven: Arc::clone(self), number, revoked: Box::pin(close.cancelled_owned()) }
    }

    /// Closes the connections of revoked certificates.
    pub(super) fn close(&self, revoked: &Revoked) {
        if revoked.is_empty() {
            return;
        }
        let table = self.table.lock();
        let theirs = table.connections.values().filter(|(certificate, _)| revoked.contains(certificate));
        theirs.for_each(|(_, close)| close.cancel());
    }
}

impl Watched {
    /// Ready when the connection must be closed.
    pub(crate) fn poll_revoked(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.revoked.as_mut().poll(context)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.proven.table.lock().connections.remove(&self.number);
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn id(serial: &[u8]) -> CertificateId {
        CertificateId::new(b"a CA", serial)
    }

    #[tokio::test]
    async fn connections_of_revoked_certificates_are_closed_and_no_others() {
        let proven = Arc::new(Proven::default());
        let mut theirs = [proven.enter(id(&[7])), proven.enter(id(&[0, 7]))];
        let mut others = [proven.enter(id(&[8])), proven.enter(CertificateId::new(b"another CA", &[7]))];
        proven.close(&Revoked::from([id(&[7])]));
        for connection in &mut theirs {
            poll_fn(|context| connection.poll_revoked(context)).await;
        }
        for connection in &mut others {
            let open = poll_fn(|context| Poll::Ready(connection.poll_revoked(context).is_pending())).await;
            assert!(open);
        }
        drop((theirs, others));
        assert!(proven.table.lock().connections.is_empty());
    }
}
