//! Replacement of the certificate and key in use by new ones. Both files are replaced as one, and existing connections continue.
//!
//! ```text
//! cert.pem.next, key.pem.next  ──checked──>  cert.pem  ──>  key.pem       a rename each
//! ```
//! If a process ends between the two renames, the key of the new certificate is still `key.pem.next`. The next start completes the
//! renaming.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lattice_pki::CertificateRequest;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::files::{next, read_certificates, rename, write};
use super::{CertificateNameError, IdentityError, Material, TlsFiles, TlsIdentity};

/// A new key that is to replace the current one, and the request for its certificate.
pub struct Renewal {
    identity: TlsIdentity,
    request: Vec<u8>,
    key: Zeroizing<String>,
}

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// Validity periods of the certificates in a PEM file, in the order of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has something else than certificates.
    pub fn in_file(path: &Path) -> Result<Vec<Self>, IdentityError> {
        let certificates = read_certificates(path)?;
        let unreadable = || IdentityError::Nameless { path: path.to_owned(), source: CertificateNameError::Unreadable };
        certificates.iter().map(|certificate| Self::of(certificate).ok_or_else(unreadable)).collect()
    }

    /// Validity period of a certificate in DER; `None` if it cannot be read.
    fn of(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let moment = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or_default());
        let (from, until) = (certificate.validity().not_before, certificate.validity().not_after);
        Some(Self { from: moment(from.timestamp()), until: moment(until.timestamp()) })
    }

    /// Time from `now` until the certificate should be replaced by one that is valid for `length`: half of its lifetime, or at once
    /// if its lifetime is more than twice `length`.
    pub fn until_renewal(self, length: Duration, now: SystemTime) -> Duration {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        if life > length * 2 {
            return Duration::ZERO;
        }
        (self.from + life / 2).duration_since(now).unwrap_or_default()
    }
}

impl TlsIdentity {
    /// Validity period of the current certificate.
    ///
    /// # Errors
    /// Fails if the certificate cannot be read. Such a certificate is never accepted into use.
    pub(crate) fn validity(&self) -> Result<Validity, IdentityError> {
        let material = self.material();
        material.key.cert.first().and_then(|own| Validity::of(own)).ok_or_else(|| self.strange())
    }

    /// Makes a key, and a certificate request for it.
    pub(crate) fn begin_renewal(&self) -> Result<Renewal, IdentityError> {
        let CertificateRequest { request, key } = CertificateRequest::new().map_err(IdentityError::Request)?;
        Ok(Renewal { identity: self.clone(), request, key: Zeroizing::new(key) })
    }

    fn strange(&self) -> IdentityError {
        IdentityError::Strange { path: self.inner.files.cert.clone() }
    }

    /// Issuer of the certificate in `material`, in DER.
    fn issuer_of(&self, material: &Material) -> Result<Vec<u8>, IdentityError> {
        let read = material.key.cert.first().and_then(|own| X509Certificate::from_der(own).ok());
        read.map(|(_, own)| own.issuer().as_raw().to_vec()).ok_or_else(|| self.strange())
    }
}

impl Renewal {
    /// The request, in DER (PKCS #10), signed by the new key.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Replaces the current certificate and key with `certificate` (in PEM) and the new key. New connections use them.
    ///
    /// # Errors
    /// Fails if the certificate names another caller, is not for the new key, or is of another CA, or if files cannot be
    /// written. The previous ones then stay in use.
    pub fn take_up(self, certificate: &str) -> Result<(), IdentityError> {
        let Self { identity, key, .. } = self;
        let inner = &identity.inner;
        let next = next_of(&inner.files);
        let mode = fs::metadata(&inner.files.key).map_or(0o600, |metadata| metadata.permissions().mode() & 0o777);
        write(&next.key, key.as_bytes(), mode)?;
        write(&next.cert, certificate.as_bytes(), 0o644)?;
        let new = Material::read(&next)?;
        let issuers = (identity.issuer_of(&new)?, identity.issuer_of(&identity.material())?);
        if new.caller != inner.caller || issuers.0 != issuers.1 {
            return Err(IdentityError::Strange { path: next.cert });
        }
        let mut looked = inner.looked.lock();
        rename(&next.cert, &inner.files.cert)?;
        rename(&next.key, &inner.files.key)?;
        inner.renew(&mut looked, inner.files.stamps())
    }
}

/// Completes an interrupted renewal: renames the new key to its final name.
pub(super) fn complete(files: &TlsFiles) -> Result<(), IdentityError> {
    let left = next(&files.key);
    if left.exists() && Material::read(&TlsFiles { key: left.clone(), ..files.clone() }).is_ok() {
        rename(&left, &files.key)?;
    }
    Ok(())
}

/// The `.next` files of the certificate and the key.
fn next_of(files: &TlsFiles) -> TlsFiles {
    TlsFiles { ca: files.ca.clone(), cert: next(&files.cert), key: next(&files.key) }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use lattice_pki::{Authority, Caller, Validity as Lasting};

    use super::*;

    struct World {
        directory: tempfile::TempDir,
        authority: Authority,
        identity: TlsIdentity,
    }

    #[test]
    fn a_file_has_the_dates_of_each_of_its_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let (pki, own) = (directory.path().join("pki"), directory.path().join("own"));
        let authority = Authority::create(&pki).unwrap();
        const DAY: Duration = Duration::from_secs(86_400);
        let lasting = Lasting { from: UNIX_EPOCH + DAY, until: UNIX_EPOCH + DAY * 3 };
        authority.write(&own, &authority.issue(&node(), &[], lasting).unwrap()).unwrap();
        let files = TlsFiles::in_directory(&own);
        assert_eq!(Validity::in_file(&files.cert).unwrap(), [Validity { from: lasting.from, until: lasting.until }]);
        let both = fs::read_to_string(&files.cert).unwrap() + &fs::read_to_string(&files.ca).unwrap();
        fs::write(own.join("both.pem"), both).unwrap();
        assert_eq!(Validity::in_file(&own.join("both.pem")).unwrap().len(), 2);
        let error = Validity::in_file(&files.key).unwrap_err().to_string();
        assert!(error.contains("key.pem"), "{error}");
        assert!(Validity::in_file(&own.join("none.pem")).is_err());
    }

    fn node() -> Caller {
        Caller::Agent("node3".to_owned())
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let authority = Authority::create(directory.path()).unwrap();
            let own = directory.path().join("own");
            authority.write(&own, &authority.issue(&node(), &[], Lasting::days(1).unwrap()).unwrap()).unwrap();
            let identity = TlsIdentity::from_files(TlsFiles::in_directory(&own)).unwrap();
            Self { directory, authority, identity }
        }

        fn own(&self) -> Vec<u8> {
            self.identity.material().key.cert[0].to_vec()
        }

        fn renew(&self, subject: &Caller, authority: &Authority) -> Result<(), IdentityError> {
            let renewal = self.identity.begin_renewal().unwrap();
            let lasting = Lasting::hours(24).unwrap();
            let issued = authority.renew(self.directory.path(), subject, &self.own(), renewal.request(), lasting);
            renewal.take_up(&issued.unwrap())
        }
    }

    #[test]
    fn a_new_certificate_and_its_key_take_the_place_of_those_before() {
        let world = World::new();
        let before = world.own();
        world.renew(&node(), &world.authority).unwrap();
        assert_ne!(world.own(), before);
        let files = TlsFiles::in_directory(&world.directory.path().join("own"));
        assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, 0o600);
        let again = TlsIdentity::from_files(files.clone()).unwrap();
        assert_eq!(again.material().key.cert[0].to_vec(), world.own());
        assert!(!next(&files.cert).exists() && !next(&files.key).exists());
    }

    #[test]
    fn a_certificate_for_somebody_else_or_of_another_authority_is_not_taken() {
        let world = World::new();
        let before = world.own();
        assert!(world.renew(&Caller::Agent("node4".to_owned()), &world.authority).is_err());
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Authority::create(elsewhere.path()).unwrap();
        assert!(world.renew(&node(), &other).is_err());
        // A certificate for another key.
        let theirs = world.authority.issue(&node(), &[], Lasting::days(1).unwrap()).unwrap();
        assert!(world.identity.begin_renewal().unwrap().take_up(&theirs.certificate).is_err());
        assert_eq!(world.own(), before);
    }

    #[test]
    fn who_ends_between_the_two_files_has_both_at_the_next_start() {
        let world = World::new();
        let files = TlsFiles::in_directory(&world.directory.path().join("own"));
        let key = fs::read(&files.key).unwrap();
        world.renew(&node(), &world.authority).unwrap();
        // The state before the second rename.
        fs::rename(&files.key, next(&files.key)).unwrap();
        fs::write(&files.key, key).unwrap();
        fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
        assert!(Material::read(&files).is_err());
        let again = TlsIdentity::from_files(files).unwrap();
        assert_eq!(again.material().key.cert[0].to_vec(), world.own());
    }

    #[test]
    fn a_certificate_is_renewed_in_the_middle_of_its_life_and_one_that_lasts_too_long_at_once() {
        const HOUR: Duration = Duration::from_secs(3600);
        let now = UNIX_EPOCH + 1_000_000 * HOUR;
        let check = |age: u32, left: u32, expected: u32| {
            let validity = Validity { from: now - age * HOUR, until: now + left * HOUR };
            assert_eq!(validity.until_renewal(24 * HOUR, now), expected * HOUR, "{age} {left}");
        };
        check(0, 24, 12);
        check(11, 13, 1);
        check(13, 11, 0);
        check(24, 0, 0);
        check(0, 90 * 24, 0);
    }
}
