//! Signatures of the API server: under a launch, for agents that got it from a relay and for fork servers that believe no agent; and under
//! the number of the last launch, for those fork servers.
//!
//! A relay forwards the launch's spec byte by byte with signature and signer; whoever gets it checks both against the cluster's
//! CA. Each sort of signed text begins with words of its own, so that a signature of TLS can never pass for one of a launch, nor the other
//! way around. It goes on with the launch's serial number: by that an agent sees that a launch is sent to it again, which it does
//! not remember or which was meant for the agent before it ([`Serial`]). No clock is relied on, but for the certificates' own
//! validity. Where nobody proves anything ([`Security::Insecure`]) signatures are empty, and everything passes.

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
/// Longest chain of certificates that is verified: an API server's certificate, and CAs in between.
const CHAIN_MAX: usize = 4;
/// Signature schemes, best first.
const SCHEMES: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
];

/// The number of a launch among those that an API server has signed, each of which is greater than those before it, also across
/// the server's restarts. All signatures of one launch have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(pub u64);

/// Signature, with the signer's certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// For `LaunchProcessesRequest.signature`.
    pub signature: Bytes,
    /// The signer's certificate and those between it and the CA, in DER; for `LaunchProcessesRequest.signer`.
    pub signer: Vec<Bytes>,
}

/// Question of a fork server, answered by a signature that nobody can have had before.
pub type Challenge = [u8; CHALLENGE_LEN];

/// CAs by which signatures are checked, and what they have revoked. They are public: a process that has them has no key.
#[derive(Clone, Debug)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    revocations: Revocations,
}

/// Where it is known which certificates are revoked.
#[derive(Clone, Debug)]
enum Revocations {
    Known(Arc<RevocationList>),
    /// In a file that another user writes, and which is read whenever a signature is good.
    Listed(Arc<SignedList>),
}

/// Failure to sign a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The key is of a kind that we do not sign with.
    #[error("our key cannot sign launches; it must be an ECDSA, Ed25519 or RSA key")]
    Key,
    /// Signing failed.
    #[error("cannot sign")]
    Sign(#[source] rustls::Error),
}

/// Reason for which a signature is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no signature, or no signer.
    #[error("the launch is not signed")]
    Unsigned,
    /// The chain of certificates is longer than any of ours.
    #[error("the launch comes with {count} certificates; {CHAIN_MAX} at most lead to a CA")]
    LongChain {
        /// Number of certificates.
        count: usize,
    },
    /// The signer's certificate is not valid, or not of our CA.
    #[error("the signer's certificate {}", fault(.0))]
    Chain(webpki::Error),
    /// The signer's certificate is on the list of revoked ones.
    #[error("the signer's certificate is revoked")]
    Revoked,
    /// The list of revoked certificates is there, and cannot be used.
    #[error("it cannot be known whether the signer's certificate is revoked")]
    Revocations(#[source] IdentityError),
    /// The signer's certificate does not say whose it is.
    #[error("nobody is known to have signed the launch")]
    Nameless(#[from] CertificateNameError),
    /// Only the API server signs launches.
    #[error("the launch is signed by {signer}; only the API server may")]
    NotApi {
        /// Caller that signed it.
        signer: Caller,
    },
    /// The signature is not that of this text.
    #[error("the launch is not what the API server signed")]
    Forged,
}

/// The fault of a certificate, in words for whoever has to mend it.
fn fault(error: &webpki::Error) -> String {
    use webpki::Error as E;
    match error {
        E::CertExpired { .. } => "has expired by the clock of this node; is that right?".to_owned(),
        E::CertNotValidYet { .. } => "is not valid yet by the clock of this node; is that right?".to_owned(),
        E::UnknownIssuer | E::InvalidSignatureForPublicKey => "is not from the CA that this node trusts in".to_owned(),
        other => format!("is not valid here: {other}"),
    }
}

/// Signs a spec as it is sent, for the launch of this number; empty where nobody proves anything.
///
/// # Errors
/// Fails if our key is of an unknown kind.
pub fn sign(security: &Security, serial: Serial, spec: &[u8]) -> Result<Signature, SignError> {
    sign_text(security, &launch_text(serial, spec))
}

/// Signs the number of the last launch that was signed, in answer to a challenge of this node's; empty where nobody proves anything.
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

/// Checks that the API server of our CA signed `spec` for the launch of this number; its certificate may be five minutes too
/// young or too old, and not be revoked. Everything passes where nobody proves anything. Whether the number is one that may still come is the
/// caller's business.
///
/// # Errors
/// Fails with the reason for which the signature is refused.
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
    /// Reads their certificates. What they have revoked is read from the list beside that file, each time that a signature is good. Whoever
    /// else writes that list cannot take anything back: what the CA has revoked once is remembered.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no certificate of a CA.
    pub fn read(ca: &Path) -> Result<Self, IdentityError> {
        let list = SignedList::beside(ca)?;
        Ok(Self { roots: Arc::new(read_roots(ca)?), revocations: Revocations::Listed(Arc::new(list)) })
    }

    /// Reads the certificates of the CAs that take the place of these, and remembers what these have revoked.
    ///
    /// # Errors
    /// As [`Authorities::read`]; these stay as they are then.
    pub fn read_again(&mut self, ca: &Path) -> Result<(), IdentityError> {
        let mut list = SignedList::beside(ca)?;
        if let Revocations::Listed(former) = &self.revocations {
            list = list.after(former);
        }
        *self = Self { roots: Arc::new(read_roots(ca)?), revocations: Revocations::Listed(Arc::new(list)) };
        Ok(())
    }

    /// As [`verify`], by these CAs.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self, serial: Serial, spec: &[u8], signature: &[u8], signer: &[Bytes]) -> Result<(), VerifyError> {
        self.verify_text(&launch_text(serial, spec), signature, signer)
    }

    /// Checks that the API server answered this node's challenge with this number.
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

/// Signed text about a launch. Its spec holds a key.
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

    /// Answer of an agent to a launch that `signer` signed while its certificate was valid.
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
        // Certificates of users are not for servers at all.
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

    /// By agents, which have an identity, and by fork servers, which have the CA's file alone.
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
        // Nothing of the list is read for what the API server did not sign.
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
        // What was signed as one thing is never another.
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
