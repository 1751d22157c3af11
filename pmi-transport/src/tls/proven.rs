//! Connections whose other end has shown a certificate. They are closed when it is revoked: a list that only kept new ones from being
//! made would leave a thief what there is.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Certificate as lists of revoked ones name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CertificateId {
    /// Name of its CA, in DER.
    issuer: Vec<u8>,
    /// Its number, without leading zeros.
    serial: Vec<u8>,
}

/// Certificates that are revoked.
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

/// A connection among those that are closed when a certificate is revoked; it leaves them when it is dropped.
pub(crate) struct Watched {
    proven: Arc<Proven>,
    number: u64,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl CertificateId {
    /// Id of a certificate; `None` if it is none.
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
    /// Enters a connection whose other end has shown this certificate.
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
    /// Ready when the connection has to be closed.
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
