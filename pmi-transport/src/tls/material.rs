//! Certificates and keys read from an identity's files, ready for use in connections.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use lattice_pki::Caller;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::clients::{Clients, DaemonsOnly};
use super::files::{read, read_certificates};
use super::revocation::RevocationList;
use super::{CertificateNameError, IdentityError, TlsFiles, caller_in};

const ALPN_H2: &[u8] = b"h2";
/// Remaining validity below which a certificate is reported when it is read. So is one with less than a third of its lifetime left.
const EXPIRY_WARNING: time::Duration = time::Duration::days(7);

/// Contents of the files.
pub(crate) struct Material {
    /// Caller that the certificate names.
    pub(super) caller: Caller,
    /// Our certificates, and the key of the first.
    pub(crate) key: Arc<CertifiedKey>,
    /// Certificates that the CAs have revoked.
    pub(crate) revocations: Arc<RevocationList>,
    /// Trusted CAs.
    pub(crate) roots: Arc<RootCertStore>,
    /// Settings of outgoing connections.
    pub(crate) client: Arc<ClientConfig>,
    /// Settings of incoming connections: from all clients, and from daemons and administrators only.
    server_of_all: Arc<ServerConfig>,
    server_of_daemons: Arc<ServerConfig>,
}

impl Material {
    /// Reads the files.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, or if the key is readable by all users.
    pub(super) fn read(files: &TlsFiles) -> Result<Self, IdentityError> {
        let TlsFiles { ca, cert: certificate, key } = files;
        let provider = Arc::new(ring::default_provider());
        let authorities = read_certificates(ca)?;
        let revocations = Arc::new(RevocationList::read(&files.revoked(), &authorities)?);
        let roots = roots_of(ca, authorities)?;
        let (caller, chain) = read_named(certificate)?;
        chain.iter().take(1).for_each(|own| warn_of_expiry(own, certificate));
        let unfit = |source| IdentityError::Key { certificate: certificate.clone(), key: key.clone(), source };
        let secret = read_key(key)?;
        let pair = certified(chain, &secret).map_err(unfit)?;
        let (roots, pair) = (Arc::new(roots), Arc::new(pair));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .with_crls(revocations.lists.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build();
        let verifier = verifier.map_err(|source| IdentityError::Verifier { path: ca.clone(), source })?;
        let daemons = DaemonsOnly { certificates: Arc::clone(&verifier) };
        let server_of_all = server_config(&provider, verifier, &pair).map_err(unfit)?;
        let server_of_daemons = server_config(&provider, Arc::new(daemons), &pair).map_err(unfit)?;
        let others = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .with_crls(revocations.lists.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build();
        let others = others.map_err(|source| IdentityError::Verifier { path: ca.clone(), source })?;
        let client = client_config(provider, others, &pair).map_err(unfit)?;
        Ok(Self { caller, key: pair, revocations, roots, client: Arc::new(client), server_of_all, server_of_daemons })
    }

    /// Settings of incoming connections from `clients`.
    pub(crate) fn server(&self, clients: Clients) -> Arc<ServerConfig> {
        Arc::clone(match clients {
            Clients::All => &self.server_of_all,
            Clients::Daemons => &self.server_of_daemons,
        })
    }
}

/// Reads the certificates of the trusted CAs.
///
/// # Errors
/// Fails if the file cannot be read, or has none.
pub(crate) fn read_roots(ca: &Path) -> Result<RootCertStore, IdentityError> {
    roots_of(ca, read_certificates(ca)?)
}

fn roots_of(ca: &Path, authorities: Vec<CertificateDer<'static>>) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for root in authorities {
        roots.add(root).map_err(|source| IdentityError::Authority { path: ca.to_owned(), source })?;
    }
    Ok(roots)
}

fn client_config(
    provider: Arc<CryptoProvider>,
    others: Arc<WebPkiServerVerifier>,
    pair: &Arc<CertifiedKey>,
) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(others)
        .with_client_cert_resolver(resolver(pair));
    client.alpn_protocols = vec![ALPN_H2.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(client)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    pair: &Arc<CertifiedKey>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(resolver(pair));
    server.alpn_protocols = vec![ALPN_H2.to_vec()];
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(server))
}

fn resolver(pair: &Arc<CertifiedKey>) -> Arc<SingleCertAndKey> {
    Arc::new(SingleCertAndKey::from(Arc::clone(pair)))
}

/// Reads a chain of certificates, and the caller that its first one names.
pub(super) fn read_named(path: &Path) -> Result<(Caller, Vec<CertificateDer<'static>>), IdentityError> {
    let nameless = |source| IdentityError::Nameless { path: path.to_owned(), source };
    let chain = read_certificates(path)?;
    let own = chain.first().ok_or_else(|| nameless(CertificateNameError::Unreadable))?;
    let caller = caller_in(own).map_err(nameless)?;
    Ok((caller, chain))
}

/// Reads a private key. Its text and its DER are wiped on drop; memory keeps only the values that signing needs.
fn read_key(path: &Path) -> Result<Zeroizing<PrivateKeyDer<'static>>, IdentityError> {
    let bytes = Zeroizing::new(read(path)?);
    let metadata = fs::metadata(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(IdentityError::OpenKey { path: path.to_owned() });
    }
    let malformed = |source| IdentityError::Pem { path: path.to_owned(), wanted: "private key", source };
    PrivateKeyDer::from_pem_slice(&bytes).map(Zeroizing::new).map_err(malformed)
}

/// Like [`CertifiedKey::from_der`], which drops the key without wiping it.
fn certified(chain: Vec<CertificateDer<'static>>, key: &PrivateKeyDer<'_>) -> Result<CertifiedKey, rustls::Error> {
    let pair = CertifiedKey::new(chain, any_supported_type(key)?);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(error) => Err(error),
    }
}

fn warn_of_expiry(certificate: &CertificateDer<'_>, path: &Path) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return };
    let validity = certificate.validity();
    let life = validity.not_after.to_datetime() - validity.not_before.to_datetime();
    match validity.time_to_expiration() {
        Some(left) if left > EXPIRY_WARNING.min(life / 3) => {}
        Some(_) => tracing::warn!(path = %path.display(), until = %validity.not_after, "our certificate expires soon"),
        None => tracing::warn!(path = %path.display(), until = %validity.not_after, "our certificate is not valid now"),
    }
}
