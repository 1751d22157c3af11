//! Certificates and keys of a process, and the TLS that is spoken with them: version 1.3, both ends with a certificate of the
//! cluster's CA, each with exactly one URI that names a [`Caller`].
//!
//! Sessions are never resumed: every connection proves anew who is at its ends, with certificates that are valid then.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::{Caller, CallerError, SCHEME};

const ALPN_H2: &[u8] = b"h2";
/// Certificates that expire sooner than this are warned of when they are read.
const EXPIRY_WARNING: time::Duration = time::Duration::days(7);

/// Why certificate files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others can read the key.
    #[error("the key {} can be read by everybody; run chmod 600", path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {wanted} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The certificate does not say whose it is.
    #[error("cannot use the certificate {}", path.display())]
    Nameless {
        /// The file.
        path: PathBuf,
        /// What it says instead.
        source: CertificateNameError,
    },
    /// The key is not that of the certificate, or of an unknown kind.
    #[error("cannot use the key {} with the certificate {}", key.display(), certificate.display())]
    Key {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
    /// The CA's certificate cannot be trusted in.
    #[error("cannot use the CA's certificate {}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// Clients cannot be checked against the CA's certificate.
    #[error("cannot check others by the CA's certificate {}", path.display())]
    Verifier {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: VerifierBuilderError,
    },
}

/// A certificate that does not name one caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateNameError {
    /// It is no X.509 certificate.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It has none of our URIs, or several.
    #[error("the certificate has {count} names that begin with {SCHEME}; it must have one")]
    Count {
        /// How many it has.
        count: usize,
    },
    /// Its URI says nothing to us.
    #[error("the certificate is of no use here: {0}")]
    Unknown(#[from] CallerError),
}

/// Whom a certificate names.
///
/// # Errors
/// Fails unless exactly one of its subject alternative names is a URI of ours.
pub(crate) fn caller_in(certificate: &CertificateDer<'_>) -> Result<Caller, CertificateNameError> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| CertificateNameError::Unreadable)?;
    let names = certificate.subject_alternative_name().map_err(|_| CertificateNameError::Unreadable)?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let ours = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
        _ => None,
    });
    match ours.collect::<Vec<_>>().as_slice() {
        [uri] => Ok(uri.parse()?),
        several => Err(CertificateNameError::Count { count: several.len() }),
    }
}

/// A process's certificate and key, and the CA that it trusts in. Clones share them.
#[derive(Clone)]
pub struct TlsIdentity {
    inner: Arc<Inner>,
}

struct Inner {
    caller: Caller,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsIdentity {
    /// Reads the CA's certificate, our certificate (with the chain to the CA, if there is one in between), and its key.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, and for a key that everybody can read.
    pub fn from_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in read_certificates(ca)? {
            roots.add(root).map_err(|source| IdentityError::Authority { path: ca.to_owned(), source })?;
        }
        let chain = read_certificates(certificate)?;
        let nameless = |source| IdentityError::Nameless { path: certificate.to_owned(), source };
        let own = chain.first().ok_or_else(|| nameless(CertificateNameError::Unreadable))?;
        let caller = caller_in(own).map_err(nameless)?;
        warn_of_expiry(own, certificate);
        let unfit = |source| IdentityError::Key { certificate: certificate.to_owned(), key: key.to_owned(), source };
        let pair = CertifiedKey::from_der(chain, read_key(key)?, &provider).map_err(unfit)?;
        let (roots, pair) = (Arc::new(roots), Arc::new(pair));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|source| IdentityError::Verifier { path: ca.to_owned(), source })?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(unfit)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(resolver(&pair));
        let client = client_config(provider, &roots, &pair).map_err(unfit)?;
        let server = Arc::new(without_resumption(server));
        Ok(Self { inner: Arc::new(Inner { caller, key: pair, roots, client: Arc::new(client), server }) })
    }

    /// Whom our certificate names.
    pub fn caller(&self) -> &Caller {
        &self.inner.caller
    }

    pub(crate) fn key(&self) -> &CertifiedKey {
        &self.inner.key
    }

    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.inner.roots
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.inner.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.inner.server)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsIdentity").field(&self.inner.caller).finish()
    }
}

fn client_config(
    provider: Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    pair: &Arc<CertifiedKey>,
) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(Arc::clone(roots))
        .with_client_cert_resolver(resolver(pair));
    client.alpn_protocols = vec![ALPN_H2.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(client)
}

fn without_resumption(mut server: ServerConfig) -> ServerConfig {
    server.alpn_protocols = vec![ALPN_H2.to_vec()];
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server
}

fn resolver(pair: &Arc<CertifiedKey>) -> Arc<SingleCertAndKey> {
    Arc::new(SingleCertAndKey::from(Arc::clone(pair)))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let malformed = |source| IdentityError::Pem { path: path.to_owned(), wanted: "certificate", source };
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(malformed)?;
    if certificates.is_empty() { Err(malformed(pem::Error::NoItemsFound)) } else { Ok(certificates) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let bytes = read(path)?;
    let metadata = fs::metadata(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(IdentityError::OpenKey { path: path.to_owned() });
    }
    let malformed = |source| IdentityError::Pem { path: path.to_owned(), wanted: "private key", source };
    PrivateKeyDer::from_pem_slice(&bytes).map_err(malformed)
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
}

fn warn_of_expiry(certificate: &CertificateDer<'_>, path: &Path) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return };
    let validity = certificate.validity();
    match validity.time_to_expiration() {
        Some(left) if left > EXPIRY_WARNING => {}
        Some(_) => tracing::warn!(path = %path.display(), until = %validity.not_after, "our certificate expires soon"),
        None => tracing::warn!(path = %path.display(), until = %validity.not_after, "our certificate is not valid now"),
    }
}

/// What a failure of TLS means to whoever has to mend it; "it" is the peer.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => explain(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        None => error.to_string(),
    }
}

fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let words = match error {
        E::InvalidCertificate(error) => return explain_certificate(error),
        E::NoCertificatesPresented => "it shows no certificate",
        E::InvalidMessage(_) => "it does not speak TLS; perhaps it runs without certificates",
        E::PeerIncompatible(_) => "it cannot speak TLS 1.3",
        E::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => "it wants a certificate, and we have none",
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                "our certificate is not from the CA that it trusts in"
            }
            AlertDescription::CertificateExpired => "our certificate has expired, or is not valid yet",
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                "it does not take our certificate"
            }
            AlertDescription::ProtocolVersion => "it cannot speak TLS 1.3",
            _ => return error.to_string(),
        },
        _ => return error.to_string(),
    };
    words.to_owned()
}

fn explain_certificate(error: &CertificateError) -> String {
    use CertificateError as E;
    match error {
        // Two CAs never have one name (see `pki`), but others' may: then the signature tells.
        E::UnknownIssuer | E::BadSignature => "its certificate is not from the CA that we trust in".to_owned(),
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet; are the clocks right?".to_owned()
        }
        E::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("its certificate is for {}, not for {}", presented.join(", "), expected.to_str())
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its certificate is not meant for this end of a connection".to_owned()
        }
        _ => format!("its certificate cannot be used: {error}"),
    }
}

/// `node4` out of `DnsName("node4")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, inside)| inside.strip_suffix(')'));
    inside.map_or(name, |inside| inside.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;
    use crate::pki::{Authority, Validity};

    fn certificate(uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["node3".to_owned()]).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_names_exactly_one_caller() {
        let spiffe = "spiffe://example.org/node3";
        assert_eq!(caller_in(&certificate(&[spiffe, "lattice:///api"])), Ok(Caller::Api));
        let refused = |uris: &[&str]| caller_in(&certificate(uris)).unwrap_err().to_string();
        assert_eq!(refused(&[spiffe]), "the certificate has 0 names that begin with lattice:///; it must have one");
        let two = refused(&["lattice:///api", "lattice:///agent/node3"]);
        assert_eq!(two, "the certificate has 2 names that begin with lattice:///; it must have one");
        let unknown = refused(&["lattice:///root"]);
        assert!(
            unknown.starts_with("the certificate is of no use here: \"lattice:///root\" names nobody"),
            "{unknown}"
        );
        assert_eq!(caller_in(&CertificateDer::from(vec![0x30, 0x03])), Err(CertificateNameError::Unreadable));
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let authority = Authority::create(root).unwrap();
        for name in ["a", "b"] {
            let issued = authority.issue(&Caller::Agent(name.to_owned()), &[], Validity::days(1).unwrap()).unwrap();
            authority.write(&root.join(name), &issued).unwrap();
        }
        let load = |ca: &str, certificate: &str, key: &str| {
            let identity = TlsIdentity::from_files(&root.join(ca), &root.join(certificate), &root.join(key));
            identity.map(|identity| identity.caller().clone()).map_err(|error| error.to_string())
        };
        let check = |ca: &str, certificate: &str, key: &str, expected: &str| {
            let error = load(ca, certificate, key).unwrap_err().replace(&format!("{}/", root.display()), "");
            assert_eq!(error, expected);
        };
        assert_eq!(load("ca.pem", "a/cert.pem", "a/key.pem"), Ok(Caller::Agent("a".to_owned())));
        check("ca.pem", "a/cert.pem", "b/key.pem", "cannot use the key b/key.pem with the certificate a/cert.pem");
        check("ca.pem", "a/cert.pem", "a/cert.pem", "the key a/cert.pem can be read by everybody; run chmod 600");
        check("ca.pem", "a/key.pem", "a/key.pem", "a/key.pem holds no certificate in PEM");
        check("no.pem", "a/cert.pem", "a/key.pem", "cannot read no.pem");
        check("ca.pem", "ca.pem", "ca.key.pem", "cannot use the certificate ca.pem");
        fs::set_permissions(root.join("a/cert.pem"), Permissions::from_mode(0o600)).unwrap();
        check("ca.pem", "b/cert.pem", "a/cert.pem", "a/cert.pem holds no private key in PEM");
    }
}
