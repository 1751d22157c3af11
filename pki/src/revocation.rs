//! Certificates that an authority has revoked: a list of their serial numbers (RFC 5280, section 5), in a file next to the CA's certificate.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use time::OffsetDateTime;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::authority::{Authority, PkiError, Validity, write_over};
use crate::renewed::Renewed;

/// The list of revoked certificates, in the CA's directory and next to the copies of the CA's certificate.
pub const REVOKED_FILE: &str = "crl.pem";

/// Validity of a list in days. No verifier refuses it afterwards.
const LIST_DAYS: u32 = 3650;

/// Serial number of a revoked certificate, and the time of its revocation.
type Revoked = (Vec<u8>, OffsetDateTime);

impl Authority {
    /// Adds the certificates in these files to the list in `directory`, which is created if it is missing. Adds all renewals of their families
    /// too. Returns the number of certificates on the list.
    ///
    /// # Errors
    /// Fails if a file contains no certificate of this CA, or if the list cannot be read or written. The list is then unchanged.
    pub fn revoke(&self, directory: &Path, certificates: &[PathBuf]) -> Result<usize, PkiError> {
        let numbers = certificates.iter().map(|path| self.number_of(path)).collect::<Result<Vec<_>, _>>()?;
        // From here on no process can renew them before they are on the list.
        let renewed = Renewed::lock(directory)?;
        let path = directory.join(REVOKED_FILE);
        let mut revoked = if path.exists() { read_list(&path)? } else { Vec::new() };
        let now = OffsetDateTime::from(SystemTime::now());
        let family = renewed.families_of(&numbers);
        for number in numbers.into_iter().chain(family) {
            if !revoked.iter().any(|(known, _)| *known == number) {
                revoked.push((number, now));
            }
        }
        write_over(&path, &self.list(&revoked, now)?)?;
        Ok(revoked.len())
    }

    /// A list of these certificates, in PEM.
    fn list(&self, revoked: &[Revoked], now: OffsetDateTime) -> Result<String, PkiError> {
        let certificate = |(number, at): &Revoked| RevokedCertParams {
            serial_number: SerialNumber::from_slice(number),
            revocation_time: *at,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now,
            next_update: Validity::days(LIST_DAYS)?.until.into(),
            crl_number: SerialNumber::from(now.unix_timestamp().unsigned_abs()),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(certificate).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }

    /// The serial number of the certificate in a file.
    fn number_of(&self, path: &Path) -> Result<Vec<u8>, PkiError> {
        let foreign = || PkiError::Foreign { path: path.to_owned() };
        let der = |text: &[u8]| CertificateDer::from_pem_slice(text).map_err(|source| unreadable(path, source));
        let (own, certificate) = (der(self.certificate.as_bytes())?, der(&read(path)?)?);
        let (_, own) = X509Certificate::from_der(&own).map_err(|_| foreign())?;
        let (_, certificate) = X509Certificate::from_der(&certificate).map_err(|_| foreign())?;
        let is_ours = certificate.issuer() == own.subject() && certificate.subject() != own.subject();
        if is_ours { Ok(certificate.raw_serial().to_vec()) } else { Err(foreign()) }
    }
}

pub(crate) fn read_list(path: &Path) -> Result<Vec<Revoked>, PkiError> {
    let list = CertificateRevocationListDer::from_pem_slice(&read(path)?).map_err(|source| unreadable(path, source))?;
    let broken = |_| unreadable(path, pem::Error::NoItemsFound);
    let (_, list) = CertificateRevocationList::from_der(&list).map_err(broken)?;
    let entries = list.iter_revoked_certificates();
    Ok(entries.map(|entry| (entry.raw_serial().to_vec(), entry.revocation_date.to_datetime())).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    fs::read(path).map_err(|source| PkiError::Io { action: "read", path: path.to_owned(), source })
}

fn unreadable(path: &Path, source: pem::Error) -> PkiError {
    PkiError::Unreadable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CERTIFICATE_FILE, Caller, directory_name};

    fn issued(authority: &Authority, root: &Path, node: &str) -> PathBuf {
        let agent = Caller::Agent(node.to_owned());
        let directory = root.join(directory_name(&agent));
        authority.write(&directory, &authority.issue(&agent, &[], Validity::days(1).unwrap()).unwrap()).unwrap();
        directory.join(CERTIFICATE_FILE)
    }

    #[test]
    fn revoked_certificates_add_up_and_each_is_listed_once() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let authority = Authority::create(root).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|node| issued(&authority, root, node));
        assert_eq!(authority.revoke(root, &[a.clone(), b.clone(), a.clone()]).unwrap(), 2);
        assert_eq!(Authority::open(root).unwrap().revoke(root, &[b, c.clone()]).unwrap(), 3);
        let listed: Vec<_> =
            read_list(&root.join(REVOKED_FILE)).unwrap().into_iter().map(|(number, _)| number).collect();
        assert_eq!(listed.len(), 3);
        assert!(
            listed.contains(&authority.number_of(&a).unwrap()) && listed.contains(&authority.number_of(&c).unwrap())
        );
    }

    #[test]
    fn what_is_no_certificate_of_this_authority_is_not_revoked() {
        let [ours, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let authority = Authority::create(ours.path()).unwrap();
        let theirs = issued(&Authority::create(other.path()).unwrap(), other.path(), "a");
        for file in [theirs, ours.path().join("ca.pem"), ours.path().join("ca.key.pem"), ours.path().join("missing")] {
            assert!(authority.revoke(ours.path(), &[file]).is_err());
        }
        assert!(!ours.path().join(REVOKED_FILE).exists());
    }
}
