//! Renewal of valid certificates by their holders: the new key is made where it is used, and is never sent.
//!
//! A lock on the authority's directory separates renewals and revocations, so that no renewal escapes a revocation.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair};
use rustls::pki_types::CertificateSigningRequestDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::{Authority, PkiError, Validity};
use crate::caller::Caller;
use crate::renewed::Renewed;
use crate::revocation::{REVOKED_FILE, read_list};

/// A new key, and the request for its certificate.
pub struct CertificateRequest {
    /// The request, in DER (PKCS #10). It contains no name: the caller is identified by other means.
    pub request: Vec<u8>,
    /// The private key, in PEM.
    pub key: String,
}

impl CertificateRequest {
    /// Makes a key, and a request for it.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn new() -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let request = CertificateParams::default().serialize_request(&key)?;
        Ok(Self { request: request.der().to_vec(), key: key.serialize_pem() })
    }
}

impl Authority {
    /// Issues a certificate in PEM to `subject`, for the key of `request`. `subject` has presented the certificate `present` (in DER). The
    /// authority is in `directory`.
    ///
    /// # Errors
    /// Fails if the request is not signed by its own key, or if the renewal cannot be recorded. Fails if `present` is revoked or has expired:
    /// the origin of an expired certificate may be forgotten.
    pub fn renew(
        &self,
        directory: &Path,
        subject: &Caller,
        present: &[u8],
        request: &[u8],
        validity: Validity,
    ) -> Result<String, PkiError> {
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))?;
        let (_, shown) = X509Certificate::from_der(present).map_err(|_| PkiError::NoCertificate)?;
        let before = shown.raw_serial().to_vec();
        let now = seconds(SystemTime::now());
        // An open connection outlives its certificate.
        if shown.validity().not_after.timestamp() <= now as i64 {
            return Err(PkiError::Expired);
        }
        let mut renewed = Renewed::lock(directory)?;
        let list = directory.join(REVOKED_FILE);
        if list.exists() && read_list(&list)?.iter().any(|(revoked, _)| *revoked == before) {
            return Err(PkiError::Revoked);
        }
        let certificate = Self::parameters_of(subject, &[], validity)?.signed_by(&request.public_key, &self.issuer)?;
        let number = serial(certificate.der()).ok_or(PkiError::NoCertificate)?;
        renewed.add(&before, &number, seconds(validity.until), now)?;
        Ok(certificate.pem())
    }
}

/// Serial number of a certificate in DER.
fn serial(certificate: &[u8]) -> Option<Vec<u8>> {
    X509Certificate::from_der(certificate).ok().map(|(_, certificate)| certificate.raw_serial().to_vec())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use rcgen::PublicKeyData;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::{CERTIFICATE_FILE, directory_name};

    struct World {
        directory: tempfile::TempDir,
        authority: Authority,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            Self { authority: Authority::create(directory.path()).unwrap(), directory }
        }

        /// Issues a certificate to a node, as an administrator does; in DER.
        fn issue(&self, node: &str) -> Vec<u8> {
            let node = Caller::Agent(node.to_owned());
            let directory = self.directory.path().join(directory_name(&node));
            let issued = self.authority.issue(&node, &[], Validity::days(1).unwrap()).unwrap();
            self.authority.write(&directory, &issued).unwrap();
            der(&issued.certificate)
        }

        fn renew(&self, node: &str, present: &[u8]) -> Result<Vec<u8>, PkiError> {
            let request = CertificateRequest::new().unwrap().request;
            let (root, node) = (self.directory.path(), Caller::Agent(node.to_owned()));
            let renewed = self.authority.renew(root, &node, present, &request, Validity::hours(24).unwrap());
            renewed.map(|pem| der(&pem))
        }

        fn revoke(&self, node: &str) -> usize {
            let root = self.directory.path();
            let certificate = root.join(directory_name(&Caller::Agent(node.to_owned()))).join(CERTIFICATE_FILE);
            self.authority.revoke(root, &[certificate]).unwrap()
        }
    }

    fn der(pem: &str) -> Vec<u8> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
    }

    #[test]
    fn a_renewed_certificate_is_for_the_same_name_and_the_new_key() {
        let world = World::new();
        let first = world.issue("node3");
        let request = CertificateRequest::new().unwrap();
        let (root, node) = (world.directory.path(), Caller::Agent("node3".to_owned()));
        let validity = Validity::hours(24).unwrap();
        let pem = world.authority.renew(root, &node, &first, &request.request, validity).unwrap();
        let renewed = der(&pem);
        let (_, certificate) = X509Certificate::from_der(&renewed).unwrap();
        let key = KeyPair::from_pem(&request.key).unwrap();
        assert_eq!(&*certificate.public_key().subject_public_key.data, key.der_bytes());
        assert_eq!(certificate.validity().not_after.timestamp() as u64, seconds(validity.until));
        let (_, first) = X509Certificate::from_der(&first).unwrap();
        let names = |certificate: &X509Certificate<'_>| {
            format!("{:?}", certificate.subject_alternative_name().unwrap().unwrap().value)
        };
        assert_eq!(names(&certificate), names(&first));
    }

    /// A thief may have renewed it, and again, before the theft was discovered.
    #[test]
    fn what_was_had_by_a_revoked_certificate_is_revoked_with_it_and_renewed_no_more() {
        let world = World::new();
        let [first, other] = ["node3", "node4"].map(|node| world.issue(node));
        let second = world.renew("node3", &first).unwrap();
        let third = world.renew("node3", &second).unwrap();
        let fork = world.renew("node3", &first).unwrap();
        world.renew("node4", &other).unwrap();
        assert_eq!(world.revoke("node3"), 4);
        for certificate in [&first, &second, &third, &fork] {
            assert!(matches!(world.renew("node3", certificate), Err(PkiError::Revoked)));
        }
        world.renew("node4", &other).unwrap();
        // A new certificate for the same name starts a family of its own.
        fs::remove_dir_all(world.directory.path().join("agent-node3")).unwrap();
        let anew = world.issue("node3");
        world.renew("node3", &anew).unwrap();
    }

    /// Its family may be forgotten. A renewal would then escape the revocation of the family.
    #[test]
    fn a_certificate_that_has_expired_is_renewed_no_more() {
        let world = World::new();
        let node = Caller::Agent("node3".to_owned());
        let ended_at = |seconds| {
            let until = SystemTime::now() + Duration::from_secs(60) - Duration::from_secs(seconds);
            let validity = Validity { from: until - Duration::from_secs(3600), until };
            der(&world.authority.issue(&node, &[], validity).unwrap().certificate)
        };
        world.renew("node3", &ended_at(0)).unwrap();
        assert!(matches!(world.renew("node3", &ended_at(61)), Err(PkiError::Expired)));
    }

    #[test]
    fn requests_that_are_not_signed_by_their_key_are_refused() {
        let world = World::new();
        let first = world.issue("node3");
        let mut request = CertificateRequest::new().unwrap().request;
        *request.last_mut().unwrap() ^= 1;
        let (root, node) = (world.directory.path(), Caller::Agent("node3".to_owned()));
        for request in [&request[..], b"nonsense", b""] {
            let validity = Validity::hours(1).unwrap();
            assert!(world.authority.renew(root, &node, &first, request, validity).is_err());
        }
        assert!(!root.join("renewed").exists());
    }
}
