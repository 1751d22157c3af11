//! Signatures of the API server. It signs launches, for agents that receive them from a relay and for fork servers that do not trust the
//! agent. It also signs the number of the last launch, for those fork servers.
//!
//! A relay forwards the encoded launch spec unchanged, with signature and signer. The receiver verifies both against the cluster's CA. Each
//! kind of signed text has its own prefix, so that a TLS signature is never valid for a launch, nor the reverse. The launch's serial number
//! follows ([`Serial`]). By it an agent detects a repeated launch, even without a record of it, and a launch for its predecessor. Only the
//! validity of certificates depends on clocks. Without certificates ([`Security::Insecure`]) signatures are empty, and every verification
//! succeeds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{RootCertStore, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};
use zeroize::Zeroizing;

use crate::identity::{Caller, IdentityError, Security};
use crate::tls::{CertificateNameError, RevocationList, SignedList, caller_in, read_roots};
use lattice_pki::CLOCK_SKEW;

/// Prefix of every signed text about a launch.
const LAUNCH: &[u8] = b"lattice.v1.LaunchSpec signature\0";
/// Prefix of every signed text about the number of the last launch.
const LAST_SERIAL: &[u8] = b"lattice.v1.SignedSerial signature\0";
/// Length of a challenge, in bytes.
pub const CHALLENGE_LEN: usize = 32;
/// Longest chain of certificates that is verified: that of an API server, and intermediate CAs.
const CHAIN_MAX: usize = 4;
/// Signature schemes, best first.
const SCHEMES: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
];

/// Serial number of a signed launch. An API server assigns increasing numbers, also across its restarts. All signatures of one launch have
/// the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(pub u64);

/// Signature, with the signer's certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// For `LaunchProcessesRequest.signature`.
    pub signature: Bytes,
    /// The signer's certificate and the intermediate ones up to the CA, in DER; for `LaunchProcessesRequest.signer`.
    pub signer: Vec<Bytes>,
}

/// Random value of a fork server. The signed response covers it, so that no older signature is valid.
pub type Challenge = [u8; CHALLENGE_LEN];

/// CAs for the verification of signatures, and their revoked certificates. All of it is public; a process needs no key for it.
#[derive(Clone, Debug)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    revocations: Revocations,
}

/// Source of the revoked certificates.
#[derive(Clone, Debug)]
enum Revocations {
    Known(Arc<RevocationList>),
    /// A file that another user writes. It is read after each successful verification of a signature.
    Listed(Arc<SignedList>),
}

/// Failure to sign a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The key is of an unsupported kind.
    #[error("our key cannot sign launches; it must be an ECDSA, Ed25519 or RSA key")]
    Key,
    /// Signing failed.
    #[error("cannot sign")]
    Sign(#[source] rustls::Error),
}

/// Reason for refusing a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no signature, or no signer.
    #[error("the launch is not signed")]
    Unsigned,
    /// The chain of certificates exceeds the limit.
    #[error("the launch comes with {count} certificates; {CHAIN_MAX} at most lead to a CA")]
    LongChain {
        /// Number of certificates.
        count: usize,
    },
    /// The signer's certificate is not valid, or not of our CA.
    #[error("the signer's certificate {}", fault(.0))]
    Chain(webpki::Error),
    /// The signer's certificate is revoked.
    #[error("the signer's certificate is revoked")]
    Revoked,
    /// The list of revoked certificates exists, and is not usable.
    #[error("it cannot be known whether the signer's certificate is revoked")]
    Revocations(#[source] IdentityError),
    /// The signer's certificate does not name its caller.
    #[error("the launch has no known signature")]
    Nameless(#[from] CertificateNameError),
    /// The signer is not the API server.
    #[error("the launch is signed by {signer}; only the API server may")]
    NotApi {
        /// The signer.
        signer: Caller,
    },
    /// The signature is not valid for this text.
    #[error("the launch is not what the API server signed")]
    Forged,
}

/// Describes the error of a certificate for the operator.
fn fault(error: &webpki::Error) -> String {
    use webpki::Error as E;
    match error {
        E::CertExpired { .. } => "has expired by the clock of this node; is that right?".to_owned(),
        E::CertNotValidYet { .. } => "is not valid yet by the clock of this node; is that right?".to_owned(),
        E::UnknownIssuer | E::InvalidSignatureForPublicKey => "is not from the CA that this node trusts in".to_owned(),
        other => format!("is not valid here: {other}"),
    }
}

/// Signs an encoded spec for the launch with this number; returns an empty signature without certificates.
///
/// # Errors
/// Fails if our key is of an unknown kind.
pub fn sign(security: &Security, serial: Serial, spec: &[u8]) -> Result<Signature, SignError> {
    sign_text(security, &launch_text(serial, spec))
}

/// Signs the number of the last signed launch, in response to a challenge of this node; returns an empty signature without certificates.
///
/// # Errors
/// Fails if our key is of an unknown kind.
pub fn sign_last_serial(
    security: &Security,
    node: &str,
    challenge: &Challenge,
    last: Serial,
) -> Result<Signature, SignError> {
    sign_text(security, &last_serial_text(node, challenge, last))
}

fn sign_text(security: &Security, text: &[u8]) -> Result<Signature, SignError> {
    let Security::Tls(identity) = security else { return Ok(Signature::default()) };
    let material = identity.material();
    let key = &material.key;
    let signer = key.key.choose_scheme(SCHEMES).ok_or(SignError::Key)?;
    let signature = signer.sign(text).map_err(SignError::Sign)?;
    let certificates = key.cert.iter().map(|certificate| Bytes::copy_from_slice(certificate));
    Ok(Signature { signature: signature.into(), signer: certificates.collect() })
}

/// Verifies that the API server of our CA signed `spec` for the launch with this number. Its certificate must not be revoked. Five minutes of
/// clock difference are tolerated. Without certificates every verification succeeds. The caller checks whether it may still accept the
/// number.
///
/// # Errors
/// Fails with the reason for refusing the signature.
pub fn verify(
    security: &Security,
    serial: Serial,
    spec: &[u8],
    signature: &[u8],
    signer: &[Bytes],
) -> Result<(), VerifyError> {
    let Security::Tls(identity) = security else { return Ok(()) };
    let material = identity.material();
    let (roots, revocations) = (Arc::clone(&material.roots), Revocations::Known(Arc::clone(&material.revocations)));
    Authorities { roots, revocations }.verify(serial, spec, signature, signer)
}

impl Authorities {
    /// Reads the CAs' certificates. Their list of revoked certificates is read from the file next to `ca`, after each valid signature. The
    /// other writers of that file cannot undo a revocation: all revocations of the CA are remembered.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no certificate of a CA.
    pub fn read(ca: &Path) -> Result<Self, IdentityError> {
        let list = SignedList::beside(ca)?;
        Ok(Self { roots: Arc::new(read_roots(ca)?), revocations: Revocations::Listed(Arc::new(list)) })
    }

    /// Reads the certificates of the CAs that replace these. The revocations of these CAs stay in effect.
    ///
    /// # Errors
    /// As [`Authorities::read`]; on failure nothing changes.
    pub fn read_again(&mut self, ca: &Path) -> Result<(), IdentityError> {
        let mut list = SignedList::beside(ca)?;
        if let Revocations::Listed(former) = &self.revocations {
            list = list.after(former);
        }
        *self = Self { roots: Arc::new(read_roots(ca)?), revocations: Revocations::Listed(Arc::new(list)) };
        Ok(())
    }

    /// As [`verify`], with these CAs.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self, serial: Serial, spec: &[u8], signature: &[u8], signer: &[Bytes]) -> Result<(), VerifyError> {
        self.verify_text(&launch_text(serial, spec), signature, signer)
    }

    /// Verifies that the API server answered this node's challenge with this number.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify_last_serial(
        &self,
        node: &str,
        challenge: &Challenge,
        last: Serial,
        Signature { signature, signer }: &Signature,
    ) -> Result<(), VerifyError> {
        self.verify_text(&last_serial_text(node, challenge, last), signature, signer)
    }

    fn verify_text(&self, text: &[u8], signature: &[u8], signer: &[Bytes]) -> Result<(), VerifyError> {
        let [own, between @ ..] = signer else { return Err(VerifyError::Unsigned) };
        if signature.is_empty() {
            return Err(VerifyError::Unsigned);
        }
        if signer.len() > CHAIN_MAX {
            return Err(VerifyError::LongChain { count: signer.len() });
        }
        let own = CertificateDer::from(own.as_ref());
        let between: Vec<_> = between.iter().map(|certificate| CertificateDer::from(certificate.as_ref())).collect();
        let certificate = EndEntityCert::try_from(&own).map_err(VerifyError::Chain)?;
        self.verify_chain(&certificate, &between)?;
        match caller_in(&own)? {
            Caller::Api => {}
            signer => return Err(VerifyError::NotApi { signer }),
        }
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        let is_signed =
            algorithms.iter().any(|algorithm| certificate.verify_signature(*algorithm, text, signature).is_ok());
        if !is_signed {
            return Err(VerifyError::Forged);
        }
        if self.revokes(&own)? { Err(VerifyError::Revoked) } else { Ok(()) }
    }

    fn revokes(&self, certificate: &CertificateDer<'_>) -> Result<bool, VerifyError> {
        match &self.revocations {
            Revocations::Known(list) => Ok(list.revokes(certificate)),
            Revocations::Listed(list) => list.revokes(certificate).map_err(VerifyError::Revocations),
        }
    }

    fn verify_chain(&self, certificate: &EndEntityCert<'_>, between: &[CertificateDer<'_>]) -> Result<(), VerifyError> {
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        let verify_at = |time| {
            let (roots, usage) = (&self.roots.roots, KeyUsage::server_auth());
            let path = certificate.verify_for_usage(algorithms, roots, between, time, usage, None, None);
            path.map(|_| ())
        };
        let now = UnixTime::now();
        let early = Duration::from_secs(now.as_secs()).saturating_sub(CLOCK_SKEW);
        let late = Duration::from_secs(now.as_secs()).saturating_add(CLOCK_SKEW);
        verify_at(now)
            .or_else(|_| verify_at(UnixTime::since_unix_epoch(early)))
            .or_else(|_| verify_at(UnixTime::since_unix_epoch(late)))
            .map_err(VerifyError::Chain)
    }
}

/// Signed text about a launch. It is wiped, because the spec contains a key.
fn launch_text(serial: Serial, spec: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([LAUNCH, &serial.0.to_be_bytes(), spec].concat())
}

/// Signed text about the number of the last launch.
fn last_serial_text(node: &str, challenge: &Challenge, last: Serial) -> Vec<u8> {
    [LAST_SERIAL, challenge, &last.0.to_be_bytes(), node.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;
    use crate::identity::TlsFiles;
    use lattice_pki::{Authority, REVOKED_FILE, Validity, directory_name};

    const SERIAL: Serial = Serial(7);

    fn identity(root: &Path, authority: &Authority, caller: &Caller, validity: Validity) -> Security {
        let directory = root.join(directory_name(caller));
        authority.write(&directory, &authority.issue(caller, &[], validity).unwrap()).unwrap();
        Security::from_files(&TlsFiles::in_directory(&directory)).unwrap()
    }

    /// Outcome of an agent's verification of a launch that `signer` signed with a certificate of this validity.
    fn judge(signer: &Caller, validity: Validity) -> Result<(), VerifyError> {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let signing = identity(directory.path(), &authority, signer, validity);
        let node = Caller::Agent("node3".to_owned());
        let checking = identity(directory.path(), &authority, &node, Validity::days(1).unwrap());
        let signed = sign(&signing, SERIAL, b"spec").unwrap();
        verify(&checking, SERIAL, b"spec", &signed.signature, &signed.signer)
    }

    fn between(from: Duration, until: Duration) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - from, until: now - until }
    }

    #[test]
    fn only_the_api_server_signs_launches() {
        let day = Validity::days(1).unwrap();
        judge(&Caller::Api, day).unwrap();
        let error = judge(&Caller::Agent("node4".to_owned()), day).unwrap_err().to_string();
        assert_eq!(error, "the launch is signed by the agent of node4; only the API server may");
        // Certificates of users are not valid for servers at all.
        assert!(matches!(judge(&Caller::User(0), day), Err(VerifyError::Chain(_))));
    }

    #[test]
    fn clocks_may_differ_a_little() {
        let minute = Duration::from_secs(60);
        judge(&Caller::Api, between(60 * minute, minute)).unwrap();
        let expired = judge(&Caller::Api, between(60 * minute, 6 * minute)).unwrap_err();
        assert!(matches!(expired, VerifyError::Chain(_)), "{expired}");
        let now = SystemTime::now();
        judge(&Caller::Api, Validity { from: now + minute, until: now + 60 * minute }).unwrap();
        let early = judge(&Caller::Api, Validity { from: now + 6 * minute, until: now + 60 * minute }).unwrap_err();
        assert!(matches!(early, VerifyError::Chain(_)), "{early}");
    }

    /// Both for agents, which have an identity, and for fork servers, which have only the CA's file.
    #[test]
    fn a_revoked_key_signs_nothing_more() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let authority = Authority::create(root).unwrap();
        let day = || Validity::days(1).unwrap();
        let api = identity(root, &authority, &Caller::Api, day());
        let agent = identity(root, &authority, &Caller::Agent("n".to_owned()), day());
        let authorities = Authorities::read(&root.join("ca.pem")).unwrap();
        let Signature { signature, signer } = sign(&api, SERIAL, b"spec").unwrap();
        verify(&agent, SERIAL, b"spec", &signature, &signer).unwrap();
        authorities.verify(SERIAL, b"spec", &signature, &signer).unwrap();

        authority.revoke(root, &[root.join(directory_name(&Caller::Api)).join("cert.pem")]).unwrap();
        let list = std::fs::read(root.join(REVOKED_FILE)).unwrap();
        agent.take_revocations(list.into()).unwrap();
        let refused = verify(&agent, SERIAL, b"spec", &signature, &signer);
        assert!(matches!(refused, Err(VerifyError::Revoked)), "{refused:?}");
        let refused = authorities.verify(SERIAL, b"spec", &signature, &signer);
        assert!(matches!(refused, Err(VerifyError::Revoked)), "{refused:?}");

        std::fs::write(root.join(REVOKED_FILE), "nonsense").unwrap();
        let refused = authorities.verify(SERIAL, b"spec", &signature, &signer);
        assert!(matches!(refused, Err(VerifyError::Revocations(_))), "{refused:?}");
        // The list is not read if the API server did not sign the text.
        let refused = authorities.verify(SERIAL, b"sper", &signature, &signer);
        assert!(matches!(refused, Err(VerifyError::Forged)), "{refused:?}");

        std::fs::remove_file(root.join(REVOKED_FILE)).unwrap();
        let mut again = authorities.clone();
        again.read_again(&root.join("ca.pem")).unwrap();
        for authorities in [authorities, again] {
            let refused = authorities.verify(SERIAL, b"spec", &signature, &signer);
            assert!(matches!(refused, Err(VerifyError::Revoked)), "{refused:?}");
        }
    }

    #[test]
    fn what_was_changed_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let api = identity(directory.path(), &authority, &Caller::Api, Validity::days(1).unwrap());
        let Signature { signature, signer } = sign(&api, SERIAL, b"spec").unwrap();
        assert!(matches!(verify(&api, SERIAL, b"sper", &signature, &signer), Err(VerifyError::Forged)));
        assert!(matches!(verify(&api, Serial(8), b"spec", &signature, &signer), Err(VerifyError::Forged)));
        assert!(matches!(verify(&api, SERIAL, b"spec", &signature[1..], &signer), Err(VerifyError::Forged)));
        assert!(matches!(verify(&api, SERIAL, b"spec", b"", &signer), Err(VerifyError::Unsigned)));
        assert!(matches!(verify(&api, SERIAL, b"spec", &signature, &[]), Err(VerifyError::Unsigned)));
        assert!(matches!(
            verify(&api, SERIAL, b"spec", &signature, &[Bytes::from_static(b"0")]),
            Err(VerifyError::Chain(_))
        ));
        let long = vec![signer[0].clone(); 5];
        assert!(matches!(verify(&api, SERIAL, b"spec", &signature, &long), Err(VerifyError::LongChain { count: 5 })));

        let elsewhere = tempfile::tempdir().unwrap();
        let other = Authority::create(elsewhere.path()).unwrap();
        let stranger = identity(elsewhere.path(), &other, &Caller::Api, Validity::days(1).unwrap());
        assert!(matches!(verify(&stranger, SERIAL, b"spec", &signature, &signer), Err(VerifyError::Chain(_))));
    }

    #[test]
    fn an_answer_to_a_challenge_counts_for_that_challenge_node_and_number_alone() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let day = || Validity::days(1).unwrap();
        let api = identity(directory.path(), &authority, &Caller::Api, day());
        let agent = identity(directory.path(), &authority, &Caller::Agent("n".to_owned()), day());
        let authorities = Authorities::read(&directory.path().join("ca.pem")).unwrap();
        let (this, other) = ([1; CHALLENGE_LEN], [2; CHALLENGE_LEN]);
        let signed = sign_last_serial(&api, "n", &this, SERIAL).unwrap();
        let check = |node: &str, challenge, serial, signed: &Signature| {
            authorities.verify_last_serial(node, &challenge, serial, signed)
        };
        check("n", this, SERIAL, &signed).unwrap();
        assert!(matches!(check("n", other, SERIAL, &signed), Err(VerifyError::Forged)));
        assert!(matches!(check("m", this, SERIAL, &signed), Err(VerifyError::Forged)));
        assert!(matches!(check("n", this, Serial(8), &signed), Err(VerifyError::Forged)));
        let of_agent = sign_last_serial(&agent, "n", &this, SERIAL).unwrap();
        assert!(matches!(check("n", this, SERIAL, &of_agent), Err(VerifyError::NotApi { .. })));
        // A signature of one kind is not valid for another kind.
        let as_spec = last_serial_text("n", &this, SERIAL);
        let launch = sign(&api, SERIAL, &as_spec).unwrap();
        assert!(matches!(check("n", this, SERIAL, &launch), Err(VerifyError::Forged)));
        authorities.verify(SERIAL, &as_spec, &launch.signature, &launch.signer).unwrap();
    }

    #[test]
    fn nothing_is_signed_where_nobody_proves_anything() {
        let security = Security::Insecure { name: Caller::Api };
        let signed = sign(&security, SERIAL, b"spec").unwrap();
        assert_eq!(signed, Signature::default());
        verify(&security, SERIAL, b"spec", &signed.signature, &signed.signer).unwrap();
    }
}
